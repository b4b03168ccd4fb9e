"""Can the validation loss be trusted? Three cheap checks of a text and its split.

Shapes: N characters of the text, P parts, V vocabulary, K kinds of characters.
"""

import itertools
import unicodedata
from typing import NamedTuple

import numpy as np

from data.tokenizer import decode

SAMPLE_CHARS = 2_000_000  # of a longer text, even stretches of this many characters are examined
STRETCH_CHARS = 10_000
KINDS = 256  # of characters: the 255 commonest, and all others as one
# A part is unlike the others if its nats per character differ from their mean by more than both
# MAX_NATS and MAX_DEVIATIONS of their standard deviations, or if its share of characters that occur
# nowhere else is larger than both MAX_NEW and twice the largest of the others.
MAX_NATS = 0.1
MAX_DEVIATIONS = 4
MAX_NEW = 0.02
# Lines are sorted if more than this share of adjacent lines is in order.
MAX_IN_ORDER = 0.9
MIN_LINES = 100
# This many strings of the validation text are searched for in the start of the training text.
STRINGS, STRING_CHARS = 200, 64
SEARCHED_CHARS = 20_000_000
MAX_FOUND = 0.05


class Findings(NamedTuple):
    """Reasons why the validation loss may mislead, as sentences; empty if there are none."""

    unlike: str
    in_order: str
    duplicates: str


def check_split(ids_N: np.ndarray, train_chars: int, codes_V: np.ndarray) -> Findings:
    """What a person should know about a text whose first `train_chars` characters train.

    codes_V[i] is the code point of id i.
    """
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
    return Findings(
        unlike=_find_unlike(train_N, val_N, len(codes_V)),
        in_order=_find_order(ids_N, codes_V),
        duplicates=_find_duplicates(train_N, val_N, codes_V),
    )


def _find_unlike(train_N: np.ndarray, val_N: np.ndarray, V: int) -> str:
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
    return (
        f"the validation text is unlike the rest: its characters are {abs(difference):.2f} nats "
        f"{'harder' if difference > 0 else 'easier'} to predict from the rest (other parts differ "
        f"by {deviation:.2f}), and {new_P[-1]:.1%} of them occur nowhere else."
    )


def _find_order(ids_N: np.ndarray, codes_V: np.ndarray) -> str:
    share = share_in_order(ids_N, codes_V)
    if share <= MAX_IN_ORDER:
        return ""
    return (
        f"the lines are sorted ({share:.0%} of adjacent lines are in order): each gives the next "
        "away, and the loss is too low. Shuffle them, unless their order has a meaning: "
        "shuf FILE > shuffled.txt"
    )


def _find_duplicates(train_N: np.ndarray, val_N: np.ndarray, codes_V: np.ndarray) -> str:
    # Copies may differ in spaces and line ends.
    is_visible_V = np.array([not chr(code).isspace() for code in codes_V])
    train_N = train_N[:SEARCHED_CHARS]
    share = share_found(train_N[is_visible_V[train_N]], val_N[is_visible_V[val_N]])
    if share <= MAX_FOUND:
        return ""
    return (
        f"about {share:.0%} of the validation text occurs word for word in the training text, so "
        "its loss measures memory. Leave out copies."
    )


def thin(ids_N: np.ndarray, limit: int) -> np.ndarray:
    """`ids_N`, or even stretches of it, joined, if there are more than `limit`."""
    if len(ids_N) <= limit:
        return ids_N
    count = max(1, limit // STRETCH_CHARS)
    starts = np.linspace(0, len(ids_N) - STRETCH_CHARS, count).astype(int)
    return ids_N[starts[:, None] + np.arange(STRETCH_CHARS)].flatten()


def unlikeness(parts: list[np.ndarray], V: int) -> tuple[np.ndarray, np.ndarray]:
    """How each part differs from all others together: nats_P and new_P.

    nats_P are its nats per character under their counts of pairs, new_P is the share of its
    characters that occur in none of them.
    """
    parts = [thin(part, SAMPLE_CHARS // len(parts)) for part in parts]
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


def share_in_order(ids_N: np.ndarray, codes_V: np.ndarray) -> float:
    """The share of adjacent lines in order, upwards or downwards; by chance it is 0.5.

    Case, accents and empty lines do not count, nor do lines equal to their neighbor. The share is 0
    for fewer than MIN_LINES lines, or if most are equal to their neighbor.
    """
    lines = decode(thin(ids_N, SAMPLE_CHARS), codes_V).splitlines()
    keys = [_sorting_key(line) for line in lines if line.strip()]
    up = sum(a < b for a, b in itertools.pairwise(keys))
    down = sum(a > b for a, b in itertools.pairwise(keys))
    is_list = len(keys) >= MIN_LINES and up + down >= MIN_LINES / 2
    return max(up, down) / (up + down) if is_list else 0.0


def _sorting_key(line: str) -> str:
    letters = unicodedata.normalize("NFKD", line.strip().casefold())
    if letters.isascii():
        return letters
    return "".join(c for c in letters if not unicodedata.combining(c))


def share_found(train_N: np.ndarray, val_N: np.ndarray) -> float:
    """The share of strings of the validation text that occur in the training text."""
    if len(val_N) < STRING_CHARS:
        return 0.0
    # The lowest byte of each id is enough: 64 of them do not agree by chance.
    train = train_N.astype(np.uint8).tobytes()
    starts = np.linspace(0, len(val_N) - STRING_CHARS, STRINGS).astype(int)
    strings = (val_N[i : i + STRING_CHARS].astype(np.uint8).tobytes() for i in starts)
    return float(np.mean([string in train for string in strings]))
