"""Texts as token ids on disk: prepared once, checked piece by piece as they are read.

A prepared file holds ids_N; then an index as JSON: the vocabulary, and a SHA-256 of each piece of
the ids; then the length of the index and its SHA-256, which is also the file's name. So opening a
text takes no longer if it is long, and no damaged piece is ever trained on.
"""

import codecs
import contextlib
import hashlib
import itertools
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.text import read_chunks
from data.tokenizer import code_points
from model.errors import RunError, UserError, atomic_write, disk_message

PREPARED = Path(__file__).with_name("prepared")  # may be deleted at any time
PIECE = 1 << 18  # bytes
EAGER_PIECES = 256  # checked when the file is opened, so that a small damaged one is made again
SETTLED_SECONDS = 2  # a file that has just changed may change again without another time


class PreparedText:
    """The ids of a text on disk, memory-mapped. Id i stands for the character `vocab[i]`."""

    def __init__(self, sha256: str) -> None:
        """`sha256` depends only on the characters and their order.

        Raises OSError or ValueError if the file does not exist or is damaged.
        """
        self.path = PREPARED / f"{sha256}.ids"
        with open(self.path, "rb") as file:
            file.seek(-40, os.SEEK_END)
            length, digest = int.from_bytes(file.read(8)), file.read()
            file.seek(-40 - length, os.SEEK_END)
            content = file.read(length)
        if hashlib.sha256(content).digest() != digest or digest.hex() != sha256:
            raise ValueError(f"{self.path} is damaged")
        index = json.loads(content)
        self.sha256 = sha256
        self.vocab, self.digests = index["vocab"], index["digests"]
        self.ids_N = np.memmap(self.path, index["dtype"], "r", shape=(index["length"],))
        self.is_checked = np.zeros(len(self.digests), bool)
        for piece in range(min(EAGER_PIECES, len(self.digests))):
            self._check(piece)

    def windows(self, starts_B: np.ndarray, T: int) -> np.ndarray:
        """ids_BT: B windows of T characters. Raises RunError if the file is damaged there."""
        for start in starts_B.tolist():
            size = self.ids_N.itemsize
            for piece in range(start * size // PIECE, ((start + T) * size - 1) // PIECE + 1):
                if not self.is_checked[piece]:
                    try:
                        self._check(piece)
                    except ValueError as error:
                        raise RunError(f"{error}. Delete it; it will be made again.") from None
        return self.ids_N[starts_B[:, None] + np.arange(T)]

    def _check(self, piece: int) -> None:
        content = self.ids_N.view(np.uint8)[piece * PIECE : (piece + 1) * PIECE]
        if hashlib.sha256(content).hexdigest() != self.digests[piece]:
            raise ValueError(f"{self.path} is damaged")
        self.is_checked[piece] = True


def open_prepared(files: list[Path], encoding: str) -> PreparedText:
    """The joined text of `files` as ids; the files are read only if they changed since last time.

    Raises UserError if they cannot be read or decoded, or change while they are read.
    """
    state, last_change = _file_state(files, encoding)
    record = PREPARED / f"{state}.txt"  # holds the SHA-256 of the text of files in this state
    with contextlib.suppress(OSError, ValueError):
        return PreparedText(record.read_text("ascii"))
    started = time.time()
    try:
        PREPARED.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(disk_message(PREPARED, error)) from None
    unnamed = PREPARED / f"{state}.{uuid.uuid4().hex}"  # another process may prepare it, too
    sha256 = _prepare(files, encoding, unnamed)
    if _file_state(files, encoding)[0] != state:
        unnamed.unlink()
        raise UserError(f"{files[0]} changed while it was being read.")
    unnamed.replace(PREPARED / f"{sha256}.ids")
    if last_change < started - SETTLED_SECONDS:
        with atomic_write(record) as file:
            file.write(sha256.encode())
    return PreparedText(sha256)


def _file_state(files: list[Path], encoding: str) -> tuple[str, float]:
    """A hash that changes when a file is changed, and the time of the latest change.

    No program can set ctime, so a change is seen even if size and mtime are set back. (On Windows,
    ctime is the time of creation.)
    """
    try:
        stats = [(str(file.resolve()), file.stat()) for file in files]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}.") from None
    key = [codecs.lookup(encoding).name]
    key += [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats]
    last_change = max(max(s.st_mtime, s.st_ctime) for _, s in stats)
    return hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest(), last_change


def _prepare(files: list[Path], encoding: str, path: Path) -> str:
    """Write the prepared text to `path`, with as few bytes per id as its vocabulary needs.

    Returns the SHA-256 of the text.
    """
    vocab = ""
    for dtype in ("<u1", "<u2", "<u4"):
        encoder = _Encoder(vocab, np.dtype(dtype))
        try:
            return _write(files, encoding, path, encoder)
        except OverflowError:
            vocab = encoder.vocab
    raise AssertionError("four bytes are enough for every character")


def _write(files: list[Path], encoding: str, path: Path, encoder: "_Encoder") -> str:
    """Write ids and index. Returns their SHA-256.

    Raises OverflowError if an id needs more bytes.
    """
    total = sum(file.stat().st_size for file in files)
    bar = tqdm(total=total, desc="preparing", unit="B", unit_scale=True, delay=1, disable=None)
    size, digests, pending = 0, [], b""
    # Plain writes: writing through a memory map of a full disk ends the process (SIGBUS).
    with bar, atomic_write(path) as file:
        for text in itertools.chain(read_chunks(files, encoding, bar.update), [""]):
            pending += encoder.encode(text)
            whole = len(pending) // PIECE * PIECE if text else len(pending)
            for start in range(0, whole, PIECE):
                piece = pending[start : min(start + PIECE, whole)]
                digests.append(hashlib.sha256(piece).hexdigest())
            file.write(pending[:whole])
            pending = pending[whole:]
            size += whole
        if not size:
            raise UserError(f"{files[0]} is empty.")
        if re.search("[\ud800-\udfff]", encoder.vocab):
            raise UserError(f"{files[0]} is not {encoding}: it has an unpaired surrogate.")
        dtype = encoder.id_of.dtype
        index = {"dtype": dtype.str, "length": size // dtype.itemsize, "vocab": encoder.vocab}
        content = json.dumps(index | {"digests": digests}).encode()
        digest = hashlib.sha256(content)
        file.write(content + len(content).to_bytes(8) + digest.digest())
    return digest.hexdigest()


class _Encoder:
    """Characters to ids, in the order in which they first occur."""

    def __init__(self, vocab: str, dtype: np.dtype) -> None:
        self.vocab = ""
        self.unknown = np.iinfo(dtype).max
        self.id_of = np.full(sys.maxunicode + 1, self.unknown, dtype)  # of each code point
        self._add(code_points(vocab))

    def encode(self, text: str) -> bytes:
        """The ids of `text`; new characters are added to the vocabulary."""
        if self.id_of.dtype == np.uint8 and text.isascii():  # three times as fast
            ids = text.encode().translate(self.id_of[:256].tobytes())
            if self.unknown not in ids:
                return ids
        codes = code_points(text)
        ids_T = np.take(self.id_of, codes, mode="clip")  # the fastest mode; nothing is clipped
        is_unknown = ids_T == self.unknown
        if is_unknown.any():
            self._add(codes[is_unknown])
            ids_T[is_unknown] = self.id_of[codes[is_unknown]]
        return ids_T.tobytes()

    def _add(self, codes: np.ndarray) -> None:
        new = codes[np.sort(np.unique(codes, return_index=True)[1])]
        if len(self.vocab) + len(new) > self.unknown:
            raise OverflowError
        self.id_of[new] = np.arange(len(self.vocab), len(self.vocab) + len(new))
        self.vocab += "".join(map(chr, new))
