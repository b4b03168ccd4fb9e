"""Choosing the next character, and writing many of them.

Shapes: B samples written side by side, T time, V vocabulary.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F

from model.gpt import GPT
from model.native import TEXTS, Native, suits


@dataclass(frozen=True)
class SamplingConfig:
    """How the next character is chosen, and how many of them."""

    max_new_tokens: Annotated[int, "characters to write", "[1, inf)"] = 500
    num_samples: Annotated[int, "texts to write", "[1, 1000000]"] = 1
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
    logits_BV = logits_BV.astype(np.float64)
    logits_BV -= logits_BV.max(-1, keepdims=True)
    probs_BV = np.exp(logits_BV / max(config.temperature, 1e-200))
    if k >= logits_BV.shape[-1] and config.top_p == 1:  # no need to rank them
        return probs_BV / probs_BV.sum(-1, keepdims=True)
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


def reader(model: GPT, B: int) -> Callable[[np.ndarray], np.ndarray]:
    """What reads B texts, some more characters ids_BT at each call, and gives logits_BV of what follows.

    That is `Native` where it will do, else the model itself.
    """
    if suits(model):
        return Native(model, B)
    device, cache = model.embedding.weight.device, model.new_cache()

    @torch.inference_mode()
    def read(ids_BT: np.ndarray) -> np.ndarray:
        for part_BT in torch.from_numpy(ids_BT).to(device).split(model.config.block_size, dim=1):
            logits_BTV = model(part_BT, cache)
        return logits_BTV[:, -1].cpu().double().numpy()

    return read


def generate(
    model: GPT, prompt: list[int], config: SamplingConfig, samples: range | None = None
) -> Iterator[np.ndarray]:
    """Yield ids_B, the next character of each of num_samples texts that continue `prompt`, or of some of them.

    Sample i's draws are a function of (seed, i) alone: streamed, whole, alone or beside others, it is the same
    text. However long it is, each character is what the model, run over all before it, would choose. The model is
    to be in eval mode.
    """
    samples = range(config.num_samples) if samples is None else samples
    draws = [np.random.default_rng([config.seed, i]) for i in samples]
    read, ids_BT = reader(model, len(draws)), np.array([prompt[-model.reach :]] * len(draws))
    for _ in range(config.max_new_tokens):
        probs_BV = probabilities(read(ids_BT), config)
        ids_B = choose(probs_BV, np.array([draw.random() for draw in draws]))
        yield ids_B
        ids_BT = ids_B[:, None]


def stream(
    model: GPT, vocab: str, prompt: list[int], config: SamplingConfig, stop: str = ""
) -> Iterator[tuple[int, str]]:
    """Yield (0, character) as the first sample is written, then (i, text) for each of the others.

    A sample ends at max_new_tokens, or where it has written `stop`. In native code the others are written
    meanwhile, in threads of their own.
    """
    samples, native, enough = range(config.num_samples), suits(model), threading.Event()
    width = TEXTS if native else len(samples)
    groups = [samples[i : i + width] for i in samples[1::width]]

    def texts(group: range) -> list[tuple[int, str]]:
        ids, whole = generate(model, prompt, config, group), [""] * len(group)
        while (some := list(itertools.islice(ids, 64))) and not enough.is_set():
            pieces = ("".join(vocab[id_] for id_ in ids_T) for ids_T in np.stack(some, 1))
            whole = [text + piece for text, piece in zip(whole, pieces, strict=True)]
            if stop and all(stop in text for text in whole):
                break
        return [(i, "".join(text.partition(stop)[:2]) if stop else text) for i, text in zip(group, whole, strict=True)]

    pool, latest = ThreadPoolExecutor(torch.get_num_threads()), ""
    try:
        others = (pool.map if native else map)(texts, groups)  # the one begins at once, the other when asked
        for ids_B in generate(model, prompt, config, samples[:1]):
            yield 0, vocab[ids_B[0]]
            latest = (latest + vocab[ids_B[0]])[-len(stop) :] if stop else ""
            if stop and latest == stop:
                break
        yield from itertools.chain.from_iterable(others)
    finally:  # also where the reader has had enough
        enough.set()
        pool.shutdown(cancel_futures=True)


@torch.inference_mode()
def surprise(model: GPT, before: int, ids_N: np.ndarray) -> float:
    """The sum over a text that follows the character `before` of -ln p(character), in nats."""
    device, cache, nats = model.embedding.weight.device, model.new_cache(), 0.0
    text_N = torch.from_numpy(np.append(before, ids_N)).long().to(device)
    parts = (part_N.split(model.config.block_size) for part_N in (text_N[:-1], text_N[1:]))
    for x_T, y_T in zip(*parts, strict=True):
        nats += F.cross_entropy(model(x_T[None], cache)[0].float(), y_T, reduction="sum").item()
    return nats
