"""Warns of texts whose validation loss would be too low: sorted lines, copies."""

import itertools
import re

# Lines are sorted if more than this share of adjacent ones is in order; by chance it is 0.5.
MIN_LINES, MAX_IN_ORDER = 100, 0.9
MAX_COPIED = 0.25  # of the validation text; of Tiny Shakespeare, 0.046 are lines of the rest


def check_split(train: str, val: str) -> list[str]:
    """Return warnings about a training and a validation text."""
    train_lines, val_lines, warnings = train.splitlines(), val.splitlines(), []
    if (share := share_in_order(train_lines)) > MAX_IN_ORDER:
        warnings.append(
            f"the lines are sorted ({share:.0%} of adjacent lines are in order): each gives the "
            "next away, and the loss is too low. Shuffle them: shuf FILE > shuffled.txt"
        )
    if (share := share_copied(train_lines, val_lines)) > MAX_COPIED:
        warnings.append(
            f"{share:.0%} of the validation text are lines that stand in the training text, too, "
            "so its loss measures memory. Leave out copies."
        )
    return warnings


def share_in_order(lines: list[str]) -> float:
    """Return which share of adjacent lines is in order, up or down; 0 if there are few.

    Lines are compared by what stands before their first number, so that dates are in no order.
    """
    starts = [re.sub(r"^[\W_]+|\d.*", "", line.casefold()) for line in lines]
    pairs = [(a, b) for a, b in itertools.pairwise(filter(None, starts)) if a != b]
    if len(pairs) < MIN_LINES:
        return 0.0
    share_up = sum(a < b for a, b in pairs) / len(pairs)
    return max(share_up, 1 - share_up)


def share_copied(train_lines: list[str], val_lines: list[str]) -> float:
    """Return which share of the validation text are lines that the training text has, too.

    Lines of up to three different characters, such as separators, do not count.
    """
    known = set(train_lines)
    copied = [line for line in val_lines if line in known and len(set(line)) > 3]
    return sum(map(len, copied)) / max(sum(map(len, val_lines)), 1)
