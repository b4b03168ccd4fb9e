"""Can the validation loss be trusted? Three cheap checks of a text and its split.

Shapes: N characters of the text, V vocabulary.
"""

import itertools
import re

import numpy as np

SAMPLE_CHARS = 20_000_000  # of a longer text, the start is examined
MAX_NEW = 0.02  # of the validation text, characters that do not occur in the training text
# Lines are sorted if more than this share of adjacent ones is in order; by chance it is 0.5.
MAX_IN_ORDER = 0.9
MIN_LINES = 100
# So many strings of the validation text are looked for in the training text.
STRINGS, STRING_CHARS, MAX_FOUND = 200, 64, 0.05


def check_split(ids_N: np.ndarray, train_chars: int, vocab: str) -> list[str]:
    """Why the loss of the text after the first `train_chars` characters may mislead: sentences.

    ids_N are indices into `vocab`.
    """
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
    found = find_new(train_N, val_N, len(vocab)), find_order(ids_N, vocab)
    return [sentence for sentence in (*found, find_copies(train_N, val_N)) if sentence]


def find_new(train_N: np.ndarray, val_N: np.ndarray, V: int) -> str:
    """A sentence if the validation text has characters that cannot be learned."""
    is_new_V = np.bincount(train_N, minlength=V) == 0
    share = np.count_nonzero(is_new_V[val_N]) / max(len(val_N), 1)
    if share <= MAX_NEW or len(val_N) > len(train_N):  # too little to learn from
        return ""
    return (
        f"the validation text is unlike the rest: {share:.1%} of its characters occur nowhere "
        "else. Leave out what does not belong to the text; --val_split spread takes validation "
        "text from everywhere."
    )


def find_order(ids_N: np.ndarray, vocab: str) -> str:
    """A sentence if the lines are sorted. Equal neighbors do not count.

    Lines are compared by what stands before their first number. So those that begin with a number,
    such as the date of a message, are in no order: shuffled, they are no harder to predict.
    """
    text = "".join(map(vocab.__getitem__, ids_N[:SAMPLE_CHARS].tolist()))
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


def find_copies(train_N: np.ndarray, val_N: np.ndarray) -> str:
    """A sentence if strings of the validation text occur in the training text."""
    if len(val_N) < STRING_CHARS:
        return ""
    # The lowest byte of each id is enough: 64 of them do not agree by chance.
    train, val = (part_N.astype(np.uint8).tobytes() for part_N in (train_N[:SAMPLE_CHARS], val_N))
    starts = np.linspace(0, len(val) - STRING_CHARS, STRINGS).astype(int)
    share = np.mean([val[i : i + STRING_CHARS] in train for i in starts])
    if share <= MAX_FOUND:
        return ""
    return (
        f"about {share:.0%} of the validation text occurs word for word in the training text, so "
        "its loss measures memory. Leave out copies."
    )
