"""From a text to token ids on disk, to the batches for training and the windows for evaluation.

Shapes: N characters, B batch, T time (block_size), W windows of an epoch.
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
from data.text import find_text_files, hash_files, read_chunks
from data.tokenizer import CharTokenizer, code_points
from model.errors import RunError, UserError, atomic_write, disk_message

PREPARED = Path(__file__).with_name("prepared")  # ids of each text; may be deleted at any time
EVAL_BATCH_CHARS = 4096  # per evaluation batch: fits the processor's cache
MAX_EVAL_CHARS = 1 << 22  # of a longer validation split, only so many are evaluated


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
    sha256: str
    tokenizer: CharTokenizer
    to_model_ids: np.ndarray  # ids on disk to ids of `tokenizer`, which may know more characters
    train: np.ndarray  # ids_N, memory-mapped
    val: np.ndarray  # ids_N, memory-mapped

    def describe(self, block_size: int) -> str:
        """The sizes for a person."""
        used = sum(len(starts_B) * T for starts_B, T in self.eval_windows(block_size))
        sampled = "" if used >= len(self.val) - 1 else f" (evaluated on {used:,} of them)"
        return (
            f"{self.name}: {len(self.train):,} training characters, "
            f"{len(self.val):,} validation characters{sampled}, "
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
        length, starts = len(self.train), []
        for number in range(step * batch_size, (step + 1) * batch_size)[rows]:
            epoch, i = divmod(number, windows_per_epoch(length, block_size))
            starts.append(shuffled_windows(length, block_size, seed, epoch)[i])
        return self.gather_windows(self.train, np.array(starts), block_size)

    def eval_windows(self, block_size: int) -> list[tuple[np.ndarray, int]]:
        """Batches of (window starts, window length) that cover the validation split.

        Every character except the first is predicted exactly once; the last window is shorter.
        Beyond MAX_EVAL_CHARS, evenly spaced windows are used instead.
        """
        targets = len(self.val) - 1
        starts = np.arange(targets // block_size) * block_size
        last_length = targets % block_size
        last = [(np.array([targets - last_length]), last_length)] if last_length else []
        max_windows = max(1, MAX_EVAL_CHARS // block_size)
        if len(starts) > max_windows:
            spaced = np.linspace(0, len(starts) - 1, max_windows).astype(int)
            starts, last = starts[spaced], []
        rows = max(1, EVAL_BATCH_CHARS // block_size)
        batches = [(starts[i : i + rows], block_size) for i in range(0, len(starts), rows)]
        return batches + last

    def gather_windows(
        self, ids_N: np.ndarray, starts_B: np.ndarray, T: int
    ) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT: windows of T characters of `ids_N`, and the same one character later."""
        window_BT = self.to_model_ids[ids_N[starts_B[:, None] + np.arange(T + 1)]]
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
    return offset + block_size * rng.permutation(count)


def open_corpus(config: DataConfig, block_size: int, vocab: str | None = None) -> Corpus:
    """The corpus of `config`; its ids are prepared on disk at first use.

    With `vocab`, that of a checkpoint, the ids are indices into it. Raises UserError if the text
    cannot be read, is too short, or has characters that are not in `vocab`.
    """
    path = tiny_shakespeare() if config.data is None else Path(config.data)
    files = find_text_files(path)
    sha256 = hash_files(files, config.encoding)
    prepared = PREPARED / f"{sha256}.npy"
    if not _is_intact(prepared):
        _prepare(files, config.encoding, prepared)
    ids_N, own_vocab = _load(prepared)

    n_train = int(len(ids_N) * (1 - config.val_fraction))
    train, val = ids_N[:n_train], ids_N[n_train:]
    if min(len(train), len(val)) <= block_size:
        raise UserError(
            f"{path} has {len(train):,} training characters and {len(val):,} validation "
            f"characters; block_size is {block_size}. Use a longer text, a smaller --block_size "
            "or another --val_fraction."
        )
    if len(own_vocab) < 2:
        raise UserError(f"{path} repeats one character, {own_vocab!r}. There is nothing to learn.")
    tokenizer = CharTokenizer(vocab or own_vocab)
    to_model_ids = tokenizer.encode(own_vocab, str(path)).astype(np.int64)
    return Corpus(str(path), sha256, tokenizer, to_model_ids, train, val)


def _is_intact(prepared: Path) -> bool:
    """Whether the file exists and its last 32 bytes are the SHA-256 of the rest."""
    try:
        content = np.memmap(prepared, np.uint8, "r")
    except (OSError, ValueError):  # missing or empty
        return False
    return hashlib.sha256(content[:-32]).digest() == content[-32:].tobytes()


def _load(prepared: Path) -> tuple[np.ndarray, str]:
    """ids_N, memory-mapped, and the vocabulary."""
    ids_N = np.load(prepared, mmap_mode="r")
    with open(prepared, "rb") as file:
        file.seek(ids_N.offset + ids_N.nbytes)
        return ids_N, file.read()[:-32].decode()


def _prepare(files: list[Path], encoding: str, prepared: Path) -> None:
    """Write the ids as a .npy file, followed by the vocabulary and the SHA-256 of both.

    The text is read twice, first for the vocabulary.
    """
    seen, length = np.zeros(0x110000, bool), 0
    for text in read_chunks(files, encoding):
        seen[code_points(text)] = True
        length += len(text)
    if not length:
        raise UserError(f"{files[0]} is empty.")
    if seen[0xD800:0xE000].any():
        raise UserError(f"{files[0]} is not {encoding}: it has an unpaired surrogate.")
    vocab = "".join(map(chr, np.flatnonzero(seen)))
    tokenizer = CharTokenizer(vocab)
    header = {"descr": tokenizer.dtype.str, "fortran_order": False, "shape": (length,)}

    try:
        prepared.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(disk_message(prepared.parent, error)) from None
    # Plain writes: writing through a memory map of a full disk ends the process (SIGBUS).
    with atomic_write(prepared) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for text in read_chunks(files, encoding):
            ids_N = tokenizer.encode(text, f"{files[0]}, changed while it was being read,")
            file.write(ids_N.tobytes())
        file.write(vocab.encode())
        file.seek(0)
        file.write(hashlib.file_digest(file, "sha256").digest())
        if hash_files(files, encoding) != prepared.stem:
            raise UserError(f"{files[0]} changed while it was being read.")
