"""Warns if lines of a text are sorted or copied, which makes its validation loss too low."""

import itertools
import re

# Lines count as sorted if more than MAX_IN_ORDER of the adjacent pairs are in order. For shuffled
# lines, this share is 0.5. With fewer than MIN_LINES pairs, nothing is checked.
MIN_LINES, MAX_IN_ORDER = 100, 0.9
# The share of the validation text that may consist of training lines; 0.046 in Tiny Shakespeare.
MAX_COPIED = 0.25


def check_split(train: str, val: str) -> list[str]:
    """Return warnings about the training and the validation text."""
    train_lines, val_lines, warnings = train.splitlines(), val.splitlines(), []
    if (share := share_in_order(train_lines)) > MAX_IN_ORDER:
        warnings.append(
            f"the lines are sorted ({share:.0%} of adjacent lines are in order). Each line hints "
            "at the next one, so the loss is too low. Shuffle them: shuf FILE > shuffled.txt"
        )
    if (share := share_copied(train_lines, val_lines)) > MAX_COPIED:
        warnings.append(
            f"{share:.0%} of the validation text are lines that the training text also has, so the "
            "validation loss measures memory. Remove the copies."
        )
    return warnings


def share_in_order(lines: list[str]) -> float:
    """Return the share of adjacent lines that are in order, up or down; 0 if there are few lines.

    Lines are compared by the text before their first digit, so dates do not count as sorted.
    """
    starts = [re.sub(r"^[\W_]+|\d.*", "", line.casefold()) for line in lines]
    pairs = [(a, b) for a, b in itertools.pairwise(filter(None, starts)) if a != b]
    if len(pairs) < MIN_LINES:
        return 0.0
    share_up = sum(a < b for a, b in pairs) / len(pairs)
    return max(share_up, 1 - share_up)


def share_copied(train_lines: list[str], val_lines: list[str]) -> float:
    """Return the share of the validation text that consists of lines of the training text.

    Lines of up to three different characters, such as separators, do not count.
    """
    known = set(train_lines)
    copied = [line for line in val_lines if line in known and len(set(line)) > 3]
    return sum(map(len, copied)) / max(sum(map(len, val_lines)), 1)
