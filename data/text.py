"""Files to characters: which they are, what they hold, and where they are not what they should be."""

import codecs
import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20  # characters read at a time: memory does not grow with the text


def read_text(path: Path, encoding: str) -> str:
    """A whole small text. Raises ValueError that names the first byte that is not in `encoding`."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} cannot be read: it is no file")
    return "".join(decoded([path], encoding))


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `path` once it is whole. Raises OSError that names it, as on a full disk."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(f"*{path.suffix}.*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > 3600:  # left by a kill
                    other.unlink()
        with open(partial, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror})") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()


def text_files(path: Path) -> list[Path]:
    """The file itself, or a folder's texts in the order of their paths. Raises ValueError where there are none."""
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.X_OK):
            raise ValueError(f"{path} cannot be read: permission denied")
        files = sorted(file for file in path.rglob("*.txt") if os.path.isfile(file))
        if not files:
            raise ValueError(f"{path} is a folder without any .txt file")
        return files
    if not os.path.isfile(path):
        why = "is neither a file nor a folder" if os.path.exists(path) else "does not exist"
        raise ValueError(f"{path} {why}; name a text by --data")
    return [path]


def fingerprint(files: list[Path], encoding: str) -> str:
    """What the prepared ids depend on: the encoding and every file's bytes. Raises ValueError, as does `decoded`."""
    total = hashlib.sha256(codecs.lookup(encoding).name.encode())
    for file in files:
        try:
            with open(file, "rb") as stream:
                total.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    return total.hexdigest()


def decoded(files: list[Path], encoding: str) -> Iterator[str]:
    """The files' text in pieces, a newline between files, byte order marks dropped, newlines as they are.

    Raises ValueError that names the first byte which is not in `encoding`, or why a file cannot be read.
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
                    wrong = str(error)
                    if isinstance(error, UnicodeDecodeError):
                        at = stream.buffer.tell() - len(error.object) + error.start
                        wrong = f"byte 0x{error.object[error.start]:02x} at offset {at}"
                    mend = "name its own with --encoding (latin-1 reads any bytes)"
                    raise ValueError(f"{file} is not {encoding}: {wrong}; {mend}") from None
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
