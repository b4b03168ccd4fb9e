"""Records what each attention head of a network looked at, and the residual stream.

Shapes: B batch, T time (queries), S keys, C channels, H heads of a block, D head width,
V vocabulary.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from model import attention
from model.attention import AttentionCall


@contextlib.contextmanager
def record_attention(model: nn.Module) -> Iterator[list[tuple[int, AttentionCall]]]:
    """Inside, each attention of one forward pass of `model` is appended to the list.

    An item is the number of its block, from 1 on, and what it computed. `attend` computes the
    equation meanwhile. Attention without a weight for each head and pair of characters is left out.
    """
    calls, n_blocks, shape = [], 0, None

    def start(model: nn.Module, args: tuple[Tensor, ...]) -> None:
        nonlocal shape
        shape = args[0].shape

    def collect(*_: object) -> None:
        nonlocal n_blocks
        n_blocks += 1
        for call in attention.recorded:
            B, T = shape
            if call.q_BHTD.ndim == 4 and call.weights_BHTS.shape == (B, call.q_BHTD.size(1), T, T):
                calls.append((n_blocks, call))
        attention.recorded.clear()

    with contextlib.ExitStack() as stack:
        stack.enter_context(model.register_forward_pre_hook(start))
        for block in set(model.blocks):  # one may be used several times
            stack.enter_context(block.register_forward_hook(collect))
        stack.callback(setattr, attention, "recorded", None)
        attention.recorded = []
        yield calls


@torch.no_grad()
def residual_stream(model: nn.Module, ids_BT: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The vectors x_BTC before the first and after each block, and what the head makes of each.

    The latter are logits_BTV, as if the blocks that follow were left out (nostalgebraist 2020,
    "the logit lens"). If a block's output is not the next one's input, the stream is empty, and
    the lens has the logits of the model only.
    """
    used, stream = [], []

    def keep(block: nn.Module, args: tuple, output: object) -> None:
        used.append(block)
        if not stream:
            stream.extend(args[:1])
        if stream and args and args[0] is stream[-1]:
            stream.append(output)

    with contextlib.ExitStack() as hooks:
        for block in set(model.blocks):
            hooks.enter_context(block.register_forward_hook(keep))
        logits_BTV = model(ids_BT)
    if not used or len(stream) != len(used) + 1 or not all(map(torch.is_tensor, stream)):
        return [], [logits_BTV]

    def replace_output(x_BTC: Tensor) -> Tensor:
        with used[-1].register_forward_hook(lambda *_: x_BTC):
            return model(ids_BT)

    return stream, [replace_output(x_BTC) for x_BTC in stream]
