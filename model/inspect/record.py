"""Records what each attention head of a network looked at, and the residual stream.

Shapes: B batch, T time (queries), S keys, C channels, H heads of a block, D head width,
V vocabulary.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model import attention


class AttentionCall(NamedTuple):
    """One call of `attend`: its arguments, and the weights that it used."""

    block: int  # from 1
    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    scale: float | None
    window: int | None
    weights_BHTS: Tensor


@contextlib.contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionCall]]:
    """Inside, each attention of one forward pass of `model` is appended to the list.

    The network computes the equation in place of the fused kernel meanwhile. What is recorded are
    the weights that `attention_weights` returned, also if it was edited. An edited `attend` that
    calls `attention_weights` twice is not recorded, nor is a layer without the causal mask, or
    without a weight for each head and pair of characters.
    """
    calls, blocks, weights, shapes = [], [], [], []
    originals = dict(vars(attention))

    def attention_weights(*args, **options) -> Tensor:
        weights.append(originals["attention_weights"](*args, **options))
        return weights[-1]

    def attend(
        q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, *args, **options
    ) -> Tensor:
        weights.clear()
        out_BHTD = originals["attend"](q, k, v, causal, scale, window, *args, **options)
        B, T = shapes[-1]
        if causal and len(weights) == 1 and weights[0].shape == (B, q.size(1), T, T):
            calls.append(AttentionCall(len(blocks), q, k, v, scale, window, weights[0]))
        return out_BHTD

    model_hook = model.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    with model_hook, contextlib.ExitStack() as stack:
        for block in set(model.blocks):  # one may be used several times
            stack.enter_context(block.register_forward_pre_hook(lambda *_: blocks.append(1)))
        stack.callback(vars(attention).update, originals)
        attention.attend, attention.attention_weights = attend, attention_weights
        attention.USES_FUSED_KERNEL = False
        yield calls


@torch.no_grad()
def residual_stream(model: nn.Module, ids_BT: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The vectors x_BTC before the first and after each block, and what the head makes of each.

    The latter are logits_BTV, as if the blocks that follow were left out (nostalgebraist 2020,
    "the logit lens"). Both are empty if a block's output is not the next one's input, unchanged.
    """
    used, stream, versions = [], [], []

    def keep(block: nn.Module, args: tuple, output: object) -> None:
        used.append(block)
        if not stream:
            stream.extend(args[:1])
        if stream and args and args[0] is stream[-1]:
            stream.append(output)
        new = stream[len(versions) :]
        versions.extend(getattr(x, "_version", None) for x in new)  # counts changes in place

    with contextlib.ExitStack() as hooks:
        for block in set(model.blocks):
            hooks.enter_context(block.register_forward_hook(keep))
        model(ids_BT)
    is_chain = used and len(stream) == len(used) + 1 and all(map(torch.is_tensor, stream))
    if not is_chain or [x._version for x in stream] != versions:
        return [], []

    def replace_output(x_BTC: Tensor) -> Tensor:
        with used[-1].register_forward_hook(lambda *_: x_BTC):
            return model(ids_BT)

    return stream, [replace_output(x_BTC) for x_BTC in stream]
