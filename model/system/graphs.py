"""What makes a network faster in training steps: torch.compile, CUDA graphs."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn


def compile_network(network: nn.Module, device_type: str) -> nn.Module:
    """`network`, which its first call, and the first backward pass, will compile."""
    if torch.are_deterministic_algorithms_enabled():
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=warn_only)  # tells the compiler, too
    options = {}
    if device_type == "cpu":
        # PyTorch's own random numbers are faster than the compiler's, and equal to those of a run
        # that is not compiled. A result of more than ten operations is stored, not computed again
        # where it is used: the angles of a rotation, for example.
        options = {"fallback_random": True, "realize_opcount_threshold": 10}
    return torch.compile(network, dynamic=False, options=options)


class InContext(nn.Module):
    """A network that is called inside a context. make_graphed_callables takes no other function."""

    def __init__(self, network: nn.Module, context: Callable[[], AbstractContextManager]) -> None:
        super().__init__()
        self.network, self.context = network, context

    def forward(self, ids_BT: Tensor) -> Tensor:
        """ids_BT to logits_BTV."""
        with self.context():
            return self.network(ids_BT)


def make_graph(
    network: nn.Module, context: Callable[[], AbstractContextManager], ids_BT: Tensor
) -> nn.Module:
    """`network` in `context` as a CUDA graph: the kernels of one pass, which a GPU runs again.

    Logits and gradients are in memory that the next pass overwrites.
    """
    # PyTorch 2.10 and later would warn that gradients come from another stream, that of the graph.
    if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        return torch.cuda.make_graphed_callables(
            InContext(network, context), (ids_BT,), allow_unused_input=True
        )
    except Exception:  # the network reads a value, for example
        generator.graphsafe_set_state(before)  # it still waits for the end of the graph
        raise
