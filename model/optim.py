"""What changes the weights: Muon for the blocks' matrices, AdamW for the rest, and their rate over time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from model.gpt import GPT, TokenShift


@dataclass(frozen=True)
class OptimConfig:
    """How long and how fast to learn."""

    batch_size: Annotated[int, "windows of block_size per optimiser step, over all processes", "[1, 1000000]"] = 8
    gradient_accumulation_steps: Annotated[int, "parts a process splits its share of a step into", "[1, inf)"] = 1
    max_iters: Annotated[int, "optimiser steps", "[1, inf)"] = 2000
    learning_rate: Annotated[float, "peak rate, of AdamW and of Muon alike", "[0, inf)"] = 5e-3
    weight_decay: Annotated[float, "of the blocks' matrices", "[0, inf)"] = 0.0
    warmup_iters: Annotated[int, "steps over which the rate rises to its peak", "[0, inf)"] = 20
    grad_clip: Annotated[float, "clip the gradient to this norm (0: never)", "[0, inf)"] = 1.0


class Muon(Optimizer):
    """`torch.optim.Muon` for small matrices: all of one shape take their step together.

    Momentum, then the nearest matrix that turns every direction equally, by four Newton-Schulz
    iterations (Jordan et al. 2024, "Muon"), at a length that suits AdamW's learning rate (Liu et al.
    2025, "Muon is scalable"). `dtype` is the iterations' format. One by one, a small network's
    matrices keep no processor busy: together they take a third of the time.
    """

    def __init__(self, weights: Iterable[Tensor], lr: float, weight_decay: float, dtype: torch.dtype) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = {}
        for weight in weights:
            by_shape.setdefault(weight.shape[-2:], []).append(weight)
        super().__init__([{"params": same} for same in by_shape.values()], {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype
        for (R, C), same in by_shape.items():
            self.state[same[0]]["momentum"] = torch.cat([torch.zeros_like(weight).view(-1, R, C) for weight in same])

    @torch.no_grad()
    def step(self) -> None:
        """One step, from every weight's gradient."""
        for group in self.param_groups:
            weights, momentum_NRC = group["params"], self.state[group["params"][0]]["momentum"]
            R, C = weights[0].shape[-2:]
            grads_NRC = torch.cat([weight.grad.view(-1, R, C) for weight in weights])
            momentum_NRC.lerp_(grads_NRC, 0.05)
            steps_NRC = orthogonalise(grads_NRC.lerp(momentum_NRC, 0.95), self.dtype)
            steps = steps_NRC.split([weight.numel() // (R * C) for weight in weights])
            for weight, step in zip(weights, steps, strict=True):
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(step.view_as(weight), alpha=group["lr"] * 0.2 * max(R, C) ** 0.5)


def orthogonalise(x_NRC: Tensor, dtype: torch.dtype) -> Tensor:
    """N matrices, their singular values pushed to about 1: all but the smallest to about 0.7 to 1.2.

    N matrices of R rows and C columns in, the same out; `dtype` is the format in between.
    """
    if x_NRC.size(1) > x_NRC.size(2):
        return orthogonalise(x_NRC.mT, dtype).mT
    # Scaled before the format narrows, or float16 would lose small gradients.
    y_NRC = (x_NRC / x_NRC.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).to(dtype)
    for _ in range(4):
        gram_NRR = y_NRC @ y_NRC.mT
        quintic_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=-4.775, alpha=2.0315)
        y_NRC = torch.baddbmm(y_NRC, quintic_NRR, y_NRC, beta=3.4445)
    return y_NRC.to(x_NRC.dtype)


def optimizers(model: GPT, config: OptimConfig, dtype: torch.dtype) -> list[Optimizer]:
    """Muon for the matrices inside the blocks, in `dtype`, AdamW for embedding, head and vectors.

    One learning rate serves both. Weight decay pulls on the blocks' matrices alone. Their memory is there
    before the first step, so that a checkpoint's can be held against it.
    """
    layers = [layer for layer in model.blocks.modules() if not isinstance(layer, TokenShift)]
    matrices = [weight for layer in layers for weight in layer.parameters(recurse=False)]
    rest = [weight for weight in model.parameters() if all(weight is not matrix for matrix in matrices)]
    adamw = torch.optim.AdamW(rest, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for weight in rest:
        averages = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        adamw.state[weight] = {"step": weight.new_zeros(()), **averages}
    return [Muon(matrices, config.learning_rate, config.weight_decay, dtype), adamw]


def learning_rate(step: int, config: OptimConfig) -> float:
    """The rate of step 0 .. max_iters - 1: a short rise, then a straight fall towards zero."""
    return config.learning_rate * min((step + 1) / (config.warmup_iters + 1), 1 - step / config.max_iters)


def update(model: GPT, optimizers: list[Optimizer], scaler: GradScaler, rate: float, grad_clip: float) -> Tensor:
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


class Watch:
    """Raises FloatingPointError for a step whose loss or gradient is no finite number.

    To look is to wait for the device, so steps are noted, and looked at together. Where float16's scaler
    skips steps that overflow, twenty in a row are too many.
    """

    def __init__(self, plan: OptimConfig, dtype: torch.dtype, scaler: GradScaler) -> None:
        self.plan, self.dtype, self.noted = plan, dtype, []
        self.wrong, self.too_many = 0, 20 if scaler.is_enabled() else 1

    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Remember a step's loss and its gradient's length."""
        self.noted.append((step, torch.stack((loss, norm))))
        if len(self.noted) == 100:
            self.look()

    def look(self) -> None:
        """At all steps noted since the last time."""
        steps, self.noted = self.noted, []
        for step, values in steps:
            loss, norm = values.tolist()
            self.wrong = 0 if math.isfinite(loss + norm) else self.wrong + 1
            if self.wrong == self.too_many:
                self.require_finite("training loss", loss, step)
                self.require_finite("gradient's length", norm, step)

    def require_finite(self, name: str, value: float, step: int) -> None:
        """Raise FloatingPointError, with what to try, if `value` is not finite."""
        rate = learning_rate(min(step, self.plan.max_iters - 1), self.plan)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"the {name} became {value} at step {step}, at learning rate {rate:g} in "
                f"{str(self.dtype).removeprefix('torch.')}; what was saved before is whole; try a smaller "
                "--learning_rate, a longer --warmup_iters or --dtype float32"
            )
