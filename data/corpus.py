"""A text split into training and validation characters; the batches of both.

An example is T consecutive characters of the training text, or of the validation text. Where these
are stretches from several places, they are joined, and a few examples cross a join.

Shapes: N characters of the text, E examples of an epoch, B examples of a batch, T time
(block_size).
"""

import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from data.check import Findings, check_split
from data.reader import TEXT_FILES, describe_endings, find_text_files, read_chunks
from data.shakespeare import tiny_shakespeare
from data.tokenizer import CharTokenizer, code_points
from model.system.errors import UserError

MAX_EVAL_CHARS = 1 << 20  # at most this many validation characters are evaluated
# With `val_split` spread
MAX_PIECES = 100
MIN_STRETCH = 2000  # validation characters of a piece
NEAR = 200  # a cut moves to a line end that is no farther away
# The standard error of a loss is about this divided by √(its characters): 2.4 to 6.1 on six texts,
# from the losses of examples of 256 characters. (Characters alone give 1.5 to 1.9, but neighbors
# are easy or hard together.)
CHAR_LOSS_DEVIATION = 5.0


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how much of it is for validation."""

    data: Annotated[
        tuple[str, ...] | None,
        f"text files, folders of {TEXT_FILES} files, or - for standard input; default: Tiny "
        "Shakespeare",
    ] = None
    encoding: Annotated[str, "encoding of the text"] = "utf-8"
    val_fraction: Annotated[float, "share of the text for validation", "(0, 1)"] = 0.1
    val_split: Annotated[
        Literal["end", "spread"], "validation text: the end, or up to 100 stretches from everywhere"
    ] = "end"

    def __post_init__(self) -> None:
        if isinstance(self.data, str):  # a single path, as in older checkpoints
            object.__setattr__(self, "data", (self.data,))
        for path in self.data or ():
            if not path:
                raise UserError("data is empty. Name a file or folder, or leave out --data.")
            if re.match(r"[a-z][a-z0-9+.-]+://", path, re.IGNORECASE):
                raise UserError(f"data is an address, {path}. Download it, and name the file.")
        if len(self.data or ()) > 1 and self.data[-1].endswith(".toml"):
            raise UserError(
                f"--data takes every path that follows, including {self.data[-1]}. Put a preset "
                "before the flags."
            )
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise UserError(f"encoding is {self.encoding!r}. Python does not know it.") from None


@dataclass(frozen=True)
class Corpus:
    """A text as token ids: the training text, then the validation text."""

    name: str
    summary: str  # how many files were read and left out; empty for a single file
    tokenizer: CharTokenizer
    ids_N: np.ndarray  # of the text's own characters, sorted, in the smallest type that fits
    to_model_ids: np.ndarray  # these ids to ids of `tokenizer`, which may know more characters
    sha256: str  # depends only on the characters and their order in the text
    train_chars: int  # at the start of ids_N; all others are for validation
    val_fraction: float
    val_split: str
    pieces: int  # the text is cut into this many; the end of each is for validation

    @property
    def val_chars(self) -> int:
        """Characters of the validation split."""
        return len(self.ids_N) - self.train_chars

    @cached_property
    def findings(self) -> Findings:
        """Reasons why the validation loss may mislead."""
        codes_V = code_points(self.tokenizer.vocab)[self.to_model_ids]
        return check_split(self.ids_N, self.train_chars, codes_V)

    @property
    def split_advice(self) -> str:
        """What to do if the validation text is unlike the rest; empty if nothing can be done."""
        would_spread = count_pieces(len(self.ids_N), self.val_fraction, "spread") > 1
        if self.pieces > 1 or not would_spread:
            return ""
        return "--val_split spread takes validation text from everywhere."

    def eval_chars(self, block_size: int) -> int:
        """How many characters an evaluation predicts."""
        return sum(len(starts_B) * T for starts_B, T in self.eval_batches(block_size, block_size))

    def require_length(self, block_size: int) -> None:
        """Raise UserError if a part is not longer than an example."""
        if min(self.train_chars, self.val_chars) <= block_size:
            raise UserError(
                f"{self.name} has {self.train_chars:,} training characters and {self.val_chars:,} "
                f"validation characters; block_size is {block_size}. Use a longer text, a smaller "
                "--block_size or another --val_fraction."
            )

    def describe(self, block_size: int) -> str:
        """The files and sizes for a person."""
        used = self.eval_chars(block_size)
        spread = f" in {self.pieces} stretches" if self.pieces > 1 else ""
        sampled = "" if used >= self.val_chars - 1 else f" (evaluated on {used:,} of them)"
        lines = [
            f"{self.name}: {self.train_chars:,} training characters, "
            f"{self.val_chars:,} validation characters{spread}{sampled}, "
            f"vocabulary of {len(self.tokenizer.vocab)}"
        ]
        if self.summary:
            lines.append(self.summary)
        if self.val_split == "spread" and self.pieces == 1:
            lines.append("too short for --val_split spread: the end of the text validates")
        error = CHAR_LOSS_DEVIATION / math.sqrt(used)
        if error > 0.03:
            lines.append(f"a loss on so little text is uncertain by about {error:.2f} nats")
        return "\n        ".join(lines)

    def batch(
        self, block_size: int, batch_size: int, seed: int, step: int, rows: slice
    ) -> tuple[Tensor, Tensor]:
        """x_BT and y_BT of a training step; y_BT holds the characters that follow those of x_BT.

        Each example is used once per epoch. (If examples were drawn with replacement, an epoch
        would leave out a third of the text.) The batch is a function of the arguments alone, so
        resuming needs no loader state. `rows` selects the part that this process computes.
        """
        starts = []
        for number in range(step * batch_size, (step + 1) * batch_size)[rows]:
            epoch, i = divmod(number, examples_per_epoch(self.train_chars, block_size))
            starts.append(shuffled_starts(self.train_chars, block_size, seed, epoch)[i])
        return self.gather_examples(np.array(starts), block_size)

    def eval_batches(self, block_size: int, chars: int) -> list[tuple[np.ndarray, int]]:
        """(starts_B, T) of batches of so many characters, which cover the validation split.

        Every character except the first is predicted exactly once; the last example is shorter.
        Beyond MAX_EVAL_CHARS, evenly spaced examples are used instead.
        """
        targets = self.val_chars - 1
        starts = self.train_chars + np.arange(targets // block_size) * block_size
        last_T = targets % block_size
        max_examples = max(1, MAX_EVAL_CHARS // block_size)
        if len(starts) > max_examples:
            starts = starts[np.linspace(0, len(starts) - 1, max_examples).astype(int)]
            last_T = 0
        rows = max(1, chars // block_size)
        batches = [(starts[i : i + rows], block_size) for i in range(0, len(starts), rows)]
        if last_T > 0:
            batches.append((np.array([self.train_chars + targets - last_T]), last_T))
        return batches

    def gather_examples(self, starts_B: np.ndarray, T: int) -> tuple[Tensor, Tensor]:
        """x_BT, the T characters of the text from each start, and y_BT, one character later."""
        ids_BT = self.to_model_ids[self.ids_N[starts_B[:, None] + np.arange(T + 1)]]
        x_BT, y_BT = torch.from_numpy(ids_BT[:, :-1]), torch.from_numpy(ids_BT[:, 1:])
        return x_BT.contiguous(), y_BT.contiguous()


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
    paths = [str(tiny_shakespeare())] if config.data is None else config.data
    files, left_out = find_text_files(paths)
    chunks = read_chunks(files, config.encoding)
    bar = tqdm(chunks, "reading the text", unit=" chunks", delay=1, disable=None)
    ids_N, text_vocab, sha256 = encode(bar)
    name = "standard input" if paths[0] == "-" else paths[0]
    name += f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    if len(text_vocab) < 2:
        raise UserError(f"{name} is empty or repeats one character. There is nothing to learn.")
    tokenizer = CharTokenizer(vocab + "".join(sorted(set(text_vocab) - set(vocab))))
    to_model_ids = tokenizer.encode(text_vocab)

    pieces = count_pieces(len(ids_N), config.val_fraction, config.val_split)
    line_end = text_vocab.find("\n" if "\n" in text_vocab else "\r")
    stretches = np.split(ids_N, cuts(ids_N, config.val_fraction, pieces, line_end))
    if pieces > 1:
        ids_N = np.concatenate(stretches[::2] + stretches[1::2])
    summary = ""
    if len(paths) > 1 or os.path.isdir(paths[0]):
        plural = "s" if len(files) > 1 else ""
        summary = f"{len(ids_N):,} characters of {len(files):,} file{plural}"
        summary += f"; left out: {describe_endings(left_out)}" if left_out else ""
    return Corpus(
        name=name,
        summary=summary,
        tokenizer=tokenizer,
        ids_N=ids_N,
        to_model_ids=to_model_ids,
        sha256=sha256,
        train_chars=sum(map(len, stretches[::2])),
        val_fraction=config.val_fraction,
        val_split=config.val_split,
        pieces=pieces,
    )


def count_pieces(length: int, val_fraction: float, val_split: str) -> int:
    """How many pieces a text is cut into, each with validation text at its end."""
    val_chars = length - int(length * (1 - val_fraction))
    return max(1, min(MAX_PIECES, val_chars // MIN_STRETCH)) if val_split == "spread" else 1


def cuts(ids_N: np.ndarray, val_fraction: float, pieces: int, line_end: int) -> np.ndarray:
    """Where the stretches of a text end, but the last: training, validation, training, ...

    Each of `pieces` equal pieces ends with validation text. Between several, a cut moves to just
    after the nearest `line_end`, if one is within NEAR characters.
    """
    edges = np.linspace(0, len(ids_N), pieces + 1).astype(int)
    train_ends = edges[:-1] + (np.diff(edges) * (1 - val_fraction)).astype(int)
    positions = np.stack((train_ends, edges[1:]), axis=1).flatten()[:-1]
    if pieces == 1:
        return positions
    for i, position in enumerate(positions):
        start = max(position - NEAR - 1, 0)
        near = start + 1 + np.flatnonzero(ids_N[start : position + NEAR] == line_end)
        if len(near):
            positions[i] = near[np.abs(near - position).argmin()]
    return positions


def encode(chunks: Iterable[str]) -> tuple[np.ndarray, str, str]:
    """The ids of a text, read in one pass; its vocabulary; the SHA-256 of both.

    Id i stands for the character `vocab[i]`; the vocabulary is all characters of the text, sorted.
    """
    id_of_code_point = np.full(sys.maxunicode + 1, -1, np.int32)
    found: list[int] = []  # code points by first appearance; ids are positions in it
    content, dtype = bytearray(), np.dtype(np.uint8)  # grows in place
    for text in chunks:
        codes_T = code_points(text)
        ids_T = id_of_code_point[codes_T]
        if (ids_T < 0).any():
            new = np.unique(codes_T[ids_T < 0])
            id_of_code_point[new] = np.arange(len(found), len(found) + len(new))
            found.extend(new.tolist())
            ids_T = id_of_code_point[codes_T]
            wider = np.min_scalar_type(len(found) - 1)
            if wider != dtype:
                content, dtype = bytearray(np.frombuffer(content, dtype).astype(wider)), wider
        content += ids_T.astype(dtype).data
    ids_N = np.frombuffer(content, dtype)
    vocab = "".join(map(chr, sorted(found)))
    digest = hashlib.sha256(json.dumps(vocab).encode())
    sorted_ids = np.argsort(np.argsort(found)).astype(dtype)
    for part_T in np.array_split(ids_N, len(ids_N) // 2**20 + 1):  # views, which bound the memory
        part_T[:] = sorted_ids[part_T]
        digest.update(part_T)
    return ids_N, vocab, digest.hexdigest()
