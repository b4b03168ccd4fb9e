"""Reading text files: which files a path means, their characters."""

import codecs
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from model.errors import UserError

CHUNK = 1 << 20  # bytes read at a time, so that memory does not grow with the text


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


def read_chunks(
    files: list[Path], encoding: str, on_read: Callable[[int], object] = lambda size: None
) -> Iterator[str]:
    """The files' text in chunks, joined by newlines; byte order marks are dropped.

    Calls `on_read` with the size in bytes of each chunk. Raises UserError that names the first byte
    that cannot be decoded.
    """
    for i, file in enumerate(files):
        if i:
            yield "\n"
        decoder, size, at_start = codecs.getincrementaldecoder(encoding)(), 0, True
        try:
            with open(file, "rb", buffering=0) as stream:
                chunk = None
                while chunk != b"":
                    chunk = stream.read(CHUNK)
                    size += len(chunk)
                    on_read(len(chunk))
                    text = decoder.decode(chunk, final=not chunk)
                    if text and at_start:
                        text, at_start = text.removeprefix("\ufeff"), False
                    if text:
                        yield text
        except UnicodeError as error:
            problem = str(error)
            if isinstance(error, UnicodeDecodeError):
                offset = size - len(error.object) + error.start
                problem = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
            raise UserError(
                f"{file} is not {encoding}: {problem}. "
                "Name its encoding with --encoding (latin-1 reads any bytes)."
            ) from None
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None
