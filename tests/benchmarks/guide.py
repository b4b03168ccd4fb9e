"""The examples of docs/guide.md: python -m tests.benchmarks.guide SPANISH.txt

Runs them, prints losses and sampled texts, and draws docs/overfitting.svg and
docs/learning_rate.svg. SPANISH.txt: see docs/experiments.md, "Which settings for which text and
time?". Nothing here is timed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.chart import draw_svg, read_losses
from tests.benchmarks.peer import ROOT

# With the computation of the recipe's 791 steps, each of which costs 4/3 with the average.
UNREGULARIZED = ("--ema_decay=0", "--max_iters=1054", "--learning_rate=7e-3", "--dropout=0")
UNREGULARIZED += ("--train_temperature=1", "--weight_decay=0.5")
RATES = (1e-5, 1e-4, 7e-3, 0.1, 1.0)
STEPS = (1, 30, 100, 300, 1100)


def train(run: Path, *flags: str) -> dict:
    """Train in `run`, with an evaluation at least every 100 steps; returns its summary."""
    command = [sys.executable, "train.py", "--eval_interval=100", f"--out_dir={run}", *flags]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        print(process.stderr.splitlines()[-1])
        return {}
    return json.loads((run / "summary.json").read_text())


def sample(run: Path, *flags: str) -> str:
    """200 characters from `run`, on one line."""
    command = [sys.executable, "sample.py", str(run), "--max_new_tokens=200", *flags]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return " / ".join(process.stdout.split("\n"))


def smooth(points: list[tuple[int, float]], count: int = 5) -> list[tuple[int, float]]:
    """The mean of each point and the ones before it, `count` in all."""
    windows = [points[max(0, i - count + 1) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(y for _, y in window) / len(window)) for window in windows]


def main() -> None:
    text = f"--data={Path(sys.argv[1]).absolute()}"
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        curves = {}
        for name, flags in {"unregularized": UNREGULARIZED, "the recipe": ()}.items():
            summary = train(runs / name, text, *flags)
            print(f"{name}: best {summary['best_val_loss']:.3f}, last {summary['val_loss']:.3f}")
            curves[f"{name}: validation"] = read_losses(runs / name / "val")
            curves[f"{name}: training"] = smooth(read_losses(runs / name / "train"))
        draw_svg(ROOT / "docs/overfitting.svg", "training step", "100,000 characters", curves)

        curves = {}
        for rate in RATES:
            run = runs / f"{rate:g}"
            summary = train(run, f"--learning_rate={rate:g}")
            if summary:
                print(f"learning rate {rate:g}: {summary['val_loss']:.3f}")
                curves[f"learning rate {rate:g}"] = read_losses(run / "val")
        draw_svg(
            ROOT / "docs/learning_rate.svg", "training step", "Validation, Tiny Shakespeare", curves
        )

        for steps in STEPS:
            run = runs / f"{steps} steps"
            summary = train(run, f"--max_iters={steps}")
            print(f"{steps} steps, loss {summary['val_loss']:.3f}: {sample(run)}")
        for temperature in (0, 0.3, 0.8, 1.0, 1.5):
            print(f"temperature {temperature}: {sample(run, f'--temperature={temperature}')}")


if __name__ == "__main__":
    main()
