"""Tests of what is said about a validation text: of sound ones nothing."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.check import check_split
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


SOUND = random_text(0, 50_000, np.arange(1, 60))


def check_text(ids_N: np.ndarray, val_fraction: float = 0.1) -> list[str]:
    return check_split(ids_N, int(len(ids_N) * (1 - val_fraction)), VOCAB)


@given(st.integers(5_000, 50_000), st.integers(0, 45_000), st.floats(0.001, 0.95))
@settings(max_examples=40)
def test_of_a_text_that_is_alike_everywhere_nothing_is_said(length, start, val_fraction):
    assert check_text(SOUND[start : start + length], val_fraction) == []


@pytest.mark.parametrize(("share", "found"), [(0.02, False), (0.9, True)])
@pytest.mark.parametrize("alphabet", [np.arange(1, 60), np.arange(40, 96)])
def test_another_language_at_the_end_is_found(alphabet, share, found):
    """With the same characters, or with others. Not if it stands elsewhere, too."""
    text, length = SOUND.copy(), round(5000 * share)
    text[50_000 - length :] = random_text(1, length, alphabet, language=8)
    said = check_text(text)
    assert len(said) == found
    assert not found or "the validation text is unlike the rest" in said[0]
    text[20_000 : 20_000 + length] = random_text(2, length, alphabet, language=8)
    assert check_text(text) == []


def said_of_lines(lines: list[str], line_end: str) -> list[str]:
    ids_N, vocab, _ = encode([line_end.join(lines)])
    return check_split(ids_N, len(ids_N), vocab)


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
    """Dated messages, numbered verses, also after a word."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, size=9))) for _ in range(200)]
    lines = [start.format(*divmod(i, 60)) + word for i, word in enumerate(words)]
    assert said_of_lines(lines, "\n") == []


@pytest.mark.parametrize(("copies", "found"), [(1, False), (5, True)])
def test_lines_that_stand_in_both_parts_are_found_in_any_order(copies, found):
    """Names, formulas, headlines."""
    rng = np.random.default_rng(0)
    lines = ["".join(map(chr, rng.integers(97, 123, rng.integers(4, 30)))) for _ in range(2500)]
    said = check_lines(rng.permutation(copies * lines).tolist())
    assert ["sort -u FILE | shuf" in sentence for sentence in said] == [True] * found


@pytest.mark.parametrize("kind", ["genome with gaps", "drawing", "piano roll", "separators"])
def test_what_repeats_itself_is_no_copy(kind):
    rng = np.random.default_rng(0)
    rows = rng.choice(list("ACGT"), (1000, 80))
    if kind == "genome with gaps":
        rows[rng.permutation(1000)[:100]] = "N"
    if kind == "drawing":
        rows = np.where(rows == "A", "#", " ").repeat(8, axis=1)[:, :80]
    if kind == "piano roll":
        rows = np.where(rng.random(rows.shape) < 0.01, "#", ".")
    if kind == "separators":
        rows[::4] = "-"
    assert check_lines(["".join(row) for row in rows]) == []


def check_lines(lines: list[str]) -> list[str]:
    ids_N, vocab, _ = encode(["\n".join(lines)])
    return check_split(ids_N, int(0.9 * len(ids_N)), vocab)


@given(st.floats(0, 1))
@settings(max_examples=20)
def test_the_share_of_validation_text_that_is_a_copy_is_found(share):
    text = SOUND.copy()
    end = round(share * 5_000)
    text[45_000 : 45_000 + end] = text[9_000 : 9_000 + end]
    found = re.search(r"about (\d+)% of the validation text occurs", " ".join(check_text(text)))
    said = int(found[1]) / 100 if found else 0.0
    assert said == pytest.approx(share, abs=0.02) or (share < 0.07 and not found)
