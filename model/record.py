"""What a run leaves behind: its folder, the curves in it, its checkpoints, its summary."""

import contextlib
import itertools
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from textwrap import indent
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from model import checkpoint
from model.checkpoint import Checkpoint
from model.ending import say
from model.optim import OptimConfig


def require_free(out_dir: str | None) -> None:
    """Raise ValueError if a run is in that folder already, or cannot be: what was saved stays saved."""
    path = Path(out_dir or "runs")
    if out_dir and any(os.path.exists(path / name) for name in ("last.pt", "best.pt")):
        raise ValueError(f"out_dir {out_dir} already holds a run; go on with it by --resume {out_dir}, or name another")
    there = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"out_dir {path} cannot be written")


def new_run_dir(out_dir: str | None) -> Path:
    """Make `out_dir`, or a new folder under runs/ named by the time. Raises ValueError if that cannot be."""
    name = out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S")
    for i in itertools.count(1):  # another run may have begun in the same second
        path = Path(name if i == 1 else f"{name}-{i}")
        try:
            path.mkdir(parents=True, exist_ok=bool(out_dir))
            return path
        except OSError as error:
            if out_dir or not isinstance(error, FileExistsError):
                raise ValueError(f"out_dir {path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def hold(run_dir: Path) -> Iterator[None]:
    """Claim a run's folder, for as long as the process lives at most. Raises ValueError if another has it."""
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:  # on Windows nobody is refused
        yield
        return
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{run_dir} is in training by another process; wait for it") from None
        yield
    finally:
        os.close(handle)


def quiet_about_files(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's threads hand such errors on to where they are told in one line."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


class Record(contextlib.ExitStack):
    """The writing half of a run. Without a folder, as in all processes but the first, it writes nothing."""

    def __init__(self, run_dir: Path | None, config_toml: str, state: Checkpoint, plan: OptimConfig) -> None:
        super().__init__()
        self.run_dir, self.max_iters = run_dir, plan.max_iters
        self.chars_per_step = plan.batch_size * state.config["block_size"]
        self.plotted = state.step, state.train_seconds
        self.curves: dict[str, SummaryWriter] = {}
        hide = True if run_dir is None else None  # None: where standard error is no terminal
        bar = tqdm(total=plan.max_iters, initial=state.step, unit="step", dynamic_ncols=True, disable=hide)
        self.bar = self.enter_context(bar)  # however the run ends, so do the bar and the curves
        if run_dir is not None:
            for name in ("last.pt", "best.pt", "config.toml", "summary.json"):
                with contextlib.suppress(OSError):
                    (run_dir / f"{name}.tmp").unlink()  # left by a kill
            checkpoint.write_whole(run_dir / "config.toml", config_toml.encode())
            threading.excepthook = quiet_about_files
            for split in ("train", "val"):
                # TensorBoard reads a folder's files in the order of their names, in which the second comes first:
                # resumed within it, or after the clock was set back, a run must not come before what it goes on from.
                older = sorted((run_dir / split).glob("events.out.tfevents.*"))
                if older and older[-1].name >= f"events.out.tfevents.{int(time.time()):010}":
                    for i, path in enumerate(older):
                        path.rename(path.with_name(f"events.out.tfevents.{i:010}.{path.name.split('.')[-1]}"))
                # What a killed run plotted past its last checkpoint is dropped: it will be plotted again.
                self.curves[split] = self.enter_context(SummaryWriter(str(run_dir / split), purge_step=state.step))
            self.curves["train"].add_text("config", indent(config_toml, "    ", lambda _: True), state.step)

    def trained(self, state: Checkpoint, loss: float, grad_norm: float, rate: float) -> None:
        """Plot the training curves' points of this step."""
        points = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate}
        steps, seconds = state.step - self.plotted[0], state.train_seconds - self.plotted[1]
        self.plotted = state.step, state.train_seconds
        if steps:
            points["chars_per_second"] = steps * self.chars_per_step / max(seconds, 1e-9)
        if self.run_dir is not None:
            for tag, value in points.items():
                self.curves["train"].add_scalar(tag, value, state.step)
            val = "" if state.val_loss is None else f"{state.val_loss:.3f}"
            self.bar.set_postfix(loss=f"{loss:.3f}", val=val, chars_s=f"{self.chars_per_second(state):,.0f}")

    def evaluated(self, state: Checkpoint, is_best: bool, sample: str) -> None:
        """Plot the validation loss and a sample, and print the loss."""
        if self.run_dir is not None:
            self.curves["val"].add_scalar("loss", state.val_loss, state.step)
            self.curves["val"].add_text("sample", indent(sample, "    ", lambda _: True), state.step)
            speed = f"{self.chars_per_second(state):>9,.0f} characters/s"
            note = "  best so far" if is_best else ""
            with tqdm.external_write_mode(sys.stderr):  # the bar steps aside
                say(f"step {state.step:>6}  validation loss {state.val_loss:.4f} {speed}{note}", sys.stderr)

    def chars_per_second(self, state: Checkpoint) -> float:
        """Characters per second of training steps, evaluation and saving left out."""
        return state.step * self.chars_per_step / max(state.train_seconds, 1e-9)

    def save(self, state: Checkpoint, *names: str) -> None:
        """Write the checkpoint under each name, the curves up to it first: a kill then loses nothing."""
        if self.run_dir is not None:
            for split, curve in self.curves.items():
                curve.flush()
                for events in sorted((self.run_dir / split).glob("events.out.tfevents.*"))[-1:]:  # the one that grows
                    with open(events, "r+b") as file:
                        os.fsync(file.fileno())  # a power cut, too
            # last.pt vouches for best.pt, which so comes first; but a first best.pt alone would be no run to resume.
            in_order = sorted(names, reverse=not (self.run_dir / "best.pt").exists())
            checkpoint.save(state, *(self.run_dir / name for name in in_order))

    def outcome(self, summary: dict[str, Any], finished: bool) -> None:
        """Write summary.json, say what came of the run, and print the commands to go on from there."""
        if self.run_dir is None:
            return
        checkpoint.write_whole(self.run_dir / "summary.json", json.dumps(summary, indent=2).encode() + b"\n")
        run_dir, logdir = shlex.quote(str(self.run_dir)), shlex.quote(str(self.run_dir.parent))
        step, best = summary["iters"], summary["best_val_loss"]
        lines = [] if finished else [f"stopped at step {step:,}; nothing is lost"]
        if best is not None:
            bits, at = summary["bits_per_char"], summary["best_iter"]
            lines.insert(0, f"best    {best:.4f} nats per character ({bits:.3f} bits), at step {at:,}")
        lines.append(f"sample  python sample.py {run_dir}{'' if best is not None else ' --which last'}")
        more = f" --max_iters {2 * step}" if step >= self.max_iters else " --patience 0" if finished else ""
        lines += [f"resume  python train.py --resume {run_dir}{more}", f"watch   tensorboard --logdir {logdir}"]
        say("\n".join(lines), sys.stdout)
