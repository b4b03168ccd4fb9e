"""What all networks share: their settings, their interface, how they are found by name.

A network is a file in model/networks/. Its class GPT is a module, made by GPT(config, vocab_size)
with a GPTConfig, which it keeps as `config`. It has

- forward(ids_BT), which returns logits_BTV: at each position, the scores of the next character.
  When it samples, each step reads the latest block_size characters again. A network that reads
  texts of any length can avoid that: forward(ids_BT, cache=None). With a Cache, ids_BT continues
  the text in it and is added to it.
- blocks, an nn.ModuleList: the matrices in it are for Muon, all other parameters for AdamW.
- max_length, how many characters it can read at once; None: any number. With positions in a table
  it is block_size; such a network leaves out the cache.
- settings, the names of the GPTConfig keys below `dropout` that it uses, such as ("bias",).

`make_network` makes it, and adds vocab_size. Its first loss should be near ln V. Whatever it
remembers from one training step to the next must be in its state dict, or resuming is not exact.
tests/model/test_networks.py tests every network, also one of your own.

Shapes: B batch, T time (characters), V vocabulary.
"""

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from torch import nn

from configs.settings import GPTConfig
from model.system.errors import UserError

FOLDER = Path(__file__).parent
COMMON = ("network", "n_layer", "n_head", "n_embd", "block_size", "dropout")  # of every network


def require_consistent(config: GPTConfig) -> None:
    """Raise UserError if the settings do not fit together."""
    known = (*COMMON, *network_class(config.network).settings)
    for field in fields(GPTConfig):
        value = getattr(config, field.name)
        if value != field.default and field.name not in known:
            raise UserError(
                f"{field.name} is {value}, but it is not in the settings of the network "
                f"{config.network} (model/networks/{config.network}.py)."
            )
    if config.n_embd % (2 * (heads := count_heads(config))):
        nearest = max(1, round(config.n_embd / (2 * heads))) * 2 * heads
        raise UserError(
            f"n_embd is {config.n_embd}, which {heads} heads cannot divide into even widths. "
            f"--n_embd {nearest} --n_head {heads} fits."
        )


def network_names() -> list[str]:
    """The names of all networks, sorted."""
    return sorted(path.stem for path in FOLDER.glob("[!_]*.py") if "." not in path.stem)


def network_class(name: str) -> type[nn.Module]:
    """The class GPT of a network's file."""
    if name not in network_names():
        names = ", ".join(network_names())
        raise UserError(f"network is {name!r}. Those in {FOLDER}: {names}.")
    return importlib.import_module(f"model.networks.{name}").GPT


def count_heads(config: GPTConfig) -> int:
    """The number of heads: `n_head`, or for 0 one for 64 channels."""
    return config.n_head or max(1, config.n_embd // 64)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode; afterwards in the mode that it had before."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def make_network(config: GPTConfig, vocab_size: int) -> nn.Module:
    """The network that `config` names, with new weights."""
    config = replace(config, n_head=count_heads(config))
    model = network_class(config.network)(config, vocab_size)
    model.vocab_size = vocab_size
    return model
