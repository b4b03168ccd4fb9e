"""Sampling: from logits to the next character, and from there to whole texts.

Shapes: B texts written side by side, T time, V vocabulary.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from model.attention import Cache
from model.fast.csampler import TEXTS, make_csampler
from model.run.errors import RunError

# Appends token ids ids_BT, returns the next-token logits_BV.
StepFn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class GenerationConfig:
    """How each character is chosen, and how many are written."""

    max_new_tokens: Annotated[int, "characters to write", "[1, inf)"] = 500
    num_samples: Annotated[int, "texts to write", "[1, 1000000]"] = 1
    temperature: Annotated[float, "below 1: safer, 0: always the likeliest", "[0, inf)"] = 0.8
    top_k: Annotated[int, "sample from the k likeliest characters (0: from all)", "[0, inf)"] = 0
    top_p: Annotated[
        float, "sample from the fewest characters with this total probability", "(0, 1]"
    ] = 1.0
    seed: Annotated[int, "the same seed gives the same text", "[0, inf)"] = 1337


def next_char_probs(
    logits_BV: np.ndarray, text_BT: np.ndarray, config: GenerationConfig
) -> np.ndarray:
    """The distribution from which the next character is drawn, probs_BV in float64.

    Temperature first, then the k likeliest, then the fewest of these that reach top_p (Holtzman
    et al. 2019, "The curious case of neural text degeneration"). A new sampling rule goes here;
    text_BT holds the ids of the prompt and of everything written so far.
    """
    V = logits_BV.shape[-1]
    k = 1 if config.temperature == 0 else config.top_k or V
    logits_BV = logits_BV.astype(np.float64)
    logits_BV -= logits_BV.max(-1, keepdims=True)
    probs_BV = np.exp(logits_BV / max(config.temperature, 1e-200))
    if k >= V and config.top_p == 1:  # nothing to cut, so no need to sort
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
    """ids_B: where each uniform number in [0, 1) falls among the cumulative probabilities."""
    cumulative_BV = probs_BV.cumsum(-1)
    is_beyond_BV = cumulative_BV > uniform_B[:, None] * cumulative_BV[:, -1:]
    if not all(is_beyond_BV[:, -1]):
        raise RunError("no character has a probability above 0. The network's logits may be nan.")
    return is_beyond_BV.argmax(-1)


def start_character(vocab: str) -> str:
    """What stands in for an empty prompt: a newline, or the vocabulary's first character."""
    return "\n" if "\n" in vocab else vocab[0]


def make_step_fn(model: nn.Module, batch_size: int) -> StepFn:
    """Returns a function: append token ids ids_BT, get the next-token logits_BV.

    A network whose cache is not proven reads the latest block_size characters at each step, as in
    training; so does one with a limited length once its cache is full.
    """
    device, block_size = next(model.parameters()).device, model.config.block_size
    cache, latest_BT = Cache(), np.empty((batch_size, 0), np.int32)

    @torch.no_grad()
    def step(ids_BT: np.ndarray) -> np.ndarray:
        nonlocal cache, latest_BT
        latest_BT = np.concatenate((latest_BT, ids_BT), axis=1)[:, -block_size:]
        is_full = cache.length + ids_BT.shape[1] > (model.max_length or math.inf)
        if is_full or not model.has_proven_cache:
            cache, ids_BT = Cache(), latest_BT
        caches = [cache] if model.has_proven_cache else []
        # A long prompt is read in parts, which bounds the memory.
        for part_BT in torch.from_numpy(ids_BT).long().to(device).split(block_size, dim=1):
            logits_BTV = model(part_BT, *caches)
        return logits_BTV[:, -1].cpu().double().numpy()  # in this order: mps has no float64

    return step


def generate(
    new_step_fn: Callable[[int], StepFn],
    prompt: list[int],
    config: GenerationConfig,
    samples: range,
) -> Iterator[np.ndarray]:
    """Yield ids_B, the next character of each text that continues `prompt`.

    `samples` are the numbers of the texts to write. The random numbers of text i depend only on
    (seed, i), so other texts change it by rounding at most.
    """
    B, start = len(samples), len(prompt)
    rngs = [np.random.default_rng([config.seed, i]) for i in samples]
    step = new_step_fn(B)
    text_BT = np.empty((B, start + min(config.max_new_tokens, 1000)), np.int32)
    text_BT[:, :start] = prompt
    new_BT = text_BT[:, :start]
    for t in range(config.max_new_tokens):
        end = start + t
        if end == text_BT.shape[1]:
            text_BT = np.concatenate((text_BT, np.empty_like(text_BT)), axis=1)
        if t % 64 == 0:
            uniform_TB = np.stack([rng.random(64) for rng in rngs], axis=1)
        probs_BV = next_char_probs(step(new_BT), text_BT[:, :end], config)
        ids_B = sample_ids(probs_BV, uniform_TB[t % 64])
        text_BT[:, end] = ids_B
        new_BT = ids_B[:, None]
        yield ids_B


def stream(
    model: nn.Module, vocab: str, prompt: list[int], config: GenerationConfig, stop: str = ""
) -> Iterator[tuple[int, str]]:
    """Yield (0, character) while the first text is written, then (i, text) for each other text.

    A text ends after max_new_tokens characters or after `stop`. The model must be in eval mode. The
    C sampler writes the other texts in threads while the first is streamed.
    """
    csampler = make_csampler(model)
    new_step_fn = csampler or partial(make_step_fn, model)
    others = range(1, config.num_samples)
    group_size = TEXTS if csampler else max(1, len(others))
    groups = [others[i : i + group_size] for i in range(0, len(others), group_size)]
    cancelled = threading.Event()

    def write_group(group: range) -> list[tuple[int, str]]:
        steps = generate(new_step_fn, prompt, config, group)
        texts = [""] * len(group)
        while (chunk := list(itertools.islice(steps, 64))) and not cancelled.is_set():
            for i, ids_T in enumerate(np.stack(chunk, axis=1)):
                texts[i] += "".join(vocab[id_] for id_ in ids_T)
            if stop and all(stop in text for text in texts):
                break
        if stop:
            texts = ["".join(text.partition(stop)[:2]) for text in texts]
        return list(zip(group, texts, strict=True))

    pool = ThreadPoolExecutor(torch.get_num_threads())
    try:
        other_texts = pool.map(write_group, groups) if csampler else map(write_group, groups)
        written = ""
        for ids_B in generate(new_step_fn, prompt, config, range(1)):
            written += vocab[ids_B[0]]
            yield 0, written[-1]
            if stop and written.endswith(stop):
                break
        for group in other_texts:
            yield from group
    finally:  # also if the caller stops reading
        cancelled.set()
        pool.shutdown(cancel_futures=True)


@torch.no_grad()
def total_nll(model: nn.Module, ids_N: np.ndarray) -> float:
    """Total negative log-likelihood, in nats, of the characters of a text after its first.

    It is read in parts of block_size. With a cache, each part sees those before it.
    """
    device, block_size = next(model.parameters()).device, model.config.block_size
    reads_on = model.has_proven_cache and model.max_length is None
    ids = torch.from_numpy(ids_N).long().to(device)
    caches, nats = [Cache()] if reads_on else [], 0.0
    for x_T, y_T in zip(ids[:-1].split(block_size), ids[1:].split(block_size), strict=True):
        logits_BTV = model(x_T[None], *caches)
        nats += F.cross_entropy(logits_BTV[0].float(), y_T, reduction="sum").item()
    return nats
