"""The textbook GPT, as in nanoGPT; with --bias GPT-2 (Radford et al. 2019) with the exact GELU.

A block has two layers, attention and a feed-forward layer. Each reads the normalized residual
stream x_BTC and adds its output to it.

Shapes: B batch, T time (characters), C channels (n_embd), H heads, D head width (C / H), S keys,
V vocabulary.
"""

import torch
from torch import Tensor, nn

from configs.settings import GPTConfig
from model.attention import Cache, attend


class Attention(nn.Module):
    """Multi-head causal self-attention: query, key and value are three projections of one input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.n_embd
        self.config = config
        self.query = nn.Linear(C, C, bias=config.bias)
        self.key = nn.Linear(C, C, bias=config.bias)
        self.value = nn.Linear(C, C, bias=config.bias)
        self.proj = nn.Linear(C, C, bias=config.bias)

    def forward(self, x_BTC: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to out_BTC. With a `cache`, x_BTC continues the text in it."""
        q_BHTD = self.split_heads(self.query(x_BTC))
        k_BHTD = self.split_heads(self.key(x_BTC))
        v_BHTD = self.split_heads(self.value(x_BTC))
        k_BHSD, v_BHSD = k_BHTD, v_BHTD
        if cache is not None:
            k_BHSD, v_BHSD = cache.append(self, k_BHTD, v_BHTD, self.config.block_size)
        dropout = self.config.dropout if self.training else 0.0
        out_BHTD = attend(q_BHTD, k_BHSD, v_BHSD, causal=True, dropout=dropout)
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to x_BHTD."""
        B, T, _ = x_BTC.shape
        return x_BTC.view(B, T, self.config.n_head, -1).transpose(1, 2)


class MLP(nn.Module):
    """The feed-forward layer: mixes the features of each position, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to out_BTC."""
        return self.proj(self.gelu(self.fc(x_BTC)))


class Block(nn.Module):
    """Attention, which mixes positions, then the feed-forward layer, which mixes features."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTC: Tensor, cache: Cache | None = None) -> Tensor:
        """x_BTC to x_BTC."""
        x_BTC = x_BTC + self.dropout(self.attention(self.norm_1(x_BTC), cache))
        return x_BTC + self.dropout(self.mlp(self.norm_2(x_BTC)))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions, and one table as embedding and head."""

    settings = ("bias",)

    def __init__(self, config: GPTConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.max_length = config.block_size  # there are as many positions
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.position = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.head.weight = self.embedding.weight  # Press and Wolf 2017
        self.init_weights()

    def init_weights(self) -> None:
        """Standard deviation 0.02; in `proj` divided by √(number of these layers), as in GPT-2."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(".proj.weight"):
                nn.init.normal_(parameter, std=0.02 * (2 * self.config.n_layer) ** -0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor, cache: Cache | None = None) -> Tensor:
        """ids_BT to logits_BTV: at each position, the scores of the next character.

        With a `cache`, ids_BT continues the text in it and is added to it. The whole text has at
        most block_size characters.
        """
        start, T = (cache.length if cache is not None else 0), ids_BT.size(1)
        positions_T = torch.arange(start, start + T, device=ids_BT.device)
        x_BTC = self.dropout(self.embedding(ids_BT) + self.position(positions_T))
        for block in self.blocks:
            x_BTC = block(x_BTC, cache)
        if cache is not None:
            cache.length += T
        return self.head(self.norm(x_BTC))
