"""Characters to token ids and back. The vocabulary is a string; an id is an index into it.

Shapes: T characters of a text, V vocabulary.
"""

import numpy as np

from model.errors import UserError


class CharTokenizer:
    """`CharTokenizer("abc").encode("cab")` gives the ids [2, 0, 1]; `decode` gives "cab" back."""

    def __init__(self, vocab: str) -> None:
        self.vocab = vocab
        codes_V = code_points(vocab)
        if not vocab or len(set(vocab)) != len(vocab):
            raise ValueError("a vocabulary needs at least one character, and each only once")
        self.dtype = np.min_scalar_type(len(vocab) - 1)  # the smallest unsigned type that fits
        # The id of each code point up to the largest known one; -1 for unknown characters.
        self.id_of_code_point = np.full(int(codes_V.max()) + 2, -1, np.int64)
        self.id_of_code_point[codes_V] = np.arange(len(vocab))

    def encode(self, text: str, name: str = "the text") -> np.ndarray:
        """`text` to ids_T. Raises UserError, naming the text and its unknown characters."""
        ids_T = self.id_of_code_point[np.minimum(code_points(text), len(self.id_of_code_point) - 1)]
        if (ids_T < 0).any():
            unknown = sorted(set(text).difference(self.vocab))
            listed = " ".join(map(repr, unknown[:50]))
            more = f" and {len(unknown) - 50} more" if len(unknown) > 50 else ""
            raise UserError(
                f"{name} has characters that are not in the vocabulary "
                f"of {len(self.vocab)}: {listed}{more}."
            )
        return ids_T.astype(self.dtype)

    def decode(self, ids_T: np.ndarray | list[int]) -> str:
        """ids_T to text."""
        return "".join(self.vocab[id_] for id_ in ids_T)


def code_points(text: str) -> np.ndarray:
    """The Unicode code points of `text`, codes_T."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
