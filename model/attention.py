"""What the attention of all networks shares: a record for the attention page, and the KV cache.

The equation of attention is in the file of each network (model/networks/).

Shapes: B batch, T time (queries), S keys, H heads, D head width.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class AttentionCall(NamedTuple):
    """The tensors that one attention layer computed."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    weights_BHTS: Tensor


recordings: list[list[AttentionCall]] = []  # has a list inside `with recording()`


@contextlib.contextmanager
def recording() -> Iterator[list[AttentionCall]]:
    """Yield a list. Inside `with`, each call of `record` appends to it."""
    recordings.append([])
    try:
        yield recordings[-1]
    finally:
        recordings.pop()


def is_recorded() -> bool:
    """Return whether attention is recorded. Then a network must compute the weights."""
    return bool(recordings)


def record(q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> None:
    """Keep these tensors for the attention page, if attention is recorded."""
    for calls in recordings:
        calls.append(AttentionCall(q, k, v, weights))


class Cache:
    """The KV cache: keys, values and other tensors of the text so far.

    The model gets a cache as an argument and does not store it. A layer that looks back keeps its
    tensors in the dictionary `kept`, under itself as the dictionary key.
    """

    def __init__(self) -> None:
        self.length = 0  # the number of characters read so far; the network increases it
        self.kept: dict[nn.Module, Any] = {}

    def append(
        self, layer: nn.Module, k_BHTD: Tensor, v_BHTD: Tensor, window: int
    ) -> tuple[Tensor, Tensor]:
        """Append T positions. Return k_BHSD and v_BHSD, all keys and values that the queries see.

        Both are written in order into a buffer of at least two windows. When the buffer is full,
        the latest window - 1 positions move to the start of a new buffer, because the next query
        may still see them.
        """
        new_2BHTD = torch.stack((k_BHTD, v_BHTD))
        _, B, H, T, D = new_2BHTD.shape
        buffer, end = self.kept.get(layer) or (new_2BHTD[:, :, :, :0], 0)
        first = max(0, end - (window - 1))  # the new queries see no earlier key
        if end + T > buffer.size(3):
            seen, first, end = buffer[:, :, :, first:end], 0, end - first
            buffer = new_2BHTD.new_empty(2, B, H, max(2 * window, end + T), D)
            buffer[:, :, :, :end] = seen
        buffer[:, :, :, end : end + T] = new_2BHTD
        self.kept[layer] = buffer, end + T
        k_BHSD, v_BHSD = buffer[:, :, :, first : end + T]
        return k_BHSD, v_BHSD
