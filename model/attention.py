"""Attention for fast networks: the equation, PyTorch's kernel for it, and the KV cache.

Begin with model/networks/gpt.py, which writes the equation out. quill calls `attend`, which often
computes the equation with PyTorch's *kernel*, a faster routine. The kernel does not change if you
edit the equation in this file. To change the equation of quill, copy quill.py, write your equation
into `Attention.forward` of the copy, and pass its weights to `record`.

Attention is causal: a query sees its own key and the keys before it. The T queries belong to the
last T of the S positions. `window` limits how many keys a query sees, its own key included.

Shapes: B batch, T time (queries), S keys, H heads, D head width, V vocabulary.
"""

import functools
import inspect
import sys
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.system.errors import print_line

# On a CPU in half precision, the equation is faster than the kernel up to this number of weights
# per head (T x S). At 256 x 256, it is faster by a factor of 2.
MAX_EQUATION_WEIGHTS = 512 * 512


class AttentionCall(NamedTuple):
    """The tensors that one attention layer computed."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    weights_BHTS: Tensor


recorded: list[AttentionCall] | None = None  # a list while model/inspect/record.py records


def record(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> None:
    """Keep these tensors for the attention page and TensorBoard, if `recorded` is a list."""
    if recorded is not None:
        recorded.append(AttentionCall(q, k, v, weights))


def causal_mask(T: int, S: int, window: int | None, like: Tensor) -> Tensor:
    """Return mask_TS, to be added to the scores: 0 where a query sees a key, -inf elsewhere.

    The mask has the dtype and device of `like`. (On a CPU, this is faster than `masked_fill`.)
    """
    minus_inf_TS = like.new_full((T, S), -torch.inf)
    mask_TS = minus_inf_TS.triu(S - T + 1)  # hides later keys
    if window is not None and window < S:
        mask_TS = mask_TS + minus_inf_TS.tril(S - T - window)  # hides keys too far back
    return mask_TS


def attention_weights(q: Tensor, k: Tensor, window: int | None = None) -> Tensor:
    """Return how much each query attends to each key: softmax(Q Kᵀ / √d + mask).

    q_BHTD and k_BHSD to weights_BHTS. Each row sums to 1. The dot product of two independent
    vectors of d numbers with variance 1 has variance d. Without the division by √d, the softmax
    would therefore saturate: one key would get nearly all the weight (Vaswani et al. 2017).
    """
    T, S, D = q.size(-2), k.size(-2), q.size(-1)
    scores_BHTS = (q * D**-0.5) @ k.mT
    return (scores_BHTS + causal_mask(T, S, window, like=scores_BHTS)).softmax(dim=-1)


def attend_by_equation(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Return softmax(Q Kᵀ / √d + mask) V. Each output is a weighted average of the values.

    q_BHTD, k_BHSD, v_BHSD to out_BHTD.
    """
    weights_BHTS = attention_weights(q, k, window)
    record(q, k, v, weights_BHTS)
    return weights_BHTS.to(v.dtype) @ v


def attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Return the same output from PyTorch's kernel, which does not store the T x S weights."""
    T, S = q.size(-2), k.size(-2)
    sees_all = window is None or window >= S
    # The kernel's is_causal aligns the first query with the first key. But with a KV cache, the
    # last query belongs to the last key. A single query is the last one, so it sees all keys.
    if sees_all and T in (1, S):
        return F.scaled_dot_product_attention(q, k, v, is_causal=T == S)
    return F.scaled_dot_product_attention(q, k, v, causal_mask(T, S, window, like=q))


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Return the output of attention, computed in the faster of the two ways.

    While attention is recorded, the equation computes it, because the kernel stores no weights.
    """
    if recorded is not None:
        return attend_by_equation(q, k, v, window)
    is_small = q.size(-2) * k.size(-2) <= MAX_EQUATION_WEIGHTS
    if q.device.type == "cpu" and v.dtype.itemsize == 2 and is_small:
        with torch.autocast("cpu", enabled=False):  # autocast would run the softmax in float32
            return attend_by_equation(q.to(v.dtype), k.to(v.dtype), v, window)
    return attend_by_kernel(q, k, v, window)


class Cache:
    """The KV cache: keys, values and other tensors of the text so far.

    The model gets a cache as an argument and does not store it. A layer that looks back keeps its
    tensors in the dictionary `kept`, under itself as the dictionary key. (A layer that is used
    several times in one pass therefore needs a dictionary key for each use.)
    """

    def __init__(self) -> None:
        self.length = 0  # the number of characters read so far; the network increases it
        self.kept: dict[nn.Module, Any] = {}

    def append(
        self, layer: nn.Module, k_BHTD: Tensor, v_BHTD: Tensor, window: int
    ) -> tuple[Tensor, Tensor]:
        """Append T positions. Return k_BHSD and v_BHSD, all keys and values that the queries see.

        Both are written in order into a buffer of at least two windows. When the buffer is full,
        the latest window - 1 positions move to the start of a new buffer, because the next query
        may still see them.
        """
        new_2BHTD = torch.stack((k_BHTD, v_BHTD))
        _, B, H, T, D = new_2BHTD.shape
        buffer, end = self.kept.get(layer) or (new_2BHTD[:, :, :, :0], 0)
        first = max(0, end - (window - 1))  # the new queries see no earlier key
        if end + T > buffer.size(3):
            seen, first, end = buffer[:, :, :, first:end], 0, end - first
            buffer = new_2BHTD.new_empty(2, B, H, max(2 * window, end + T), D)
            buffer[:, :, :, :end] = seen
        buffer[:, :, :, end : end + T] = new_2BHTD
        self.kept[layer] = buffer, end + T
        k_BHSD, v_BHSD = buffer[:, :, :, first : end + T]
        return k_BHSD, v_BHSD


@functools.lru_cache(maxsize=1)  # checks a model once, not for each text
@torch.no_grad()
def uses_cache(model: nn.Module) -> bool:
    """Return whether `model` takes a KV cache and computes the same logits with it as without it.

    The check reads a text a little longer than block_size in both ways. If the logits differ, it
    prints a warning.
    """
    if "cache" not in inspect.signature(model.forward).parameters:
        return False
    length = min(model.config.block_size + 8, 2056)  # a longer text would need much memory
    ids_BT = torch.arange(length, device=next(model.parameters()).device)[None] % model.vocab_size
    cache = Cache()
    with torch.autocast(ids_BT.device.type, enabled=False):
        parts = ids_BT.split([1, 3, length - 5, 1], dim=1)
        cached_BTV = torch.cat([model(part_BT, cache) for part_BT in parts], dim=1)
        logits_BTV = model(ids_BT)
    # On a CPU, rounding changes logits by 4e-7 of the largest logit. A GPU may round more, to TF32.
    tolerance = 1e-4 if ids_BT.device.type == "cpu" else 1e-2
    differs = (cached_BTV - logits_BTV).abs().max() > tolerance * logits_BTV.abs().max()
    if differs:
        problem = f"the KV cache changes the logits of the network {model.config.network}"
        print_line(f"warning: {problem}. The cache is not used, so sampling is slower.", sys.stderr)
    return not differs
