"""The inputs of the recipe: the size of the text, the kind and speed of the machine, the time.

A corpus is an argument, as data/corpus.py makes it; model/ does not import data/.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from configs.flags import make_config
from configs.recipe import Budget, block_parameters, default_flops, recipe, step_flops
from configs.settings import TrainConfig
from model.checkpoint import Checkpoint
from model.loss import cross_entropy
from model.network import make_network
from model.optim import make_optimizers
from model.system.device import Machine, device_kind


def choose_settings(
    config: TrainConfig, saved: Checkpoint, corpus: Any, machine: Machine
) -> dict[str, Any]:
    """What the recipe says for this text, machine and time, and for the weights to start with."""
    kind = device_kind(machine.device)
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - config.val_fraction)),  # for every val_split
        flops=default_flops(kind),
        minutes=config.minutes,
        device=kind,
    )
    if saved.model:
        weights = (x for name, x in saved.model.items() if name.startswith("blocks."))
        parameters = max(1, sum(x.numel() for x in weights))
        block_size = saved.config["block_size"]
        budget = replace(budget, parameters=parameters, block_size=block_size)
    if config.minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        [seconds] = machine.processes.max(machine.processes.seconds())
        budget = replace(budget, flops=speed * max(60 * config.minutes - seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=default_flops(kind), device=kind)))
    model = make_network(config, vocab_size).to(machine.device)
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
    fast_model = machine.prepare(model, config)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 10 and sum(seconds) < 1):
        step_start = time.perf_counter()
        loss = cross_entropy(fast_model(x_BT), x_BT)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    parameters = block_parameters(config.n_layer, config.n_embd)
    flops = step_flops(parameters, config.batch_size * config.block_size)
    [step_seconds] = processes.max(float(np.median(seconds)))
    return processes.world_size * flops / step_seconds
