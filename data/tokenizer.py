"""Characters to token ids: of a whole corpus (`encode`), of a prompt (`CharTokenizer`).

The vocabulary is a string; an id is an index into it.

Shapes: N characters of a corpus, T of a shorter text, V vocabulary.
"""

import hashlib
import re
import sys
from collections.abc import Iterable, Sequence

import numpy as np

from model.system.errors import UserError

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


def encode(chunks: Iterable[str], vocab: str = "") -> tuple[np.ndarray, str, str]:
    """The ids of a text, read in one pass; the vocabulary; the SHA-256 of the text.

    Id i stands for character i of the vocabulary: `vocab`, then the text's others, sorted.
    """
    found = code_points(vocab).tolist()  # new ones by first appearance; ids are positions in it
    id_of_code_point = np.full(sys.maxunicode + 1, -1, np.int32)
    id_of_code_point[found] = np.arange(len(found))
    dtype, digest = np.min_scalar_type(max(len(found) - 1, 0)), hashlib.sha256()
    content = bytearray()  # grows in place
    for text in chunks:
        digest.update(text.encode("utf-8", "surrogatepass"))
        codes_T = code_points(text)
        ids_T = id_of_code_point[codes_T]
        if (ids_T < 0).any():
            new = np.unique(codes_T[ids_T < 0])
            id_of_code_point[new] = np.arange(len(found), len(found) + len(new))
            found.extend(new.tolist())
            ids_T = id_of_code_point[codes_T]
            wider = np.min_scalar_type(len(found) - 1)
            if wider != dtype:
                content, dtype = bytearray(np.frombuffer(content, dtype).astype(wider)), wider
        content += ids_T.astype(dtype).data
    ids_N, known = np.frombuffer(content, dtype), len(vocab)
    sorted_ids = np.arange(len(found), dtype=dtype)
    sorted_ids[known:] = known + np.argsort(np.argsort(found[known:]))
    for part_T in np.array_split(ids_N, len(ids_N) // 2**20 + 1):  # views, which bound the memory
        part_T[:] = sorted_ids[part_T]
    return ids_N, vocab + "".join(map(chr, sorted(found[known:]))), digest.hexdigest()


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
