"""Tests of sampling: choosing characters, writing texts, the cache."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import model.generate
from model.generate import (
    GenerationConfig,
    first_character,
    generate,
    next_char_probs,
    sample_ids,
)
from model.system.console import AbortError
from tests.helpers import NETWORKS, has_cache, random_gpt

VOCAB = "abcdefghijk"


@given(
    arrays(np.float64, 7, elements=st.integers(-30, 30).map(float)),
    st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0]),
    st.integers(0, 8),
    st.floats(1e-6, 1.0),
)
def test_softmax_is_cut_to_top_k_then_top_p(logits_V, temperature, top_k, top_p):
    config = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p)
    probs_V = next_char_probs(logits_V[None], np.empty((1, 0)), config)[0]
    uncut_V = torch.softmax(torch.from_numpy(logits_V / (temperature or 1e-300)), 0).numpy()
    k = 1 if temperature == 0 else top_k or 7
    kept = probs_V > 0
    assert kept.sum() <= k
    assert uncut_V[kept].min() >= uncut_V[~kept].max(initial=0)
    np.testing.assert_allclose(probs_V[kept], uncut_V[kept] / uncut_V[kept].sum())
    shares = uncut_V[kept] / np.sort(uncut_V)[-k:].sum()  # shares among the k likeliest
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
    with pytest.raises(AbortError, match="logits may be nan"):
        sample_ids(np.full((1, 3), value), np.array([0.5]))


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 5, 8])
@pytest.mark.parametrize("length", [1, 9, 40])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_it_reads_the_whole_text_or_the_last_block_size_characters(
    network, cached, length, block_size, monkeypatch
):
    cached = cached and has_cache(network)
    network, texts = random_gpt(network=network, block_size=block_size), []
    network.has_right_cache = cached

    def check_logits(logits_BV, text_BT, config):
        ids_BT = torch.from_numpy(text_BT if cached else text_BT[:, -block_size:])
        np.testing.assert_allclose(logits_BV, network(ids_BT)[:, -1], rtol=1e-4, atol=1e-5)
        texts.append(text_BT)
        return next_char_probs(logits_BV, text_BT, config)

    monkeypatch.setattr(model.generate, "next_char_probs", check_logits)
    prompt, config = [i % 11 for i in range(length)], GenerationConfig(20, num_samples=2)
    pieces = list(generate(network, VOCAB, prompt, config))
    assert [len(text_BT[0]) for text_BT in texts] == list(range(length, length + 20))
    assert written(pieces, 1)[:19] == "".join(VOCAB[id_] for id_ in texts[-1][1][length:])


def written(pieces: list[tuple[int, str]], i: int) -> str:
    """Return text i, joined from its pieces."""
    return "".join(piece for number, piece in pieces if number == i)


def test_texts_written_together_end_each_at_its_own_stop():
    model = random_gpt()
    config = GenerationConfig(max_new_tokens=200, num_samples=5)
    pieces = list(generate(model, VOCAB, [1], config, stop="b"))
    texts = [written(pieces, i) for i in range(5)]
    whole = [piece for _, piece in generate(model, VOCAB, [1], config)]
    longer = ["".join(whole[:200]), *whole[200:]]
    assert texts == [text[: text.index("b") + 1] if "b" in text else text for text in longer]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(("vocab", "start"), [("\t\n a", "\n"), ("\t a", "\t"), ("a\n", "\n")])
def test_empty_prompt_is_line_end_if_in_vocabulary(vocab, start):
    assert first_character(vocab) == start
