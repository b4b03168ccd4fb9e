"""Tests of the tokenizer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.tokenizer import CharTokenizer
from model.errors import UserError


@given(st.text(min_size=1), st.randoms())
def test_an_id_is_an_index_into_the_vocabulary_and_decodes_to_the_same_text(text, random):
    vocab = sorted(set(text))
    random.shuffle(vocab)
    tokenizer = CharTokenizer("".join(vocab))
    ids = tokenizer.encode(text)
    assert [vocab[i] for i in ids] == list(text)
    assert tokenizer.decode(ids) == text


@given(st.text(min_size=1), st.text())
def test_unknown_characters_are_refused_and_named(known, text):
    tokenizer, unknown = CharTokenizer("".join(set(known))), sorted(set(text) - set(known))
    if not unknown:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(UserError, match="^my.txt has characters that are not in") as error:
        tokenizer.encode(text, "my.txt")
    for character in unknown[:50]:
        assert repr(character) in str(error.value)


@pytest.mark.parametrize(
    ("size", "dtype"), [(2, np.uint8), (256, np.uint8), (257, np.uint16), (65_537, np.uint32)]
)
def test_ids_have_the_smallest_dtype_that_fits(size, dtype):
    vocab = "".join(chr(0x10000 + i) for i in range(size))
    ids = CharTokenizer(vocab).encode(vocab)
    assert ids.dtype == dtype
    assert (ids == np.arange(size)).all()
