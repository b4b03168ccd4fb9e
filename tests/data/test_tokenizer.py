"""Tests of the tokenizer."""

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from configs.errors import UserError
from data import tokenizer
from data.tokenizer import CharTokenizer, extend_vocab


@given(st.text(min_size=1), st.randoms())
def test_an_id_is_an_index_into_the_vocabulary(text, random):
    vocab = sorted(set(text))
    random.shuffle(vocab)
    ids = CharTokenizer("".join(vocab)).encode(text)
    assert "".join(vocab[i] for i in ids) == text


@given(st.text(min_size=1), st.text(min_size=1))
def test_unknown_characters_are_refused_and_named(known, text):
    unknown = sorted(set(text) - set(known))
    assume(unknown)
    with pytest.raises(UserError, match=rf"^my.txt .*\({len(unknown)}\)") as error:
        CharTokenizer("".join(set(known))).encode(text, "my.txt")
    for character in unknown[:50]:
        assert repr(character) in str(error.value)


@given(st.text("aeé ñ각ﬁ\u0301\u0303", min_size=1), st.permutations(["NFC", "NFD"]))
def test_a_text_in_the_other_unicode_form_is_known(text, forms):
    """If all characters of the text are known, none of them is replaced."""
    known, other = (unicodedata.normalize(form, text) for form in forms)
    knows = CharTokenizer("".join(sorted(set(known))))
    ids_N = knows.encode(other)
    expected = other if set(other) <= set(known) else known
    assert knows.decode(ids_N) == expected


@given(st.text(min_size=1), st.text(), st.integers(1, 5))
def test_a_corpus_is_encoded_in_parts_and_decoded_again(text, known, part):
    known = "".join(dict.fromkeys(known))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "PART", part)
        vocab = extend_vocab(known, text)
        assert vocab == known + "".join(sorted(set(text) - set(known)))
        ids_N = CharTokenizer(vocab).encode(text)
    assert CharTokenizer(vocab).decode(ids_N) == text == "".join(vocab[id_] for id_ in ids_N)


@pytest.mark.parametrize(("count", "dtype"), [(255, "uint8"), (256, "uint16"), (65536, "uint32")])
def test_ids_are_as_small_as_the_vocabulary_allows(count, dtype):
    text = "".join(map(chr, range(0x10000, 0x10000 + count)))
    ids_N = CharTokenizer(extend_vocab("", text)).encode(text)
    assert ids_N.dtype == dtype
    assert ids_N.tolist() == list(range(count))
