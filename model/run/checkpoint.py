"""The content of a checkpoint, and how it is saved, found and loaded.

A file has three parts: the bytes that `torch.save` writes, MAGIC, and the SHA-256 hash of both.
PyTorch loads most damaged files without an error, so `load` compares the hash first.
"""

import hashlib
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.flags import make_config
from configs.settings import TrainConfig
from model.networks import make_network
from model.system.errors import UserError, quote, shorten
from model.system.files import atomic_write

MAGIC = b"QUILLPT8"  # changes when a new version of Quill cannot use older files


@dataclass
class RunState:
    """The numbers that describe the progress of a run. Losses are in nats per character."""

    step: int = 0  # the number of training steps that are done
    loss_sum: float = 0.0  # the sum of the training losses since the last point of the curve
    loss_steps: int = 0  # the number of losses in this sum
    train_loss: float | None = None  # the last point of the training curve
    val_loss: float | None = None  # the loss in the last evaluation, which was at val_step
    val_step: int | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    chars_per_second: float = 0.0  # the speed of the training steps before the last evaluation
    eval_seconds: float = 0.0  # how long the last evaluation took
    start_seconds: float = 0.0  # how long the run took before its first step
    seconds: float = 0.0  # how long all commands of the run took until this save


@dataclass
class Checkpoint(RunState):
    """The content of a file. It is enough to sample and, together with the text, to resume.

    The random numbers of a step depend only on the seed, the step and the process, so they need no
    saved state.
    """

    config: dict[str, Any] = field(default_factory=dict)
    vocab: str = ""
    data_sha256: str = ""  # the hash of the text
    # `model` has the weights to evaluate and to sample with. If these weights are an average,
    # `trained` has the weights to train.
    model: dict[str, Tensor] = field(default_factory=dict)
    trained: dict[str, Tensor] = field(default_factory=dict)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)


def save(checkpoint: Checkpoint, *paths: Path) -> None:
    """Write the checkpoint to each path. An existing file is replaced as a whole."""
    buffer = io.BytesIO()
    torch.save(vars(checkpoint), buffer)
    buffer.write(MAGIC)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    for path in paths:
        with atomic_write(path) as file:
            file.write(buffer.getbuffer())


def load(path: Path | str) -> Checkpoint:
    """Read a checkpoint. Raises UserError if it is missing, damaged or of another version."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        similar = Path("runs", shorten(path))
        hint = f" Did you mean {quote(similar)}?" if os.path.exists(similar) else ""
        raise UserError(f"{path} cannot be read: {error.strerror}.{hint}") from None
    signed, digest = content[:-32], content[-32:]
    if not signed.endswith(MAGIC) or hashlib.sha256(signed).digest() != digest:
        hint = " Use --which last. To resume, delete best.pt." if "best.pt" in str(path) else ""
        raise UserError(f"{path} is damaged, or not a checkpoint of this version of Quill.{hint}")
    return Checkpoint(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))


def resolve(name: str | None, which: str) -> Path:
    """Return the path of a checkpoint. `name` is a file, a run directory, or None: the newest run.

    `which`, "best" or "last", selects a file in a run directory. Without a best.pt, it is last.pt.
    """
    if name is None:
        runs = sorted(Path("runs").glob("*/last.pt"), key=os.path.getmtime)
        if not runs:
            raise UserError("there is no run under runs/. Train with python train.py.")
        name = runs[-1].parent
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        has_best = (path / "best.pt").exists()
        path /= "best.pt" if which == "best" and has_best else "last.pt"
    return path


def load_weights(checkpoint: Checkpoint, model: nn.Module) -> None:
    """Load `checkpoint.model` into a network.

    The network may have a longer vocabulary than the checkpoint. Then the rows of the new
    characters keep their fresh values.
    """
    weights, known, V = dict(checkpoint.model), len(checkpoint.vocab), model.vocab_size
    try:
        for name, fresh in model.state_dict().items():
            old = weights.get(name)
            if torch.is_tensor(old) and (old.shape[:1], fresh.shape[:1]) == ((known,), (V,)):
                weights[name] = torch.cat((old, fresh[known:].to(old.device)))
        model.load_state_dict(weights)
    except RuntimeError as error:  # for example after an edit of the network
        raise UserError(f"the checkpoint does not fit the code in model/: {error}") from None


def load_model(checkpoint: Checkpoint) -> nn.Module:
    """Return the network of a checkpoint, on the CPU and in eval mode."""
    model = make_network(make_config(TrainConfig, checkpoint.config), len(checkpoint.vocab))
    load_weights(checkpoint, model)
    return model.eval()
