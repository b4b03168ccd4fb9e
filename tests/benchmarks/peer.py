"""What the benchmarks share: Quill and nanoGPT as whole processes, timed from outside, one at a time.

Run them with nothing else running: `python -m tests.benchmarks.minute --nanogpt DIR`. DIR is a clone of
karpathy/nanoGPT (its prepare.py wants `pip install requests`); without it, Quill's half runs alone.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
CPU_COMMAND = shlex.split(  # nanoGPT's README, "I only have a macbook"
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


@dataclass
class Outcome:
    """What one process said, its seconds and validation losses in the order they were printed, and its summary."""

    said: str = ""
    wall: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    summary: dict = field(default_factory=dict)

    @property
    def best(self) -> float:
        return min(loss for _, loss in self.curve)

    def seconds_to(self, loss: float) -> float:
        """From the start of the process to the first validation loss that low; infinity if there is none."""
        return next((seconds for seconds, reached in self.curve if reached <= loss), float("inf"))


def arguments(**defaults: object) -> argparse.Namespace:
    """--nanogpt, --seeds, and what a benchmark adds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nanogpt", type=Path, help="a clone of karpathy/nanoGPT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    for name, value in defaults.items():
        parser.add_argument(
            f"--{name}", default=value, nargs="*" if isinstance(value, list) else None
        )
    return parser.parse_args()


def quill(*flags: object) -> Outcome:
    """`python train.py` with these flags, its compile cache empty."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", *map(str, flags), "--out_dir", f"{folder}/run"]
        outcome = _timed(command, ROOT, r"validation loss ([\d.]+)", f"{folder}/cache")
        outcome.summary = json.loads(Path(folder, "run/summary.json").read_text())
        return outcome


def nanogpt(clone: Path, text: Path, *flags: object) -> Outcome:
    """nanoGPT's train.py with config/train_shakespeare_char.py and these flags, on `text`; preparing is not timed."""
    with tempfile.TemporaryDirectory() as folder:
        work = shutil.copytree(
            clone, f"{folder}/nanogpt", ignore=shutil.ignore_patterns(".git", "*.bin")
        )
        data = Path(work, "data/shakespeare_char")
        shutil.copy(text, data / "input.txt")
        subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *map(str, flags)]
        return _timed(command, Path(work), r"val loss ([\d.]+)", f"{folder}/cache")


def _timed(command: list[str], folder: Path, pattern: str, cache: str) -> Outcome:
    """Run it; every printed line that matches gives the curve a point."""
    outcome = Outcome()
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        outcome.said += line
        if found := re.search(pattern, line):
            outcome.curve.append((time.perf_counter() - began, float(found[1])))
    if process.wait():
        sys.exit(outcome.said[-2000:])
    outcome.wall = time.perf_counter() - began
    return outcome


def machine() -> str:
    """One line for the head of a table."""
    name = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    )
    return f"{name}, torch {torch.__version__}, load {os.getloadavg()[0]:.2f}"
