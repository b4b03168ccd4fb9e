"""Characters to token ids. The vocabulary is a string; an id is an index into it.

Shapes: T characters of a text, V vocabulary.
"""

import re
from collections.abc import Sequence

import numpy as np

from configs.flags import UserError

ESCAPE_HINT = "A line end is written $'\\n' in a shell."


class CharTokenizer:
    """`CharTokenizer("abc").encode("cab")` gives the ids [2, 0, 1]; `vocab[id]` goes back."""

    def __init__(self, vocab: str) -> None:
        self.vocab = vocab
        # The id of each code point up to the largest known one; -1 for unknown characters.
        codes_V = code_points(vocab)
        self.id_of_code_point = np.full(int(codes_V.max()) + 2, -1, np.int64)
        self.id_of_code_point[codes_V] = np.arange(len(vocab))

    def encode(self, text: str, name: str = "the text") -> np.ndarray:
        """`text` to ids_T, int64. Raises UserError, naming the text and its unknown characters."""
        ids_T = self.id_of_code_point[np.minimum(code_points(text), len(self.id_of_code_point) - 1)]
        if (ids_T < 0).any():
            raise UserError(f"{name} has {describe_unknown(text, self.vocab)}")
        return ids_T


def describe_unknown(text: str, vocab: str) -> str:
    """Which characters of `text` are not in the vocabulary."""
    unknown = sorted(set(text) - set(vocab))
    hint = f" ({ESCAPE_HINT})" if "\\" in unknown and re.search(r"\\[nrt]", text) else ""
    return f"characters that are not in the vocabulary ({len(unknown)}): {list_some(unknown)}{hint}"


def list_some(characters: Sequence[str]) -> str:
    """The first 50 characters, and how many more there are."""
    more = f" and {len(characters) - 50:,} more" if len(characters) > 50 else ""
    return " ".join(map(repr, characters[:50])) + more


def code_points(text: str) -> np.ndarray:
    """The Unicode code points of `text`, codes_T."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
