"""The optimizers and the learning rate. Muon trains the matrices in the blocks, AdamW the rest."""

import copy
import math
from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.errors import UserError
from configs.settings import OptimConfig

TEACHER_FROM = 50  # from this step on, a network also learns from the average of its weights


class Optimizer(torch.optim.Optimizer):
    """PyTorch's Optimizer without the decorators that import its compiler, which takes 2 to 5 s.

    The decorators hide a method from the compiler. Quill never compiles optimizers.
    """

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state. PyTorch matches parameters by their order, so compare their names first."""
        groups = zip(self.param_groups, state["param_groups"], strict=True)
        if any(ours["param_names"] != theirs["param_names"] for ours, theirs in groups):
            raise UserError("the checkpoint has its layers in another order than model/.")
        unwrap(torch.optim.Optimizer.load_state_dict)(self, state)


class AdamW(Optimizer, torch.optim.AdamW):
    """PyTorch's AdamW without the decorators that import the compiler."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


def make_optimizers(
    model: nn.Module, config: OptimConfig, muon_dtype: torch.dtype, uses_graph: bool = False
) -> list[Optimizer]:
    """Return Muon and AdamW, or AdamW alone.

    `uses_graph` says that Muon may use a CUDA graph, as the network does.
    Beside Muon, AdamW updates all parameters that are no matrices in the blocks, without weight
    decay. AdamW alone decays all matrices, embeddings included, but no gains and biases.
    """
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2
        if config.optimizer == "muon":
            # A matrix of a single row or column is a vector.
            is_matrix = is_matrix and name.startswith("blocks.") and min(parameter.shape[-2:]) > 1
        (matrices if is_matrix else others).append((name, parameter))
    betas = (config.beta1, config.beta2)
    groups = [{"params": others, "weight_decay": 0.0}]
    if config.optimizer == "muon" and matrices:
        muon = Muon(matrices, config.learning_rate, config.weight_decay, muon_dtype, uses_graph)
        return [muon, AdamW(groups, config.learning_rate, betas, fused=True)]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, *groups]
    groups = [group for group in groups if group["params"]]
    return [AdamW(groups, config.learning_rate, betas, fused=True)]


def make_average(model: nn.Module, decay: float) -> nn.Module | None:
    """Return a copy of `model`, which becomes a running average of its weights; None at decay 0."""
    return copy.deepcopy(model).eval().requires_grad_(False) if decay else None


@torch.no_grad()
def update_average(ema: nn.Module | None, model: nn.Module, decay: float, step: int) -> None:
    """Move the running average of the weights towards the weights of `model`. Copy the buffers.

    In the first steps, the decay is smaller. The average then covers about the latest quarter of
    the run so far (Karras et al. 2024, "Analyzing and improving the training dynamics ...").
    """
    if ema is None:
        return
    decay = min(decay, (step + 1) / (step + 5))
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)
    for kept, buffer in zip(ema.buffers(), model.buffers(), strict=True):
        kept.copy_(buffer)


def learning_rate(step: int, progress: float, config: OptimConfig) -> float:
    """Return the learning rate at a step: a linear warmup, then a decay until the run ends.

    `progress` is the part of the run that is done, a number from 0 to 1. Without `min_lr`, the
    learning rate is the smaller of two lines. One line rises to the peak during the warmup. The
    other line falls from the peak at the start of the run to zero at the end (Bergsma et al. 2025,
    "Straight to Zero"). With `min_lr`, the learning rate follows a cosine after the warmup, and
    ends at `min_lr` (Loshchilov and Hutter 2017, "SGDR").
    """
    warmup = (step + 1) / (config.warmup_iters + 1)
    if not config.min_lr:
        return config.learning_rate * min(warmup, 1 - progress)
    if step < config.warmup_iters:
        return config.learning_rate * warmup
    # Estimate the progress at the end of the warmup, as if all steps took equally long. (With
    # --minutes, they may not.)
    warmup_progress = progress * config.warmup_iters / max(step, 1)
    done = (progress - warmup_progress) / (1 - warmup_progress)
    cosine = (1 + math.cos(math.pi * done)) / 2
    return config.min_lr + cosine * (config.learning_rate - config.min_lr)


class Muon(Optimizer):
    """Muon with normalized rows. It updates all matrices of one shape together.

    The update of a matrix is its Nesterov momentum, a running average of its gradients, with all
    singular values moved close to 1 (Jordan et al. 2024, "Muon"). Each row of the update belongs to
    the weights of one output. Muon scales each row to a root mean square (RMS) of 0.2, about the
    RMS of AdamW's updates. (Liu et al. 2025, "Muon is scalable", scale the whole matrix. Li et al.
    2025, "NorMuon", scale each row by a running mean.) `torch.optim.Muon` updates one matrix at a
    time and takes three times as long.
    """

    MOMENTUM = 0.95

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        lr: float,
        weight_decay: float,
        dtype: torch.dtype,
        uses_graph: bool = False,
    ) -> None:
        """`dtype` is the dtype of the matrix products in `orthogonalize`."""
        super().__init__(named_parameters, {"lr": lr, "weight_decay": weight_decay})
        self.dtype, self.uses_graph = dtype, uses_graph
        # For the CUDA graph of `compute_fast`:
        self.addresses: list[int] = []  # addresses of gradients and momenta in the latest step
        self.graph: torch.cuda.CUDAGraph | None = None
        self.updates: list[Tensor] = []  # the tensors that the graph computes

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [x for x in group["params"] if x.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            grads = [parameter.grad for parameter in parameters]
            momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            updates = self.compute_fast(grads, momenta)
            # On a GPU, a _foreach function launches one kernel for all parameters.
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_sub_(parameters, updates, alpha=0.2 * group["lr"])

    def compute_fast(self, grads: list[Tensor], momenta: list[Tensor]) -> list[Tensor]:
        """Return the updates of `compute`, by a CUDA graph if `uses_graph`.

        A CUDA graph is a list of operations that a GPU repeats without Python, always in the same
        memory. So it is recorded when all tensors are where they were in the step before. If one
        moves later, a new graph is recorded.
        """
        if not self.uses_graph:
            return self.compute(grads, momenta)
        addresses = [x.data_ptr() for x in (*grads, *momenta)]
        if addresses != self.addresses:
            self.addresses, self.graph = addresses, None
            return self.compute(grads, momenta)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.updates = self.compute(grads, momenta)
        self.graph.replay()
        return self.updates

    def compute(self, grads: list[Tensor], momenta: list[Tensor]) -> list[Tensor]:
        """Update the momenta. Return the updates of the parameters, before `step` scales them."""
        torch._foreach_lerp_(momenta, grads, 1 - self.MOMENTUM)
        nesterov = torch._foreach_lerp(grads, momenta, self.MOMENTUM)
        updates = list(nesterov)
        for R, C in {x.shape[-2:] for x in nesterov}:  # all matrices of one shape together
            places = [i for i, x in enumerate(nesterov) if x.shape[-2:] == (R, C)]
            stacks = [nesterov[i].reshape(-1, R, C) for i in places]
            update_NRC = orthogonalize(torch.cat(stacks), self.dtype)
            update_NRC = F.rms_norm(update_NRC, (C,))  # the rows of a tall matrix differ in length
            parts = update_NRC.split([len(stack) for stack in stacks])
            for i, part in zip(places, parts, strict=True):
                updates[i] = part.view_as(nesterov[i])
        return updates


def orthogonalize(x_NRC: Tensor, dtype: torch.dtype) -> Tensor:
    """Move the singular values of N matrices close to 1, by three Newton-Schulz iterations.

    x_NRC to x_NRC; `dtype` is the dtype of the products. G = X Xᵀ is the Gram matrix of X, and ‖G‖
    is the root of the sum of its squares. An iteration multiplies X by Q, a polynomial of G. Then
    G becomes Q G Q. So if G is smaller than X, it is enough to iterate on G. Singular values above
    0.018 √‖G‖ end between 0.68 and 1.21. Smaller singular values grow by a factor of up to
    41 / √‖G‖.
    """
    if x_NRC.size(1) > x_NRC.size(2):
        return orthogonalize(x_NRC.mT, dtype).mT
    # Normalize first, because float16 cannot hold small gradients.
    norm_N11 = x_NRC.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    y_NRC = (x_NRC / norm_N11).to(dtype)
    gram_NRR = y_NRC @ y_NRC.mT
    # √‖Y Yᵀ‖ is closer to the largest singular value than ‖Y‖ = 1. So divide by it to scale Y up.
    bound_N11 = gram_NRR.norm(dim=(1, 2), keepdim=True).clamp(min=1e-3)
    gram_NRR = gram_NRR / bound_N11
    factor_NRR = quintic(gram_NRR)
    total_NRR = factor_NRR / bound_N11.sqrt()
    if x_NRC.size(1) == x_NRC.size(2):  # G is as large as X: iterating on X needs fewer products
        y_NRC = total_NRR @ y_NRC
        for _ in range(2):
            y_NRC = quintic(y_NRC @ y_NRC.mT) @ y_NRC
        return y_NRC.to(x_NRC.dtype)
    for _ in range(2):
        gram_NRR = factor_NRR @ gram_NRR @ factor_NRR
        factor_NRR = quintic(gram_NRR)
        total_NRR = factor_NRR @ total_NRR
    return (total_NRR @ y_NRC).to(x_NRC.dtype)


def quintic(gram_NRR: Tensor) -> Tensor:
    """Return 3.4445 I - 4.775 G + 2.0315 G², with the coefficients of Jordan et al."""
    factor_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=-4.775, alpha=2.0315)
    factor_NRR.diagonal(dim1=1, dim2=2).add_(3.4445)
    return factor_NRR
