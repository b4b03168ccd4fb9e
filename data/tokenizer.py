"""Characters to token ids. The vocabulary is a string; an id is an index into it.

Shapes: N characters of a corpus, T of a shorter text, V vocabulary.
"""

import sys
import unicodedata

import numpy as np

from model.system.errors import UserError

CHUNK = 1 << 18  # characters


class CharTokenizer:
    """`CharTokenizer("abc").encode("cab")` returns the ids [2, 0, 1]; `vocab[id]` goes back."""

    def __init__(self, vocab: str) -> None:
        self.vocab = vocab
        # The id of each code point up to the largest known one, in the smallest type that fits.
        # Unknown characters have the id V.
        codes_V, V = code_points(vocab), len(vocab)
        self.id_of_code_point = np.full(int(codes_V.max()) + 2, V, np.min_scalar_type(V))
        self.id_of_code_point[codes_V] = np.arange(V)

    def encode(self, text: str, name: str = "the text") -> np.ndarray:
        """Return ids_N. Raises UserError, which names the text and its unknown characters.

        Unicode writes é as one code point (form NFC) or as two (NFD). If the vocabulary does not
        have the text's own form, the other one is encoded.
        """
        ids_N = np.empty(len(text), self.id_of_code_point.dtype)
        for chunk in chunks(len(text)):
            codes = np.minimum(code_points(text[chunk]), len(self.id_of_code_point) - 1)
            ids_N[chunk] = self.id_of_code_point[codes]
            if (ids_N[chunk] == len(self.vocab)).any():
                for form in ("NFC", "NFD"):
                    other = unicodedata.normalize(form, text)
                    if set(other) <= set(self.vocab):
                        return self.encode(other)
                raise UserError(f"{name} has {describe_unknown(text, self.vocab)}")
        return ids_N

    def decode(self, ids_T: np.ndarray) -> str:
        """Return the text of ids."""
        return code_points(self.vocab)[ids_T].tobytes().decode("utf-32-le", "surrogatepass")


def extend_vocab(vocab: str, text: str) -> str:
    """Return the vocabulary, and after it the other characters of a text, sorted."""
    occurs = np.zeros(sys.maxunicode + 1, bool)  # each code point
    for chunk in chunks(len(text)):
        occurs[code_points(text[chunk])] = True
    occurs[code_points(vocab)] = False
    return vocab + "".join(map(chr, np.flatnonzero(occurs)))


def chunks(length: int) -> list[slice]:
    """Return slices of a long text. All its code points at once would take much memory."""
    return [slice(start, start + CHUNK) for start in range(0, length, CHUNK)]


def describe_unknown(text: str, vocab: str) -> str:
    """Say which characters of a text are not in the vocabulary."""
    unknown = sorted(set(text) - set(vocab))
    more = f" and {len(unknown) - 50:,} more" if len(unknown) > 50 else ""
    hint = r" (In a shell, a line end is written $'\n'.)" if "\\" in unknown else ""
    characters = " ".join(map(repr, unknown[:50]))
    return f"characters that are not in the vocabulary ({len(unknown)}): {characters}{more}{hint}"


def code_points(text: str) -> np.ndarray:
    """Return the Unicode code points of a text, codes_T."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
