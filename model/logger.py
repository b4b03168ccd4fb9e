"""The run directory: its lock, TensorBoard curves, progress bar, summary."""

import contextlib
import itertools
import json
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from model.checkpoint import Checkpoint
from model.errors import RunError, UserError, atomic_write, disk_message, print_line
from model.pictures import loss_chart, overfitting_hint


@contextlib.contextmanager
def new_run_dir(out_dir: str | None) -> Iterator[Path]:
    """Create and lock `out_dir`, or a new folder under runs/ named after the time.

    Raises UserError if it already holds a run or cannot be written. A new folder to which nothing
    was written is removed again.
    """
    name = out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S")
    for i in itertools.count(1):
        path = Path(name if i == 1 else f"{name}-{i}")
        is_new = not os.path.exists(path)  # path.exists() may raise
        try:
            path.mkdir(parents=True, exist_ok=out_dir is not None)
            break
        except OSError as error:
            if out_dir or not isinstance(error, FileExistsError):
                raise UserError(f"out_dir {path} cannot be written: {error.strerror}.") from None
    with lock_run_dir(path):
        if (path / "last.pt").exists() or (path / "best.pt").exists():
            raise UserError(
                f"out_dir {path} already holds a run. "
                f"Resume it with --resume {path}, or choose another --out_dir."
            )
        if not os.access(path, os.W_OK):
            raise UserError(f"out_dir {path} cannot be written.")
        try:
            yield path
        finally:
            if is_new:
                with contextlib.suppress(OSError):  # not empty
                    path.rmdir()


@contextlib.contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Hold the lock of a run directory. Raises UserError if another process holds it.

    The lock ends with the process, however it ends. Windows has no such lock.
    """
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:
        yield
        return
    try:
        handle = os.open(run_dir, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{run_dir} cannot be read: {error.strerror}.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{run_dir} is being trained by another process. Wait for it.") from None
    except OSError:
        pass  # a file system without locks
    try:
        yield
    finally:
        os.close(handle)


class RunLogger:
    """Writes the curves, samples and summary of a run; shows the progress bar.

    It reads step, times and losses from `state`, which the training loop updates. With run_dir
    None, as in all processes but the main one, its methods do nothing. Close it at the end.
    """

    def __init__(
        self,
        run_dir: Path | None,
        config_toml: str,
        state: Checkpoint,
        max_iters: int,
        chars_per_step: int,
    ) -> None:
        self.run_dir = run_dir
        self.state = state
        self.max_iters = max_iters
        self.chars_per_step = chars_per_step
        self.last_logged = state.step, state.train_seconds
        self.writers: dict[str, SummaryWriter] = {}
        self.bar = tqdm(
            total=max_iters,
            initial=state.step,
            unit="step",
            dynamic_ncols=True,
            disable=True if run_dir is None else None,  # None: only on a terminal
        )
        if run_dir is None:
            return
        for name in ("last.pt", "best.pt", "config.toml", "summary.json"):
            for leftover in run_dir.glob(f"{name}.*.tmp"):  # of a killed process
                leftover.unlink(missing_ok=True)
        if state.step == 0 and (run_dir / "config.toml").exists():  # killed before a checkpoint
            for events in run_dir.glob("*/events.out.tfevents.*"):
                events.unlink()
        self.inode = run_dir.stat().st_ino
        with atomic_write(run_dir / "config.toml") as file:
            file.write(config_toml.encode())
        threading.excepthook = _ignore_disk_errors
        with self._disk_errors():
            for split in ("train", "val"):
                # purge_step drops what a killed run logged after its last checkpoint.
                self.writers[split] = SummaryWriter(str(run_dir / split), purge_step=state.step)
            self.writers["train"].add_text("config", _as_code(config_toml), state.step)
            # In the HParams tab: the config, and the best loss so far.
            for summary in hparams(state.config, {"loss_best": 0.0}):
                self.writers["val"].file_writer.add_summary(summary)

    def close(self) -> None:
        """Close the progress bar and write all curves."""
        self.bar.close()
        with self._disk_errors():
            for writer in self.writers.values():
                writer.close()

    def log_step(self, step: int, loss: float, optimizer_values: dict[str, float]) -> None:
        """Log a training step to TensorBoard and the progress bar. Loss in nats per character."""
        if self.run_dir is None:
            return
        # TensorBoard sorts by name; the loss comes first.
        values = {f"optimizer/{name}": value for name, value in optimizer_values.items()}
        values["loss"] = loss
        steps = step - self.last_logged[0]
        seconds = self.state.train_seconds - self.last_logged[1]
        self.last_logged = step, self.state.train_seconds
        if steps:
            values["speed/chars_per_second"] = steps * self.chars_per_step / max(seconds, 1e-9)
        with self._disk_errors():
            for tag, value in values.items():
                self.writers["train"].add_scalar(tag, value, step)
        val_loss = self.state.val_loss
        val = "" if val_loss is None else f"{val_loss:.3f}"
        self.bar.set_postfix(loss=f"{loss:.3f}", val=val, chars_s=f"{self.chars_per_second():,.0f}")

    def log_evaluation(self, step: int, val_loss: float, is_best: bool) -> None:
        """Log the validation loss to TensorBoard and print it."""
        if self.run_dir is None:
            return
        with self._disk_errors():
            self.writers["val"].add_scalar("loss", val_loss, step)
            self.writers["val"].add_scalar("loss_best", self.state.best_val_loss, step)
        speed = f"{self.chars_per_second():>9,.0f} characters/s"
        note = "  best so far" if is_best else ""
        with tqdm.external_write_mode(sys.stderr):
            line = f"step {step:>6}  validation loss {val_loss:.4f} {speed}{note}"
            print_line(line, sys.stderr)

    def log_sample(self, step: int, sample: str) -> None:
        """Log a text that the model wrote to TensorBoard; show its beginning on a terminal."""
        with self._disk_errors():
            self.writers["val"].add_text("sample", _as_code(sample), step)
        if sys.stdout.isatty() and sys.stderr.isatty():
            columns = shutil.get_terminal_size().columns
            with tqdm.external_write_mode(sys.stderr):
                print_line(f"     {' '.join(sample.split())[: columns - 6]}", sys.stderr)

    def log_attention_maps(self, step: int, maps: dict[str, np.ndarray]) -> None:
        """Log images of attention to TensorBoard."""
        with self._disk_errors():
            for name, image in maps.items():
                self.writers["val"].add_image(f"map/{name}", image, step, dataformats="HWC")

    def log_embedding(self, model: nn.Module, vocab: str) -> None:
        """Log the characters' embedding to TensorBoard's Projector, at the end of a run."""
        folder = self.run_dir / "val" / "00000"  # of the same run before it was resumed
        shutil.rmtree(folder, ignore_errors=True)
        labels = [char if char.isprintable() and char != " " else repr(char) for char in vocab]
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Embedding) and layer.num_embeddings == len(vocab):
                with self._disk_errors():
                    self.writers["val"].add_embedding(layer.weight.detach(), labels, tag=name)

    def chars_per_second(self) -> float:
        """Training speed, without evaluations and saving."""
        chars = self.state.step * self.chars_per_step
        return chars / max(self.state.train_seconds, 1e-9)

    def flush(self) -> None:
        """Write all curves to their files. Raises RunError if the run directory was replaced."""
        with self._disk_errors():
            if self.run_dir.stat().st_ino != self.inode:
                raise RunError(f"{self.run_dir} is no longer the directory of this run.")
            for writer in self.writers.values():
                writer.flush()

    def write_summary(self, summary: dict[str, Any], finished: bool) -> None:
        """Write summary.json; print the result and the commands to go on with."""
        if self.run_dir is None:
            return
        self.bar.close()
        with atomic_write(self.run_dir / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")
        run_dir = shlex.quote(str(self.run_dir))
        step, best_iter = summary["iters"], summary["best_iter"]
        lines, which, more = [], " --which last", ""
        if best_iter is not None:
            loss, bits = summary["best_val_loss"], summary["bits_per_char"]
            lines.append(
                f"best    {loss:.4f} nats per character ({bits:.3f} bits), step {best_iter:,}"
            )
            which = ""
        if step >= self.max_iters:
            more = f" --max_iters {2 * step}"
        elif finished:
            more = " --patience 0"
            lines.append(
                f"stopped at step {step:,}: the validation loss no longer falls (patience)"
            )
        else:
            lines.append(f"stopped at step {step:,} by a signal; the checkpoint is saved")
        lines.append(f"sample  python sample.py {run_dir}{which}")
        lines.append(f"resume  python train.py --resume {run_dir}{more}")
        lines.append(f"watch   tensorboard --logdir {shlex.quote(str(self.run_dir.parent))}")
        lines.append("        http://localhost:6006/?smoothing=0 shows the points themselves")
        if sys.stdout.isatty():
            self.flush()
            curves = [read_losses(self.run_dir / split) for split in ("train", "val")]
            if all(curves):
                lines = [loss_chart(*curves), overfitting_hint(*curves), *lines]
        print_line("\n".join(filter(None, lines)), sys.stdout)

    @contextlib.contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Report a full disk or a deleted run directory as a RunError."""
        try:
            yield
        except OSError as error:
            raise RunError(disk_message(self.run_dir, error)) from None


def read_losses(event_dir: Path) -> list[tuple[int, float]]:
    """All points (step, loss) of the event files in a folder."""
    events = EventAccumulator(str(event_dir), size_guidance={SCALARS: 0}).Reload()
    scalars = events.Scalars("loss") if "loss" in events.Tags()[SCALARS] else []
    return [(scalar.step, scalar.value) for scalar in scalars]


def _as_code(text: str) -> str:
    """Markdown for TensorBoard that shows `text` as it is."""
    return indent(text, "    ", lambda line: True)


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's threads pass their disk errors on to the next flush, which reports them."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
