"""Reading text files: which files a path means, their characters, a hash of their content."""

import codecs
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from model.errors import UserError

CHUNK = 1 << 20  # characters read at a time, so that memory does not grow with the text


def read_text(path: Path, encoding: str) -> str:
    """A whole small text. Raises UserError if it cannot be read or decoded."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{path} cannot be read: it is not a file.")
    return "".join(read_chunks([path], encoding))


def find_text_files(path: Path) -> list[Path]:
    """The file itself, or all *.txt in a folder, sorted by path. Raises UserError if none exist."""
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            raise UserError(f"{path} cannot be read: permission denied.")
        files = sorted(file for file in path.rglob("*.txt") if os.path.isfile(file))
        if not files:
            raise UserError(f"{path} is a folder without any .txt file.")
        return files
    if not os.path.isfile(path):
        problem = "is neither a file nor a folder" if os.path.exists(path) else "does not exist"
        raise UserError(f"{path} {problem}. Name a text with --data.")
    return [path]


def hash_files(files: list[Path], encoding: str) -> str:
    """SHA-256 of the encoding's name and the files' bytes. Raises UserError."""
    total = hashlib.sha256(codecs.lookup(encoding).name.encode())
    for file in files:
        try:
            with open(file, "rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    return total.hexdigest()


def read_chunks(files: list[Path], encoding: str) -> Iterator[str]:
    """The files' text in chunks, joined by newlines; byte order marks are dropped.

    Raises UserError that names the first byte that cannot be decoded.
    """
    for i, file in enumerate(files):
        if i:
            yield "\n"
        try:
            with open(file, encoding=encoding, newline="") as stream:
                try:
                    text = stream.read(CHUNK).removeprefix("\ufeff")
                    while text:
                        yield text
                        text = stream.read(CHUNK)
                except UnicodeError as error:
                    problem = str(error)
                    if isinstance(error, UnicodeDecodeError):
                        offset = stream.buffer.tell() - len(error.object) + error.start
                        problem = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
                    raise UserError(
                        f"{file} is not {encoding}: {problem}. "
                        "Name its encoding with --encoding (latin-1 reads any bytes)."
                    ) from None
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None
