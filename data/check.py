"""Is the validation text like the rest? If not, its loss misleads.

Shapes: N characters of the text, P parts, V vocabulary, K kinds of characters.
"""

import numpy as np

SAMPLE_CHARS = 2_000_000  # of a longer text, the start of each part is examined
KINDS = 256  # of characters: the 255 commonest, and all others as one
# A part is unlike the others if its nats per character differ from their mean by more than both
# MAX_NATS and MAX_DEVIATIONS of their standard deviations, or if its share of characters that occur
# nowhere else is larger than both MAX_NEW and twice the largest of the others.
MAX_NATS = 0.1
MAX_DEVIATIONS = 4
MAX_NEW = 0.02


def check_split(ids_N: np.ndarray, train_chars: int, V: int) -> str:
    """Why the text after the first `train_chars` characters may mislead; empty if it does not."""
    train_N, val_N = ids_N[:train_chars], ids_N[train_chars:]
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
        f"by {deviation:.2f}), and {new_P[-1]:.1%} of them occur nowhere else. --val_split spread "
        "takes validation text from everywhere."
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
