"""Texts as token ids on disk: a text is read again only if it, or the code that reads it, changed.

A prepared file holds ids_N in NumPy's format, then all else as JSON. Id i stands for the character
`vocab[i]`; the vocabulary is all characters of the text, sorted.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data.reader import read_chunks
from data.tokenizer import code_points
from model.run.errors import UserError
from model.run.files import atomic_write

PREPARED = Path(__file__).with_name("prepared")  # may be deleted between runs
# The code that makes the ids
SOURCES = [Path(__file__).with_name(name) for name in ("prepared.py", "reader.py", "tokenizer.py")]


@dataclass(frozen=True)
class PreparedText:
    """A text of N characters as ids on disk, memory-mapped."""

    ids_N: np.ndarray
    vocab: str
    sha256: str  # depends only on the characters and their order


def open_prepared(files: list[Path], encoding: str) -> PreparedText:
    """The joined text of `files`; it is prepared unless that was done before.

    Raises UserError if the files cannot be read or decoded, or change while they are read.
    """
    path = _prepared_path(files, encoding)
    with contextlib.suppress(Exception):  # missing or damaged: NumPy raises many types
        return _load(path)
    PREPARED.mkdir(exist_ok=True)
    _prepare(files, encoding, path)
    return _load(path)


def _prepared_path(files: list[Path], encoding: str) -> Path:
    """The name changes when one of the files, the encoding or the code in SOURCES changes.

    No program can set ctime, so a change is seen even if size and mtime are set back. (On Windows,
    ctime is the time of creation.)
    """
    stats = [(str(file.resolve()), file.stat()) for file in files]
    key = [(path, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for path, s in stats]
    key += [encoding, *(source.read_bytes() for source in SOURCES)]
    return PREPARED / f"{hashlib.sha256(repr(key).encode()).hexdigest()}.ids"


def _load(path: Path) -> PreparedText:
    """Raises OSError or ValueError if the file does not exist, is cut short or goes on."""
    ids_N = np.lib.format.open_memmap(path, mode="r")
    with open(path, "rb") as file:
        file.seek(ids_N.offset + ids_N.nbytes)
        rest = json.loads(file.read())
    return PreparedText(ids_N, rest["vocab"], rest["sha256"])


def _prepare(files: list[Path], encoding: str, path: Path) -> None:
    """Read the files twice: first to find the vocabulary, then to write their ids to `path`."""

    def chunks(title: str) -> Iterator[str]:
        return tqdm(read_chunks(files, encoding), title, unit=" chunks", delay=1, disable=None)

    length, is_used = 0, np.zeros(sys.maxunicode + 1, bool)  # of each code point
    for text in chunks("collecting characters"):
        length += len(text)
        is_used[code_points(text)] = True
    if not is_used.any():
        raise UserError(f"{files[0]} is empty.")
    if is_used[0xD800:0xE000].any():
        raise UserError(f"the text is not {encoding}: it has an unpaired surrogate.")
    vocab = "".join(map(chr, np.flatnonzero(is_used)))
    dtype = np.min_scalar_type(len(vocab) - 1).newbyteorder("<")  # the smallest that fits
    id_of_code_point = (np.cumsum(is_used) - 1).astype(dtype)

    # Plain writes: writing through a memory map of a full disk ends the process (SIGBUS).
    with atomic_write(path) as ids_file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(ids_file, header)
        text_digest = hashlib.sha256(json.dumps(vocab).encode())
        for text in chunks("writing ids"):
            ids_T = id_of_code_point[code_points(text)]
            ids_file.write(ids_T)
            text_digest.update(ids_T)
        if _prepared_path(files, encoding) != path:
            raise UserError("the text changed while it was being read. Start again.")
        rest = {"vocab": vocab, "sha256": text_digest.hexdigest()}
        ids_file.write(json.dumps(rest).encode())
