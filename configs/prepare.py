"""What comes before the first step: the run directory, the settings, the network, the teacher."""

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from configs.recipe import Budget, default_flops, recipe, step_flops
from configs.schema import make_config, to_dict, to_toml
from configs.training import Command, TrainConfig
from data.corpus import Corpus, count_pieces
from model import checkpoint
from model.checkpoint import Checkpoint
from model.network import make_network
from model.optim import make_optimizers
from model.system.device import Machine, device_kind, seed_all
from model.system.errors import UserError
from model.system.files import atomic_write, lock_run_dir, new_run_dir
from model.system.processes import Processes


def open_run(command: Command, processes: Processes, stack: ExitStack) -> tuple[Checkpoint, Path]:
    """The run directory, which is locked, and the checkpoint to begin with.

    The checkpoint is that of --resume or --init_from, or empty.
    """
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        if processes.is_main and path.parent.is_dir():
            stack.enter_context(lock_run_dir(path.parent))
        processes.wait_for_all()  # read the checkpoint only when nobody can write it
        return checkpoint.load_to_resume(path), path.parent
    other, given = Checkpoint(), command.given
    if given.get("init_from") is not None:
        other = checkpoint.load(checkpoint.resolve(given["init_from"], "best"))
    if given.get("teacher", "none") not in ("none", "own"):
        checkpoint.load(checkpoint.resolve(given["teacher"], "best"))  # to refuse a wrong one early
    run_dir = None
    if processes.is_main:
        run_dir = stack.enter_context(new_run_dir(given.get("out_dir")))
    return other, processes.broadcast(run_dir)


def choose_settings(
    values: dict[str, Any], corpus: Corpus, machine: Machine, start_time: float
) -> dict[str, Any]:
    """What the recipe says for this text, machine and time, which began at `start_time`."""
    minutes = values.get("minutes", 0.0)
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - corpus.val_fraction)),  # for every val_split
        flops=default_flops(device_kind(machine.device)),
        minutes=minutes,
        device=device_kind(machine.device),
        has_weights="init_from" in values,
    )
    if minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        seconds = 60 * minutes - machine.processes.max(time.perf_counter() - start_time)
        budget = replace(budget, flops=speed * max(seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=default_flops(kind), device=kind)))
    model, optimizers, _ = build(config, machine, vocab_size)
    shape = (config.optim.batch_size, config.model.block_size)
    x_BT = torch.randint(vocab_size, shape, device=machine.device)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 10 and sum(seconds) < 1):
        step_start = time.perf_counter()
        with machine.autocast():
            loss = F.cross_entropy(model(x_BT).flatten(0, 1).float(), x_BT.flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    flops = step_flops(config.model.n_layer, config.model.n_embd, config.optim.batch_size)
    return processes.world_size * flops / processes.max(float(np.median(seconds)))


def build(
    config: TrainConfig, machine: Machine, vocab_size: int
) -> tuple[nn.Module, list[Optimizer], GradScaler]:
    """The network with new weights, its optimizers, its gradient scaler."""
    seed_all(config.run.seed)
    model = machine.place(make_network(config.model, vocab_size))
    optimizers = make_optimizers(model, config.optim, muon_dtype=machine.dtype)
    return model, optimizers, machine.make_scaler()


def new_state(
    config: TrainConfig, corpus: Corpus, machine: Machine, run_dir: Path, other: Checkpoint
) -> Checkpoint:
    """The state of a run at step 0, with new weights or those of `other`. It is also saved."""
    vocab = corpus.tokenizer.vocab
    # These raise before anything is written.
    machine.processes.batch_rows(config.optim.batch_size, config.optim.gradient_accumulation_steps)
    if config.run.teacher != "own":
        load_teacher(config, corpus, machine, run_dir)
    model, optimizers, scaler = build(config, machine, len(vocab))
    if other.model:
        checkpoint.restore(other, model)
    state = Checkpoint(to_dict(config), vocab, corpus.sha256)
    checkpoint.capture(state, model, optimizers, scaler)
    if machine.processes.is_main:
        with atomic_write(run_dir / "config.toml") as file:
            file.write(to_toml(config).encode())
        checkpoint.save(state, run_dir / "last.pt")
    return state


def require_same_split(other: Checkpoint, name: str, corpus: Corpus) -> None:
    """Raise UserError if the run `other` may have been trained on text that validates here."""
    if other.data_sha256 != corpus.sha256:
        return
    theirs, length = make_config(TrainConfig, other.config).corpus, len(corpus.ids_N)
    pieces = count_pieces(length, theirs.val_fraction, theirs.val_split)
    if (theirs.val_fraction, pieces) != (corpus.val_fraction, corpus.pieces):
        raise UserError(
            f"{name} was trained on this text, but with other validation text. Use the same: "
            f"--val_fraction {theirs.val_fraction} --val_split {theirs.val_split}."
        )


def load_teacher(
    config: TrainConfig, corpus: Corpus, machine: Machine, run_dir: Path
) -> tuple[nn.Module | None, str]:
    """The network that the run learns from, and the SHA-256 of its weights."""
    name = config.run.teacher
    if name == "none":
        return None, ""
    path = checkpoint.resolve(str(run_dir / "teacher") if name == "own" else name, "best")
    saved = checkpoint.load(path)
    if saved.vocab != corpus.tokenizer.vocab:
        raise UserError(
            f"the teacher {path} has another vocabulary than {corpus.name}. Name a run on the same "
            "text."
        )
    require_same_split(saved, f"the teacher {path}", corpus)
    model_config = make_config(TrainConfig, saved.config).model
    teacher = make_network(model_config, len(saved.vocab))
    if config.model.block_size > (teacher.max_length or math.inf):
        raise UserError(
            f"the teacher {path} reads at most {teacher.max_length} characters; block_size is "
            f"{config.model.block_size}."
        )
    checkpoint.restore(saved, teacher)
    teacher.to(machine.device).eval().requires_grad_(False)
    return teacher, checkpoint.weights_sha256(saved.model)
