"""The laws of the tokenizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tokenizer import CharTokenizer


def of(text: str) -> CharTokenizer:
    """The tokenizer of the characters of `text`."""
    return CharTokenizer("".join(sorted(set(text))))


@given(st.text(min_size=1))
def test_decoding_undoes_encoding(text):
    tokenizer = of(text)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@given(st.text(min_size=1), st.randoms())
def test_an_id_is_a_place_in_the_vocabulary_whatever_its_order(text, random):
    vocab = sorted(set(text))
    random.shuffle(vocab)
    tokenizer = CharTokenizer("".join(vocab))
    assert [tokenizer.vocab[i] for i in tokenizer.encode(text)] == list(text)


@given(st.text(min_size=1), st.text())
def test_an_unknown_character_is_named(known, text):
    tokenizer, unknown = of(known), set(text) - set(known)
    if not unknown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(ValueError, match="has no") as error:
        tokenizer.encode(text)
    for character in sorted(unknown)[:50]:
        assert (repr(character) if character.isprintable() else ascii(character)) in str(
            error.value
        )


@pytest.mark.parametrize(
    ("size", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (65_537, np.uint32)]
)
def test_ids_are_as_small_as_they_can_be(size, dtype):
    vocab = "".join(chr(0x10000 + i) for i in range(size))
    ids = CharTokenizer(vocab).encode(vocab)
    assert ids.dtype == dtype
    assert (ids == np.arange(size)).all()


@pytest.mark.parametrize("vocab", ["", "aa", "aba"])
def test_a_vocabulary_holds_each_character_once(vocab):
    with pytest.raises(ValueError, match="vocabulary"):
        CharTokenizer(vocab)
