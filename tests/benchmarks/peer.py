"""Run Quill and nanoGPT as processes and time them from outside; shared by the benchmarks."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU_COMMAND = shlex.split(  # nanoGPT's README, "I only have a macbook"
    "--device=cpu --compile=False --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 "
    "--n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"
)


@dataclass
class Outcome:
    """What a training process printed, how long it took, and its validation losses."""

    output: str = ""
    wall: float = 0.0  # seconds of the whole process
    curve: list[tuple[float, float]] = field(default_factory=list)  # (seconds, loss), as printed
    looked: object = None  # what `look` returned


def quill(
    *flags: object, until: float = 0.0, look: Callable[[Path], object] | None = None
) -> Outcome:
    """`python train.py` with these flags and an empty compile cache, until a validation loss.

    `look` is called with the run's directory afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "train.py", *map(str, flags), "--out_dir", f"{folder}/run"]
        outcome = _run(command, ROOT, r"validation loss ([\d.]+)", f"{folder}/cache", until)
        outcome.looked = look(Path(folder, "run")) if look else None
        return outcome


def nanogpt(clone: Path, text: Path, *flags: object, look: Callable[[Path], object]) -> Outcome:
    """nanoGPT's train.py on `text`, with config/train_shakespeare_char.py and these flags.

    `look` is called with its folder after the run. The preparation of the text is not timed.
    """
    with tempfile.TemporaryDirectory() as folder:
        ignore = shutil.ignore_patterns(".git", "*.bin")
        work = Path(shutil.copytree(clone, f"{folder}/nanogpt", ignore=ignore))
        data = work / "data/shakespeare_char"
        shutil.copy(text, data / "input.txt")
        subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
        command = [sys.executable, "train.py", "config/train_shakespeare_char.py", *map(str, flags)]
        outcome = _run(command, work, r"val loss ([\d.]+)", f"{folder}/cache")
        outcome.looked = look(work)
        return outcome


def _run(
    command: list[str], folder: Path, loss_pattern: str, cache: str, until: float = 0.0
) -> Outcome:
    """Run the command; each printed line that matches becomes a point of the curve."""
    outcome = Outcome()
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"}
    start_time = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for line in process.stdout:
        outcome.output += line
        if match := re.search(loss_pattern, line):
            outcome.curve.append((time.perf_counter() - start_time, float(match[1])))
            if float(match[1]) <= until:
                process.terminate()
    if process.wait() not in (0, 128 + signal.SIGTERM if until else 0):
        sys.exit(outcome.output[-2000:])
    outcome.wall = time.perf_counter() - start_time
    return outcome
