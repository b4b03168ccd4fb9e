"""Tests of sampling: choosing characters, writing texts, scoring a text."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from model.generate import SamplingConfig as Config
from model.generate import generate, make_step_fn, next_char_probs, sample_ids, stream
from model.gpt import GPT
from tests.model.test_gpt import random_gpt, random_ids
from tests.test_edits import LearnedPositionsGPT


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


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 5, 8])
@pytest.mark.parametrize("length", [1, 9, 40])
@pytest.mark.parametrize("model_type", [GPT, LearnedPositionsGPT])
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


def test_the_sampling_rule_sees_the_prompt_and_all_that_is_written(monkeypatch):
    def remember(logits_BV, text_BT, config):
        seen.append(text_BT.copy())
        return next_char_probs(logits_BV, text_BT, config)

    seen, config = [], Config(max_new_tokens=1100, num_samples=2)
    monkeypatch.setattr("model.generate.next_char_probs", remember)
    written_BT = np.stack(list(generate(random_gpt(n_layer=1), [1, 2], config)), axis=1)
    whole_BT = np.concatenate(([[1, 2], [1, 2]], written_BT), axis=1)
    assert written_BT.shape == (2, 1100)
    assert all(np.array_equal(text_BT, whole_BT[:, : 2 + t]) for t, text_BT in enumerate(seen))


@pytest.mark.parametrize("stop_length", [0, 2])
def test_stream_gives_every_text_up_to_its_own_stop(stop_length):
    model, vocab = random_gpt(), "abcdefghijk"
    config = Config(max_new_tokens=100, temperature=2.0, num_samples=9)
    ids_BT = np.stack(list(generate(model, [1], config)), axis=1)
    texts = ["".join(vocab[i] for i in ids_T) for ids_T in ids_BT]
    stop = texts[0][20 : 20 + stop_length]
    if stop:
        texts = [text[: (text + stop).index(stop) + len(stop)] for text in texts]
    expected = [*((0, character) for character in texts[0]), *list(enumerate(texts))[1:]]
    assert list(stream(model, vocab, [1], config, stop)) == expected
