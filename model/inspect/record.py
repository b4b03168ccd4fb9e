"""Records the attention of a network.

Shapes: B batch, T time (queries), S keys, H heads of a block, D head width.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from model.attention import AttentionCall, recording


@contextlib.contextmanager
def record_attention(model: nn.Module) -> Iterator[list[tuple[int, AttentionCall]]]:
    """Yield a list. Inside `with`, a forward pass of `model` appends each attention call to it.

    An item is the number of the block and a call with a weight for each pair of characters.
    """
    calls, n_blocks, shape = [], 0, None

    def start(model: nn.Module, args: tuple[Tensor, ...]) -> None:
        nonlocal shape
        shape = args[0].shape

    def collect(*_: object) -> None:
        nonlocal n_blocks
        n_blocks += 1
        for call in recorded:
            B, T = shape
            if call.q_BHTD.ndim == 4 and call.weights_BHTS.shape == (B, call.q_BHTD.size(1), T, T):
                calls.append((n_blocks, call))
        recorded.clear()

    with contextlib.ExitStack() as stack:
        stack.enter_context(model.register_forward_pre_hook(start))
        for block in set(model.blocks):  # a block may be used several times
            stack.enter_context(block.register_forward_hook(collect))
        recorded = stack.enter_context(recording())
        yield calls
