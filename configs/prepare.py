"""What comes before the first step: the run directory, the settings, the network."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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
from configs.schema import make_config
from configs.training import Command, TrainConfig
from data.corpus import Corpus
from data.reader import is_stream
from model import checkpoint
from model.checkpoint import Checkpoint
from model.network import make_network
from model.optim import make_optimizers
from model.system.device import Machine, device_kind, seed_all
from model.system.errors import UserError
from model.system.files import lock_run_dir, new_run_dir
from model.system.processes import Processes


@contextmanager
def open_run(command: Command, processes: Processes) -> Iterator[tuple[Checkpoint, Path]]:
    """The checkpoint of --resume or --init_from, or an empty one; the run directory.

    The main process locks it, before it reads what another one might be writing.
    """
    if processes.world_size > 1 and any(map(is_stream, command.given.get("data", ()))):
        raise UserError("several processes cannot read the same stream. Name files with --data.")
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        with lock_run_dir(path.parent) if processes.is_main else nullcontext():
            yield checkpoint.load_to_resume(path), path.parent
        return
    saved = Checkpoint()
    if "init_from" in command.given:
        saved = checkpoint.load(checkpoint.resolve(command.given["init_from"], "best"))
    out_dir = command.given.get("out_dir")
    with new_run_dir(out_dir) if processes.is_main else nullcontext() as run_dir:
        yield saved, processes.broadcast(run_dir)


def choose_settings(
    config: TrainConfig, corpus: Corpus, machine: Machine, start_time: float
) -> dict[str, Any]:
    """What the recipe says for this text, machine and time, which began at `start_time`."""
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - config.val_fraction)),  # for every val_split
        flops=default_flops(device_kind(machine.device)),
        minutes=config.minutes,
        device=device_kind(machine.device),
        has_weights=config.init_from is not None,
    )
    if config.minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        seconds = 60 * config.minutes - machine.processes.max(time.perf_counter() - start_time)
        budget = replace(budget, flops=speed * max(seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=default_flops(kind), device=kind)))
    model, optimizers, _ = build(config, machine, vocab_size)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
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
    flops = step_flops(config.n_layer, config.n_embd, config.batch_size)
    return processes.world_size * flops / processes.max(float(np.median(seconds)))


def build(
    config: TrainConfig, machine: Machine, vocab_size: int
) -> tuple[nn.Module, list[Optimizer], GradScaler]:
    """The network with new weights, its optimizers, its gradient scaler."""
    seed_all(config.seed)
    model = make_network(config, vocab_size).to(machine.device)
    return model, make_optimizers(model, config, muon_dtype=machine.dtype), machine.make_scaler()


def require_same_text(command: Command, saved: Checkpoint, corpus: Corpus) -> None:
    """Raise UserError if a resumed run has another text, or a new one validates on what it knows.

    `saved` is the checkpoint that it begins with.
    """
    is_same = saved.data_sha256 == corpus.sha256
    if command.resume is not None and not is_same:
        raise UserError(
            f"{corpus.name} is not the text of this run. For another text, start a new run with "
            f"--init_from {command.resume}"
        )
    theirs = make_config(TrainConfig, saved.config)
    split = (theirs.val_fraction, theirs.val_split)
    if command.resume is None and is_same and split != (corpus.val_fraction, corpus.val_split):
        raise UserError(
            f"{command.given['init_from']} was trained on this text, but with other validation "
            f"text. Use the same: --val_fraction {split[0]} --val_split {split[1]}."
        )
