"""Turns characters into token ids and back. The vocabulary is a string; an id is an index into it.

Shapes: N characters of a corpus, T characters of a shorter text, V vocabulary.
"""

import sys
import unicodedata

import numpy as np

from configs.errors import UserError

PART = 1 << 18  # the number of characters to convert at once


class CharTokenizer:
    """Turns text into ids: `CharTokenizer("abc").encode("cab")` returns [2, 0, 1]."""

    def __init__(self, vocab: str) -> None:
        self.vocab = vocab
        # The id of each code point (the number of a character in Unicode), up to the largest one
        # of the vocabulary. Unknown characters have the id V. The dtype is as small as possible.
        codes_V, V = code_points(vocab), len(vocab)
        self.id_of_code_point = np.full(int(codes_V.max()) + 2, V, np.min_scalar_type(V))
        self.id_of_code_point[codes_V] = np.arange(V)

    def encode(self, text: str, name: str = "the text") -> np.ndarray:
        """Return ids_N. If the vocabulary lacks characters, raise UserError, which names them."""
        table, last = self.id_of_code_point, len(self.id_of_code_point) - 1
        ids_N = np.concatenate([table[np.minimum(code_points(x), last)] for x in cut(text)])
        if (ids_N == len(self.vocab)).any():
            if (other := self.known_form(text)) != text:
                return self.encode(other, name)
            raise UserError(f"{name} has {describe_unknown(text, self.vocab)}")
        return ids_N

    def known_form(self, text: str) -> str:
        """Return the text in the Unicode form of which the vocabulary lacks the fewest characters.

        Unicode can write é as one code point (form NFC) or as two (form NFD).
        """
        vocab, forms = set(self.vocab), [unicodedata.normalize(x, text) for x in ("NFC", "NFD")]
        return min((text, *forms), key=lambda form: sum(c not in vocab for c in form))

    def decode(self, ids_T: np.ndarray) -> str:
        """Return the text that the ids stand for."""
        return code_points(self.vocab)[ids_T].tobytes().decode("utf-32-le", "surrogatepass")


def extend_vocab(vocab: str, text: str) -> str:
    """Return the vocabulary, followed by the other characters of a text, sorted."""
    occurs = np.zeros(sys.maxunicode + 1, bool)  # whether each code point occurs in the text
    for part in cut(text):
        occurs[code_points(part)] = True
    occurs[code_points(vocab)] = False
    return vocab + "".join(map(chr, np.flatnonzero(occurs)))


def cut(text: str) -> list[str]:
    """Cut a text into parts. All code points at once would take nine bytes per character."""
    return [text[start : start + PART] for start in range(0, max(len(text), 1), PART)]


def describe_unknown(text: str, vocab: str) -> str:
    """Return words that list the characters of a text which the vocabulary lacks."""
    unknown = sorted(set(text) - set(vocab))
    more = f" and {len(unknown) - 50:,} more" if len(unknown) > 50 else ""
    hint = r" (In a shell, a line end is written $'\n'.)" if "\\" in unknown else ""
    characters = " ".join(map(repr, unknown[:50]))
    return f"characters that are not in the vocabulary ({len(unknown)}): {characters}{more}{hint}"


def code_points(text: str) -> np.ndarray:
    """Return codes_T, the Unicode code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
