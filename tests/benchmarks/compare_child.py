"""A training that compare.py has started, with the modules of PYTHONPATH.

`compare_child.py 0 FLAGS` trains. `compare_child.py SECONDS FLAGS` makes training steps for so long
each time that it reads a line, then prints steps a second, until its standard input ends. The first
time lasts until the network learns from its average, which makes a step slower. Both copy their
source files into the run's directory, which the last flag names.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

import train
from model.optim import AVERAGE_FROM


def pace(round_seconds: float) -> None:
    """Let train.py wait for a line before each round, in the first of its optimizers."""
    rounds, first = make_rounds(round_seconds), None

    def after_step(optimizer: Optimizer, *_: object) -> None:
        nonlocal first
        first = first or optimizer
        if optimizer is first:
            next(rounds)

    register_optimizer_step_post_hook(after_step)


def make_rounds(seconds: float) -> Iterator[None]:
    """Each `next` is the end of a training step."""
    steps = 0
    while sys.stdin.readline():
        start_time, start_step = time.perf_counter(), steps
        while time.perf_counter() - start_time < seconds or steps < AVERAGE_FROM:
            yield
            steps += 1
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        speed = (steps - start_step) / (time.perf_counter() - start_time)
        print(f"steps a second: {speed}", file=sys.stderr, flush=True)
    sys.exit()


def copy_source(run_dir: Path) -> None:
    """Copy the modules that this process has imported from the repository."""
    root = Path(train.__file__).parent
    files = [getattr(module, "__file__", None) for module in sys.modules.values()]
    for path in map(Path, filter(None, files)):
        if path.is_relative_to(root):
            copy = run_dir / "source" / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


if __name__ == "__main__":
    round_seconds, flags = float(sys.argv[1]), sys.argv[2:]
    if round_seconds:
        pace(round_seconds)
    status = train.main(flags)
    if status == 0:
        copy_source(Path(flags[-1]))
    sys.exit(status)
