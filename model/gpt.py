"""The network: characters' embeddings, a stack of blocks, a score for every possible next character.

Shapes: B batch, T time (characters), C channels (n_embd), V vocabulary.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import Attention, Cache, norm, rotation


@dataclass(frozen=True)
class GPTConfig:
    """The network's size. The vocabulary's size is a fact of the text, and no choice."""

    n_layer: Annotated[int, "blocks, one after another", "[1, 1000]"] = 4
    n_head: Annotated[int, "attention heads per block", "[1, 1000]"] = 2
    n_embd: Annotated[int, "channels: the width of a character's vector", "[1, 100000]"] = 128
    block_size: Annotated[int, "context: characters that attention looks back over", "[1, 1000000]"] = 256
    dropout: Annotated[float, "share of each block's output zeroed in training", "[0, 1)"] = 0.0

    def __post_init__(self) -> None:
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd ({self.n_embd}) / n_head ({self.n_head}), a head's width, must be even and whole")


class MLP(nn.Module):
    """The feed-forward layer: mixes the features of each character by itself, four times as wide inside."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.proj = nn.Linear(4 * n_embd, n_embd, bias=False)
        nn.init.zeros_(self.proj.weight)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.proj(F.relu(self.fc(x_BTC)).square())  # squared ReLU: So et al. 2021, "Primer"


class TokenShift(nn.Module):
    """Adds to each character's vector learned shares, channel by channel, of the REACH before it.

    In characters, what stands just to the left always matters: attention would spend a layer on
    finding it (Peng et al. 2023, "RWKV", with a reach of one).
    """

    REACH = 2

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.zeros(self.REACH, n_embd))

    def forward(self, x_BTC: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to out_BTC; with a `cache`, x continues the text in it."""
        B, T, C = x_BTC.shape
        before_BRC = x_BTC.new_zeros(B, self.REACH, C)
        text_BSC = torch.cat((cache.last_BRC.get(self, before_BRC) if cache else before_BRC, x_BTC), dim=1)
        if cache:
            cache.last_BRC[self] = text_BSC[:, -self.REACH :]
        for back, share_C in enumerate(self.share, start=1):
            x_BTC = torch.addcmul(x_BTC, share_C, text_BSC[:, self.REACH - back :][:, :T])
        return x_BTC


class Block(nn.Module):
    """Attention mixes positions, then the feed-forward layer mixes features; each adds to the stream x."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.shift_attention, self.shift_mlp = TokenShift(config.n_embd), TokenShift(config.n_embd)
        self.attention = Attention(config.n_embd, config.n_head, config.block_size)
        self.mlp = MLP(config.n_embd)
        # Not inside attention: PyTorch's kernel would leave its fast path, at seven times the cost.
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTC: Tensor, cos_TE: Tensor, sin_TE: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to x_BTC, with what this block has to add."""
        h_BTC = self.shift_attention(norm(x_BTC), cache)
        x_BTC = x_BTC + self.dropout(self.attention(h_BTC, cos_TE, sin_TE, cache))
        h_BTC = self.shift_mlp(norm(x_BTC), cache)
        return x_BTC + self.dropout(self.mlp(h_BTC))


class GPT(nn.Module):
    """A decoder-only transformer (Radford et al. 2018) in the form today's small-model records use."""

    def __init__(self, config: GPTConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        # A head of zeros calls every character equally likely: training starts at a loss of ln V.
        nn.init.zeros_(self.head.weight)

    def forward(self, ids_BT: Tensor, cache: list[Cache] | None = None) -> Tensor:
        """ids_BT to logits_BTV: at each position, the scores of the character that follows it.

        The text may be of any length: attention looks back over block_size characters at most.
        `cache` holds one Cache per block (`new_cache`); ids_BT then continues the text already in
        it, and joins it.
        """
        x_BTC = norm(self.embedding(ids_BT))
        start = cache[0].length if cache else 0
        width = self.config.n_embd // self.config.n_head
        cos_TE, sin_TE = rotation(start, ids_BT.size(1), width, like=x_BTC)
        for i, block in enumerate(self.blocks):
            x_BTC = block(x_BTC, cos_TE, sin_TE, cache[i] if cache else None)
        return self.head(norm(x_BTC))

    @property
    def reach(self) -> int:
        """How many of a text's latest characters the next one's scores depend on, through all blocks."""
        return 1 + self.config.n_layer * (self.config.block_size - 1 + 2 * TokenShift.REACH)

    def new_cache(self) -> list[Cache]:
        """An empty cache, to be passed to `forward`, which fills it."""
        return [Cache() for _ in self.blocks]
