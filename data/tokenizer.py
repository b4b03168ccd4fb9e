"""Characters to token ids. The vocabulary is a string; an id is an index into it.

Shapes: T characters of a text, V vocabulary.
"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from model.system.errors import UserError

ESCAPE_HINT = "A line end is written $'\\n' in a shell."
# Characters that are taken for each other: quotes, dashes, spaces, letters of three alphabets
LOOK_ALIKES = ["'’‘‛`´′ʼ", '"“”„‟″«»', "-‐‑‒–—―−", " \u00a0\u2009\u202f\u3000\t"]
LOOK_ALIKES += ["aа", "cс", "eе", "iіı", "oоο", "pр", "xх", "yу", "AАΑ", "BВΒ", "CС", "EЕΕ", "HНΗ"]
LOOK_ALIKES += ["IІΙ", "KКΚ", "MМΜ", "NΝ", "OОΟ", "PРΡ", "TТΤ", "XХΧ", "YΥ", "ZΖ"]


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
    """Which characters of `text` are not in the vocabulary, and what is probably the cause."""
    known = set(vocab)
    unknown = sorted(set(text) - known)
    hints = []
    if "\\" in unknown and re.search(r"\\[nrt]", text):
        hints.append(ESCAPE_HINT)
    if "\r" in unknown:
        hints.append("Its line ends are those of Windows or old Macs; convert them to \\n.")
    if "\n" in unknown and "\r" in known:
        hints.append("The line ends of the vocabulary are \\r.")
    for form in ("NFC", "NFD", "NFKC"):
        if len(set(unicodedata.normalize(form, text)) - known) < len(unknown):
            hints.append(f"Fewer are unknown in the normal form {form}: convert it.")
            break
    for character in unknown:
        likes = "".join(group for group in LOOK_ALIKES if character in group)
        similar = [c for c in [*likes, character.lower(), character.upper()] if c in known]
        if similar:
            hints.append(f"{character!r} is not {similar[0]!r}, which is known.")
    hint = f" ({' '.join(hints[:5])})" if hints else ""
    return f"characters that are not in the vocabulary ({len(unknown)}): {list_some(unknown)}{hint}"


def list_some(characters: Sequence[str]) -> str:
    """The first 50 characters, and how many more there are."""
    more = f" and {len(characters) - 50:,} more" if len(characters) > 50 else ""
    return " ".join(map(repr, characters[:50])) + more


def decode(ids_T: np.ndarray, codes_V: np.ndarray) -> str:
    """The text of these ids; codes_V are the code points of the vocabulary."""
    return codes_V[ids_T].astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def code_points(text: str) -> np.ndarray:
    """The Unicode code points of `text`, codes_T."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
