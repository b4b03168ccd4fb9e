"""What a run leaves behind: its folder, the curves in it, its checkpoints, its summary."""

import itertools
import json
import math
import shlex
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from model import checkpoint
from model.checkpoint import Checkpoint
from model.optim import OptimConfig


def require_no_run(out_dir: str | None) -> None:
    """Raise ValueError if a run is in that folder: what was saved stays saved."""
    if out_dir is not None and any(Path(out_dir, name).exists() for name in ("last.pt", "best.pt")):
        raise ValueError(f"out_dir {out_dir} already holds a run; go on with it by --resume {out_dir}, or name another")


def new_run_dir(out_dir: str | None) -> Path:
    """Make `out_dir`, or a new folder under runs/ named by the time. Raises ValueError if that cannot be."""
    path = Path(out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S"))
    names = (path.with_name(f"{path.name}-{i}") for i in itertools.count(2))
    while True:
        try:
            path.mkdir(parents=True, exist_ok=out_dir is not None)
            (path / "config.toml").touch()
            return path
        except OSError as error:
            if out_dir is not None or not isinstance(error, FileExistsError):
                raise ValueError(f"out_dir {path} cannot be written: {error.strerror}") from None
            path = next(names)  # another run began in the same second


def as_markdown(text: str) -> str:
    """Indented, a text reaches TensorBoard's page line by line as it is, not as markup."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def wait_for_a_later_name(folder: Path) -> None:
    """TensorBoard reads a folder's files in the order of their names, which begin with the second."""
    while list(folder.glob(f"*.{int(time.time())}.*")):
        time.sleep(0.05)


class Record:
    """The writing half of a run. Without a folder, as in all processes but the first, it writes nothing."""

    def __init__(self, run_dir: Path | None, config_toml: str, state: Checkpoint, plan: OptimConfig) -> None:
        self.run_dir = run_dir
        self.chars_a_step = plan.batch_size * state.config["block_size"]
        self.drawn = state.train_steps, state.train_seconds
        self.curves: dict[str, SummaryWriter] = {}
        self.bar = tqdm(
            total=plan.max_iters,
            initial=state.step,
            unit="step",
            dynamic_ncols=True,
            disable=True if run_dir is None else None,  # None: where standard error is no terminal
        )
        if run_dir is not None:
            (run_dir / "config.toml").write_text(config_toml, "utf-8")
            for split in ("train", "val"):
                wait_for_a_later_name(run_dir / split)
            # What a killed run drew past its last checkpoint is dropped: it will be drawn again.
            self.curves = {
                split: SummaryWriter(str(run_dir / split), purge_step=state.step) for split in ("train", "val")
            }
            self.curves["train"].add_text("config", as_markdown(config_toml), state.step)

    def trained(self, state: Checkpoint, loss: float, grad_norm: float, rate: float) -> None:
        """Draw the training curves' points of this step."""
        steps, seconds = state.train_steps - self.drawn[0], state.train_seconds - self.drawn[1]
        self.drawn = state.train_steps, state.train_seconds
        points = {"loss": loss, "grad_norm": grad_norm, "learning_rate": rate}
        if steps:
            points["chars_per_second"] = steps * self.chars_a_step / seconds
        if self.run_dir is not None:
            for tag, value in points.items():
                self.curves["train"].add_scalar(tag, value, state.step)
            val = "" if state.val_loss is None else f"{state.val_loss:.3f}"
            self.bar.set_postfix(loss=f"{loss:.3f}", val=val, chars_s=f"{self.chars_per_second(state):,.0f}")

    def evaluated(self, state: Checkpoint, is_best: bool, sample: str) -> None:
        """Draw the validation loss and a sample, and show the loss."""
        if self.run_dir is not None:
            self.curves["val"].add_scalar("loss", state.val_loss, state.step)
            self.curves["val"].add_text("sample", as_markdown(sample), state.step)
            speed = f"{self.chars_per_second(state):>9,.0f} characters/s" if state.train_steps else ""
            note = "  best so far" if is_best else ""
            tqdm.write(f"step {state.step:>6}  validation loss {state.val_loss:.4f} {speed}{note}", file=sys.stderr)

    def chars_per_second(self, state: Checkpoint) -> float:
        """Characters trained on a second of training steps, evaluation and saving left out."""
        return state.train_steps * self.chars_a_step / max(state.train_seconds, 1e-9)

    def save(self, state: Checkpoint, *names: str) -> None:
        """Write the checkpoint under each name, the curves up to it first: a kill then loses nothing."""
        if self.run_dir is not None:
            for curve in self.curves.values():
                curve.flush()
            for name in names:
                checkpoint.save(self.run_dir / name, state)

    def __enter__(self) -> "Record":
        return self

    def __exit__(self, *failure: object) -> None:
        """End the bar and the curves, however the run ends."""
        self.bar.close()
        for curve in self.curves.values():
            curve.close()

    def summarise(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        if self.run_dir is not None:
            (self.run_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")

    def print_outcome(self, state: Checkpoint, finished: bool) -> None:
        """Say what came of it, and the commands to go on from there."""
        if self.run_dir is None:
            return
        run_dir, logdir = shlex.quote(str(self.run_dir)), shlex.quote(str(self.run_dir.parent))
        if state.best_val_loss is not None:
            bits = state.best_val_loss / math.log(2)
            print(f"best    {state.best_val_loss:.4f} nats a character ({bits:.3f} bits), at step {state.best_iter:,}")
        if not finished:
            print(f"stopped at step {state.step:,}; nothing is lost")
        print(f"sample  python sample.py {run_dir}{'' if state.best_val_loss is not None else ' --which last'}")
        print(f"resume  python train.py --resume {run_dir}{f' --max_iters {2 * state.step}' if finished else ''}")
        print(f"watch   tensorboard --logdir {logdir}", flush=True)
