"""Attention: the equation, the fused kernel beside it, the cache.

Each character's query asks "which characters matter to me?". Its dot product with a key, its own or
that of an earlier character, says how well they match. The output is the average of the values,
weighted by the softmax of these scores.

`attend_by_equation` is the specification. A network calls `attend`, which computes the same with
PyTorch's fused kernel where that is faster. An edit of the equation fails
tests/model/test_attention.py, because the kernel does not follow. Write another equation into
`Attention.forward` of a network of your own, and pass its weights to `record`.

Shapes: B batch, T time (queries), S keys, H heads, D head width.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Up to this many weights per head (T x S), the plain equation is faster than the kernel on a CPU
# in half precision: at 256 x 256 by a factor of 2.
MAX_EQUATION_WEIGHTS = 512 * 512


class AttentionCall(NamedTuple):
    """What one attention layer computed."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    weights_BHTS: Tensor


recorded: list[AttentionCall] | None = None  # a list while attention is recorded


def record(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> None:
    """Keep q_BHTD, k_BHSD, v_BHSD and weights_BHTS for the maps and the attention page.

    Does nothing unless attention is being recorded (model/inspect/record.py). `attend` calls it; a
    network with an equation of its own calls it after computing its weights.
    """
    if recorded is not None:
        recorded.append(AttentionCall(q, k, v, weights))


def attention_weights(
    q: Tensor, k: Tensor, causal=False, scale=None, window=None, bias=None
) -> Tensor:
    """How much each query attends to each key: softmax(Q Kᵀ / √d + bias + mask).

    Args:
        q, k: q_BHTD and k_BHSD; any number of leading dimensions will do. The queries belong to
            the last T of the S positions.
        causal: hide the keys that come after a query.
        scale: used instead of 1/√d. The dot product of two independent vectors of variance 1
            has variance d; unscaled, it would saturate the softmax (Vaswani et al. 2017).
        window: with `causal`, a query sees at most this many keys, its own included.
        bias: added to the scores, of a shape that broadcasts to (B, H, T, S).

    Returns:
        weights_BHTS, each row non-negative with sum 1.
    """
    T, S, D = q.size(-2), k.size(-2), q.size(-1)
    scores_BHTS = (q * (D**-0.5 if scale is None else scale)) @ k.mT
    if bias is not None:
        scores_BHTS = scores_BHTS + bias
    if causal:
        minus_inf_TS = scores_BHTS.new_full((T, S), -torch.inf)
        scores_BHTS = scores_BHTS + minus_inf_TS.triu(S - T + 1)  # later keys
        if window is not None and window < S:
            scores_BHTS = scores_BHTS + minus_inf_TS.tril(S - T - window)  # keys too far back
    return scores_BHTS.softmax(dim=-1)


def attend_by_equation(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, bias=None, dropout=0.0
) -> Tensor:
    """Attention by the textbook equation: softmax(Q Kᵀ / √d + bias + mask) V.

    q_BHTD, k_BHSD, v_BHSD to out_BHTD; each output is a weighted average of the values. `dropout`
    is the probability that a weight is set to 0. The other arguments are those of
    `attention_weights`. This is the specification of `attend`.
    """
    weights_BHTS = attention_weights(q, k, causal, scale, window, bias)
    record(q, k, v, weights_BHTS)
    return F.dropout(weights_BHTS, dropout).to(v.dtype) @ v


def attend_by_kernel(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, bias=None, dropout=0.0
) -> Tensor:
    """`attend_by_equation` by PyTorch's fused kernel, which does not store the T x S weights."""
    T, S = q.size(-2), k.size(-2)
    window = S if window is None else window
    # The kernel's own is_causal aligns the first query with the first key. With a cache the last
    # query belongs to the last key; a single query, the last, sees all keys.
    if causal and (1 < T < S or window < S or bias is not None):
        visible_TS = torch.ones(T, S, dtype=torch.bool, device=q.device)
        visible_TS = visible_TS.tril(S - T).triu(S - T - window + 1)
        mask = visible_TS
        if bias is not None:
            mask = bias.to(q.dtype).masked_fill(~visible_TS, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)
    mask = None if bias is None else bias.to(q.dtype)
    is_causal = causal and T == S
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, scale=scale)


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, bias=None, dropout=0.0
) -> Tensor:
    """`attend_by_equation`, computed in the fastest way. What a network calls."""
    options = (causal, scale, window, bias, dropout)
    if recorded is not None:
        return attend_by_equation(q, k, v, *options)
    is_small = q.size(-2) * k.size(-2) <= MAX_EQUATION_WEIGHTS
    if q.device.type == "cpu" and v.dtype.itemsize == 2 and is_small:
        with torch.autocast("cpu", enabled=False):  # autocast would run the softmax in float32
            return attend_by_equation(q.to(v.dtype), k.to(v.dtype), v, *options)
    return attend_by_kernel(q, k, v, *options)


class Cache:
    """Keys, values and other tensors of the text so far. An argument of the model, not its state.

    A layer that looks back keeps in `kept` what it needs, with itself as the dictionary key. (So a
    layer that is used several times in one pass needs a key for each use.)
    """

    def __init__(self) -> None:
        self.length = 0  # characters read so far, advanced by the network
        self.kept: dict[nn.Module, Any] = {}

    def append(
        self, layer: nn.Module, k_BHTD: Tensor, v_BHTD: Tensor, window: int
    ) -> tuple[Tensor, Tensor]:
        """Append T positions; returns k_BHSD and v_BHSD, all that these T queries may see.

        Both are written in order into a buffer for two windows. When it is full, the window - 1
        latest positions, which the next query may still see, move to the start of a new one.
        """
        B, H, T, D = k_BHTD.shape
        keys, values, end = self.kept.get(layer) or (k_BHTD[:, :, :0], v_BHTD[:, :, :0], 0)
        first = max(0, end - (window - 1))  # the new queries see no key before this
        if end + T > keys.size(2):
            seen = end - first
            size = max(2 * window, seen + T)
            new_keys, new_values = (x.new_empty(B, H, size, D) for x in (k_BHTD, v_BHTD))
            new_keys[:, :, :seen] = keys[:, :, first:end]
            new_values[:, :, :seen] = values[:, :, first:end]
            keys, values, first, end = new_keys, new_values, 0, seen
        keys[:, :, end : end + T] = k_BHTD
        values[:, :, end : end + T] = v_BHTD
        self.kept[layer] = keys, values, end + T
        return keys[:, :, first : end + T], values[:, :, first : end + T]
