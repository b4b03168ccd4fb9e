"""The interface of all networks, and the functions that find and create a network by its name.

A network is a file in model/networks/ with a class GPT, an nn.Module. GPT(config, vocab_size)
creates the network. It keeps `config`, which is a GPTConfig, as an attribute. A network has

- forward(ids_BT), which returns logits_BTV: at each position, a score for each possible next
  character. In sampling, each step then reads the latest block_size characters again. A network
  that can read texts of any length can avoid this with forward(ids_BT, cache=None). With a Cache
  (model/attention.py), ids_BT continues the text in the cache and is added to it.
- blocks, an nn.ModuleList. Muon trains the matrices in it, AdamW all other parameters.
- max_length, the number of characters that the network can read at once, or None for any number.
  If positions are rows of a table, max_length is block_size, and forward takes no cache.
- settings, the names of the OPTIONAL settings (configs/settings.py) that the network has. A network
  without optional settings needs no such attribute. If a value does not fit, GPT raises UserError.

`make_network` creates a network and adds the attribute vocab_size. A network must keep all that it
remembers from one training step to the next in its state dict. Otherwise, a resumed run differs
from an uninterrupted run. tests/model/test_networks.py tests every network, also your own.

Shapes: B batch, T time (characters), V vocabulary.
"""

import importlib
from dataclasses import replace
from pathlib import Path

from torch import nn

from configs.errors import UserError
from configs.settings import OPTIONAL, GPTConfig, marked

FOLDER = Path(__file__).parent


def network_names() -> list[str]:
    """Return the names of all networks, sorted."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "." not in path.stem)


def network_class(name: str) -> type[nn.Module]:
    """Return the class GPT of a network's file. Raises UserError if there is none."""
    if name not in (names := network_names()):
        raise UserError(f"network is {name!r}. Choose from {', '.join(names)}.")
    module = importlib.import_module(f"model.networks.{name}")
    if not hasattr(module, "GPT"):
        raise UserError(f"{FOLDER / name}.py has no class GPT. A network is a class of this name.")
    return module.GPT


def make_network(config: GPTConfig, vocab_size: int) -> nn.Module:
    """Return the network of `config`, with new weights. Raises UserError if a setting is wrong."""
    network = network_class(config.network)
    for name in {*marked(GPTConfig, OPTIONAL)} - {*getattr(network, "settings", ())}:
        if getattr(config, name) != getattr(GPTConfig, name):
            raise UserError(f"the network {config.network} has no setting {name}. Leave it out.")
    model = network(replace(config, n_head=count_heads(config)), vocab_size)
    model.vocab_size = vocab_size
    return model


def count_heads(config: GPTConfig) -> int:
    """Return the number of heads in a block: `n_head`, or one head per 64 channels if it is 0.

    Raises UserError if the heads cannot share the channels equally, or if a head would have an odd
    number of channels.
    """
    heads = config.n_head or max(1, config.n_embd // 64)
    if config.n_embd % (2 * heads):
        raise UserError(
            f"n_embd is {config.n_embd}. It must be a multiple of {2 * heads}, because each of the "
            f"{heads} heads (--n_head) needs an even number of channels."
        )
    return heads


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters, the numbers that training changes."""
    return sum(parameter.numel() for parameter in model.parameters())
