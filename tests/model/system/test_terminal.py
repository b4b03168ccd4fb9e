"""Tests of text for a terminal: control characters, line ends, paths."""

import io
import shlex
import unicodedata
from pathlib import PurePosixPath

from hypothesis import example, given
from hypothesis import strategies as st

from model.system.terminal import escape_control_chars, print_line, quote

BIDI_CONTROLS = ["LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"]


def test_only_control_characters_are_replaced_and_only_on_a_terminal():
    text = "".join(map(chr, range(0x3000)))
    screen, file = io.StringIO(newline=""), io.StringIO(newline="")
    screen.isatty = lambda: True
    print_line(text, screen)
    print_line(text, file)
    assert file.getvalue() == text + "\n"
    for expected, printed in zip(text + "\n", screen.getvalue(), strict=True):
        is_control = unicodedata.category(expected) == "Cc" and expected not in "\t\n"
        moves_others = unicodedata.bidirectional(expected) in BIDI_CONTROLS
        is_separator = expected in "\u2028\u2029"
        assert (printed != expected) == (is_control or moves_others or is_separator)
        assert unicodedata.category(printed) != "Cc" or printed in "\t\n"
    assert escape_control_chars("\x1b[2Jsafe\revil\n", screen) == "␛[2Jsafe␍evil\n"


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
@example("-runs")
def test_a_quoted_path_is_one_argument_of_a_shell(name):
    (argument,) = shlex.split(quote(PurePosixPath(name)))
    assert PurePosixPath(argument) == PurePosixPath(name)
    assert not argument.startswith("-")
