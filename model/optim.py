"""What changes the weights: Muon for the blocks' matrices, AdamW for the rest, and their rate over time."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from model.gpt import GPT


@dataclass(frozen=True)
class OptimConfig:
    """How long and how fast to learn."""

    batch_size: Annotated[int, "windows of block_size per optimiser step, over all processes", "[1, inf)"] = 8
    gradient_accumulation_steps: Annotated[int, "parts a process splits its share of a step into", "[1, inf)"] = 1
    max_iters: Annotated[int, "optimiser steps", "[1, inf)"] = 2000
    learning_rate: Annotated[float, "peak rate, of AdamW and of Muon alike", "[0, inf)"] = 5e-3
    weight_decay: Annotated[float, "of the blocks' matrices", "[0, inf)"] = 0.0
    warmup_iters: Annotated[int, "steps over which the rate rises to its peak", "[0, inf)"] = 20
    decay_fraction: Annotated[float, "last share of the run over which the rate falls to zero", "[0, 1]"] = 0.6
    grad_clip: Annotated[float, "clip the gradient to this norm (0: never)", "[0, inf)"] = 1.0


def optimizers(model: GPT, config: OptimConfig) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices inside the blocks, AdamW for embedding and head.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025, "Muon is scalable"), so that
    one learning rate serves both. Weight decay pulls on the blocks' matrices alone.
    """
    matrices = list(model.blocks.parameters())
    rest = [*model.embedding.parameters(), *model.head.parameters()]
    return [
        torch.optim.Muon(
            matrices, lr=config.learning_rate, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(rest, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def learning_rate(step: int, config: OptimConfig) -> float:
    """The rate of step 0 .. max_iters - 1: a linear rise, a plateau, and a linear fall towards zero."""
    rise = (step + 1) / (config.warmup_iters + 1)
    fall = (config.max_iters - step) / max(1, config.decay_fraction * config.max_iters)
    return config.learning_rate * min(1.0, rise, fall)


def update(
    model: GPT,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    rate: float,
    grad_clip: float,
) -> Tensor:
    """Take one step down the gradients, shortened to `grad_clip`, and clear them; returns their length before."""
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        for group in optimizer.param_groups:
            group["lr"] = rate
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip or torch.inf)
    if not scaler.is_enabled() or norm.isfinite():  # float16 may overflow: then neither optimiser steps
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    model.zero_grad()
    return norm
