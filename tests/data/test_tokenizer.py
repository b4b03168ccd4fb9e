"""Tests of the tokenizer."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.tokenizer import CharTokenizer, code_points, decode
from model.system.errors import UserError


@given(st.text(min_size=1), st.randoms())
def test_an_id_is_an_index_into_the_vocabulary(text, random):
    vocab = sorted(set(text))
    random.shuffle(vocab)
    ids = CharTokenizer("".join(vocab)).encode(text)
    assert ids.dtype == np.int64
    assert "".join(vocab[i] for i in ids) == decode(ids, code_points("".join(vocab))) == text


@given(st.text(min_size=1), st.text(min_size=1))
def test_unknown_characters_are_refused_and_named(known, text):
    unknown = sorted(set(text) - set(known))
    assume(unknown)
    with pytest.raises(UserError, match=rf"^my.txt .*\({len(unknown)}\)") as error:
        CharTokenizer("".join(set(known))).encode(text, "my.txt")
    for character in unknown[:50]:
        assert repr(character) in str(error.value)


@pytest.mark.parametrize(
    ("vocab", "text", "hint"),
    [
        ("KATE:n\n", r"KATE:\n", r"A line end is written $'\n' in a shell"),
        ("KATE:\n", "KATE:\r\n", "line ends are those of Windows"),
        ("KATE:\r", "KATE:\n", r"line ends of the vocabulary are \r"),
        ("Zoë", "Zoe\u0308", "normal form NFC"),
        ("Zoe\u0308", "Zoë", "normal form NFD"),
        ("waffle", "waﬄe", "normal form NFKC"),
        ("don't", "don’t", "'’' is not \"'\", which is known"),
        ("don’t", "don't", "\"'\" is not '’'"),
        ("a - b", "a – b", "'–' is not '-'"),
        ("cat", "сat", "'с' is not 'c'"),  # a Cyrillic letter
        ("abc", "Abc", "'A' is not 'a'"),
    ],
)
def test_the_likely_cause_of_unknown_characters_is_named(vocab, text, hint):
    with pytest.raises(UserError) as error:
        CharTokenizer(vocab).encode(text)
    assert hint in str(error.value)


def test_unknown_characters_without_a_likely_cause_get_no_hint():
    for character in "яß":  # the capital of ß is SS
        with pytest.raises(UserError, match=rf"'{character}'$"):
            CharTokenizer("abcS").encode(f"a{character}b")
