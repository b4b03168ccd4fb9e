"""A text split into training and validation characters; the batches of both.

An example is T consecutive characters of the training text, or of the validation text. Where these
are stretches from several places, they are joined, and a few examples cross a join.

Shapes: N characters of the text, E examples of an epoch, B examples of a batch, T time
(block_size).
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from configs.settings import TEXT_FILES, DataConfig, TrainConfig
from data.check import check_split
from data.reader import find_text_files, is_pipe, read_chunks, require_encoding, tiny_shakespeare
from data.tokenizer import CharTokenizer, encode, list_some
from model.system.errors import UserError
from model.system.processes import Processes
from model.system.terminal import shorten

MAX_EVAL_CHARS = 1 << 20  # at most this many validation characters are evaluated
MAX_PIECES, MIN_STRETCH = 100, 2000  # with `val_split` spread; the latter: validation characters
# The standard error of a loss is about this divided by √(its characters): 2.4 to 6.1 on six texts,
# from the losses of examples of 256 characters. (Characters alone give 1.5 to 1.9, but neighbors
# are easy or hard together.)
CHAR_LOSS_DEVIATION = 5.0


@dataclass(frozen=True)
class Corpus:
    """A text as token ids: the training text, then the validation text."""

    name: str
    is_pipe: bool  # it was read from a pipe or standard input, so it cannot be read again
    tokenizer: CharTokenizer
    ids_N: np.ndarray  # in the smallest type that fits
    known_chars: int  # of `tokenizer`, those of the checkpoint; the others come after them
    sha256: str  # of the text, whatever its encoding
    train_chars: int  # at the start of ids_N; all others are for validation
    val_fraction: float
    val_split: str
    warnings: list[str]  # why the validation loss may mislead

    @property
    def val_chars(self) -> int:
        """Characters of the validation split."""
        return len(self.ids_N) - self.train_chars

    @property
    def new_characters(self) -> str:
        """Those that the checkpoint, whose vocabulary `tokenizer` extends, does not know."""
        return list_some(self.tokenizer.vocab[self.known_chars :])

    def require_length(self, block_size: int) -> None:
        """Raise UserError if a part is not longer than an example."""
        if min(self.train_chars, self.val_chars) <= block_size:
            raise UserError(
                f"{self.name} has {self.train_chars:,} training characters and {self.val_chars:,} "
                f"validation characters; block_size is {block_size}. Use a longer text, a smaller "
                "--block_size or another --val_fraction."
            )

    def describe(self, block_size: int) -> str:
        """The text and its sizes for a person."""
        used = sum(len(starts_B) * T for starts_B, T in self.eval_windows(block_size, block_size))
        sampled = "" if used >= self.val_chars - 1 else f" (evaluated on {used:,} of them)"
        error = CHAR_LOSS_DEVIATION / math.sqrt(used)
        uncertain = f"\n        losses on so little text are uncertain by {error:.2f} nats"
        return (
            f"{self.name}: {self.train_chars:,} training characters, {self.val_chars:,} "
            f"validation characters{sampled}, vocabulary of {len(self.tokenizer.vocab)}"
            f"{uncertain if error > 0.03 else ''}"
        )

    def batch(self, config: TrainConfig, step: int, rows: slice) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT of a training step; y_BT holds the characters that follow those of x_BT.

        Each example is used once per epoch. (If examples were drawn with replacement, an epoch
        would leave out a third of the text.) The batch is a function of the arguments alone, so
        resuming needs no loader state. `rows` selects the part that this process computes.
        """
        starts, block_size, batch_size = [], config.block_size, config.batch_size
        for number in range(step * batch_size, (step + 1) * batch_size)[rows]:
            epoch, i = divmod(number, examples_per_epoch(self.train_chars, block_size))
            starts.append(shuffled_starts(self.train_chars, block_size, config.seed, epoch)[i])
        return self.gather_examples(np.array(starts), block_size)

    def eval_windows(self, block_size: int, chars: int) -> list[tuple[np.ndarray, int]]:
        """(starts_B, T) of batches of so many characters, which cover the validation split.

        Beyond MAX_EVAL_CHARS, evenly spaced windows are used instead of all.
        """
        max_windows = max(1, MAX_EVAL_CHARS // block_size)
        windows = cut_windows(self.val_chars, block_size, chars, max_windows)
        return [(self.train_chars + starts_B, T) for starts_B, T in windows]

    def eval_batches(
        self, block_size: int, chars: int, processes: Processes
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """x_BT and y_BT of this process's share of the batches of `eval_windows`."""
        windows = self.eval_windows(block_size, chars)
        for starts_B, T in windows[processes.rank :: processes.world_size]:
            yield self.gather_examples(starts_B, T)

    def gather_examples(self, starts_B: np.ndarray, T: int) -> tuple[Tensor, Tensor]:
        """x_BT, the T characters of the text from each start, and y_BT, one character later."""
        ids_BT = self.ids_N[starts_B[:, None] + np.arange(T + 1)].astype(np.int64)
        x_BT, y_BT = torch.from_numpy(ids_BT[:, :-1]), torch.from_numpy(ids_BT[:, 1:])
        return x_BT.contiguous(), y_BT.contiguous()


def cut_windows(
    length: int, block_size: int, chars: int, max_windows: int | None = None
) -> list[tuple[np.ndarray, int]]:
    """(starts_B, T) of batches of about `chars` characters that cover a text of this length.

    Every character except the first is predicted exactly once, from those before it in its window
    of block_size; the last window is shorter. If there were more than `max_windows`, so many full
    ones are used, evenly spaced.
    """
    targets = length - 1
    starts, last_T = np.arange(targets // block_size) * block_size, targets % block_size
    if max_windows is not None and len(starts) > max_windows:
        starts = starts[np.linspace(0, len(starts) - 1, max_windows).astype(int)]
        last_T = 0
    rows = max(1, chars // block_size)
    batches = [(starts[i : i + rows], block_size) for i in range(0, len(starts), rows)]
    return batches + ([(np.array([targets - last_T]), last_T)] if last_T > 0 else [])


def examples_per_epoch(length: int, block_size: int) -> int:
    """How many examples a text is cut into; one less than fit, to leave room for an offset."""
    return max(1, (length - 1) // block_size - 1)


@lru_cache(maxsize=2)
def shuffled_starts(length: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """starts_E: the text cut into adjacent examples, in random order.

    Each epoch cuts at other places, so that over time a character appears at every position of an
    example.
    """
    rng = np.random.default_rng([seed, epoch])
    count = examples_per_epoch(length, block_size)
    offset = rng.integers(length - count * block_size)
    return rng.permutation(count) * block_size + offset


def open_corpus(config: DataConfig, vocab: str = "") -> Corpus:
    """Read the text of `config` into memory.

    Its vocabulary is `vocab`, that of a checkpoint, and then the text's other characters, sorted.
    Raises UserError if the text cannot be read.
    """
    require_encoding(config.encoding)
    paths = [str(tiny_shakespeare())] if config.data is None else config.data
    files, others = find_text_files(paths)
    chunks = read_chunks(files, config.encoding)
    bar = tqdm(chunks, "reading the text", unit=" chunks", delay=1, disable=None)
    known_chars = len(vocab)
    ids_N, vocab, sha256 = encode(bar, vocab)
    name = "standard input" if paths[0] == "-" else str(shorten(paths[0]))
    if len(paths) > 1 or os.path.isdir(paths[0]):
        skipped = f"; {others:,} others are not {TEXT_FILES}" if others else ""
        name += f" ({len(files):,} file{'s' if len(files) > 1 else ''}{skipped})"
    if (ids_N == ids_N[:1]).all():
        raise UserError(f"{name} is empty or repeats one character. There is nothing to learn.")
    stretches = split(ids_N, config.val_fraction, config.val_split)
    train_chars = sum(map(len, stretches[::2]))
    if len(stretches) > 2:  # otherwise they are in order
        ids_N = np.concatenate(stretches[::2] + stretches[1::2])
    return Corpus(
        name=name,
        is_pipe=any(map(is_pipe, files)),
        tokenizer=CharTokenizer(vocab),
        ids_N=ids_N,
        known_chars=known_chars,
        sha256=sha256,
        train_chars=train_chars,
        val_fraction=config.val_fraction,
        val_split=config.val_split,
        warnings=check_split(ids_N, train_chars, vocab),
    )


def split(ids_N: np.ndarray, val_fraction: float, val_split: str) -> list[np.ndarray]:
    """The stretches of a text, in turn for training and for validation.

    It is cut into equal pieces, each with validation text at its end: one for the split "end".
    """
    pieces = 1
    if val_split == "spread":
        pieces = int(np.clip(len(ids_N) * val_fraction // MIN_STRETCH, 2, MAX_PIECES))
    edges = np.linspace(0, len(ids_N), pieces + 1).astype(int)
    train_ends = edges[:-1] + (np.diff(edges) * (1 - val_fraction)).astype(int)
    return np.split(ids_N, np.stack((train_ends, edges[1:]), axis=1).flatten()[:-1])
