"""Choosing the next character, and writing many of them.

Shapes: B samples written side by side, T time, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from model.gpt import GPT


@dataclass(frozen=True)
class SamplingConfig:
    """How the next character is chosen, and how many of them."""

    max_new_tokens: Annotated[int, "characters to write", "[1, inf)"] = 500
    num_samples: Annotated[int, "texts to write", "[1, inf)"] = 1
    temperature: Annotated[float, "1: as learned; less: safer; 0: always the likeliest", "[0, inf)"] = 0.8
    top_k: Annotated[int, "choose among the k likeliest only (0: all)", "[0, inf)"] = 0
    top_p: Annotated[float, "choose among the likeliest that make up this probability", "(0, 1]"] = 1.0
    seed: Annotated[int, "same seed, same text", "[0, inf)"] = 1337


def probabilities(logits_BV: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """The distribution the next character is drawn from, probs_BV in float64.

    Temperature first, then the k likeliest, then, among those, the fewest that together reach
    top_p (Holtzman et al. 2019, "The curious case of neural text degeneration").
    """
    k = 1 if config.temperature == 0 else config.top_k or logits_BV.shape[-1]
    logits_BV = logits_BV - logits_BV.max(-1, keepdims=True)
    with np.errstate(over="ignore"):  # near temperature 0 all but the likeliest go to minus infinity
        probs_BV = np.exp(logits_BV / (config.temperature or 1.0))
    order_BV = np.argsort(-logits_BV, -1, kind="stable")
    ranked_BV = np.take_along_axis(probs_BV, order_BV, -1)
    ranked_BV[:, k:] = 0
    ranked_BV /= ranked_BV.sum(-1, keepdims=True)
    ranked_BV[ranked_BV.cumsum(-1) - ranked_BV >= config.top_p] = 0
    ranked_BV /= ranked_BV.sum(-1, keepdims=True)
    np.put_along_axis(probs_BV, order_BV, ranked_BV, -1)
    return probs_BV


def choose(probs_BV: np.ndarray, uniform_B: np.ndarray) -> np.ndarray:
    """ids_B: where each uniform number in [0, 1) falls among the cumulative probabilities."""
    cumulative_BV = probs_BV.cumsum(-1)
    return (cumulative_BV > uniform_B[:, None] * cumulative_BV[:, -1:]).argmax(-1)


def first_character(vocab: str) -> str:
    """What a text without a prompt begins after: a newline, or, where there is none, a character there is."""
    return "\n" if "\n" in vocab else vocab[0]


def context_start(position: int, block_size: int) -> int:
    """Where the context of the character at `position` begins: the rule past block_size.

    The window holds up to block_size characters; once full it starts anew from its later half, so
    the model always sees at least half a block, at positions it was trained on.
    """
    half = max(1, block_size // 2)
    return half * max(0, -(-(position - block_size) // half))


@torch.inference_mode()
def generate(model: GPT, prompt: list[int], config: SamplingConfig) -> Iterator[np.ndarray]:
    """Yield ids_B, the next character of each of num_samples texts that continue `prompt`.

    Sample i's draws are a function of (seed, i) alone: streamed, whole, alone or beside others,
    it is the same text. The model is to be in eval mode.
    """
    device = model.embedding.weight.device
    draws = [np.random.default_rng([config.seed, i]) for i in range(config.num_samples)]
    window_BT = torch.tensor(prompt, device=device).repeat(config.num_samples, 1)
    cache = model.new_cache()
    for _ in range(config.max_new_tokens):
        if start := context_start(window_BT.size(1), model.config.block_size):
            window_BT, cache = window_BT[:, start:], model.new_cache()
        logits_BTV = model(window_BT[:, cache[0].length :], cache)  # only what the cache has not seen
        probs_BV = probabilities(logits_BTV[:, -1].cpu().double().numpy(), config)
        ids_B = choose(probs_BV, np.array([draw.random() for draw in draws]))
        yield ids_B
        window_BT = torch.cat((window_BT, torch.from_numpy(ids_B).to(device)[:, None]), dim=1)
