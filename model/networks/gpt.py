"""The textbook GPT, as in nanoGPT. With --bias, it is GPT-2 (Radford et al. 2019) with exact GELU.

The network has one vector of C numbers for each character, the *residual stream* x_BTC. A block has
two layers, attention and a feed-forward layer. Each layer reads the stream, normalized to mean 0
and variance 1, and adds its output to it. This file contains the whole network. So after an edit,
training, sampling and the attention page use the edited network.

Shapes: B batch, T time (characters), C channels (n_embd), H heads, D head width (C / H),
V vocabulary. "x_BTC to out_BTC." names the input and the output of a function.
"""

import math

import torch
from torch import Tensor, nn

from configs.settings import GPTConfig
from model.attention import record


class Attention(nn.Module):
    """Multi-head causal self-attention. Query, key and value are three projections of one input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.n_embd
        self.n_head = config.n_head
        self.query = nn.Linear(C, C, bias=config.bias)
        self.key = nn.Linear(C, C, bias=config.bias)
        self.value = nn.Linear(C, C, bias=config.bias)
        self.proj = nn.Linear(C, C, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to out_BTC: softmax(Q Kᵀ / √d + mask) V in each head."""
        T = x_BTC.size(1)
        q_BHTD = self.split_heads(self.query(x_BTC))
        k_BHTD = self.split_heads(self.key(x_BTC))
        v_BHTD = self.split_heads(self.value(x_BTC))
        scores_BHTT = q_BHTD @ k_BHTD.mT / math.sqrt(q_BHTD.size(-1))
        is_later_TT = torch.ones(T, T, dtype=torch.bool, device=x_BTC.device).triu(1)
        weights_BHTT = scores_BHTT.masked_fill(is_later_TT, -torch.inf).softmax(dim=-1)
        record(q_BHTD, k_BHTD, v_BHTD, weights_BHTT)  # for the attention page
        out_BHTD = self.dropout(weights_BHTT) @ v_BHTD
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to x_BHTD."""
        B, T, _ = x_BTC.shape
        return x_BTC.view(B, T, self.n_head, -1).transpose(1, 2)


class MLP(nn.Module):
    """The feed-forward layer. It mixes the features of each position, four times as wide inside."""

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

    def forward(self, x_BTC: Tensor) -> Tensor:
        """x_BTC to x_BTC."""
        x_BTC = x_BTC + self.dropout(self.attention(self.norm_1(x_BTC)))
        return x_BTC + self.dropout(self.mlp(self.norm_2(x_BTC)))


class GPT(nn.Module):
    """A decoder-only transformer with learned positions, and one table as embedding and head."""

    settings = ("bias",)

    def __init__(self, config: GPTConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.max_length = config.block_size  # the table below has one row for each position
        self.embedding = nn.Embedding(vocab_size, config.n_embd)
        self.position = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.head = nn.Linear(config.n_embd, vocab_size, bias=False)
        self.head.weight = self.embedding.weight  # one table (Press and Wolf 2017)
        self.init_weights()

    def init_weights(self) -> None:
        """Draw weights with standard deviation 0.02.

        In `proj`, divide it by √(number of `proj` layers), as in GPT-2, because the outputs of all
        these layers add up in the residual stream.
        """
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(".proj.weight"):
                nn.init.normal_(parameter, std=0.02 * (2 * self.config.n_layer) ** -0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """ids_BT, at most block_size characters, to logits_BTV: scores of each next character."""
        positions_T = torch.arange(ids_BT.size(1), device=ids_BT.device)
        x_BTC = self.dropout(self.embedding(ids_BT) + self.position(positions_T))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.norm(x_BTC))
