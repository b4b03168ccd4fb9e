"""The laws of choosing characters and writing texts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import nn

from model.generate import SamplingConfig, choose, generate, probabilities, stream, surprise
from model.gpt import GPT, GPTConfig

V = 7
logits_of = arrays(np.float64, (3, V), elements=st.integers(-30, 30).map(float))
settings_of = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.0, 1e-300, 0.1, 1.0, 5.0]),
    top_k=st.integers(0, V + 1),
    top_p=st.floats(1e-6, 1.0),
)


def network(block_size: int = 8, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=8, block_size=block_size), V).double().eval()
    for weight in model.parameters():
        if not weight.any():
            nn.init.normal_(weight)
    return model


def text(model: GPT, prompt: list[int], **settings) -> np.ndarray:
    """ids_BT of all samples."""
    return np.stack(list(generate(model, prompt, SamplingConfig(**settings))), axis=1)


@given(logits_of, settings_of)
def test_probabilities_are_a_distribution_that_favours_the_likely(logits, settings):
    probs = probabilities(logits, settings)
    assert (probs >= 0).all()
    np.testing.assert_allclose(probs.sum(-1), 1)
    for row, prob in zip(logits, probs, strict=True):
        assert prob[row.argmax()] > 0
        order = row.argsort()
        assert (np.diff(prob[order][np.diff(row[order], prepend=-np.inf) > 0]) >= 0).all()


@given(logits_of, st.integers(1, V), st.floats(0.01, 1.0))
def test_top_k_keeps_k_and_top_p_the_fewest_that_reach_p(logits, k, p):
    plain = probabilities(logits, SamplingConfig(temperature=1.0))
    assert (
        (probabilities(logits, SamplingConfig(temperature=1.0, top_k=k)) > 0).sum(-1) <= k
    ).all()
    kept = probabilities(logits, SamplingConfig(temperature=1.0, top_p=p)) > 0
    for row, keep in zip(plain, kept, strict=True):
        assert row[keep].sum() >= p - 1e-9
        assert row[keep].sum() - row[keep].min() < p + 1e-9
        assert row[keep].min() >= row[~keep].max(initial=0) - 1e-12


def test_ten_thousand_draws_never_leave_what_is_allowed():
    logits = np.random.default_rng(0).normal(size=(1, V)).repeat(10_000, 0)
    uniform = np.random.default_rng(1).random(10_000)
    for settings in (
        SamplingConfig(top_k=3),
        SamplingConfig(top_p=0.6),
        SamplingConfig(top_k=4, top_p=0.5),
    ):
        probs = probabilities(logits, settings)
        drawn = set(choose(probs, uniform).tolist())
        assert drawn == set(np.flatnonzero(probs[0]).tolist())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_are_as_frequent_as_they_are_probable(temperature):
    logits, count = np.random.default_rng(0).normal(size=(1, V)), 20_000
    probs = probabilities(logits, SamplingConfig(temperature=temperature))
    tempered = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    np.testing.assert_allclose(probs, tempered)
    drawn = choose(probs.repeat(count, 0), np.random.default_rng(1).random(count))
    expected = probs[0] * count
    chi_square = ((np.bincount(drawn, minlength=V) - expected) ** 2 / expected).sum()
    assert chi_square < 22.46  # the 99.9th percentile at six degrees of freedom


@given(
    arrays(np.float64, V, elements=st.sampled_from([0.0, 1e-300, 0.1, 1.0])),
    st.floats(0, 1, exclude_max=True),
)
def test_the_improbable_is_rare_but_the_impossible_never_happens(weights, uniform):
    weights[3] = 1.0
    probs = weights[None] / weights.sum()
    for u in (uniform, 0.0, 1 - 2**-53):
        assert probs[0, choose(probs, np.array([u]))[0]] > 0


@pytest.mark.parametrize("block_size", [1, 2, 5, 8])
@pytest.mark.parametrize("length", [0.5, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_is_what_the_model_run_over_the_whole_text_finds_likeliest(
    block_size, length, dtype
):
    """On the cache or in native code, inside block_size and past it."""
    model, ids = network(block_size).to(dtype), [1]
    written = text(model, ids, max_new_tokens=max(1, int(length * block_size)), temperature=0)[0]
    for character in written:
        assert character == model(torch.tensor([ids]))[0, -1].argmax()
        ids.append(int(character))


@pytest.mark.parametrize("length", [3, 8, 9, 30, 60])
def test_a_prompt_of_any_length_is_read_by_the_same_rule(length):
    """What follows a text does not depend on how much of it was given and how much was written."""
    model = network()
    whole = [1, *text(model, [1], max_new_tokens=length + 10, temperature=0)[0].tolist()]
    again = text(model, whole[:length], max_new_tokens=11, temperature=0)[0].tolist()
    assert again == whole[length : length + 11]


@torch.no_grad()
def test_all_of_a_long_prompt_counts():
    """Also what attention no longer sees: blocks above the first see further."""
    model, prompts = network(), np.random.default_rng(0).integers(V, size=(200, 40)).tolist()
    for seed, prompt in enumerate(prompts):
        probs = probabilities(
            model(torch.tensor([prompt]))[:, -1].numpy(), SamplingConfig(temperature=1.0)
        )
        drawn = choose(probs, np.array([np.random.default_rng([seed, 0]).random()]))
        assert text(model, prompt, max_new_tokens=1, temperature=1.0, seed=seed)[0] == drawn


def test_a_seed_is_a_text():
    model = network()
    first, second, other = (
        text(model, [1], max_new_tokens=40, temperature=1.0, seed=s) for s in (1, 1, 2)
    )
    assert (first == second).all()
    assert (first != other).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sample_is_the_same_alone_and_beside_others(dtype):
    model, settings = (
        network().to(dtype),
        SamplingConfig(max_new_tokens=40, temperature=5.0, num_samples=13),
    )
    beside = np.stack(list(generate(model, [1], settings)), axis=1)
    assert len({tuple(row) for row in beside}) == 13
    for some in (range(1), range(3, 12), range(12, 13)):
        assert (
            np.stack(list(generate(model, [1], settings, some)), axis=1)
            == beside[some.start : some.stop]
        ).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("stop", ["", "b", "ab"])
def test_a_stream_is_the_texts_each_to_its_own_stop(dtype, stop):
    model, vocab = network().to(dtype), "abcdefg"
    settings = SamplingConfig(max_new_tokens=150, temperature=2.0, num_samples=20)
    whole = [
        "".join(vocab[id_] for id_ in ids_T)
        for ids_T in np.stack(list(generate(model, [1], settings)), axis=1)
    ]
    streamed = list(stream(model, vocab, [1], settings, stop))
    first = [character for i, character in streamed if i == 0]
    assert all(len(character) == 1 for character in first)
    texts = ["".join(first), *(text for i, text in streamed if i > 0)]
    assert [i for i, _ in streamed[len(first) :]] == list(range(1, 20))
    expected = [text[: text.index(stop) + len(stop)] if stop in text else text for text in whole]
    assert texts == (expected if stop else whole)


def test_the_surprise_at_a_text_is_that_of_its_characters_one_by_one():
    model, ids_N = network(), np.random.default_rng(0).integers(V, size=30)
    logits_TV = model(torch.tensor([[1, *ids_N]]))[0, :-1]
    expected = -logits_TV.log_softmax(-1)[torch.arange(30), ids_N].sum().item()
    assert surprise(model, 1, ids_N) == pytest.approx(expected, rel=1e-6)
