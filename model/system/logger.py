"""What a run writes for people: TensorBoard's curves, the progress bar, the summary."""

import json
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from model.system.errors import print_line
from model.system.files import atomic_write


class SilentLogger:
    """Takes the place of Logger where nothing is written: whatever is called does nothing."""

    def __getattr__(self, name: str) -> "SilentLogger":
        return self

    def __call__(self, *args: Any, **options: Any) -> None:
        pass


class Logger:
    """Writes the curves, pictures and summary of a run; shows the progress bar.

    `train` and `val` are TensorBoard's writers; a tag in both is one chart with two curves.
    TensorBoard groups tags by what stands before their first slash. `bar` is the progress bar.
    Close the logger at the end.
    """

    def __init__(
        self, run_dir: Path, config: dict[str, Any], config_toml: str, step: int, max_iters: int
    ) -> None:
        """The run begins, or goes on, at `step`."""
        self.run_dir = run_dir
        for leftover in run_dir.glob(f"*.{'[0-9a-f]' * 32}.tmp"):
            leftover.unlink()  # of a killed process, see atomic_write
        if not (run_dir / "config.toml").exists():
            with atomic_write(run_dir / "config.toml") as file:
                file.write(config_toml.encode())
        threading.excepthook = _ignore_disk_errors
        # purge_step drops what a killed run logged after its last checkpoint.
        self.train = SummaryWriter(str(run_dir / "train"), purge_step=step)
        self.val = SummaryWriter(str(run_dir / "val"), purge_step=step)
        # In the HParams tab: the config, and the curve of this tag (0.0 is a placeholder).
        for summary in hparams(config, {"loss_best": 0.0}):
            self.val.file_writer.add_summary(summary)
        # disable=None: no bar unless on a terminal
        self.bar = tqdm(
            total=max_iters, initial=step, unit="step", dynamic_ncols=True, disable=None
        )

    def print(self, text: str) -> None:
        """Print to standard error."""
        print_line(text, sys.stderr)

    def write_summary(self, summary: dict[str, Any], finished: bool) -> None:
        """Write summary.json; print the result and the commands to go on with."""
        self.bar.close()
        with atomic_write(self.run_dir / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")
        run_dir = shlex.quote(str(self.run_dir))
        step, best_step = summary["iters"], summary["best_iter"]
        lines = []
        which = " --which last" if best_step is None else ""
        if best_step is not None:
            loss, bits = summary["best_val_loss"], summary["bits_per_char"]
            lines.append(
                f"best    {loss:.4f} nats per character ({bits:.3f} bits), step {best_step:,}"
            )
            if (last := summary["val_loss"]) > loss + 0.01:
                lines.append(
                    f"        The validation loss has risen to {last:.4f} since then. If the "
                    "training loss\n        still falls, the model overfits: a longer text, more "
                    "--dropout or\n        --weight_decay, or a smaller --max_iters helps."
                )
        if step >= self.bar.total:
            more = f" --max_iters {2 * step}"
        elif finished:
            more = " --patience 0"
            lines.append(
                f"stopped at step {step:,}: the validation loss no longer falls (patience)"
            )
        else:
            more = ""
            lines.append(f"stopped at step {step:,} by a signal; the checkpoint is saved")
        lines += [
            f"sample  python sample.py {run_dir}{which}",
            f"resume  python train.py --resume {run_dir}{more}",
            f"watch   tensorboard --logdir {shlex.quote(str(self.run_dir.parent))}",
            "        http://localhost:6006/?smoothing=0 shows the points themselves",
        ]
        print_line("\n".join(lines), sys.stdout)

    def close(self) -> None:
        """Close the progress bar and write all that was logged."""
        self.bar.close()
        self.train.close()
        self.val.close()


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's threads pass their disk errors on to the next flush, which reports them."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
