"""The default preset on other texts, no longer than nanoGPT's CPU command takes on each: --texts FILE ..."""

from pathlib import Path

from configs.schema import read_toml
from tests.benchmarks.peer import CPU_COMMAND, ROOT, arguments, machine, nanogpt, quill


def main() -> None:
    given = arguments(texts=[])
    print(machine())
    print(
        f"{'text':>20} {'steps':>6} {'wall':>6} {'best':>7} | {'nanoGPT wall':>12} {'loss':>7} | lower by"
    )
    for text in map(Path, given.texts):
        steps, wall = read_toml(ROOT / "configs/cpu.toml")["max_iters"], float("inf")
        if given.nanogpt:
            theirs = nanogpt(given.nanogpt, text, *CPU_COMMAND)
            wall = theirs.wall
        ours = quill("--data", text.absolute())
        while ours.wall > wall:
            steps = int(steps * min(0.97, (wall - 8) / (ours.wall - 8)))
            ours = quill("--data", text.absolute(), "--max_iters", steps)
        line = (
            f"{text.name:>20} {steps:>6} {ours.wall:>5.0f}s {ours.summary['best_val_loss']:>7.4f} |"
        )
        if given.nanogpt:
            line += f" {wall:>11.0f}s {theirs.best:>7.4f} | {theirs.best - ours.summary['best_val_loss']:.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
