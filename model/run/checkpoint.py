"""What a checkpoint holds; saving it, loading it, finding it.

A file is what `torch.save` writes (plain values and tensors), followed by MAGIC and the SHA-256 of
everything before. PyTorch's own loader accepts most damaged files without a word, so `load` checks
the digest before it parses anything.
"""

import contextlib
import hashlib
import io
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from configs.flags import make_config
from configs.settings import TrainConfig
from model.networks import make_network
from model.system.errors import AbortError, UserError, is_out_of_memory
from model.system.files import atomic_write
from model.system.terminal import quote

MAGIC = b"QUILLPT8"


class Learner(NamedTuple):
    """What training changes, and what a checkpoint restores."""

    model: nn.Module  # what is trained
    average: nn.Module  # what is evaluated, saved and sampled: its running average, or itself
    optimizers: Sequence[Optimizer]
    scaler: GradScaler


@dataclass
class RunState:
    """How far a run is. A step is counted by train.py, all else is measured by model/run/run.py."""

    step: int = 0  # optimizer steps done
    val_loss: float | None = None  # nats per character, measured at val_step
    val_step: int | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    chars_per_second: float = 0.0  # of the latest training steps before an evaluation, if any
    eval_seconds: float = 0.0  # the latest evaluation took so long
    seconds: float = 0.0  # wall clock when this was saved, summed over resumes
    start_seconds: float = 0.0  # the same before the first step, when step 0 was evaluated

    def record_evaluation(self, val_loss: float) -> bool:
        """Keep the loss of an evaluation at `step`. Returns whether it is the best so far."""
        is_best = self.best_val_loss is None or val_loss < self.best_val_loss
        self.val_loss, self.val_step = val_loss, self.step
        if is_best:
            self.best_val_loss, self.best_step = val_loss, self.step
        return is_best


@dataclass
class Checkpoint(RunState):
    """What a file holds: enough to sample, or, together with the text, to resume a run exactly.

    It holds no random state: whatever is random is a function of the config's seed and `step`.
    """

    config: dict[str, Any] = field(default_factory=dict)  # what has a value, without out_dir
    vocab: str = ""
    data_sha256: str = ""
    model: dict[str, Tensor] = field(default_factory=dict)  # state dict; of the average, if any
    trained: dict[str, Tensor] = field(default_factory=dict)  # then that of the trained network
    optimizers: list[dict[str, Any]] = field(default_factory=list)  # state dicts
    scaler: dict[str, Any] = field(default_factory=dict)  # state dict


def save(checkpoint: Checkpoint, *paths: Path) -> None:
    """Write the checkpoint to each path. Raises OSError if it cannot be written."""
    buffer = io.BytesIO()
    torch.save(vars(checkpoint), buffer)
    buffer.write(MAGIC)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    for path in paths:
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint, tensors on the CPU. Raises UserError if it is missing or damaged."""
    path = Path(path)
    problem = "is not a checkpoint of this version of Quill"
    try:
        content = path.read_bytes()
        signed, digest = memoryview(content)[:-32], content[-32:]
        if signed[-len(MAGIC) :] == MAGIC and hashlib.sha256(signed).digest() == digest:
            values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            return Checkpoint(**values)
        problem += ", or it is damaged"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and (runs := sorted(path.parent.glob(f"*/{path.name}"))):
            run = runs[-1] if runs[-1].is_dir() else runs[-1].parent
            problem += f". Name a run, such as {quote(run)}"
    except (pickle.UnpicklingError, TypeError) as error:
        problem += f": {error}"
    raise UserError(f"{path} {problem}.")


def resolve(name: str | None, which: str) -> Path:
    """The checkpoint path for a run directory, a file, or None (the newest one under runs/).

    `which` is "best" or "last". Raises UserError if there is none at all.
    """
    if name is None:
        files = list(Path("runs").glob(f"*/{which}.pt"))
        if not files:
            raise UserError(f"no run under runs/ has a {which}.pt. Train with python train.py.")
        return max(files, key=os.path.getmtime)
    path = Path(os.path.expanduser(name))
    return path / f"{which}.pt" if os.path.isdir(path) else path


def capture(
    learner: Learner, state: RunState, config: dict[str, Any], vocab: str, data_sha256: str
) -> Checkpoint:
    """A checkpoint of a run as it is now. Its weights are not copied.

    Raises AbortError if a parameter or optimizer state is not finite: it is never saved.
    """
    model, average, optimizers, scaler = learner
    weights = [*model.parameters(), *average.parameters()]
    kept = [values for optimizer in optimizers for values in optimizer.state.values()]
    tensors = [value for values in kept for value in values.values() if torch.is_tensor(value)]
    if not all(tensor.isfinite().all() for tensor in [*weights, *tensors]):
        raise AbortError(
            "the weights are no longer finite. Checkpoints saved before are intact. In a new run, "
            "try a smaller --learning_rate; in half precision, resume with --dtype float32."
        )
    return Checkpoint(
        **vars(state),
        config=config,
        vocab=vocab,
        data_sha256=data_sha256,
        model=average.state_dict(),
        trained={} if average is model else model.state_dict(),
        optimizers=[optimizer.state_dict() for optimizer in optimizers],
        scaler=scaler.state_dict(),
    )


def restore(checkpoint: Checkpoint, learner: Learner, resumes: bool) -> RunState:
    """The reverse of `capture`. If no run `resumes`, only weights, if there are any.

    Raises UserError, with PyTorch's message, if it does not fit.
    """
    model, average, optimizers, scaler = learner
    if checkpoint.model:
        load_weights(checkpoint, average)
    if not resumes:
        model.load_state_dict(average.state_dict())
        return RunState()
    with code_errors():
        model.load_state_dict(checkpoint.trained or checkpoint.model)
        for optimizer, saved in zip(optimizers, checkpoint.optimizers, strict=True):
            # PyTorch matches by position: reordered layers would swap their states.
            names = [group["param_names"] for group in optimizer.param_groups]
            if names != [group["param_names"] for group in saved["param_groups"]]:
                raise ValueError(f"{type(optimizer).__name__} was saved for other parameters")
            optimizer.load_state_dict(saved)
        if checkpoint.scaler:
            scaler.load_state_dict(checkpoint.scaler)
    return RunState(**{f.name: getattr(checkpoint, f.name) for f in fields(RunState)})


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Those that are used: of the average, if there is one.

    The vocabulary of the model may be larger, if it begins with that of the checkpoint: embeddings
    and logits of new characters stay as they are. Raises UserError as `restore` does.
    """
    weights, sizes = dict(checkpoint.model), (len(checkpoint.vocab), model.vocab_size)
    with code_errors():
        for name, fresh in model.state_dict().items():
            old = weights.get(name)
            if torch.is_tensor(old) and (*old.shape[:1], *fresh.shape[:1]) == sizes:
                weights[name] = torch.cat((old, fresh[len(old) :].to(old.device)))
        model.load_state_dict(weights)


def load_model(checkpoint: Checkpoint) -> nn.Module:
    """The trained network, on the CPU, in eval mode. Raises UserError as `restore` does."""
    config = make_config(TrainConfig, checkpoint.config)
    model = make_network(config, len(checkpoint.vocab))
    load_weights(checkpoint, model)
    return model.eval()


@contextlib.contextmanager
def code_errors() -> Iterator[None]:
    """Turn PyTorch's error about weights of another shape or name into a UserError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"the checkpoint does not fit the code in model/: {error}") from None
