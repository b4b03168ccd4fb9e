"""Attention: the equation, the fused kernel beside it, the cache.

Each character's query asks "which characters matter to me?". Its dot product with a key, its own or
that of an earlier character, says how well they match. The output is the average of the values,
weighted by the softmax of these scores.

Shapes: B batch, T time (queries), S keys, H heads, D head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.run.source import is_proven

# Up to this many weights per head (T x S), the plain equation is faster than the kernel on a CPU
# in half precision: at 256 x 256 by a factor of 2.
MAX_EQUATION_WEIGHTS = 512 * 512


def attention_weights(q: Tensor, k: Tensor, causal=False, scale=None, window=None) -> Tensor:
    """How much each query attends to each key: softmax(Q Kᵀ / √d + mask).

    Args:
        q, k: q_BHTD and k_BHSD; any number of leading dimensions will do. The queries belong to
            the last T of the S positions.
        causal: hide the keys that come after a query.
        scale: used in place of 1/√d. The dot product of two independent vectors of variance 1
            has variance d; unscaled, it would saturate the softmax (Vaswani et al. 2017).
        window: with `causal`, a query sees at most this many keys, its own included.

    Returns:
        weights_BHTS, each row non-negative with sum 1.
    """
    T, S, D = q.size(-2), k.size(-2), q.size(-1)
    scores_BHTS = (q * (D**-0.5 if scale is None else scale)) @ k.mT
    if causal:
        minus_inf_TS = scores_BHTS.new_full((T, S), -torch.inf)
        scores_BHTS = scores_BHTS + minus_inf_TS.triu(S - T + 1)  # later keys
        if window is not None and window < S:
            scores_BHTS = scores_BHTS + minus_inf_TS.tril(S - T - window)  # keys too far back
    return scores_BHTS.softmax(dim=-1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, dropout=0.0
) -> Tensor:
    """Attention by the textbook equation: softmax(Q Kᵀ / √d + mask) V.

    q_BHTD, k_BHSD, v_BHSD to out_BHTD; each output is a weighted average of the values. `dropout`
    is the share of weights that are set to 0. The other arguments are those of
    `attention_weights`. This is the specification of `fused_attend`.
    """
    weights_BHTS = attention_weights(q, k, causal, scale, window)
    return F.dropout(weights_BHTS, dropout).to(v.dtype) @ v


def fused_attend(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, dropout=0.0
) -> Tensor:
    """`attend` by PyTorch's fused kernel, which does not store the T x S weights."""
    T, S = q.size(-2), k.size(-2)
    window = S if window is None else window
    # The kernel's own is_causal aligns the first query with the first key. With a cache the last
    # query belongs to the last key; a single query, the last, sees all keys.
    if causal and (1 < T < S or window < S):
        visible_TS = torch.ones(T, S, dtype=torch.bool, device=q.device)
        visible_TS = visible_TS.tril(S - T).triu(S - T - window + 1)
        return F.scaled_dot_product_attention(q, k, v, visible_TS, dropout, scale=scale)
    is_causal = causal and T == S
    return F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal, scale=scale)


# tests/model/test_attention.py proves that both are equal.
USES_FUSED_KERNEL = is_proven(
    "model.attention",
    note="the plain equation is used; a large block_size takes more time and memory",
)


def fast_attend(
    q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None, dropout=0.0
) -> Tensor:
    """`attend`, computed in the fastest way. What a network calls."""
    is_small = q.size(-2) * k.size(-2) <= MAX_EQUATION_WEIGHTS
    if q.device.type == "cpu" and v.dtype.itemsize == 2 and is_small:
        with torch.autocast("cpu", enabled=False):  # autocast would run the softmax in float32
            return attend(q.to(v.dtype), k.to(v.dtype), v, causal, scale, window, dropout)
    if USES_FUSED_KERNEL:
        return fused_attend(q, k, v, causal, scale, window, dropout)
    return attend(q, k, v, causal, scale, window, dropout)


class Cache:
    """Keys, values and last inputs of the text so far. An argument of the model, never its state.

    Each layer that looks back keeps its tensors here, with itself as the dictionary key.
    """

    def __init__(self) -> None:
        self.length = 0  # characters read so far, advanced by the network
        self.keys_values: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self.last_inputs: dict[nn.Module, Tensor] = {}

    def append(
        self, layer: nn.Module, k_BHTD: Tensor, v_BHTD: Tensor, window: int
    ) -> tuple[Tensor, Tensor]:
        """Append T positions; returns k_BHSD and v_BHSD, all that these T queries may see."""
        k_BHSD, v_BHSD = k_BHTD, v_BHTD
        if layer in self.keys_values:
            old_k, old_v = self.keys_values[layer]
            k_BHSD = torch.cat((old_k, k_BHTD), dim=2)
            v_BHSD = torch.cat((old_v, v_BHTD), dim=2)
        first = max(0, k_BHSD.size(2) - (window - 1))  # the next query sees no key before this
        self.keys_values[layer] = k_BHSD[:, :, first:], v_BHSD[:, :, first:]
        return k_BHSD, v_BHSD
