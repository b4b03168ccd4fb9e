"""Tests of sampling: choosing characters, writing texts, scoring a text."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from model.csampler import load_library, make_csampler
from model.generate import SamplingConfig as Config
from model.generate import generate, make_step_fn, next_char_probs, sample_ids, stream, total_nll
from model.gpt import GPT, GPTConfig
from tests.model.test_gpt import random_gpt, random_ids

both_samplers = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


class GPTWithAbsolutePositions(GPT):
    def __init__(self, config: GPTConfig, vocab_size: int) -> None:
        super().__init__(config, vocab_size)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.max_length = config.block_size

    def forward(self, ids_BT, cache=None):
        start = cache.length if cache is not None else 0
        positions_TC = self.positions(torch.arange(start, start + ids_BT.size(1)))
        with self.embedding.register_forward_hook(lambda _, args, x_BTC: x_BTC + positions_TC):
            return super().forward(ids_BT, cache)


def write_texts(model: GPT, prompt: list[int], samples=None, **settings) -> np.ndarray:
    """What continues the prompt, ids_BT. The C sampler writes it in float32, if it compiles."""
    csampler = make_csampler(model)
    is_float32 = model.head.weight.dtype == torch.float32
    assert (csampler is not None) == (is_float32 and load_library() is not None)
    return np.stack(list(generate(model, prompt, Config(**settings), samples, csampler)), axis=1)


@given(
    arrays(np.float64, 7, elements=st.integers(-30, 30).map(float)),
    st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0]),
    st.integers(0, 8),
    st.floats(1e-6, 1.0),
)
def test_probabilities_are_the_softmax_cut_to_top_k_then_top_p(logits_V, temperature, top_k, top_p):
    config = Config(temperature=temperature, top_k=top_k, top_p=top_p)
    probs_V = next_char_probs(logits_V[None], np.empty((1, 0)), config)[0]
    uncut_V = torch.softmax(torch.from_numpy(logits_V / (temperature or 1e-300)), 0).numpy()
    k = 1 if temperature == 0 else top_k or 7
    kept = probs_V > 0
    assert kept.sum() <= k
    assert uncut_V[kept].min() >= uncut_V[~kept].max(initial=0)
    np.testing.assert_allclose(probs_V[kept], uncut_V[kept] / uncut_V[kept].sum())
    shares = uncut_V[kept] / np.sort(uncut_V)[-k:].sum()  # of the k likeliest
    assert top_p - 1e-9 <= shares.sum() < top_p + shares.min() + 1e-9


def test_characters_are_drawn_as_often_as_they_are_probable():
    probs_V = np.array([0, 0.5, 0.2, 0, 0.25, 0.05, 0])
    drawn = sample_ids(np.tile(probs_V, (20_000, 1)), np.random.default_rng(0).random(20_000))
    counts, expected = np.bincount(drawn, minlength=7), 20_000 * probs_V
    chi_square = ((counts - expected)[probs_V > 0] ** 2 / expected[probs_V > 0]).sum()
    assert chi_square < 16.27  # the 99.9th percentile at three degrees of freedom


@given(
    arrays(np.float64, 7, elements=st.sampled_from([0.0, 1e-300, 0.1, 1.0])),
    st.floats(0, 1, exclude_max=True),
)
def test_characters_of_probability_0_are_never_drawn(weights_V, uniform):
    weights_V[3] = 1.0
    probs_BV = np.tile(weights_V / weights_V.sum(), (3, 1))
    assert (weights_V[sample_ids(probs_BV, np.array([uniform, 0.0, 1 - 2**-53]))] > 0).all()


@both_samplers
@pytest.mark.parametrize("block_size", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [1, 8, 40])
def test_greedy_text_is_the_likeliest_after_all_before_it(length, block_size, dtype):
    model, prompt = random_gpt(block_size=block_size).to(dtype), random_ids(length).tolist()
    written = write_texts(model, prompt, max_new_tokens=40, temperature=0)[0].tolist()
    logits_TV = model(torch.tensor([prompt + written]))[0]
    assert written == logits_TV[length - 1 : -1].argmax(-1).tolist()


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [1, 4, 8, 9, 40])
@pytest.mark.parametrize("model_type", [GPT, GPTWithAbsolutePositions])
def test_steps_continue_the_whole_text_or_its_latest_half(model_type, length, block_size):
    model = random_gpt(model_type=model_type, block_size=block_size)
    step, first, ids_BT = make_step_fn(model, 2), 0, random_ids(2, length + 20)
    new_BT = ids_BT[:, :length]
    for end in range(length, length + 20):
        if model.max_length is not None and end - first > model.max_length:
            first = end - (model.max_length + 1) // 2  # no positions left: start again
        expected_BV = model(ids_BT[:, first:end])[:, -1]
        np.testing.assert_allclose(step(new_BT.numpy()), expected_BV)
        new_BT = ids_BT[:, end : end + 1]


def test_sampling_rule_sees_the_prompt_and_all_that_is_written(monkeypatch):
    def remember(logits_BV, text_BT, config):
        texts.append(text_BT.copy())
        return next_char_probs(logits_BV, text_BT, config)

    texts, model = [], random_gpt().float()
    monkeypatch.setattr("model.generate.next_char_probs", remember)
    written_BT = write_texts(model, [1, 2], max_new_tokens=1100, temperature=5.0, num_samples=2)
    whole_BT = np.concatenate(([[1, 2], [1, 2]], written_BT), axis=1)
    assert len(texts) == 1100
    assert all(np.array_equal(text_BT, whole_BT[:, : 2 + t]) for t, text_BT in enumerate(texts))


@both_samplers
def test_a_text_depends_on_its_seed_and_number_and_not_on_the_texts_beside_it(dtype):
    model = random_gpt().to(dtype)
    settings = {"max_new_tokens": 40, "temperature": 5.0, "top_p": 0.95, "num_samples": 13}
    ids_BT = write_texts(model, [1], **settings)
    assert len(np.unique(ids_BT, axis=0)) == 13
    for samples in (range(1), range(3, 12), range(12, 13)):
        assert (write_texts(model, [1], samples, **settings) == ids_BT[list(samples)]).all()
    assert (write_texts(model, [1], seed=1, **settings) != ids_BT).any(axis=1).all()


@both_samplers
@pytest.mark.parametrize("stop_length", [0, 1, 2])
def test_stream_gives_every_text_up_to_its_own_stop(dtype, stop_length):
    model, vocab = random_gpt().to(dtype), "abcdefghijk"
    settings = {"max_new_tokens": 150, "temperature": 2.0, "num_samples": 20}
    texts = ["".join(vocab[i] for i in ids_T) for ids_T in write_texts(model, [1], **settings)]
    stop = texts[0][20 : 20 + stop_length]
    if stop:
        texts = [text[: (text + stop).index(stop) + len(stop)] for text in texts]
    expected = [*((0, character) for character in texts[0]), *list(enumerate(texts))[1:]]
    streamed = stream(model, vocab, [1], Config(**settings), stop, make_csampler(model))
    assert list(streamed) == expected


@pytest.mark.parametrize(("model_type", "length"), [(GPT, 30), (GPTWithAbsolutePositions, 8)])
def test_total_nll_is_the_sum_over_the_text_or_over_parts_of_max_length(model_type, length):
    model, ids_T = random_gpt(model_type=model_type, block_size=8), random_ids(31)
    expected = 0.0
    for first in range(0, 30, length):
        part_T = ids_T[first : first + length + 1]
        logits_TV = model(part_T[None, :-1])[0]
        expected += F.cross_entropy(logits_TV, part_T[1:], reduction="sum").item()
    assert total_nll(model, ids_T[0], ids_T[1:].numpy()) == pytest.approx(expected, rel=1e-6)
