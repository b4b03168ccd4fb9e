"""Quill's network: a GPT that learns a character-level text in less time than the textbook GPT.

docs/recipe.md lists the differences from gpt.py, and says what each difference is worth. This file
contains the whole network. To change it, copy the file to mine.py and train with --network mine.

Shapes: B batch, T time (characters), C channels (n_embd), H heads, D head width (C / H),
E half of the head width (D / 2), F features in the feed-forward layer (4 C), S keys, V vocabulary,
N positions whose angles a cache keeps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs.settings import GPTConfig
from model.attention import Cache, is_recorded, record


def rotation_angles(start: int, T: int, D: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos_TD and sin_TD of the rotation angles for positions start .. start + T - 1.

    Features e and e + E of a head are a pair. The pair rotates by 10000^(-e/E) radians per
    character. Pairs that rotate fast encode short distances, pairs that rotate slowly encode long
    distances (Su et al. 2021, "RoFormer"). The first half of sin_TD is negated, for `rotate`.
    """
    # Far from the start, angles in float32 are too coarse. So compute them in float64, and on the
    # CPU, because mps has no float64. Training always starts at 0 and stays on the device.
    dtype, device = (torch.float64, "cpu") if start else (like.dtype, like.device)
    inv_freq_E = 10000.0 ** (-torch.arange(0, D, 2, dtype=dtype, device=device) / D)
    positions_T = torch.arange(start, start + T, dtype=dtype, device=device)
    angles_TE = positions_T[:, None] * inv_freq_E
    cos_TE, sin_TE = angles_TE.cos(), angles_TE.sin()
    cos_TD, sin_TD = torch.cat((cos_TE, cos_TE), dim=-1), torch.cat((-sin_TE, sin_TE), dim=-1)
    return cos_TD.to(like), sin_TD.to(like)


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Rotate each pair of features by the angle of its position (rotary position embedding, RoPE).

    A pair (a, b) becomes (a cos - b sin, b cos + a sin). So the dot product of a rotated query and
    a rotated key depends only on their distance.
    """
    cos_TD, sin_TD = cos_TD.to(x_BHTD.dtype), sin_TD.to(x_BHTD.dtype)
    swapped_BHTD = x_BHTD.roll(x_BHTD.size(-1) // 2, dims=-1)
    # The memory order changes how products in bfloat16 are rounded. The figures in README were
    # measured with this one.
    return (x_BHTD * cos_TD + swapped_BHTD * sin_TD).contiguous()


def norm(x: Tensor) -> Tensor:
    """Return the LayerNorm of x (Ba et al. 2016), without gains. On a CPU, RMSNorm is slower."""
    C = x.size(-1)
    return F.layer_norm(x, (C,), weight=x.new_ones(C))  # a weight makes it twice as fast on a CPU


def causal_mask(T: int, S: int, window: int, like: Tensor) -> Tensor:
    """Return mask_TS, to be added to the scores: 0 where a query sees a key, -inf elsewhere.

    The T queries belong to the last T of the S positions. A query sees `window` keys: its own key
    and the keys before it. (On a CPU, adding a mask is faster than `masked_fill`.)
    """
    minus_inf_TS = like.new_full((T, S), -torch.inf)
    return minus_inf_TS.triu(S - T + 1) + minus_inf_TS.tril(S - T - window)


class Attention(nn.Module):
    """Multi-head causal self-attention. Query, key and value are three projections of one input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.n_embd
        self.config = config
        self.query = nn.Linear(C, C, bias=False)
        self.key = nn.Linear(C, C, bias=False)
        self.value = nn.Linear(C, C, bias=False)
        self.proj = nn.Linear(C, C, bias=False)

    def forward(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """x_BTC to out_BTC. With a `cache`, x_BTC continues the text in the cache."""
        q_BHTD = rotate(self.split_heads(self.query(x_BTC)), cos_TD, sin_TD)
        k_BHSD = rotate(self.split_heads(self.key(x_BTC)), cos_TD, sin_TD)
        v_BHSD = self.split_heads(self.value(x_BTC))
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(self, k_BHSD, v_BHSD, self.config.block_size)
        out_BHTD = self.attend(q_BHTD, k_BHSD, v_BHSD)
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))

    def attend(self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        """Return out_BHTD: softmax(Q Kᵀ / √d + mask) V in each head.

        The dot product of two independent vectors of d numbers with variance 1 has variance d.
        Without the division by √d, the softmax would therefore saturate: one key would get nearly
        all the weight (Vaswani et al. 2017).
        """
        T, S, D = q_BHTD.size(2), k_BHSD.size(2), q_BHTD.size(3)

        # PyTorch's kernel is faster, but it stores no weights for the attention page. In half
        # precision on a CPU, the equation is faster up to 512 x 512 weights, often by a factor of
        # 2. If you change the equation, delete this `if` and `attend_by_kernel`.
        is_half_on_cpu = q_BHTD.device.type == "cpu" and q_BHTD.dtype.itemsize == 2
        if not (is_recorded() or (is_half_on_cpu and T * S <= 512 * 512)):
            return self.attend_by_kernel(q_BHTD, k_BHSD, v_BHSD)

        with torch.autocast(q_BHTD.device.type, enabled=False):  # else the softmax is in float32
            scores_BHTS = (q_BHTD * D**-0.5) @ k_BHSD.mT
            mask_TS = causal_mask(T, S, self.config.block_size, like=scores_BHTS)
            weights_BHTS = (scores_BHTS + mask_TS).softmax(dim=-1)
            record(q_BHTD, k_BHSD, v_BHSD, weights_BHTS)
            return weights_BHTS @ v_BHSD

    def attend_by_kernel(self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        """Return the same out_BHTD, computed by PyTorch's kernel without storing the weights."""
        T, S, window = q_BHTD.size(2), k_BHSD.size(2), self.config.block_size
        kernel = F.scaled_dot_product_attention
        if T == 1:  # a single query is the last one, so it sees all keys
            return kernel(q_BHTD, k_BHSD, v_BHSD)
        if T == S <= window:  # a whole text: the kernel's own mask needs no memory
            return kernel(q_BHTD, k_BHSD, v_BHSD, is_causal=True)
        mask_TS = causal_mask(T, S, window, like=q_BHTD)
        return kernel(q_BHTD, k_BHSD, v_BHSD, attn_mask=mask_TS)

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to x_BHTD."""
        B, T, _ = x_BTC.shape
        return x_BTC.view(B, T, self.config.n_head, -1).transpose(1, 2)


class MLP(nn.Module):
    """The feed-forward layer. It mixes the features of each position, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to out_BTC. The activation is ReLU², relu(x)² (So et al. 2021, "Primer")."""
        h_BTF = F.relu(self.fc(x_BTC))
        return self.proj(h_BTF * h_BTF)  # under autocast, CUDA would compute h² in float32


class TokenShift(nn.Module):
    """Takes a third of the channels from one position back, and a third from two positions back.

    The two characters to the left always matter. Without token shift, attention would need a layer
    to find them. (Peng et al. 2023, "RWKV", add a learned share of the previous position.)
    """

    def forward(self, x_BTC: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to out_BTC. With a `cache`, x_BTC continues the text in the cache."""
        B, _, C = x_BTC.shape
        last_B2C = None if cache is None else cache.kept.get(self)
        if last_B2C is None:  # at the start of a text
            last_B2C = x_BTC.new_zeros(B, 2, C)
        padded_BTC = torch.cat((last_B2C, x_BTC), dim=1)  # has two more positions than x_BTC
        if cache is not None:
            cache.kept[self] = padded_BTC[:, -2:]
        sizes = [(C + 2) // 3, (C + 1) // 3, C // 3]
        now, shifted_1, shifted_2 = padded_BTC.split(sizes, dim=-1)
        return torch.cat((now[:, 2:], shifted_1[:, 1:-1], shifted_2[:, :-2]), dim=-1)


class Dropout(nn.Dropout):
    """nn.Dropout. On a CPU, one random 64-bit number decides on eight elements, a byte for each.

    PyTorch draws a number for each element, on most processors in a single thread. A training step
    would take 1.1 to 1.2 times as long.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x to out, of any shape. On a CPU, p is rounded to 1/256, 2/256 .. 255/256."""
        if not self.training or self.p == 0 or x.device.type != "cpu":
            return super().forward(x)
        dropped = min(max(round(256 * self.p), 1), 255)  # of the 256 values of a byte
        numbers = torch.randint(-(2**63), 2**63 - 1, ((x.numel() + 7) // 8,))
        is_kept = numbers.view(torch.uint8)[: x.numel()].view_as(x) >= dropped
        return x * is_kept * (256 / (256 - dropped))


class Block(nn.Module):
    """A feed-forward layer, attention, and a feed-forward layer. Each adds its output to x.

    This order comes from Lu et al. 2019, "Macaron Net". A usual block has attention and one
    feed-forward layer. Two of Quill's blocks have as many feed-forward layers as four usual blocks,
    but half as many attention layers. On a CPU, they are nearly as good in three quarters of the
    time.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.shift_mlp_1 = TokenShift()
        self.mlp_1 = MLP(config)
        self.shift_attention = TokenShift()
        self.attention = Attention(config)
        self.shift_mlp_2 = TokenShift()
        self.mlp_2 = MLP(config)
        # Attention weights get no dropout, because PyTorch's attention kernel is slower with it.
        self.dropout = Dropout(config.dropout)

    def forward(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, cache: Cache | None = None
    ) -> Tensor:
        """x_BTC to x_BTC. cos_TD and sin_TD come from `rotation_angles`."""
        h_BTC = self.mlp_1(self.shift_mlp_1(norm(x_BTC), cache))
        x_BTC = x_BTC.to(h_BTC.dtype) + self.dropout(h_BTC)  # half precision under autocast
        h_BTC = self.shift_attention(norm(x_BTC), cache)
        x_BTC = x_BTC + self.dropout(self.attention(h_BTC, cos_TD, sin_TD, cache))
        h_BTC = self.shift_mlp_2(norm(x_BTC), cache)
        return x_BTC + self.dropout(self.mlp_2(h_BTC))


class GPT(nn.Module):
    """A decoder-only transformer with rotary positions instead of a position embedding."""

    max_length = None  # it reads texts of any length, because positions are relative

    def __init__(self, config: GPTConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw weights as in gpt.py. But here, each block has three `proj` layers."""
        for name, parameter in self.named_parameters():
            if name.endswith(".proj.weight"):
                nn.init.normal_(parameter, std=0.02 * (3 * self.config.n_layer) ** -0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """ids_BT to logits_BTV: at each position, the scores of the next character.

        The text may be longer than block_size. Each query sees the latest block_size characters.
        With a `cache`, ids_BT continues the text in the cache and is added to it.
        """
        x_BTC = norm(self.embedding(ids_BT))
        cos_TD, sin_TD = self.angles(x_BTC, cache)
        for block in self.blocks:
            x_BTC = block(x_BTC, cos_TD, sin_TD, cache)
        if cache is not None:
            cache.length += ids_BT.size(1)
        return self.head(norm(x_BTC))

    def angles(self, x_BTC: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Return cos_TD and sin_TD for the positions of x_BTC.

        A `cache` keeps the angles of block_size positions. This saves a tenth of sampling's time.
        """
        T, head_width = x_BTC.size(1), self.config.n_embd // self.config.n_head
        if cache is None:
            return rotation_angles(0, T, head_width, like=x_BTC)
        first, cos_ND, sin_ND = cache.kept.get(self, (0, (), ()))
        i = cache.length - first
        if i + T > len(cos_ND):
            N = max(T, self.config.block_size)
            cos_ND, sin_ND = rotation_angles(cache.length, N, head_width, like=x_BTC)
            cache.kept[self] = cache.length, cos_ND, sin_ND
            i = 0
        return cos_ND[i : i + T], sin_ND[i : i + T]
