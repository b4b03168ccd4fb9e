"""Where a training run writes: TensorBoard's event files, the progress bar, summary.json.

What is written for a person is in model/run/report.py.
"""

import json
import threading
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from configs.settings import TrainConfig
from model.run.checkpoint import RunState
from model.system.files import atomic_write


class Logger:
    """Writes the curves, pictures and summary of a run; shows the progress bar.

    Only the main process has one. A tag of the splits "train" and "val" is one chart with two
    curves; TensorBoard groups tags by what stands before their first slash. Close it at the end.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, state: RunState) -> None:
        """The run begins, or goes on, at `state.step`."""
        self.run_dir = run_dir
        self.excepthook, threading.excepthook = threading.excepthook, _ignore_disk_errors
        for leftover in run_dir.glob(f"*.{'[0-9a-f]' * 32}.tmp"):
            leftover.unlink()  # of a killed process, see atomic_write
        # What a killed run logged after its last checkpoint is dropped: from these steps on.
        first_steps = {"train": state.step, "val": state.step + (state.val_step == state.step)}
        self.writers = {
            split: SummaryWriter(str(run_dir / split), purge_step=first)
            for split, first in first_steps.items()
        }
        bar = {"total": config.max_iters, "initial": state.step, "unit": "step"}
        self.bar = tqdm(**bar, dynamic_ncols=True, disable=None)  # None: only on a terminal

    def show_progress(self, step: int, progress: float) -> None:
        """Move the bar. The total is the number of steps that are expected."""
        if progress > 0:
            self.bar.total = max(step, round(step / progress))
        self.bar.update(step - self.bar.n)

    def show_loss(self, loss: float) -> None:
        """Write the training loss beside the bar, which shows it when it moves."""
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)

    def add_scalars(self, split: str, step: int, values: dict[str, float]) -> None:
        """A point of the curve of each tag."""
        for tag, value in values.items():
            self.writers[split].add_scalar(tag, value, step)

    def add_text(self, tag: str, step: int, text: str) -> None:
        """A text, shown as it is: indented, it is code in Markdown."""
        self.writers["val"].add_text(tag, indent(text, "    ", lambda line: True), step)

    def add_image(self, tag: str, step: int, image_HWC: np.ndarray) -> None:
        """An RGB image."""
        self.writers["val"].add_image(tag, image_HWC, step, dataformats="HWC")

    def flush(self) -> None:
        """Write all that was logged."""
        for writer in self.writers.values():
            writer.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self.bar.close()
        with atomic_write(self.run_dir / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")

    def close(self) -> None:
        """Close the progress bar and write all that was logged."""
        self.bar.close()
        for writer in self.writers.values():
            writer.close()
        threading.excepthook = self.excepthook


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's threads pass their disk errors on to the next flush, which reports them."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
