"""Checks whether the loss of a network means something, and whether its KV cache is right.

Shapes: B batch, T time (characters), V vocabulary.
"""

import copy
import inspect
import sys

import torch
from torch import Tensor, nn

from model.attention import Cache, recording
from model.networks import count_parameters
from model.system.console import print_line


@torch.no_grad()
def find_mistake(network: nn.Module) -> str:
    """Return why the loss of a network means nothing, or "" if no mistake is found."""
    if isinstance(getattr(network, "blocks", None), list):
        return "has its blocks in a Python list, so they are not trained. Use nn.ModuleList"
    model = noisy_copy(network)
    # A large network reads a shorter text, so that the check takes about a second or less.
    length = min(model.config.block_size, max(32, min(256, 2**29 // count_parameters(model))))
    start = length // 2 | 1  # odd, so that no window of even width begins here
    same_BT = torch.arange(length).repeat(3, 1) % model.vocab_size
    other_BT = same_BT.clone()
    other_BT[::2, start:] = (other_BT[::2, start:] + 1) % model.vocab_size  # not the middle one
    with torch.random.fork_rng([]):  # the next random numbers of the run stay the same
        first, again, other = model(same_BT), model(same_BT), model(other_BT)
        with recording():
            recorded = model(same_BT)
    if not torch.equal(first, again):
        return "gives different logits in two equal calls, so its losses cannot be compared"
    if differ(first[1], other[1]):
        return "mixes the examples of a batch, so its loss depends on which examples are in it"
    if differ(first[0, :start], other[0, :start], 1e-5):
        return "looks ahead: its logits depend on later characters, so its loss means nothing"
    if differ(first, recorded):
        return "trains with PyTorch's kernel, which is not its equation. Delete the kernel"
    return ""


def noisy_copy(network: nn.Module) -> nn.Module:
    """Return a copy in eval mode, on the CPU, with noise, because layers of zeros hide mistakes."""
    model, rng = copy.deepcopy(network).cpu().float().eval(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    return model


def differ(a_BTV: Tensor, b_BTV: Tensor, share: float = 1e-4) -> bool:
    """Return whether logits differ by more than a share of the largest logit."""
    return bool((a_BTV - b_BTV).abs().max() > share * a_BTV.abs().max())


@torch.no_grad()
@torch.autocast("cpu", enabled=False)
def uses_cache(model: nn.Module) -> bool:
    """Return whether `model` takes a KV cache and computes the same logits with it as without it.

    A copy reads a text a little longer than block_size in both ways. If the logits differ, a
    warning says so. The check is made once for a model and its copies.
    """
    if hasattr(model, "has_right_cache"):
        return model.has_right_cache
    model.has_right_cache = False
    if "cache" not in inspect.signature(model.forward).parameters:
        return False
    cache, noisy = Cache(), noisy_copy(model)
    length = min(model.config.block_size + 8, 2056)  # a longer text would need much memory
    ids_BT = torch.arange(length)[None] % model.vocab_size
    cached = [noisy(part_BT, cache) for part_BT in ids_BT.split([1, 3, length - 5, 1], dim=1)]
    model.has_right_cache = not differ(noisy(ids_BT), torch.cat(cached, dim=1))
    if not model.has_right_cache:
        print_line("warning: the KV cache changes the logits, so it is not used.", sys.stderr)
    return model.has_right_cache
