"""Tests of what is said about a validation text: of sound ones nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import check
from data.check import check_split


def random_text(rng: np.random.Generator, length: int, alphabet: np.ndarray | int) -> np.ndarray:
    """ids_N; pairs have probabilities of their own."""
    chances_VV = np.random.default_rng(7).dirichlet(np.full(96, 0.1), 96)
    allowed = np.zeros(96)
    allowed[alphabet] = 1
    chances_VV = (chances_VV + 1e-6) * allowed
    cumulative_VV = (chances_VV / chances_VV.sum(1, keepdims=True)).cumsum(1)
    ids_N, current = np.empty(length, np.uint8), int(np.flatnonzero(allowed)[0])
    for i, uniform in enumerate(rng.random(length)):
        current = min(int(np.searchsorted(cumulative_VV[current], uniform)), 95)
        ids_N[i] = current
    return ids_N


COMMON, RARE = np.arange(1, 60), np.arange(30, 96)
SOUND = random_text(np.random.default_rng(0), 50_000, COMMON)
OTHER = random_text(np.random.default_rng(1), 5_000, RARE)


def check_text(ids_N: np.ndarray, val_fraction: float = 0.1) -> str:
    return check_split(ids_N, int(len(ids_N) * (1 - val_fraction)), 96)


@given(st.integers(5_000, 50_000), st.integers(0, 45_000), st.floats(0.001, 0.95))
@settings(max_examples=40)
def test_of_a_text_that_is_alike_everywhere_nothing_is_said(length, start, val_fraction):
    assert check_text(SOUND[start : start + length], val_fraction) == ""


@given(st.permutations(range(9)), st.sampled_from([2000, 10**6]))
@settings(max_examples=10)
def test_the_order_of_the_other_tenths_changes_nothing(order, limit):
    *others, _ = np.split(SOUND, 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "SAMPLE_CHARS", limit)
        said = [
            check_text(np.concatenate([*tenths, OTHER]))
            for tenths in (others, [others[i] for i in order])
        ]
    assert said[0] == said[1] != ""


@pytest.mark.parametrize("val_fraction", [0.02, 0.1, 0.3])
def test_a_last_part_of_another_kind_is_found(val_fraction, monkeypatch):
    monkeypatch.setattr(check, "MAX_NEW", 1)  # by its pairs alone
    end = round(len(OTHER) / val_fraction)
    text = np.concatenate([random_text(np.random.default_rng(2), end - len(OTHER), COMMON), OTHER])
    train_chars = int(len(text) * (1 - val_fraction))
    assert "harder to predict" in check_split(text, train_chars, 96)


@pytest.mark.parametrize(("share", "found"), [(0.01, False), (0.03, True)])
def test_characters_that_occur_nowhere_else_are_found(share, found, monkeypatch):
    monkeypatch.setattr(check, "MAX_NATS", 9)  # whatever their pairs are
    text = SOUND.copy()
    text[45_000 : 45_000 + round(5000 * share)] = 90  # in a row, so that few pairs are new
    assert bool(check_text(text)) == found
    assert not found or f"{share:.1%} of them occur nowhere else" in check_text(text)
    text[20_000:20_005] = 90  # now it occurs
    assert not check_text(text)


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10))
def test_the_share_of_new_characters_is_that_of_each_part(counts):
    parts = [np.repeat([0, 1 + i], [20 - count, count]) for i, count in enumerate(counts)]
    _, new_P = check.unlikeness(parts, V=11)
    np.testing.assert_allclose(new_P, np.array(counts) / 20)


def test_a_part_is_predicted_by_the_others_alone():
    """Repeating it changes nothing."""
    part, other = OTHER[:300], SOUND[:5000]
    (once, _), (often, _) = (check.unlikeness([np.tile(part, n), other], 96)[0] for n in (1, 100))
    assert often == pytest.approx(once, rel=0.01)
    assert once > 2 * check.unlikeness([SOUND[5000:5300], other], 96)[0][0]


def test_rare_characters_count_as_one_kind(monkeypatch):
    """A text of thousands of characters is checked like one of a few."""
    monkeypatch.setattr(check, "MAX_NEW", 1)  # by its pairs alone
    rng = np.random.default_rng(0)
    for end, is_said in ((SOUND[45_000:], False), (OTHER, True)):
        ids_N = np.concatenate([SOUND[:45_000], end]).astype(int) + 5000
        ids_N[rng.integers(50_000, size=2_000)] = rng.integers(5000, size=2_000)
        assert bool(check_split(ids_N, 45_000, 5096)) == is_said
