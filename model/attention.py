"""Causal multi-head self-attention: the equation, the fused kernel beside it, the cache.

Each character's query asks "which characters matter to me?". Its dot product with a key, its own or
that of an earlier character, says how well they match. The output is the average of the values,
weighted by the softmax of these scores.

Shapes: B batch, T time (queries), S keys, C channels (n_embd), H heads, D head width (C / H),
E half of it (D / 2).
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


def attend(q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None) -> Tensor:
    """Attention by the textbook equation: softmax(Q Kᵀ / √d + mask) V.

    q_BHTD, k_BHSD, v_BHSD to out_BHTD; each output is a weighted average of the values. The other
    arguments are those of `attention_weights`. This is the specification of `fused_attend`.
    """
    weights_BHTS = attention_weights(q, k, causal, scale, window)
    return weights_BHTS.to(v.dtype) @ v


def fused_attend(q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None) -> Tensor:
    """`attend` by PyTorch's fused kernel, which does not store the T x S weights."""
    T, S = q.size(-2), k.size(-2)
    window = S if window is None else window
    # The kernel's own is_causal aligns the first query with the first key. With a cache the last
    # query belongs to the last key; a single query, the last, sees all keys.
    if causal and (1 < T < S or window < S):
        visible_TS = torch.ones(T, S, dtype=torch.bool, device=q.device)
        visible_TS = visible_TS.tril(S - T).triu(S - T - window + 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible_TS, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal and T == S, scale=scale)


# tests/model/test_attention.py proves that both are equal, and prints the digest after an edit.
USES_FUSED_KERNEL = is_proven(
    "model.attention",
    "attend",
    "fused_attend",
    digest="3f4d450d61effd2a0f8ce785411b9989b78aa3521614c6ead3323b48113e0a48",
    note="PyTorch's fused kernel is not used; a large block_size takes more time and memory",
)


def fast_attend(q: Tensor, k: Tensor, v: Tensor, causal=False, scale=None, window=None) -> Tensor:
    """`attend`, computed in the fastest way. What a network calls."""
    is_small = q.size(-2) * k.size(-2) <= MAX_EQUATION_WEIGHTS
    if q.device.type == "cpu" and v.dtype.itemsize == 2 and is_small:
        with torch.autocast("cpu", enabled=False):  # autocast would run the softmax in float32
            return attend(q.to(v.dtype), k.to(v.dtype), v, causal, scale, window)
    if USES_FUSED_KERNEL:
        return fused_attend(q, k, v, causal, scale, window)
    return attend(q, k, v, causal, scale, window)


def rotation_angles(start: int, T: int, D: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos_TE and sin_TE of the rotation angles for positions start .. start + T - 1.

    Feature pair e rotates by 10000^(-e/E) radians per character: high frequencies encode short
    distances, low ones long distances (Su et al. 2021, "RoFormer").
    """
    # Far from the start, float32 angles are too coarse: use float64, on the CPU because mps has
    # none. Training always starts at 0 and stays on the device.
    dtype, device = (torch.float64, "cpu") if start else (like.dtype, like.device)
    inv_freq_E = 10000.0 ** (-torch.arange(0, D, 2, dtype=dtype, device=device) / D)
    positions_T = torch.arange(start, start + T, dtype=dtype, device=device)
    angles_TE = positions_T[:, None] * inv_freq_E
    return angles_TE.cos().to(like), angles_TE.sin().to(like)


def rotate(x_BHTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Rotate each feature pair by its position's angle.

    The dot product of a rotated query and a rotated key depends only on the distance between them.
    """
    cos_TE, sin_TE = cos_TE.to(x_BHTD.dtype), sin_TE.to(x_BHTD.dtype)
    a_BHTE, b_BHTE = x_BHTD.chunk(2, dim=-1)
    rotated_a_BHTE = a_BHTE * cos_TE - b_BHTE * sin_TE
    rotated_b_BHTE = a_BHTE * sin_TE + b_BHTE * cos_TE
    return torch.cat((rotated_a_BHTE, rotated_b_BHTE), dim=-1)


def norm(x: Tensor) -> Tensor:
    """LayerNorm without gains (Ba et al. 2016). On a CPU it is faster than RMSNorm."""
    return F.layer_norm(x, (x.size(-1),))


def linear_together(x: Tensor, *layers: nn.Module) -> list[Tensor]:
    """[layer(x) for layer in layers], linear layers without bias as a single matrix product.

    For query, key and value this saves 4 % of a training step on a CPU.
    """
    # Not for subclasses, which may compute something else.
    if all(type(layer) is nn.Linear and layer.bias is None for layer in layers):
        weight = torch.cat([layer.weight for layer in layers])
        return list(F.linear(x, weight).split([layer.out_features for layer in layers], dim=-1))
    return [layer(x) for layer in layers]


class Cache:
    """Keys, values and last inputs of the text so far. An argument of the model, never its state.

    Each layer that looks back keeps its tensors here, with itself as the dictionary key.
    """

    def __init__(self) -> None:
        self.length = 0  # characters read so far, advanced by GPT.forward
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


class Attention(nn.Module):
    """Multi-head causal self-attention: query, key and value are three projections of one input.

    Queries and keys are normalized, which bounds the scores at any learning rate (Henry et al.
    2020, "Query-key normalization"). `proj` starts at zero, so an untrained layer adds nothing.
    """

    def __init__(self, n_embd: int, n_head: int, window: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.window = window
        self.query = nn.Linear(n_embd, n_embd, bias=False)
        self.key = nn.Linear(n_embd, n_embd, bias=False)
        self.value = nn.Linear(n_embd, n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        nn.init.zeros_(self.proj.weight)

    def forward(
        self, x_BTC: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """x_BTC to out_BTC. With a `cache`, x_BTC continues the text in it."""
        q_BTC, k_BTC, v_BTC = linear_together(x_BTC, self.query, self.key, self.value)
        q_BHTD = rotate(norm(self.split_heads(q_BTC)), cos_TE, sin_TE)
        k_BHTD = rotate(norm(self.split_heads(k_BTC)), cos_TE, sin_TE)
        v_BHTD = self.split_heads(v_BTC)
        k_BHSD, v_BHSD = k_BHTD, v_BHTD
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(self, k_BHTD, v_BHTD, self.window)
        out_BHTD = fast_attend(q_BHTD, k_BHSD, v_BHSD, causal=True, window=self.window)
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to x_BHTD."""
        return x_BTC.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
