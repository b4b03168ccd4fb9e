"""Tests of what is said about a validation text: of sound ones nothing."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import check
from data.check import check_split, unlikeness
from data.tokenizer import encode

VOCAB = "".join(map(chr, range(32, 32 + 96)))


def random_text(seed: int, length: int, alphabet: np.ndarray, language: int = 7) -> np.ndarray:
    """ids_N; a language has its own probabilities of pairs."""
    rng = np.random.default_rng(seed)
    chances_VV = np.random.default_rng(language).dirichlet(np.full(96, 0.1), 96)
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
SOUND = random_text(0, 50_000, COMMON)
OTHER = random_text(1, 5_000, RARE)


def check_text(ids_N: np.ndarray, val_fraction: float = 0.1) -> list[str]:
    return check_split(ids_N, int(len(ids_N) * (1 - val_fraction)), VOCAB, "end")


@given(st.integers(5_000, 50_000), st.integers(0, 45_000), st.floats(0.001, 0.95))
@settings(max_examples=40)
def test_of_a_text_that_is_alike_everywhere_nothing_is_said(length, start, val_fraction):
    assert check_text(SOUND[start : start + length], val_fraction) == []


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
    assert said[0] == said[1] != []


@pytest.mark.parametrize("val_fraction", [0.05, 0.1, 0.3])
def test_a_last_part_of_another_language_is_found(val_fraction):
    """By its pairs alone: the characters are the same."""
    end = round(5_000 / val_fraction)
    other = random_text(1, 5_000, COMMON, language=8)
    text = np.concatenate([random_text(2, end - 5_000, COMMON), other])
    (sentence,) = check_text(text, val_fraction)
    assert "harder to predict" in sentence
    assert "0.0% of them occur nowhere else" in sentence


@pytest.mark.parametrize(("share", "found"), [(0.01, False), (0.03, True)])
def test_characters_that_occur_nowhere_else_are_found(share, found):
    """Also if the parts of a text are so different that their pairs say nothing."""
    tenths = [tenth_N // (40 if i % 2 else 1) for i, tenth_N in enumerate(np.split(SOUND, 10))]
    text = np.concatenate(tenths)
    assert check_text(text) == []
    text[45_000 : 45_000 + round(5000 * share)] = 90
    assert len(check_text(text)) == found
    assert not found or f"{share:.1%} of them occur nowhere else" in check_text(text)[0]
    text[20_000:20_005] = 90  # now it occurs
    assert check_text(text) == []


@given(st.lists(st.integers(0, 9), min_size=10, max_size=10))
def test_the_share_of_new_characters_is_that_of_each_part(counts):
    parts = [np.repeat([0, 1 + i], [20 - count, count]) for i, count in enumerate(counts)]
    _, new_P = unlikeness(parts, V=11)
    np.testing.assert_allclose(new_P, np.array(counts) / 20)


def test_a_part_is_predicted_by_the_others_alone():
    """Repeating it changes nothing."""
    part, other = OTHER[:300], SOUND[:5000]
    (once, _), (often, _) = (unlikeness([np.tile(part, n), other], 96)[0] for n in (1, 100))
    assert often == pytest.approx(once, rel=0.01)
    assert once > 2 * unlikeness([SOUND[5000:5300], other], 96)[0][0]


def test_rare_characters_count_as_one_kind():
    """A text of thousands of characters is checked like one of a few."""
    rng, vocab = np.random.default_rng(0), "".join(map(chr, range(0x4E00, 0x4E00 + 5096)))
    other = random_text(1, 5_000, COMMON, language=8)
    for end, is_said in ((SOUND[45_000:], False), (other, True)):
        ids_N = np.concatenate([SOUND[:45_000], end]).astype(int) + 5000
        ids_N[rng.integers(50_000, size=2_000)] = rng.integers(5000, size=2_000)
        assert bool(check_split(ids_N, 45_000, vocab, "end")) == is_said


def said_of_lines(lines: list[str], line_end: str) -> list[str]:
    ids_N, vocab, _ = encode([line_end.join(lines)])
    return check_split(ids_N, len(ids_N), vocab, "end")


@pytest.mark.parametrize("line_end", ["\n", "\n\n", " \n  \n"])
@pytest.mark.parametrize("is_descending", [False, True])
def test_sorted_lines_are_found(is_descending, line_end):
    """Whatever their case, and whichever way. Equal neighbors do not count."""
    numbers = np.random.default_rng(0).choice(10**6, 101, replace=False)
    digits = str.maketrans("0123456789", "abcdefghij")
    names = [f"{name:06}".translate(digits) for name in numbers.tolist()]
    names.sort(reverse=is_descending)
    names = [name.upper() if i % 2 else name for i, name in enumerate(names)]
    names[7:7] = 200 * [names[7]]
    assert "(100% of adjacent lines are in order)" in said_of_lines(names, line_end)[0]
    assert said_of_lines(names[:300], line_end) == []  # 99 pairs are too few to tell
    names[::2] = names[::-2]
    assert said_of_lines(names, line_end) == []


@pytest.mark.parametrize(
    "start",
    [
        "2026-01-{:02} 09:{:02} - ",
        "[{:02}:{:02}] ",
        "{}:{} ",
        "2026-01-01T{:02}:{:02}Z ",
        "Genesis {}:{} ",
        "Episode {}.{}: ",
        ">seq{:03}{:02} ",
        "Mar 12 10:{:02}:{:02} host ",
        "chapter_{}_{}_",
    ],
)
def test_a_number_at_the_start_of_a_line_is_no_order(start):
    """Dated messages, numbered verses, also after a word. What follows still counts."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, size=9))) for _ in range(200)]
    lines = [start.format(*divmod(i, 60)) + word for i, word in enumerate(words)]
    assert said_of_lines(lines, "\n") == []
    lines = [start.format(*divmod(i, 60)) + word for i, word in enumerate(sorted(words))]
    assert "sorted" in said_of_lines(lines, "\n")[0]


def test_a_warning_never_recommends_what_is_given():
    ids_N = np.concatenate([SOUND[:45_000], OTHER])
    for val_split in ("end", "spread"):
        (said,) = check_split(ids_N, 45_000, VOCAB, val_split)
        assert ("--val_split spread" in said) == (val_split == "end")


@given(st.floats(0, 1))
@settings(max_examples=20)
def test_the_share_of_validation_text_that_is_a_copy_is_found(share):
    text = SOUND.copy()
    end = round(share * 5_000)
    text[45_000 : 45_000 + end] = text[9_000 : 9_000 + end]
    found = re.search(r"about (\d+)% of the validation text occurs", " ".join(check_text(text)))
    said = int(found[1]) / 100 if found else 0.0
    assert said == pytest.approx(share, abs=0.02) or (share < 0.07 and not found)
