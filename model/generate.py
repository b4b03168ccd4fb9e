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
    logits_BV = logits_BV.astype(np.float64)
    logits_BV -= logits_BV.max(-1, keepdims=True)
    if config.temperature == 0:
        probs_BV = np.zeros_like(logits_BV)
        np.put_along_axis(probs_BV, logits_BV.argmax(-1)[:, None], 1.0, -1)
        return probs_BV
    with np.errstate(over="ignore"):  # so cold that all but the likeliest are at minus infinity
        probs_BV = np.exp(logits_BV / config.temperature)
    probs_BV /= probs_BV.sum(-1, keepdims=True)
    if config.top_k or config.top_p < 1:
        order_BV = np.argsort(-probs_BV, -1, kind="stable")
        ranked_BV = np.take_along_axis(probs_BV, order_BV, -1)
        if config.top_k:
            ranked_BV[:, config.top_k :] = 0
        ranked_BV /= ranked_BV.sum(-1, keepdims=True)
        ranked_BV[ranked_BV.cumsum(-1) - ranked_BV >= config.top_p] = 0
        ranked_BV /= ranked_BV.sum(-1, keepdims=True)
        np.put_along_axis(probs_BV, order_BV, ranked_BV, -1)
    return probs_BV


def choose(probs_BV: np.ndarray, uniform_B: np.ndarray) -> np.ndarray:
    """ids_B: where each uniform number in [0, 1) falls among the cumulated probabilities."""
    cumulated_BV = probs_BV.cumsum(-1)
    return (cumulated_BV > uniform_B[:, None] * cumulated_BV[:, -1:]).argmax(-1)


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
    text_BT = torch.tensor(prompt, device=device).repeat(config.num_samples, 1)
    start, cache = 0, None
    for position in range(len(prompt), len(prompt) + config.max_new_tokens):
        if cache is None or context_start(position, model.config.block_size) != start:
            skipped = context_start(position, model.config.block_size) - start
            text_BT, start, cache = text_BT[:, skipped:], start + skipped, model.new_cache()
            logits_BTV = model(text_BT, cache)
        else:
            logits_BTV = model(text_BT[:, -1:], cache)
        probs_BV = probabilities(logits_BTV[:, -1].float().cpu().numpy(), config)
        ids_B = choose(probs_BV, np.array([draw.random() for draw in draws]))
        yield ids_B
        text_BT = torch.cat((text_BT, torch.from_numpy(ids_B).to(device)[:, None]), dim=1)
