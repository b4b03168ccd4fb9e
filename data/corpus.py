"""A text that is split into training text and validation text, and the batches made from both.

An example is a sequence of T neighboring characters of one of these texts. If a text consists of
stretches from several places, a few examples contain the end of one and the start of the next.

Shapes: N characters of the text, E examples of an epoch, B examples of a batch, T time
(block_size).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from configs.errors import UserError
from configs.settings import DataConfig, TrainConfig
from data.check import check_split
from data.reader import find_text_files, read_text, tiny_shakespeare
from data.tokenizer import CharTokenizer, extend_vocab

MAX_EVAL_CHARS = 1 << 20  # an evaluation reads at most this many characters
CHECKED_CHARS = 5_000_000  # data/check.py reads at most this many characters of each part
MAX_PIECES, MIN_STRETCH = 100, 2000  # --val_split spread: pieces, validation text in each piece


@dataclass(frozen=True)
class Corpus:
    """A text as an array of token ids: first the training text, then the validation text."""

    name: str
    tokenizer: CharTokenizer
    ids_N: np.ndarray  # the dtype is the smallest one that can hold every id
    sha256: str  # the hash of the text; it does not depend on the encoding
    train_chars: int  # how many ids at the start of ids_N are training text
    warnings: list[str]  # sentences that say why the validation loss may mislead

    @property
    def val_chars(self) -> int:
        """The number of characters in the validation text."""
        return len(self.ids_N) - self.train_chars

    def require_length(self, block_size: int) -> None:
        """Raise UserError if the training or the validation text is too short for one example."""
        if min(self.train_chars, self.val_chars) <= block_size:
            raise UserError(
                f"{self.name} has {self.train_chars:,} training characters and {self.val_chars:,} "
                f"validation characters; block_size is {block_size}. Use a longer text, a smaller "
                "--block_size or another --val_fraction."
            )

    def __str__(self) -> str:
        """Return the name and the sizes of the text, for a person."""
        return (
            f"{self.name}: {self.train_chars:,} training characters, {self.val_chars:,} "
            f"validation characters, vocabulary of {len(self.tokenizer.vocab)}"
        )

    def batch(self, config: TrainConfig, step: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Return x_BT and y_BT of a training step. y_BT holds the character after each one of x_BT.

        An epoch uses each example once. The batch depends only on the arguments, so a resumed run
        gets the same batches without a saved state. `rows` selects this process's examples.
        """
        starts, block_size, batch_size = [], config.block_size, config.batch_size
        for number in range(step * batch_size, (step + 1) * batch_size)[rows]:
            epoch, i = divmod(number, examples_per_epoch(self.train_chars, block_size))
            starts.append(shuffled_starts(self.train_chars, block_size, config.seed, epoch)[i])
        return gather_examples(self.ids_N, np.array(starts), block_size)

    def eval_batches(
        self, block_size: int, chars: int, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x_BT and y_BT of the validation batches that the process `rank` evaluates.

        A batch has about `chars` characters. If the text is longer than MAX_EVAL_CHARS, only some
        windows of it are read, evenly spaced.
        """
        max_windows = max(1, MAX_EVAL_CHARS // block_size)
        windows = cut_windows(self.val_chars, block_size, chars, max_windows)
        for starts_B, T in windows[rank::world_size]:
            yield gather_examples(self.ids_N, self.train_chars + starts_B, T)


def gather_examples(ids_N: np.ndarray, starts_B: np.ndarray, T: int) -> tuple[Tensor, Tensor]:
    """Return x_BT, the T characters from each start on, and y_BT, shifted by one character."""
    ids_BT = ids_N[starts_B[:, None] + np.arange(T + 1)].astype(np.int64)
    x_BT, y_BT = torch.from_numpy(ids_BT[:, :-1]), torch.from_numpy(ids_BT[:, 1:])
    return x_BT.contiguous(), y_BT.contiguous()


def cut_windows(
    length: int, block_size: int, chars: int, max_windows: int | None = None
) -> list[tuple[np.ndarray, int]]:
    """Cut a text into windows. Return batches of about `chars` characters, as (starts_B, T).

    A window has block_size characters; the last window is shorter. If there are more windows than
    `max_windows`, some are left out. The others are full and evenly spaced.
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
    """Return how many examples an epoch has: one less than fit, which leaves room for an offset."""
    return max(1, (length - 1) // block_size - 1)


@lru_cache(maxsize=2)
def shuffled_starts(length: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """Cut a text into adjacent examples. Return starts_E, where they start, in random order.

    Each epoch cuts at other places, so in the end a character appears at every position.
    """
    rng = np.random.default_rng([seed, epoch])
    count = examples_per_epoch(length, block_size)
    offset = rng.integers(length - count * block_size)
    return rng.permutation(count) * block_size + offset


def open_corpus(config: DataConfig, vocab: str = "") -> Corpus:
    """Read the text that `config` names into memory.

    The vocabulary is `vocab`, the vocabulary of a checkpoint, followed by the other characters of
    the text, sorted.
    """
    paths = [str(tiny_shakespeare())] if config.data is None else config.data
    files = find_text_files(paths)
    name = "standard input" if paths[0] == "-" else paths[0]
    if len(files) > 1:
        name += f" ({len(files):,} files)"
    text = "\n".join(read_text(file, config.encoding) for file in files)
    if text.count(text[:1]) >= len(text):
        raise UserError(f"{name} is empty or repeats one character. There is nothing to learn.")
    tokenizer = CharTokenizer(extend_vocab(vocab, text))
    ids_N = tokenizer.encode(text)
    train, val = split(ids_N, config.val_fraction, config.val_split)
    train_chars = sum(map(len, train))
    if len(train) > 1:  # otherwise the ids are already in this order
        ids_N = np.concatenate(train + val)
    parts = (ids_N[:train_chars], ids_N[train_chars:])
    return Corpus(
        name=name,
        tokenizer=tokenizer,
        ids_N=ids_N,
        sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        train_chars=train_chars,
        warnings=check_split(*(tokenizer.decode(part_N[:CHECKED_CHARS]) for part_N in parts)),
    )


def split(
    ids_N: np.ndarray, val_fraction: float, val_split: str
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the stretches of a text for training, and the stretches for validation.

    The end of each of several equal pieces is for validation. The split "end" has one piece.
    """
    pieces = 1
    if val_split == "spread":
        pieces = int(np.clip(len(ids_N) * val_fraction // MIN_STRETCH, 2, MAX_PIECES))
    edges = np.linspace(0, len(ids_N), pieces + 1).astype(int)
    train_ends = edges[:-1] + (np.diff(edges) * (1 - val_fraction)).astype(int)
    stretches = np.split(ids_N, np.stack((train_ends, edges[1:]), axis=1).flatten()[:-1])
    return stretches[::2], stretches[1::2]
