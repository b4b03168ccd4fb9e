"""Sampling: from logits to the next character, and from characters to whole texts.

Shapes: B texts written side by side, T time, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import nn

from configs.settings import UP_TO_ONE, ZERO_OR_MORE, Config, between
from model.attention import Cache
from model.check import uses_cache
from model.system.console import AbortError


@dataclass(frozen=True)
class GenerationConfig(Config):
    """How each character is chosen, and how many are written."""

    max_new_tokens: Annotated[int, "characters to write", between(1, 10**9)] = 500
    num_samples: Annotated[int, "texts to write", between(1, 10**6)] = 1
    temperature: Annotated[float, "below 1: safer; 0: always the likeliest", ZERO_OR_MORE] = 0.8
    top_k: Annotated[int, "sample from the k likeliest characters; 0: from all", ZERO_OR_MORE] = 0
    top_p: Annotated[float, "sample from the fewest with this total probability", UP_TO_ONE] = 1.0
    seed: Annotated[int, "the same seed gives the same text", ZERO_OR_MORE] = 1337


def next_char_probs(
    logits_BV: np.ndarray, text_BT: np.ndarray, config: GenerationConfig
) -> np.ndarray:
    """Return the distribution from which the next character is drawn: probs_BV in float64.

    First, the logits are divided by the temperature. Then only the top_k likeliest characters are
    kept, and then only the fewest of these characters that together reach top_p (Holtzman et al.
    2019, "The curious case of neural text degeneration"). Write a new sampling rule here. It can
    read text_BT, the ids of the prompt and of all characters written so far.
    """
    V = logits_BV.shape[-1]
    k = 1 if config.temperature == 0 else config.top_k or V
    logits_BV = logits_BV.astype(np.float64)
    logits_BV -= logits_BV.max(-1, keepdims=True)
    probs_BV = np.exp(logits_BV / max(config.temperature, 1e-200))
    if k >= V and config.top_p == 1:  # all characters are kept, so there is no need to sort
        return probs_BV / probs_BV.sum(-1, keepdims=True)
    order_BV = np.argsort(-logits_BV, -1, kind="stable")
    sorted_BV = np.take_along_axis(probs_BV, order_BV, -1)
    sorted_BV[:, k:] = 0
    sorted_BV /= sorted_BV.sum(-1, keepdims=True)
    sorted_BV[sorted_BV.cumsum(-1) - sorted_BV >= config.top_p] = 0
    sorted_BV /= sorted_BV.sum(-1, keepdims=True)
    np.put_along_axis(probs_BV, order_BV, sorted_BV, -1)
    return probs_BV


def sample_ids(probs_BV: np.ndarray, uniform_B: np.ndarray) -> np.ndarray:
    """Return ids_B: in each row, the first id whose cumulative probability exceeds `uniform_B`."""
    cumulative_BV = probs_BV.cumsum(-1)
    is_beyond_BV = cumulative_BV > uniform_B[:, None] * cumulative_BV[:, -1:]
    if not all(is_beyond_BV[:, -1]):
        raise AbortError("no character has a probability above 0. The network's logits may be nan.")
    return is_beyond_BV.argmax(-1)


def first_character(vocab: str) -> str:
    """Return the character for an empty prompt: a line end, or the first one of the vocabulary."""
    return "\n" if "\n" in vocab else vocab[0]


@torch.no_grad()
def generate(
    model: nn.Module, vocab: str, prompt: list[int], config: GenerationConfig, stop: str = ""
) -> Iterator[tuple[int, str]]:
    """Yield (0, character) while the first text is written, then (i, text) for the others.

    `model` must be in eval mode. Each text continues `prompt`, and ends after max_new_tokens
    characters or after `stop`. The random numbers of text i depend only on (seed, i). Therefore the
    other texts change text i by rounding at most.
    """
    B, start, block_size = config.num_samples, len(prompt), model.config.block_size
    device = next(model.parameters()).device
    rngs = [np.random.default_rng([config.seed, i]) for i in range(B)]
    text_BT = np.empty((B, start + config.max_new_tokens), np.int64)
    text_BT[:, :start] = prompt
    texts, unfinished = [""] * B, set(range(B))
    cache = Cache() if uses_cache(model) else None
    for end in range(start, text_BT.shape[1]):
        # Without a cache, the network reads the latest characters again, as in training.
        first = max(0, end - block_size) if cache is None else cache.length
        new_BT = torch.from_numpy(text_BT[:, first:end]).to(device)
        for part_BT in new_BT.split(block_size, dim=1):  # because a long prompt takes much memory
            logits_BTV = model(part_BT) if cache is None else model(part_BT, cache)
        logits_BV = logits_BTV[:, -1].float().cpu().numpy()
        probs_BV = next_char_probs(logits_BV, text_BT[:, :end], config)
        ids_B = sample_ids(probs_BV, np.array([rng.random() for rng in rngs]))
        text_BT[:, end] = ids_B
        for i in sorted(unfinished):
            texts[i] += vocab[ids_B[i]]
            if i == 0:
                yield 0, texts[0][-1]
            if stop and texts[i].endswith(stop):
                unfinished.remove(i)
        if not unfinished:
            break
    yield from enumerate(texts[1:], start=1)
