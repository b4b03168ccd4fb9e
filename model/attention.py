"""Causal multi-head self-attention: the equation, the kernel that computes it, the cache.

A character's query asks "who matters to me?", every earlier character's key answers "how much
do I match?", and the values of those that match are blended in proportion.

Shapes: B batch, T time (queries), S keys, C channels (n_embd), H heads, D head width (C / H).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EQUATION_IS_QUICKER = 512 * 512  # weights per head


def attention_weights(
    q: Tensor, k: Tensor, causal: bool = False, scale: float | None = None, *, window: int | None = None
) -> Tensor:
    """How much each query attends to each key: softmax(Q Kᵀ / √d + mask).

    q_BHTD and k_BHSD give weights_BHTS, each row non-negative and of sum 1; any leading
    dimensions will do. The queries are the last T of the S positions, so with `causal` query t
    sees the keys up to S - T + t, and of these with a `window` the latest so many. `scale` stands
    in for 1/√d: the variance of a dot product of independent unit-variance vectors is d, and
    unscaled scores would saturate the softmax (Vaswani et al. 2017, "Attention is all you need").
    """
    T, S, D = q.size(-2), k.size(-2), q.size(-1)
    scores_BHTS = (q * (D**-0.5 if scale is None else scale)) @ k.mT
    if causal:
        hidden_TS = torch.full((T, S), -torch.inf, dtype=q.dtype, device=q.device)
        scores_BHTS = scores_BHTS + hidden_TS.triu(S - T + 1)
        if window is not None and window < S:
            scores_BHTS = scores_BHTS + hidden_TS.tril(S - T - window)
    return scores_BHTS.softmax(dim=-1)


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, window: int | None = None
) -> Tensor:
    """The textbook equation, softmax(Q Kᵀ / √d + mask) V: the specification of `fused_attend`.

    q_BHTD, k_BHSD, v_BHSD give out_BHTD; arguments as in `attention_weights`. Each output is a
    weighted average of values: it lies in their convex hull.
    """
    return attention_weights(q, k, causal, scale, window=window) @ v


def fused_attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None, *, window: int | None = None
) -> Tensor:
    """`attend` by PyTorch's fused kernel, which never writes the T x S weights to memory.

    Same arguments, same values and gradients. The kernel's own `is_causal` counts queries from
    the first key, not from the last, so it serves only where there are as many of each. On a CPU
    with half precision (v's) the kernel is slow: up to some 500 characters the equation itself
    takes half its time, weights and all.
    """
    T, S = q.size(-2), k.size(-2)
    if q.device.type == "cpu" and v.dtype.itemsize == 2 and T * S <= EQUATION_IS_QUICKER:
        with torch.autocast("cpu", enabled=False):  # which would widen the softmax's memory
            return attend(q.to(v.dtype), k.to(v.dtype), v, causal, scale, window=window)
    window = S if window is None else window
    if causal and (1 < T < S or window < S):
        visible_TS = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T).triu(S - T - window + 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible_TS, scale=scale)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal and T == S, scale=scale)


def rotation(start: int, T: int, D: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos_TE and sin_TE (E = D/2) of the angles that stand for positions start .. start + T - 1.

    Feature pair e turns by 10000^(-e/E) radians per character: fast pairs tell neighbours apart,
    slow ones paragraphs. Far from the start the angles want more than float32.
    """
    dtype, device = (torch.float64, "cpu") if start else (like.dtype, like.device)  # not every device has float64
    turns_E = 10000.0 ** (-torch.arange(0, D, 2, dtype=dtype, device=device) / D)
    angles_TE = torch.arange(start, start + T, dtype=dtype, device=device)[:, None] * turns_E
    return angles_TE.cos().to(like), angles_TE.sin().to(like)


def rotate(x_BHTD: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Turn each feature pair by its position's angle, x_BHTD to x_BHTD.

    The dot product of a query and a key so turned depends on the distance between them alone
    (Su et al. 2021, "RoFormer").
    """
    cos_TE, sin_TE = cos_TE.to(x_BHTD.dtype), sin_TE.to(x_BHTD.dtype)
    a_BHTE, b_BHTE = x_BHTD.chunk(2, dim=-1)
    return torch.cat((a_BHTE * cos_TE - b_BHTE * sin_TE, a_BHTE * sin_TE + b_BHTE * cos_TE), dim=-1)


def norm(x: Tensor) -> Tensor:
    """The last dimension at mean 0, variance 1 (Ba et al. 2016): on a CPU one pass, where RMSNorm would take five."""
    return F.layer_norm(x, (x.size(-1),))


class Cache:
    """What one block has computed of the latest characters: an argument of the model, never its state."""

    def __init__(self) -> None:
        self.kv_2BHSD: Tensor | None = None  # with room for more; the latest end at `end`
        self.last_BRC: dict[nn.Module, Tensor] = {}  # by each TokenShift, what it has seen last
        self.length = self.end = 0

    def extend(self, k_BHTD: Tensor, v_BHTD: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Append T positions; return all keys and values that any of these sees, the window - 1 before them too."""
        B, H, T, D = k_BHTD.shape
        before = min(self.length, window - 1)
        if self.kv_2BHSD is None or self.end + T > self.kv_2BHSD.size(3):
            longer_2BHSD = v_BHTD.new_empty(2, B, H, before + T + window, D)
            if before:
                longer_2BHSD[:, :, :, :before] = self.kv_2BHSD[:, :, :, self.end - before : self.end]
            self.kv_2BHSD, self.end = longer_2BHSD, before
        begin, self.end, self.length = self.end - before, self.end + T, self.length + T
        self.kv_2BHSD[0, :, :, begin + before : self.end] = k_BHTD
        self.kv_2BHSD[1, :, :, begin + before : self.end] = v_BHTD
        return self.kv_2BHSD[:, :, :, begin : self.end].unbind()


class Attention(nn.Module):
    """Multi-head causal self-attention: query, key and value are learned views of the same x_BTC.

    Queries and keys are normalised before they meet, which keeps scores bounded at any learning
    rate (Henry et al. 2020, "Query-key normalization"). `proj` starts at zero, so that a new
    network is the identity and each block learns what to add to it.
    """

    def __init__(self, n_embd: int, n_head: int, window: int) -> None:
        super().__init__()
        self.n_head, self.window = n_head, window
        self.qkv_3CC = nn.Parameter(torch.empty(3, n_embd, n_embd).uniform_(-(n_embd**-0.5), n_embd**-0.5))
        self.proj = nn.Linear(n_embd, n_embd, bias=False)
        nn.init.zeros_(self.proj.weight)

    def forward(self, x_BTC: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to out_BTC; with a `cache`, its characters are attended to as well, and x's join it."""
        qkv_BTN = F.linear(x_BTC, self.qkv_3CC.flatten(0, 1))  # three products in one
        qkv_3BHTD = qkv_BTN.unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        qk_2BHTD, v_1BHTD = qkv_3BHTD.split((2, 1))
        q_BHTD, k_BHSD = rotate(norm(qk_2BHTD), cos_TE, sin_TE)
        v_BHSD = v_1BHTD[0]
        if cache is not None:
            k_BHSD, v_BHSD = cache.extend(k_BHSD, v_BHSD, self.window)
        out_BHTD = fused_attend(q_BHTD, k_BHSD, v_BHSD, causal=True, window=self.window)
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))
