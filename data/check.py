"""Can the validation loss be trusted? Three cheap checks of a text and its split.

Shapes: N characters of the text, P parts of it, V vocabulary.
"""

import itertools
import re

import numpy as np

from data.tokenizer import code_points

SAMPLE_CHARS = 20_000_000  # of longer texts, the start is examined
# The validation text is unlike the rest if more than this share of its characters is in excess of
# the frequencies elsewhere, and so many times as much as in any other part.
MAX_EXCESS, MAX_RATIO = 0.05, 1.5
# Lines are sorted if more than this share of adjacent ones is in order; by chance it is 0.5.
MAX_IN_ORDER = 0.9
MIN_LINES = 100
# So many strings of the validation text are looked for in the training text.
STRINGS, STRING_CHARS, MAX_FOUND = 100, 64, 0.05
MAX_LINES_FOUND = 0.25  # of the validation text; of Tiny Shakespeare, it is 0.046


def check_split(ids_N: np.ndarray, train_chars: int, vocab: str) -> list[str]:
    """Why the loss of the text after the first `train_chars` characters may mislead: sentences.

    ids_N are indices into `vocab`.
    """
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
    codes_V = code_points(vocab)
    train, val = (
        codes_V[part_N[:SAMPLE_CHARS]].tobytes().decode("utf-32-le", "surrogatepass")
        for part_N in (train_N, val_N)
    )
    found = find_unlike(train_N, val_N, len(vocab)), find_order(train), find_copies(train, val)
    return [sentence for sentence in found if sentence]


def find_unlike(train_N: np.ndarray, val_N: np.ndarray, V: int) -> str:
    """A sentence if the characters of the validation text have other frequencies than the rest.

    That finds another language, or a license if it fills most of the validation text. It misses
    shorter ones, and another author of the same language.
    """
    count = int(np.clip(round(len(train_N) / max(len(val_N), 1)), 9, 99))
    length = min(len(val_N), SAMPLE_CHARS // count)
    parts = [*np.array_split(train_N, count), val_N]  # as long, since longer ones vary less
    counts_PV = np.array([np.bincount(part_N[:length], minlength=V) for part_N in parts])
    others_PV = counts_PV.sum(0) - counts_PV
    shares_PV, other_shares_PV = (
        x_PV / np.maximum(x_PV.sum(1, keepdims=True), 1) for x_PV in (counts_PV, others_PV)
    )
    *elsewhere, excess = np.maximum(shares_PV - other_shares_PV, 0).sum(1)
    if excess <= max(MAX_EXCESS, MAX_RATIO * max(elsewhere)) or len(val_N) > len(train_N):
        return ""
    return (
        f"the validation text is unlike the rest: {excess:.0%} of its characters would have to be "
        f"others for the frequencies elsewhere (in no other part more than {max(elsewhere):.0%}). "
        "Leave out what does not belong to the text, such as a license; --val_split spread takes "
        "validation text from everywhere."
    )


def find_order(text: str) -> str:
    """A sentence if the lines are sorted. Equal neighbors do not count.

    Lines are compared by what stands before their first number. So those that begin with a number,
    such as the date of a message, are in no order: shuffled, they are no harder to predict.
    """
    starts = [re.sub(r"^[\W_]+|\d.*", "", line.casefold()) for line in text.splitlines()]
    pairs = [(a, b) for a, b in itertools.pairwise(filter(None, starts)) if a != b]
    up = sum(a < b for a, b in pairs)
    share = max(up, len(pairs) - up) / max(len(pairs), 1)
    if len(pairs) < MIN_LINES or share <= MAX_IN_ORDER:
        return ""
    return (
        f"the lines are sorted ({share:.0%} of adjacent lines are in order): each gives the next "
        "away, and the loss is too low. Shuffle them, unless their order has a meaning: "
        "shuf FILE > shuffled.txt"
    )


def find_copies(train: str, val: str) -> str:
    """A sentence if strings or lines of the validation text occur in the training text.

    Those that repeat themselves do not count: a run of one character, a drawing, a gap in a genome.
    """
    if len(val) < STRING_CHARS:
        return ""
    starts = np.linspace(0, len(val) - STRING_CHARS, STRINGS).astype(int)
    strings = [val[i : i + STRING_CHARS] for i in starts.tolist()]
    share = sum(is_varied(string, 8) and string in train for string in strings) / STRINGS
    if share > MAX_FOUND:
        return (
            f"about {share:.0%} of the validation text occurs word for word in the training text, "
            "so its loss measures memory. Leave out copies."
        )
    known = set(train.splitlines())
    lines = [line for line in val.splitlines() if line in known and is_varied(line, 3)]
    share = sum(len(line) + 1 for line in lines) / len(val)
    if share > MAX_LINES_FOUND:
        return (
            f"{share:.0%} of the validation text are lines that stand in the training text, too, "
            "so its loss measures memory. If the order of lines has no meaning: sort -u FILE | "
            "shuf > shuffled.txt"
        )
    return ""


def is_varied(string: str, length: int) -> bool:
    """Whether the parts of this length of a string are half as many as its characters, or more."""
    parts = {string[i : i + length] for i in range(len(string) - length + 1)}
    return 2 * len(parts) >= len(string)
