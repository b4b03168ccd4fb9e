"""A training that compare.py has started, with the modules of PYTHONPATH.

`compare_child.py train FLAGS` trains.
`compare_child.py pace=SECONDS FLAGS` makes steps for so long each time that it reads a line, and
prints steps a second. It does not evaluate. Both copy their source files into the run's directory.
A network that looks ahead is refused.
"""

import shutil
import sys
import time
from pathlib import Path

import torch

import train
from configs import report
from configs.flags import UserError
from model.generate import looks_ahead


def copy_source(run_dir: Path) -> None:
    """Copy the modules that this process has imported from the repository."""
    root = Path(train.__file__).parent
    files = [getattr(module, "__file__", None) for module in sys.modules.values()]
    for path in map(Path, filter(None, files)):
        if path.is_relative_to(root):
            copy = run_dir / "source" / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def refuse_to_look_ahead(model: torch.nn.Module) -> bool:
    """Instead of the warning: the loss of such a network would be the best of all."""
    if looks_ahead(model):
        raise UserError(
            "the network looks ahead: its logits depend on later characters, so its loss means "
            "nothing."
        )
    return False


def pace(round_seconds: float, run_dir: Path) -> None:
    """Let train.py wait for a line before each round. The run never ends."""
    first_step, start_time = None, 0.0

    def progress(state: train.Checkpoint, *_: object) -> float:
        nonlocal first_step, start_time
        if first_step is not None and time.perf_counter() - start_time < round_seconds:
            return 0.0
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        if first_step is not None and state.step > first_step:
            speed = (state.step - first_step) / (time.perf_counter() - start_time)
            print(f"steps a second: {speed}", flush=True)
        if first_step is None:
            copy_source(run_dir)
        if first_step is None or state.step > first_step:
            sys.stdin.readline()
            first_step, start_time = state.step, time.perf_counter()
        return 0.0

    train.run_progress = progress
    # A teacher of its own would have to be trained first.
    train.train_teacher = lambda *arguments: arguments[-1]
    load_teacher = train.load_teacher
    train.load_teacher = lambda config, *rest: (
        (None, "") if config.run.teacher == "own" else load_teacher(config, *rest)
    )


if __name__ == "__main__":
    mode, flags = sys.argv[1], sys.argv[2:]
    run_dir = Path(flags[-1])
    report.looks_ahead = refuse_to_look_ahead
    if mode != "train":
        pace(float(mode.removeprefix("pace=")), run_dir)
    status = train.main(flags)
    if status == 0:
        copy_source(run_dir)
    sys.exit(status)
