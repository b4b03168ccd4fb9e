"""What a saved model is, and how it gets to disk and back whole.

A file is what `torch.save` writes, plain values and tensors in a dict, then MAGIC and the SHA-256
of all before it. (`torch.load` ignores what follows, so it reads the file too; it would also read
a damaged one without a word, which is why `load` checks the digest before it parses anything.)
"""

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from model.ending import memory_for

MAGIC = b"QUILLPT1"


@dataclass
class Checkpoint:
    """Everything a run needs to go on as if it had never stopped, or to sample from, with no other file.

    There is no random state in it: what is random is a function of the config's seed and `step`.
    """

    config: dict[str, Any] = field(default_factory=dict)  # every key but out_dir
    vocab: str = ""
    data_sha256: str = ""
    model: dict[str, Tensor] = field(default_factory=dict)
    optimizers: list[dict[int, dict[str, Tensor]]] = field(default_factory=list)  # their memory, weight by weight
    scaler: dict[str, Any] = field(default_factory=dict)
    step: int = 0  # optimiser steps done
    val_loss: float | None = None  # nats per character, at step val_iter; none before the first evaluation
    val_iter: int | None = None
    best_val_loss: float | None = None
    best_iter: int | None = None
    seconds: float = 0.0  # wall clock, summed over resumes
    train_seconds: float = 0.0  # of it, spent in training steps


def save(checkpoint: Checkpoint, *paths: Path) -> None:
    """Write it to each path.

    Raises FloatingPointError, and writes nothing, if any number in it is not finite; OSError where
    it cannot be written.
    """
    memories = [memory for held in checkpoint.optimizers for memory in held.values()]
    numbers = [value for group in (checkpoint.model, *memories) for value in group.values()]
    if not all(torch.as_tensor(value).isfinite().all() for value in numbers):
        raise FloatingPointError(f"{paths[0]} was not written: the weights are no longer finite numbers")
    buffer = io.BytesIO()
    torch.save(vars(checkpoint), buffer)
    buffer.write(MAGIC)
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    for path in paths:
        write_whole(path, buffer.getbuffer())


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write beside it, flush, move into place: at every moment `path` is whole. Raises OSError that names it."""
    partial = path.with_name(path.name + ".tmp")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OSError(f"{path} cannot be written ({error.strerror}); what was saved before is whole") from None


def find(named: str | None, which: str) -> Path:
    """The path of the checkpoint meant; `load` says whether it is there. Raises ValueError where no run is."""
    if named is None:
        runs = sorted(filter(os.path.isfile, Path("runs").glob("*/*.pt")), key=os.path.getmtime)
        if not runs:
            raise ValueError("there is no run under runs/ yet; train one with python train.py, or name a checkpoint")
        named = str(runs[-1].parent)
    return Path(named, f"{which}.pt") if os.path.isdir(named) else Path(named)


def load(path: Path | str) -> Checkpoint:
    """The checkpoint at `path`, its tensors on the CPU. Raises ValueError if it is not whole or not one."""
    path = Path(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"checkpoint {path} cannot be read: it is no file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be read: {error.strerror}{_fall_back(path)}") from None
    payload, digest = content[:-32], content[-32:]
    if not payload.endswith(MAGIC) or hashlib.sha256(payload).digest() != digest:
        raise ValueError(f"{path} is no checkpoint of Quill, or is damaged{_fall_back(path)}")
    try:
        with memory_for(f"{path} of {len(content):,} bytes"):
            checkpoint = Checkpoint(**torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True))
        for name, kind in get_type_hints(Checkpoint).items():
            plain = kind if isinstance(kind, UnionType) else get_origin(kind) or kind
            if isinstance(value := getattr(checkpoint, name), bool) or not isinstance(value, plain):
                raise TypeError(name)
        in_range = all(0 <= number < 2**53 for number in vars(checkpoint).values() if isinstance(number, int | float))
        both = (checkpoint.best_val_loss is None) == (checkpoint.best_iter is None)
        if not (checkpoint.vocab and in_range and both and all(isinstance(key, str) for key in checkpoint.config)):
            raise ValueError("content")
    except MemoryError:
        raise
    except Exception:  # its digest is right, so it was crafted; weights_only has run nothing of it
        raise ValueError(f"{path} is no checkpoint of Quill") from None
    return checkpoint


def capture(state: Checkpoint, model: nn.Module, optimizers: Sequence[Optimizer], scaler: GradScaler) -> None:
    """Put the present weights and the optimisers' memory into `state`."""
    state.model = model.state_dict()
    state.optimizers = [optimizer.state_dict()["state"] for optimizer in optimizers]
    state.scaler = scaler.state_dict()


def restore(
    state: Checkpoint, model: nn.Module, optimizers: Sequence[Optimizer] = (), scaler: GradScaler | None = None
) -> None:
    """The reverse of `capture`; without optimisers, of the weights alone. Raises ValueError if they do not fit."""
    try:
        model.load_state_dict(_fitting(state.model, model.state_dict()))
        for optimizer, memory in zip(optimizers, state.optimizers if optimizers else (), strict=True):
            fresh = optimizer.state_dict()
            optimizer.load_state_dict(fresh | {"state": _fitting(memory, fresh["state"])})
        if scaler is not None and scaler.is_enabled() and state.scaler:
            scaler.load_state_dict(_fitting(state.scaler, scaler.state_dict()))
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        raise ValueError("the checkpoint does not fit its own config") from None


def _fitting(saved: dict[Any, Any], fresh: dict[Any, Any]) -> dict[Any, Any]:
    """`saved`, if it differs from `fresh` in its numbers alone; an optimiser would fail only at its first step."""

    def form(nest: Any) -> Any:
        if isinstance(nest, dict):
            return {key: form(value) for key, value in nest.items()}
        return (nest.shape, nest.stride(), nest.dtype) if isinstance(nest, Tensor) else type(nest)

    if form(saved) != form(fresh):
        raise ValueError("form")
    return saved


def _fall_back(path: Path) -> str:
    """Words that point to the other checkpoint of the same run, if it is there."""
    other = path.with_name({"last.pt": "best.pt", "best.pt": "last.pt"}.get(path.name, path.name))
    there = other != path and os.path.isfile(other)
    words = f"; {other} may be whole: sample it by its name or --which {other.stem}, or go on by --resume {other}"
    return words if there else ""
