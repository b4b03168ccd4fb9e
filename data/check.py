"""Can the validation loss be trusted? Three cheap checks of a text and its split.

Shapes: N characters of the text, P parts, V vocabulary, K kinds of characters.
"""

import itertools
import re

import numpy as np

SAMPLE_CHARS = 20_000_000  # of a longer text, the start (or that of each part) is examined
KINDS = 256  # of characters: the 255 commonest, and all others as one
# A part is unlike the others if its nats per character differ from their mean by more than both
# MAX_NATS and MAX_DEVIATIONS of their standard deviations, or if its share of characters that occur
# nowhere else is larger than both MAX_NEW and twice the largest of the others.
MAX_NATS = 0.1
MAX_DEVIATIONS = 4
MAX_NEW = 0.02
# Lines are sorted if more than this share of adjacent ones is in order; by chance it is 0.5.
MAX_IN_ORDER = 0.9
MIN_LINES = 100
# A number with the signs after it, and the T and Z of 01T00:12Z
NUMBER = r"\d(?:[\W\d_]|(?<=\d)[tz](?![a-z]))*"
# So many strings of the validation text are looked for in the training text.
STRINGS, STRING_CHARS, MAX_FOUND = 200, 64, 0.05


def check_split(ids_N: np.ndarray, train_chars: int, vocab: str, val_split: str) -> list[str]:
    """Why the loss of the text after the first `train_chars` characters may mislead: sentences.

    ids_N are indices into `vocab`. `val_split` says how the text was split.
    """
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
    found = find_unlike(train_N, val_N, len(vocab), val_split), find_order(ids_N, vocab)
    return [sentence for sentence in (*found, find_copies(train_N, val_N)) if sentence]


def find_unlike(train_N: np.ndarray, val_N: np.ndarray, V: int, val_split: str) -> str:
    """A sentence if the validation text has other characters or pairs than the rest."""
    if len(val_N) > len(train_N):  # too little to predict it from
        return ""
    count = int(np.clip(round(len(train_N) / max(len(val_N), 1)), 9, 99))
    # As long as the validation text: a longer part would vary less.
    others = [part_N[: len(val_N)] for part_N in np.array_split(train_N, count)]
    nats_P, new_P = unlikeness([*others, val_N], V)
    difference, deviation = nats_P[-1] - nats_P[:-1].mean(), nats_P[:-1].std()
    is_unlike = abs(difference) > max(MAX_NATS, MAX_DEVIATIONS * deviation)
    if not is_unlike and new_P[-1] <= max(MAX_NEW, 2 * new_P[:-1].max()):
        return ""
    advice = "--val_split spread takes validation text from everywhere."
    if val_split == "spread":
        advice = "Leave out what does not belong to the text, such as a license."
    return (
        f"the validation text is unlike the rest: its characters are {abs(difference):.2f} nats "
        f"{'harder' if difference > 0 else 'easier'} to predict from the rest (other parts differ "
        f"by {deviation:.2f}), and {new_P[-1]:.1%} of them occur nowhere else. {advice}"
    )


def find_order(ids_N: np.ndarray, vocab: str) -> str:
    """A sentence if the lines are sorted. Equal neighbors do not count.

    Nor do numbers, such as the date of a message or the counter of a verse or an episode: shuffled,
    such lines are no harder to predict. Lines are compared by what stands before their first
    numbers; if that is equal, by what follows these.
    """
    text = "".join(map(vocab.__getitem__, ids_N[:SAMPLE_CHARS].tolist()))
    lines = [re.sub(r"^[\W_]+", "", line.casefold()) for line in text.splitlines()]
    lines = [re.split(NUMBER, line) for line in lines]
    lines = [parts for parts in lines if any(parts)]
    pairs = [(a, b) for a, b in itertools.pairwise(lines) if a != b]
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


def unlikeness(parts: list[np.ndarray], V: int) -> tuple[np.ndarray, np.ndarray]:
    """How each part differs from all others together: nats_P and new_P.

    nats_P are its nats per character under their counts of pairs, new_P is the share of its
    characters that occur in none of them.
    """
    parts = [part_N[: SAMPLE_CHARS // len(parts)] for part_N in parts]
    counts_PV = np.array([np.bincount(ids_N, minlength=V) for ids_N in parts])
    elsewhere_PV = counts_PV.sum(0) - counts_PV
    new_P = np.where(elsewhere_PV == 0, counts_PV, 0).sum(1) / np.maximum(counts_PV.sum(1), 1)

    K = min(KINDS, V)
    kind_V = np.full(V, K - 1)
    kind_V[np.argsort(-counts_PV.sum(0), kind="stable")[: K - 1]] = np.arange(K - 1)
    pairs_PKK = np.zeros((len(parts), K, K))
    for i, kinds_N in enumerate(kind_V[ids_N] for ids_N in parts):
        pairs = np.bincount(kinds_N[:-1] * K + kinds_N[1:], minlength=K * K)
        pairs_PKK[i] = pairs.reshape(K, K)
    total_KK, nats_P = pairs_PKK.sum(0), np.zeros(len(parts))
    for i, pairs_KK in enumerate(pairs_PKK):
        others_KK = total_KK - pairs_KK
        # A pair that is seen nowhere else is as probable as its second character.
        second_K = (others_KK.sum(0) + 1) / (others_KK.sum() + K)
        probs_KK = (others_KK + second_K) / (others_KK.sum(1, keepdims=True) + 1)
        nats_P[i] = -(pairs_KK * np.log(probs_KK)).sum() / max(pairs_KK.sum(), 1)
    return nats_P, new_P
