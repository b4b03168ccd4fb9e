"""Characters to ids and back. The vocabulary is a string: a character's id is its place in it.

Shapes: T characters of a text, V of the vocabulary.
"""

import numpy as np


class CharTokenizer:
    """`CharTokenizer("abc").encode("cab")` gives ids [2, 0, 1], and `decode` gives "cab" back."""

    def __init__(self, vocab: str) -> None:
        self.vocab = vocab
        self.codes_V = code_points(vocab)
        if not vocab or len(np.unique(self.codes_V)) != len(vocab):
            raise ValueError("a vocabulary needs at least one character, and each only once")
        self.dtype = np.min_scalar_type(len(vocab) - 1)  # the smallest unsigned type that fits
        # One id for each code point up to the largest known, -1 where there is none, and at the end.
        self.ids = np.full(int(self.codes_V.max()) + 2, -1, np.int64)
        self.ids[self.codes_V] = np.arange(len(vocab))

    def encode(self, text: str, name: str = "the text") -> np.ndarray:
        """`text` to ids_T. Raises ValueError that lists the characters not in the vocabulary, and calls it `name`."""
        ids_T = self.ids[np.minimum(code_points(text), len(self.ids) - 1)]
        if (ids_T < 0).any():
            unknown = sorted(set(text).difference(self.vocab))
            shown = " ".join(map(repr, unknown[:50]))
            more = f" and {len(unknown) - 50} more" if len(unknown) > 50 else ""
            missing = f"the vocabulary of {len(self.vocab)} characters has no {shown}{more}"
            raise ValueError(f"{name} has characters the model never saw: {missing}")
        return ids_T.astype(self.dtype)

    def decode(self, ids: np.ndarray | list[int]) -> str:
        """ids_T to text."""
        return self.codes_V[np.asarray(ids, dtype=np.int64)].tobytes().decode("utf-32-le", "surrogatepass")


def code_points(text: str) -> np.ndarray:
    """codes_T: the code points of `text`."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
