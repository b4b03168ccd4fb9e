"""--minutes against random settings at equal time: python -m tests.benchmarks.recipe run FILE.jsonl

Each run is `python train.py --minutes M` on a text, with nothing else said ("dial"), with random
settings, or with those of a fixed recipe. On a short text the dial ends early, at the max_iters of
the recipe; the others use all the time. The loss is that of the text's last tenth. `run` makes the
runs that FILE does not have yet; `table FILE.jsonl` prints them. --texts FILE ...: the texts;
--minutes M ...: the times; --settings NAME ...: dial, default, long, or how many random ones.

A run other than the dial is stopped early once it cannot win: after two fifths of its time, if its
loss is 0.15 above the dial's at that part of the dial's run, or 0.15 above its own best
(overfitting); after one fifth, if it is 0.3 above, or if the loss would have to fall by more than
0.02 + 0.5 times the part that is left to reach the dial's best.
"""

import argparse
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from tests.benchmarks.peer import ROOT, machine, to_flag

SIZES = {  # blocks, heads, channels; for 1, 5 and 15 minutes
    1: ((2, 2, 96), (2, 2, 128), (3, 2, 144), (4, 2, 160)),
    5: ((2, 2, 128), (3, 2, 144), (4, 2, 160), (4, 3, 192)),
    15: ((3, 2, 144), (4, 2, 160), (4, 3, 192), (6, 4, 256)),
}
FIXED = {  # like `python train.py` and the preset for 15 minutes before the recipe
    "default": {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 128,
        "batch_size": 8,
        "learning_rate": 7e-3,
        "dropout": 0.0,
        "weight_decay": 0.5,
        "train_temperature": 1.0,
        "compile": "auto",
        "ema_decay": 0.0,
    },
    "long": {
        "n_layer": 4,
        "n_head": 2,
        "n_embd": 160,
        "batch_size": 16,
        "learning_rate": 1.5e-2,
        "dropout": 0.1,
        "weight_decay": 0.5,
        "train_temperature": 0.9,
        "compile": "on",
        "ema_decay": 0.99,
    },
}
MAX_ITERS = 10**9  # so that the time ends the run
EVAL_INTERVAL = 100  # of a run of one minute, which is about ten evaluations
MARGIN = 0.15


def random_settings(text: str, minutes: float, number: int) -> dict[str, object]:
    """Settings that somebody may try who knows what each of them is for."""
    rng = random.Random(f"{text} {minutes} {number}")
    n_layer, n_head, n_embd = rng.choice(SIZES[min(SIZES, key=lambda m: abs(m - minutes))])
    return {
        "n_layer": n_layer,
        "n_head": n_head,
        "n_embd": n_embd,
        "batch_size": rng.choice((8, 16, 32)),
        "learning_rate": round(math.exp(rng.uniform(math.log(5e-4), math.log(2e-2))), 5),
        "dropout": rng.choice((0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
        "weight_decay": rng.choice((0.1, 0.3, 1.0, 3.0)),
        "train_temperature": rng.choice((1.0, 0.9, 0.8, 0.7)),
        "ema_decay": rng.choice((0.99, 0.0)),
    }


def train(text: Path, minutes: float, settings: dict[str, object], seed: int, dial: list) -> dict:
    """Run train.py. Returns settings, losses, the curve as (part of the run, loss), seconds.

    `dial` is the curve of the dial's run.
    """
    flags = {}
    if settings:
        eval_interval = max(1, round(EVAL_INTERVAL * minutes))
        flags = settings | {"max_iters": MAX_ITERS, "eval_interval": eval_interval}
    flags |= {"data": text, "minutes": minutes, "seed": seed}
    curve, output, stopped = [], "", False
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "train.py", f"--out_dir={run}"]
        command += [to_flag(key, value) for key, value in flags.items()]
        start_time = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in process.stdout:
            output += line
            if not (match := re.search(r"step +\d+  validation loss ([\d.]+)", line)):
                continue
            part = (time.perf_counter() - start_time) / (60 * minutes)
            loss = float(match[1])
            curve.append((round(part, 3), loss))
            own = [value for _, value in curve]
            theirs = [other for at, other in dial if at <= part + 0.02]
            excess = loss - min([*own, *theirs[-1:]])
            best = min((other for _, other in dial), default=math.inf)
            hopeless = excess > (MARGIN if part > 0.4 else 2 * MARGIN)
            hopeless |= loss - best > 0.02 + 0.5 * (1 - part)
            if dial and 0.2 < part < 0.98 and hopeless:
                process.kill()
                stopped = True
                break
        process.wait()
        if process.returncode and not stopped:
            return {"settings": settings, "error": output[-300:]}
        result = {"settings": settings, "config": read_config(run), "stopped": stopped}
        if stopped:
            return result | {"curve": curve, "best_val_loss": min(own)}
        if not settings:  # it may end early
            curve = [(round(part / curve[-1][0], 3), loss) for part, loss in curve]
        summary = json.loads((run / "summary.json").read_text())
        losses = {key: summary[key] for key in ("val_loss", "best_val_loss", "seconds", "iters")}
        return result | {"curve": curve} | losses


def read_config(run: Path) -> dict[str, object]:
    """What was chosen."""
    keys = ("n_layer", "n_head", "n_embd", "batch_size", "max_iters", "ema_decay", "dropout")
    keys += ("weight_decay", "learning_rate", "train_temperature", "compile", "eval_interval")
    values = tomllib.loads((run / "config.toml").read_text())
    return {key: values[key] for key in keys}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=Path, nargs="*", default=[])
    parser.add_argument("--minutes", type=float, nargs="*", default=[1.0])
    parser.add_argument("--settings", nargs="*", default=["dial", "default", "long", "12"])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.file.open()] if args.file.exists() else []
    rows = [row for row in rows if "error" not in row]
    if args.action != "run":
        rows = [row for row in rows if row["seed"] == args.seed]
    if args.action == "table":
        print_table(rows)
        return
    print(machine())
    names = [name for name in args.settings if not name.isdecimal()]
    counts = [int(name) for name in args.settings if name.isdecimal()]
    names += [str(number) for number in range(1, max(counts, default=0) + 1)]
    for minutes in args.minutes:
        for name in names:
            for text in args.texts:
                key = {"text": text.stem, "minutes": minutes, "name": name, "seed": args.seed}
                if any(key.items() <= row.items() for row in rows):
                    continue
                if name == "dial":
                    settings = {}
                else:
                    settings = FIXED.get(name) or random_settings(text.stem, minutes, int(name))
                dial_key = key | {"name": "dial"}
                dials = [row["curve"] for row in rows if dial_key.items() <= row.items()]
                dial = dials[0] if dials else []
                row = key | train(text.absolute(), minutes, settings, args.seed, dial)
                rows.append(row)
                with args.file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                losses = [row.get(k) for k in ("best_val_loss", "val_loss", "seconds", "stopped")]
                print(*key.values(), *losses, settings, flush=True)


def print_table(rows: list[dict]) -> None:
    """A line for each text and time: the dial, the best of the random settings, the rest."""
    print("| text | minutes | dial, last | best of random | settings | distance | default | long |")
    for text, minutes in sorted({(row["text"], row["minutes"]) for row in rows}):
        same = [row for row in rows if (row["text"], row["minutes"]) == (text, minutes)]
        by_name = {row["name"]: row for row in same if "best_val_loss" in row}
        dial = by_name.get("dial", {"best_val_loss": math.nan})
        tried = [row for name, row in by_name.items() if name.isdecimal()]
        best = min(tried, key=lambda row: row["best_val_loss"], default={})
        distance = dial["best_val_loss"] - best.get("best_val_loss", math.nan)
        fixed = [by_name.get(name, {}).get("best_val_loss", math.nan) for name in FIXED]
        print(
            f"| {text} | {minutes:g} "
            f"| {dial['best_val_loss']:.4f}, {dial.get('val_loss', 0):.4f} | "
            f"{best.get('best_val_loss', math.nan):.4f} of {len(tried)} | {best.get('settings')} | "
            f"{distance:+.4f} | {fixed[0]:.4f} | {fixed[1]:.4f} |"
        )


if __name__ == "__main__":
    main()
