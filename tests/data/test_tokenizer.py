"""Tests of the tokenizer."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from configs.flags import UserError
from data.tokenizer import CharTokenizer


@given(st.text(min_size=1), st.randoms())
def test_an_id_is_an_index_into_the_vocabulary(text, random):
    vocab = sorted(set(text))
    random.shuffle(vocab)
    ids = CharTokenizer("".join(vocab)).encode(text)
    assert ids.dtype == np.int64
    assert "".join(vocab[i] for i in ids) == text


@given(st.text(min_size=1), st.text(min_size=1))
def test_unknown_characters_are_refused_and_named(known, text):
    unknown = sorted(set(text) - set(known))
    assume(unknown)
    with pytest.raises(UserError, match=rf"^my.txt .*\({len(unknown)}\)") as error:
        CharTokenizer("".join(set(known))).encode(text, "my.txt")
    for character in unknown[:50]:
        assert repr(character) in str(error.value)
