"""From a text to token ids on disk, to the batches for training and the windows for evaluation.

Shapes: N characters, B batch, T time (block_size), W windows of an epoch.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from data.download import tiny_shakespeare
from data.prepared import PreparedText, open_prepared
from data.text import find_text_files
from data.tokenizer import CharTokenizer
from model.errors import UserError

EVAL_BATCH_CHARS = 4096  # per evaluation batch: fits the processor's cache
MAX_EVAL_CHARS = 1 << 22  # at most this many validation characters are evaluated


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how much of it is for validation."""

    data: Annotated[
        str | None, "text file, or folder of *.txt files; default: Tiny Shakespeare"
    ] = None
    encoding: Annotated[str, "encoding of the text; latin-1 reads any bytes"] = "utf-8"
    val_fraction: Annotated[float, "share of the text, at its end, for validation", "(0, 1)"] = 0.1

    def __post_init__(self) -> None:
        if self.data == "":
            raise UserError("data is empty. Name a file or folder; leave it out for Shakespeare.")
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise UserError(f"encoding is {self.encoding!r}. Python does not know it.") from None


@dataclass(frozen=True)
class Corpus:
    """A text as token ids: the first part for training, the rest for validation."""

    name: str
    tokenizer: CharTokenizer
    text: PreparedText
    to_model_ids: np.ndarray  # ids on disk to ids of `tokenizer`, which may know more characters
    train_chars: int  # the text begins with so many for training; all others are for validation

    @property
    def val_chars(self) -> int:
        """Characters of the validation split."""
        return len(self.text.ids_N) - self.train_chars

    def describe(self, block_size: int) -> str:
        """The sizes for a person."""
        used = sum(len(starts_B) * T for starts_B, T in self.eval_windows(block_size))
        sampled = "" if used >= self.val_chars - 1 else f" (evaluated on {used:,} of them)"
        return (
            f"{self.name}: {self.train_chars:,} training characters, "
            f"{self.val_chars:,} validation characters{sampled}, "
            f"vocabulary of {len(self.tokenizer.vocab)}"
        )

    def batch(
        self, block_size: int, batch_size: int, seed: int, step: int, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT of a training step; y_BT holds the characters that follow those of x_BT.

        Each window is used once per epoch: drawn with replacement, a third of the text would not
        be read in an epoch. The batch is a function of the arguments alone, so resuming needs no
        loader state. `rows` selects the part of the batch that this process computes.
        """
        length, starts = self.train_chars, []
        for number in range(step * batch_size, (step + 1) * batch_size)[rows]:
            epoch, i = divmod(number, windows_per_epoch(length, block_size))
            starts.append(shuffled_windows(length, block_size, seed, epoch)[i])
        return self.gather_windows(np.array(starts), block_size)

    def eval_windows(self, block_size: int) -> list[tuple[np.ndarray, int]]:
        """Batches of (window starts in the text, window length) that cover the validation split.

        Every character except the first is predicted exactly once; the last window is shorter.
        Beyond MAX_EVAL_CHARS, evenly spaced windows are used instead.
        """
        targets = self.val_chars - 1
        starts = np.arange(targets // block_size) * block_size
        last_length = targets % block_size
        last = [(np.array([targets - last_length]), last_length)] if last_length else []
        max_windows = max(1, MAX_EVAL_CHARS // block_size)
        if len(starts) > max_windows:
            spaced = np.linspace(0, len(starts) - 1, max_windows).astype(int)
            starts, last = starts[spaced], []
        rows = max(1, EVAL_BATCH_CHARS // block_size)
        batches = [(starts[i : i + rows], block_size) for i in range(0, len(starts), rows)]
        return [(self.train_chars + starts_B, T) for starts_B, T in batches + last]

    def gather_windows(self, starts_B: np.ndarray, T: int) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT: windows of T characters of the text, and the same one character later."""
        window_BT = self.to_model_ids[self.text.windows(starts_B, T + 1)]
        text_BT = torch.from_numpy(window_BT)
        return text_BT[:, :-1].contiguous(), text_BT[:, 1:].contiguous()


def windows_per_epoch(length: int, block_size: int) -> int:
    """How many windows a text is cut into; one less than fit, for a random offset."""
    return max(1, (length - 1) // block_size - 1)


@lru_cache(maxsize=2)
def shuffled_windows(length: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """starts_W: the text cut into adjacent windows, in random order.

    Each epoch cuts at other places, so that over time a character appears at every position of a
    window.
    """
    rng = np.random.default_rng([seed, epoch])
    count = windows_per_epoch(length, block_size)
    offset = rng.integers(length - count * block_size)
    starts_W = rng.permutation(count)
    starts_W *= block_size
    starts_W += offset
    return starts_W


def open_corpus(
    config: DataConfig, block_size: int, vocab: str = "", extend: bool = True
) -> Corpus:
    """The corpus of `config`; its ids are prepared on disk at first use.

    Its vocabulary is `vocab`, that of a checkpoint, followed by all other characters of the text.
    Raises UserError if the text cannot be read or is too short, or if there are other characters
    and `extend` is false.
    """
    path = tiny_shakespeare() if config.data is None else Path(config.data)
    text = open_prepared(find_text_files(path), config.encoding)
    train_chars = int(len(text.ids_N) * (1 - config.val_fraction))
    val_chars = len(text.ids_N) - train_chars
    if min(train_chars, val_chars) <= block_size:
        raise UserError(
            f"{path} has {train_chars:,} training characters and {val_chars:,} validation "
            f"characters; block_size is {block_size}. Use a longer text, a smaller --block_size "
            "or another --val_fraction."
        )
    if len(text.vocab) < 2:
        raise UserError(f"{path} repeats one character, {text.vocab!r}. There is nothing to learn.")
    if extend:
        vocab += "".join(sorted(set(text.vocab) - set(vocab)))
    tokenizer = CharTokenizer(vocab)
    to_model_ids = tokenizer.encode(text.vocab, str(path)).astype(np.int64)
    return Corpus(str(path), tokenizer, text, to_model_ids, train_chars)
