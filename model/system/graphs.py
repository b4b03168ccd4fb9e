"""Faster forward passes of training steps: torch.compile, CUDA graphs."""

import torch
from torch import Tensor, nn


class InDtype(nn.Module):
    """A network whose matrix products run in `dtype`; weights and gradients stay float32."""

    def __init__(self, network: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.device, self.dtype = network, device, dtype

    def forward(self, ids_BT: Tensor) -> Tensor:
        """ids_BT to logits_BTV."""
        is_lower = self.dtype != torch.float32
        # A cache of weights in `dtype` would be frozen in a CUDA graph.
        with torch.autocast(self.device, self.dtype, is_lower, cache_enabled=False):
            return self.network(ids_BT)


def make_compiled(plain: InDtype, ids_BT: Tensor) -> InDtype:
    """`plain`, compiled for batches like ids_BT."""
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(True, warn_only=True)  # tells the compiler, too
    options = {}
    if plain.device == "cpu":
        # PyTorch's own random numbers are faster than the compiler's, and equal to those of a run
        # that is not compiled. A result of more than ten operations is stored, not computed again
        # where it is used: the angles of a rotation, for example.
        options = {"fallback_random": True, "realize_opcount_threshold": 10}
    compiled = torch.compile(plain.network, dynamic=False, options=options)
    compiled = InDtype(compiled, plain.device, plain.dtype)
    try_out(compiled, ids_BT)  # the first call, and the first backward pass, compile
    return compiled


def make_graph(plain: InDtype, ids_BT: Tensor) -> nn.Module:
    """`plain` as a CUDA graph: the kernels of one pass, which a GPU runs again without Python.

    Logits and gradients are in memory that the next pass overwrites. Raises RuntimeError if it does
    not compute the same as `plain`: what Python computes, such as a counter, is frozen in it.
    """
    other_BT = torch.randint_like(ids_BT, plain.network.vocab_size)
    expected = try_out(plain, other_BT)
    # PyTorch would warn that gradients come from another stream, that of the graph.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    graph = InDtype(plain.network, plain.device, plain.dtype)
    try:
        graph = torch.cuda.make_graphed_callables(graph, (ids_BT,), allow_unused_input=True)
    except Exception:  # the network reads a value, for example
        generator.graphsafe_set_state(before)  # it still waits for the end of the graph
        raise
    for theirs, ours in zip(expected, try_out(graph, other_BT), strict=True):
        # The same bits, unless operations are not deterministic
        if not (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max():
            raise RuntimeError("it computes something else")
    return graph


def try_out(network: nn.Module, ids_BT: Tensor) -> list[Tensor]:
    """Copies of the logits, and of the gradients of some loss."""
    network.zero_grad()
    torch.manual_seed(0)
    logits_BTV = network(ids_BT)
    if logits_BTV.requires_grad:
        logits_BTV.float().logsumexp(-1).sum().backward()
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    return [logits_BTV.detach().clone(), *gradients]
