"""Tests of the tokenizer."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data.tokenizer import CharTokenizer, encode
from model.system.errors import UserError


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


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_ids_are_sorted_vocabulary_positions_regardless_of_chunks(chunks):
    text = "".join(chunks)
    ids_N, vocab, sha256 = encode(chunks)
    assert vocab == "".join(sorted(set(text)))
    assert "".join(vocab[id_] for id_ in ids_N) == text
    assert sha256 == encode([text])[2] != encode([text + "a"])[2]


@pytest.mark.parametrize(("count", "dtype"), [(256, "uint8"), (257, "uint16"), (65537, "uint32")])
def test_ids_are_as_small_as_the_vocabulary_allows(count, dtype):
    """The type is widened while the text is read."""
    first = "".join(map(chr, range(0x10000, 0x10000 + count // 2)))
    second = "".join(map(chr, range(0x10000 + count - 1, 0x10000 + count // 2 - 1, -1)))
    ids_N, vocab, _ = encode([first, second])
    assert (len(vocab), ids_N.dtype) == (count, dtype)
    assert "".join(vocab[id_] for id_ in ids_N) == first + second
