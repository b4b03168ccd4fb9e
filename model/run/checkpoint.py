"""The content of a checkpoint, and how it is saved, found and loaded.

A file has three parts: the bytes that `torch.save` writes, MAGIC, and the SHA-256 hash of both.
PyTorch loads most damaged files without an error, so `load` compares the hash first.
"""

import hashlib
import io
import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from configs.errors import UserError
from configs.flags import to_dict, to_toml
from configs.settings import TrainConfig
from data.corpus import Corpus
from model.run.progress import RunState
from model.system.console import require_finite
from model.system.files import atomic_write

MAGIC = b"QUILLPT8"  # changes when a new version of Quill cannot use older files


@dataclass
class Checkpoint(RunState):
    """The content of a file. It is enough to sample and, together with the text, to resume.

    The random numbers of a step depend only on the seed, the step and the process, so they need no
    saved state.
    """

    config: dict[str, Any] = field(default_factory=dict)
    vocab: str = ""
    data_sha256: str = ""  # the hash of the text
    # `model` has the weights to evaluate and to sample with, which may be an average. `trained` has
    # the weights to train.
    model: dict[str, Tensor] = field(default_factory=dict)
    trained: dict[str, Tensor] = field(default_factory=dict)
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)


def save_run(
    run_dir: Path,
    state: RunState,
    config: TrainConfig,
    corpus: Corpus,
    parts: tuple,
    is_best: bool,
) -> None:
    """Write config.toml and last.pt. If the model is the best so far, write best.pt first.

    `parts` are the network to evaluate, the network to train, the optimizers and the scaler.
    """
    evaluated, model, optimizers, scaler = parts
    weights = [*evaluated.parameters(), *model.parameters()]
    total = sum(weight.sum().item() for weight in weights)  # nan if one weight is nan
    require_finite("sum of the weights", total, state.step)
    with atomic_write(run_dir / "config.toml") as file:
        file.write(to_toml(replace(config, device=weights[0].device.type)).encode())
    saved = Checkpoint(
        **vars(state),
        config=to_dict(config),
        vocab=corpus.tokenizer.vocab,
        data_sha256=corpus.sha256,
        model=evaluated.state_dict(),
        trained=model.state_dict(),
        optimizers=[optimizer.state_dict() for optimizer in optimizers],
        scaler=scaler.state_dict(),
    )
    names = ("best.pt", "last.pt") if is_best else ("last.pt",)
    save(saved, *(run_dir / name for name in names))


def restore(saved: Checkpoint, parts: tuple) -> RunState:
    """Load what `saved` holds into `parts`: a whole run, only weights (--init_from), or nothing.

    Return the state of the run: the step to go on from, losses, times.
    """
    evaluated, model, optimizers, scaler = parts
    if saved.model:
        load_weights(evaluated, saved.model, len(saved.vocab))
        load_weights(model, saved.trained or saved.model, len(saved.vocab))
    if saved.optimizers:
        for optimizer, its_state in zip(optimizers, saved.optimizers, strict=True):
            optimizer.load_state_dict(its_state)
    if saved.scaler:
        scaler.load_state_dict(saved.scaler)
    return RunState(**{field.name: getattr(saved, field.name) for field in fields(RunState)})


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
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    signed, digest = content[:-32], content[-32:]
    if not signed.endswith(MAGIC) or hashlib.sha256(signed).digest() != digest:
        hint = " Use --which last. To resume, delete best.pt." if "best.pt" in str(path) else ""
        raise UserError(f"{path} is damaged, or not a checkpoint of this version of Quill.{hint}")
    values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    for name in ("loss_sum", "loss_steps"):  # in files of earlier versions
        values.pop(name, None)
    return Checkpoint(**values)


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


def load_weights(model: nn.Module, weights: dict[str, Tensor], known: int) -> None:
    """Load weights of `known` characters. The rows of new characters keep their fresh values."""
    weights, V = dict(weights), model.vocab_size
    try:
        for name, fresh in model.state_dict().items():
            old = weights.get(name)
            if torch.is_tensor(old) and (old.shape[:1], fresh.shape[:1]) == ((known,), (V,)):
                weights[name] = torch.cat((old, fresh[known:].to(old.device)))
        model.load_state_dict(weights)
    except RuntimeError as error:  # for example after an edit of the network
        raise UserError(f"the checkpoint does not fit the code in model/: {error}") from None
