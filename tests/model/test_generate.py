"""Tests of sampling: choosing characters, writing texts, scoring a text."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from model import generate
from model.generate import GenerationConfig, make_step_fn, next_char_probs, sample_ids
from model.run.errors import RunError
from tests.model.test_networks import NETWORKS, random_gpt, random_ids


@given(
    arrays(np.float64, 7, elements=st.integers(-30, 30).map(float)),
    st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0]),
    st.integers(0, 8),
    st.floats(1e-6, 1.0),
)
def test_probabilities_are_the_softmax_cut_to_top_k_then_top_p(logits_V, temperature, top_k, top_p):
    config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p)
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
    for uniform in (0.0, 0.5, 0.95, 1 - 2**-53):  # also at the limits of each interval
        assert probs_V[sample_ids(probs_V[None], np.array([uniform]))] > 0


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_no_character_is_drawn_without_a_probability(value):
    with pytest.raises(RunError, match="logits may be nan"):
        sample_ids(np.full((1, 3), value), np.array([0.5]))


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 5, 8])
@pytest.mark.parametrize("length", [1, 9, 40])
@pytest.mark.parametrize("has_proven_cache", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_steps_continue_the_whole_text_or_the_latest_block_size_characters(
    network, has_proven_cache, length, block_size
):
    model = random_gpt(network=network, block_size=block_size)
    assert model.has_proven_cache
    model.has_proven_cache = has_proven_cache
    reads_on = has_proven_cache and network == "quill"
    step, ids_BT = make_step_fn(model, 2), random_ids(2, length + 20)
    new_BT = ids_BT[:, :length]
    for end in range(length, length + 20):
        first = 0 if reads_on else max(0, end - block_size)
        expected_BV = model(ids_BT[:, first:end])[:, -1]
        np.testing.assert_allclose(step(new_BT.numpy()), expected_BV)
        new_BT = ids_BT[:, end : end + 1]


def test_the_sampling_rule_sees_the_prompt_and_all_that_is_written(monkeypatch):
    def remember(logits_BV, text_BT, config):
        seen.append(text_BT.copy())
        return next_char_probs(logits_BV, text_BT, config)

    seen, config = [], GenerationConfig(max_new_tokens=1100)
    monkeypatch.setattr(generate, "next_char_probs", remember)
    step_fn = partial(make_step_fn, random_gpt(n_layer=1))
    written_BT = np.stack(list(generate.generate(step_fn, [1, 2], config, range(2))), axis=1)
    whole_BT = np.concatenate(([[1, 2], [1, 2]], written_BT), axis=1)
    assert written_BT.shape == (2, 1100)
    assert all(np.array_equal(text_BT, whole_BT[:, : 2 + t]) for t, text_BT in enumerate(seen))
