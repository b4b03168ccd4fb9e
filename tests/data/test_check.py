"""Tests of the warnings about a validation text. A sound text gets no warning."""

import numpy as np
import pytest

from data.check import check_split


def random_lines(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(map(chr, rng.integers(97, 123, rng.integers(4, 30)))) for _ in range(count)]


def warnings(lines: list[str], line_end: str = "\n") -> list[str]:
    """Return the warnings if the last tenth is the validation text."""
    text = line_end.join(lines)
    start = int(0.9 * len(text))
    return check_split(text[:start], text[start:])


def test_of_sound_texts_nothing_is_said():
    assert warnings(random_lines(2000)) == []
    assert check_split("", "") == check_split("a", "b") == []


@pytest.mark.parametrize("line_end", ["\n", "\n\n", " \n  \n"])
@pytest.mark.parametrize("is_descending", [False, True])
def test_sorted_lines_are_found(is_descending, line_end):
    """Lines may have any case and be in either order. Equal neighbors do not count."""
    names = sorted(set(random_lines(150)), reverse=is_descending)
    names = [name.upper() if i % 2 else name for i, name in enumerate(names)]
    assert "(100% of adjacent lines are in order)" in warnings(names, line_end)[0]
    assert warnings([*names[:9], *100 * [names[9]], *names[10:90]], line_end) == []  # too few pairs
    names = random_lines(150)
    assert warnings(names, line_end) == []


@pytest.mark.parametrize(
    "start", ["2026-01-{:02} 09:{:02} - ", "[{:02}:{:02}] ", "Genesis {}:{} ", "chapter_{}_{}_"]
)
def test_a_number_at_the_start_of_a_line_is_no_order(start):
    """Examples are dated messages and numbered verses. A word may come before the number."""
    lines = [start.format(*divmod(i, 60)) + word for i, word in enumerate(random_lines(500))]
    assert warnings(lines) == []


@pytest.mark.parametrize(("copies", "found"), [(1, False), (5, True)])
def test_lines_that_stand_in_both_parts_are_found_in_any_order(copies, found):
    """Lists of names, formulas or headlines may repeat their lines."""
    lines = np.random.default_rng(0).permutation(copies * random_lines(2500)).tolist()
    assert ["Remove the copies" in sentence for sentence in warnings(lines)] == [True] * found


@pytest.mark.parametrize("kind", ["drawing", "piano roll", "separators"])
def test_what_repeats_itself_is_no_copy(kind):
    rng = np.random.default_rng(0)
    rows = rng.choice(list("ACGT"), (1000, 80))
    if kind == "drawing":
        rows = np.where(rows == "A", "#", " ").repeat(8, axis=1)[:, :80]
    if kind == "piano roll":
        rows = np.where(rng.random(rows.shape) < 0.01, "#", ".")
    if kind == "separators":
        rows[::2] = "-"
    assert warnings(["".join(row) for row in rows]) == []
