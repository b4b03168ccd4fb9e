"""A text on disk to ids, to the batches that train and the windows that validate.

Shapes: N characters, B batch, T time (block_size).
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from data.download import tiny_shakespeare
from data.text import decoded, fingerprint, text_files, written_whole
from data.tokenizer import CharTokenizer, code_points

PREPARED = Path(__file__).with_name("prepared")  # ids by the text's hash; may be deleted at any time
EVAL_CHARS = 4096  # characters per validation batch: what fits the cache is quickest
MOST_VAL_CHARS = 1 << 22  # half a minute on two cores; longer validation splits are sampled at even distances


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how much of it validates."""

    data: Annotated[str | None, "text file, or folder whose *.txt are read; left out: Tiny Shakespeare"] = None
    encoding: Annotated[str, "of the text; with latin-1 any file trains as bytes"] = "utf-8"
    val_fraction: Annotated[float, "last share of the text, kept for validation", "(0, 1)"] = 0.1

    def __post_init__(self) -> None:
        if self.data == "":
            raise ValueError("data is empty; name a file or a folder, or leave it out for Tiny Shakespeare")
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(f"encoding {self.encoding!r} is no text encoding that Python knows") from None


@dataclass(frozen=True)
class Corpus:
    """A text as ids: the first part trains, the last validates."""

    name: str
    sha256: str
    tokenizer: CharTokenizer
    to_model: np.ndarray  # the text's ids to the model's, which may know more characters
    train: np.ndarray  # ids_N, on disk
    val: np.ndarray  # ids_N, on disk

    def describe(self, block_size: int) -> str:
        """The sizes, in words."""
        seen = sum(len(starts_B) * T for starts_B, T in self.windows(block_size))
        some = f" ({seen:,} of them, in windows at even distances)" if seen < len(self.val) - 1 else ""
        sizes = f"{len(self.train):,} characters to train on, {len(self.val):,} to validate{some}"
        return f"{self.name}: {sizes}, {len(self.tokenizer.vocab)} different ones"

    def batch(self, block_size: int, batch_size: int, seed: int, step: int, rows: slice) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT, the characters that follow x's: `rows` of this step's windows.

        Windows are dealt like cards, each once an epoch: drawn with replacement, a third of the text
        would go unread in an epoch's time. A function of its arguments alone: to resume is to ask
        for the next step.
        """
        deals_B = np.arange(step * batch_size, (step + 1) * batch_size)[rows]
        n = len(shuffled_windows(len(self.train), block_size, seed, 0))
        starts = [shuffled_windows(len(self.train), block_size, seed, deal // n)[deal % n] for deal in deals_B]
        return self.pairs(self.train, np.array(starts), block_size)

    def windows(self, block_size: int) -> list[tuple[np.ndarray, int]]:
        """Where validation looks: batches of window starts, and the windows' length.

        Together they predict every character of the split but its first exactly once, the last
        window being shorter, or, past MOST_VAL_CHARS, windows at even distances.
        """
        targets = len(self.val) - 1
        starts = np.arange(targets // block_size) * block_size
        most = max(1, MOST_VAL_CHARS // block_size)
        tail = [(np.array([targets - targets % block_size]), targets % block_size)]
        if len(starts) > most:
            starts, tail = starts[np.linspace(0, len(starts) - 1, most).astype(int)], []
        rows = max(1, EVAL_CHARS // block_size)
        whole = [(starts[i : i + rows], block_size) for i in range(0, len(starts), rows)]
        return whole + [batch for batch in tail if batch[1]]

    def pairs(self, ids_N: np.ndarray, starts_B: np.ndarray, T: int) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT, the characters that follow x's: T of `ids_N` (train or val) from each start."""
        text_BT = torch.from_numpy(self.to_model[ids_N[starts_B[:, None] + np.arange(T + 1)]])
        return text_BT[:, :-1].contiguous(), text_BT[:, 1:].contiguous()


@lru_cache(maxsize=3)
def shuffled_windows(length: int, block_size: int, seed: int, epoch: int) -> np.ndarray:
    """starts_W of the windows that cut `length` characters side by side, shuffled.

    Each epoch cuts elsewhere, so that in time every character stands at every place of a window.
    """
    rng = np.random.default_rng([seed, epoch])
    count = max(1, (length - 1) // block_size - 1)
    return rng.integers(length - count * block_size) + block_size * rng.permutation(count)


def open_corpus(config: DataConfig, block_size: int, vocab: str | None = None) -> Corpus:
    """The corpus of `config`, prepared on disk at first use, its ids those of `vocab` if one is given.

    Raises ValueError for a text that cannot be read, is too short for block_size, or has
    characters that are not in `vocab`.
    """
    path = tiny_shakespeare() if config.data is None else Path(config.data)
    files = text_files(path)
    sha256 = fingerprint(files, config.encoding)
    prepared = PREPARED / f"{sha256}.npy"
    try:
        loaded = _load(prepared)
    except (OSError, ValueError):
        loaded = None  # not there yet, or damaged
    if loaded is None:
        _prepare(files, config.encoding, prepared)
        loaded = _load(prepared)
    ids_N, own_vocab = loaded
    tokenizer = CharTokenizer(vocab or own_vocab)

    n_train = int(len(ids_N) * (1 - config.val_fraction))
    train, val = ids_N[:n_train], ids_N[n_train:]
    if min(len(train), len(val)) <= block_size:
        raise ValueError(
            f"{path} has {len(train):,} characters to train on and {len(val):,} to validate; each must be longer "
            f"than block_size ({block_size}): take a longer text, a smaller --block_size or another --val_fraction"
        )
    if len(own_vocab) < 2:
        raise ValueError(f"{path} holds one character over and over, {own_vocab!r}: there is nothing to learn")
    to_model = tokenizer.encode(own_vocab, str(path)).astype(np.int64)
    return Corpus(str(path), sha256, tokenizer, to_model, train, val)


def _load(path: Path) -> tuple[np.ndarray, str]:
    """The ids_N, left on disk, and the vocabulary that `_prepare` wrote. Raises ValueError where it did not."""
    content = np.memmap(path, np.uint8, "r")
    if hashlib.sha256(content[:-32]).digest() != content[-32:].tobytes():
        raise ValueError("damaged")
    ids_N = np.load(path, mmap_mode="r")
    return ids_N, content[ids_N.offset + ids_N.nbytes : -32].tobytes().decode()


def _prepare(files: list[Path], encoding: str, path: Path) -> None:
    """Write the ids as a .npy file, the vocabulary and a digest behind them, in two passes over the text."""
    seen, length = np.zeros(0x110000, bool), 0
    for text in decoded(files, encoding):
        seen[code_points(text)] = True
        length += len(text)
    if not length:
        raise ValueError(f"{files[0]} is empty")
    vocab = "".join(map(chr, np.flatnonzero(seen)))
    tokenizer = CharTokenizer(vocab)
    header = {"descr": tokenizer.dtype.str, "fortran_order": False, "shape": (length,)}

    with written_whole(path) as file:  # a file that grows: a map of one would crash on a full disk
        np.lib.format.write_array_header_1_0(file, header)
        for text in decoded(files, encoding):
            file.write(tokenizer.encode(text, f"{files[0]}, changed while it was being read,").tobytes())
        file.write(vocab.encode())
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())
        if fingerprint(files, encoding) != path.stem:
            raise ValueError(f"{files[0]} changed while it was being read")
