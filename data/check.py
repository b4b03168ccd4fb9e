"""Does the validation loss mean what a person takes it for? Three cheap statistics of the split.

Shapes: N characters of the text, P parts, V vocabulary, K kinds of characters.
"""

import itertools
import unicodedata
from typing import NamedTuple

import numpy as np

from data.tokenizer import decode

SAMPLE_CHARS = 2_000_000  # are looked at: of a longer text, even stretches
STRETCH_CHARS = 10_000
KINDS = 256  # of characters: the commonest, and all others as one
MAX_NATS = 0.1  # more or less than the other parts, and
MAX_DEVIATIONS = 4  # so many of their standard deviations, and the last part is unlike them
MAX_NEW = 0.02  # so is a part with a larger share of characters that occur nowhere else
MIN_LINES = 100
MAX_IN_ORDER = 0.9  # a larger share of adjacent lines in order: a sorted list
STRINGS, STRING_CHARS = 200, 64  # so many strings of the validation text are searched
SEARCHED_CHARS = 20_000_000  # in so much of the training text
MAX_FOUND = 0.05


class Findings(NamedTuple):
    """What is wrong with the validation text, each in a few sentences; empty if nothing is."""

    unlike: str
    in_order: str
    duplicates: str


def check_split(
    ids_N: np.ndarray, train_chars: int, codes_V: np.ndarray, val_share: float | None
) -> Findings:
    """What a person should know of a text whose first `train_chars` characters train.

    The code point of id i is codes_V[i]. `val_share` is that of the validation text if it is the
    end of the text.
    """
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
    unlike = in_order = duplicates = ""

    count = int(np.clip(round(len(train_N) / max(len(val_N), 1)), 9, 99))
    nats_P, new_P = unlikeness([*np.array_split(train_N, count), val_N], len(codes_V))
    others_P = np.sort(nats_P[:-1])  # so that the order of the parts changes no rounding
    difference, deviation = nats_P[-1] - others_P.mean(), others_P.std()
    if abs(difference) > max(MAX_NATS, MAX_DEVIATIONS * deviation) or (
        new_P[-1] > max(MAX_NEW, 2 * new_P[:-1].max())
    ):
        where = "" if val_share is None else f", the last {100 * val_share:.3g} %,"
        unlike = (
            f"the validation text{where} is unlike the rest: pairs of characters are "
            f"{abs(difference):.2f} nats {'harder' if difference > 0 else 'easier'} to predict "
            f"(standard deviation of other parts: {deviation:.2f}), {new_P[-1]:.1%} of its "
            "characters occur nowhere else."
        )
        if val_share is not None:
            unlike += " --val_split spread takes validation text from everywhere."

    share = share_in_order(ids_N, codes_V)
    if share > MAX_IN_ORDER:
        in_order = (
            f"the lines are sorted ({share:.0%} of neighbors are in order): each gives the next "
            "away, and the loss is too low. Shuffle them, unless their order has a meaning: "
            "shuf FILE > shuffled.txt"
        )

    share = share_found(train_N[:SEARCHED_CHARS], val_N)
    if share > MAX_FOUND:
        duplicates = (
            f"about {share:.0%} of the validation text stands word for word in the training text: "
            "its loss measures memory."
        )
    return Findings(unlike, in_order, duplicates)


def thin(ids_N: np.ndarray, limit: int) -> np.ndarray:
    """`ids_N` or, if there are more than `limit`, so many of them in even stretches."""
    if len(ids_N) <= limit:
        return ids_N
    starts = np.linspace(0, len(ids_N) - STRETCH_CHARS, limit // STRETCH_CHARS).astype(int)
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
    for less than MIN_LINES lines.
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
