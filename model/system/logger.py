"""What a training run writes for people: TensorBoard's curves, the progress bar, the summary."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from model.system.files import atomic_write
from model.system.terminal import print_line


class SilentLogger:
    """Takes the place of Logger where nothing is written: whatever is called does nothing."""

    def __getattr__(self, name: str) -> "SilentLogger":
        return self

    def __call__(self, *args: Any, **options: Any) -> None:
        pass


class Logger:
    """Writes the curves, pictures and summary of a run; shows the progress bar.

    `train` and `val` are TensorBoard's writers; a tag in both is one chart with two curves.
    TensorBoard groups tags by what stands before their first slash. Close the logger at the end.
    """

    def __init__(self, run_dir: Path, config: dict[str, Any], step: int) -> None:
        """The run begins, or goes on, at `step`."""
        self.run_dir = run_dir
        for leftover in run_dir.glob(f"*.{'[0-9a-f]' * 32}.tmp"):
            leftover.unlink()  # of a killed process, see atomic_write
        threading.excepthook = _ignore_disk_errors
        # purge_step drops what a killed run logged after its last checkpoint.
        self.train = SummaryWriter(str(run_dir / "train"), purge_step=step)
        self.val = SummaryWriter(str(run_dir / "val"), purge_step=step)
        # In the HParams tab: the config, and the curve of this tag (0.0 is a placeholder).
        values = {key: str(v) if isinstance(v, tuple) else v for key, v in config.items()}
        for summary in hparams(values, {"loss_best": 0.0}):
            self.val.file_writer.add_summary(summary)
        # disable=None: no bar unless on a terminal
        self.bar = tqdm(
            total=config["max_iters"], initial=step, unit="step", dynamic_ncols=True, disable=None
        )

    def print(self, text: str) -> None:
        """Print to standard output."""
        print_line(text, sys.stdout)

    def show_progress(self, step: int, progress: float) -> None:
        """Move the bar. The total is the number of steps that are expected."""
        if progress > 0:
            self.bar.total = max(step, round(step / progress))
        self.bar.update(step - self.bar.n)

    def log_step(self, step: int, curves: dict[str, float]) -> None:
        """A point of each curve of the training steps, and the loss beside the bar."""
        for tag, value in curves.items():
            self.train.add_scalar(tag, value, step)
        self.bar.set_postfix_str(f"loss {curves['loss']:.3f}", refresh=False)

    def flush(self) -> None:
        """Write all that was logged."""
        self.train.flush()
        self.val.flush()

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        self.bar.close()
        with atomic_write(self.run_dir / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")

    def close(self) -> None:
        """Close the progress bar and write all that was logged."""
        self.bar.close()
        self.train.close()
        self.val.close()


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's threads pass their disk errors on to the next flush, which reports them."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
