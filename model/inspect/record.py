"""Records the attention of a network, and computes its logit lens.

Shapes: B batch, T time (queries), S keys, C channels, H heads of a block, D head width,
V vocabulary.
"""

import contextlib
from collections.abc import Iterator

import torch
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


@torch.no_grad()
def logit_lens(model: nn.Module, ids_BT: Tensor) -> list[Tensor]:
    """Return a list of logits_BTV: before the first block, and after each block.

    The head reads the vectors as if the later blocks were left out (nostalgebraist 2020). If a
    block's output is not the next block's input, only the logits of the whole model are returned.
    """
    calls = []
    with contextlib.ExitStack() as hooks:
        for block in set(model.blocks):
            hooks.enter_context(block.register_forward_hook(lambda *call: calls.append(call)))
        logits_BTV = model(ids_BT)
    inputs, outputs = [args[0] for _, args, _ in calls if args], [output for *_, output in calls]
    stream = inputs[:1] + outputs
    is_stream = len(inputs) == len(outputs) and all(map(torch.is_tensor, stream))
    if not calls or not is_stream or any(x is not y for x, y in zip(inputs, stream, strict=False)):
        return [logits_BTV]

    def replace_output(x_BTC: Tensor) -> Tensor:
        with calls[-1][0].register_forward_hook(lambda *_: x_BTC):
            return model(ids_BT)

    return [replace_output(x_BTC) for x_BTC in stream]
