"""Checks of an edited network: does it look ahead, does its cache compute the same?

Shapes: B batch, T time, V vocabulary.
"""

import inspect
import sys
from weakref import WeakSet

import torch
from torch import nn

from configs.settings import GPTConfig
from model.attention import Cache
from model.networks import make_network
from model.system.terminal import print_line

warned_of: WeakSet[nn.Module] = WeakSet()  # models with a wrong cache


@torch.no_grad()
def find_mistake(config: GPTConfig, vocab_size: int) -> str:
    """Why the loss of a network means nothing, or "".

    Equal calls may differ, as with a counter; or logits depend on later characters, as they do if
    attention has no mask: then it reads the characters that it should predict.
    """
    model = make_network(config, vocab_size).eval()
    for parameter in model.parameters():  # so that none is zero, as some are at the start
        parameter.add_(0.1 * torch.randn_like(parameter))
    length = min(model.config.block_size, 256)
    start = length // 2 | 1  # odd: no edge of the windows that a network may have
    ids_BT = torch.arange(length)[None] % vocab_size
    other_BT = ids_BT.clone()
    other_BT[:, start:] = (ids_BT[:, start:] + 1) % vocab_size
    logits = []
    for text_BT in (ids_BT, ids_BT, other_BT):
        torch.manual_seed(0)  # for a network that draws random numbers here, too
        logits.append(model(text_BT)[:, :start])
    first, again, other = logits
    if not torch.equal(first, again):
        return "gives different logits in two equal calls, so losses do not compare"
    if (first - other).abs().max() > 1e-5 * first.abs().max():
        return "looks ahead: its logits depend on later characters, so its loss means nothing"
    return ""


@torch.no_grad()
def uses_cache(model: nn.Module) -> bool:
    """Whether `model` takes a cache, and computes the same logits with it as without.

    Both are compared on a text a little longer than block_size, but of at most 2,056 characters. If
    they differ, a line on standard error says so, once for each model.
    """
    if "cache" not in inspect.signature(model.forward).parameters:
        return False
    length = min(model.config.block_size + 8, 2056)
    ids_BT = torch.arange(length, device=next(model.parameters()).device)[None] % model.vocab_size
    cache = Cache()
    with torch.autocast(ids_BT.device.type, enabled=False):
        parts = [ids_BT[:, :1], ids_BT[:, 1:4], ids_BT[:, 4:-1], ids_BT[:, max(4, length - 1) :]]
        cached_BTV = torch.cat([model(part_BT, cache) for part_BT in parts if part_BT.numel()], 1)
        logits_BTV = model(ids_BT)
    # Rounding changes logits by 4e-7 of the largest on a CPU; a GPU may compute in TF32.
    tolerance = 1e-4 if ids_BT.device.type == "cpu" else 1e-2
    differs = (cached_BTV - logits_BTV).abs().max() > tolerance * logits_BTV.abs().max()
    if differs and model not in warned_of:
        warned_of.add(model)
        print_line(
            f"warning: the cache of the network {model.config.network} changes its logits. It is "
            "not used, so sampling takes longer. Run python -m pytest tests/model/test_networks.py",
            sys.stderr,
        )
    return not differs
