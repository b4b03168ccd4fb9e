"""What all networks share: their settings, their interface, how they are found by name.

A network is a file in model/networks/. Its class GPT is a module, made by GPT(config, vocab_size)
with a GPTConfig, which it keeps as `config`. It has

- forward(ids_BT, cache=None), which returns logits_BTV: at each position, the scores of the next
  character. With a Cache, ids_BT continues the text in it and is added to it. A network of your own
  may leave `cache` out: it is only given to code that the tests proved (model/run/source.py).
- blocks, an nn.ModuleList: the matrices in it are for Muon, all other parameters for AdamW.
- max_length, how many characters it can read at once; None: any number.

`make_network` makes it, and adds vocab_size and has_proven_cache. Whatever it remembers from one
training step to the next must be in its state dict, or resuming is not exact.

Shapes: B batch, T time (characters), V vocabulary.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from torch import nn

from model.run.errors import UserError
from model.run.source import is_proven

FOLDER = Path(__file__).with_name("networks")


@dataclass(frozen=True)
class GPTConfig:
    """Which network, and its size. Without a preset, configs/recipe.py chooses most of the keys."""

    network: Annotated[
        str, "file in model/networks/; gpt is the textbook's, quill learns faster"
    ] = "quill"
    n_layer: Annotated[int, "number of blocks", "[1, 1000]"] = 2
    n_head: Annotated[int, "attention heads per block", "[1, 1000]"] = 2
    n_embd: Annotated[int, "channels of the residual stream", "[1, 100000]"] = 128
    block_size: Annotated[int, "context: how many characters attention sees", "[1, 1000000]"] = 256
    dropout: Annotated[
        float, "share of the numbers set to 0; quill on a CPU rounds it to n/256", "[0, 1)"
    ] = 0.0
    bias: Annotated[bool, "network gpt: biases in linear layers and LayerNorm"] = False

    def __post_init__(self) -> None:
        names = sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "." not in path.stem)
        if self.network not in names:
            raise UserError(f"network is {self.network!r}. Those in {FOLDER}: {', '.join(names)}.")
        if self.n_embd % (2 * self.n_head):
            raise UserError(
                f"n_embd is {self.n_embd} and n_head is {self.n_head}. "
                "n_embd must be a multiple of twice n_head, so that a head's width is even."
            )


def make_network(config: GPTConfig, vocab_size: int) -> nn.Module:
    """The network that `config` names, with new weights."""
    name = f"model.networks.{config.network}"
    model = importlib.import_module(name).GPT(config, vocab_size)
    model.vocab_size = vocab_size
    # tests/model/test_networks.py proves that the cache changes no logit.
    note = "sampling takes longer, since it reads the latest block_size characters at each step"
    model.has_proven_cache = is_proven(name, "model.attention", note=note)
    return model
