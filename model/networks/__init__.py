"""What all networks share: their interface, how they are found by name and made.

A network is a file in model/networks/. Its class GPT is a module, made by GPT(config, vocab_size)
with a GPTConfig, which it keeps as `config`. It has

- forward(ids_BT), which returns logits_BTV: at each position, the scores of the next character.
  When it samples, each step reads the latest block_size characters again. A network that reads
  texts of any length can avoid that: forward(ids_BT, cache=None). With a Cache, ids_BT continues
  the text in it and is added to it.
- blocks, an nn.ModuleList: the matrices in it are for Muon, all other parameters for AdamW.
- max_length, how many characters it can read at once; None: any number. With positions in a table
  it is block_size; such a network leaves out the cache.
- settings, the names of those OPTIONAL settings (configs/settings.py) that it has; () if left out.

`make_network` makes it, and adds vocab_size. Its first loss should be near ln V. Whatever it
remembers from one training step to the next must be in its state dict, or resuming is not exact.
tests/model/test_networks.py tests every network, also one of your own.

Shapes: B batch, T time (characters), V vocabulary.
"""

import importlib
from dataclasses import replace
from pathlib import Path

from torch import nn

from configs.settings import OPTIONAL, GPTConfig, marked
from model.system.errors import UserError

FOLDER = Path(__file__).parent


def network_names() -> list[str]:
    """The names of all networks, sorted."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "." not in path.stem)


def network_class(name: str) -> type[nn.Module]:
    """The class GPT of a network's file. Raises UserError if there is no such file."""
    if name not in network_names():
        raise UserError(f"network is {name!r}. Those in {FOLDER}: {', '.join(network_names())}.")
    return importlib.import_module(f"model.networks.{name}").GPT


def make_network(config: GPTConfig, vocab_size: int) -> nn.Module:
    """Return the network that `config` names, with new weights. Raises UserError if none fits."""
    network = network_class(config.network)
    for name in {*marked(GPTConfig, OPTIONAL)} - {*getattr(network, "settings", ())}:
        if getattr(config, name) != getattr(GPTConfig, name):
            raise UserError(f"the network {config.network} has no setting {name}. Leave it out.")
    model = network(replace(config, n_head=count_heads(config)), vocab_size)
    model.vocab_size = vocab_size
    return model


def count_heads(config: GPTConfig) -> int:
    """The number of heads in a block: `n_head`, or if that is 0, one for 64 channels.

    Raises UserError if the heads cannot divide the channels into even widths.
    """
    heads = config.n_head or max(1, config.n_embd // 64)
    if config.n_embd % (2 * heads):
        raise UserError(
            f"n_embd is {config.n_embd}. It must be a multiple of {2 * heads}, "
            f"twice the number of heads, which is {heads} (--n_head)."
        )
    return heads


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())
