"""Which files a path means, and files to text.

For another format, such as JSON Lines, change TEXT_FILES, and `read_file`, which makes text of one
file.
"""

import codecs
import os
from collections.abc import Iterator
from pathlib import Path

from model.run.errors import UserError

TEXT_FILES = "*.txt"  # what is read of a folder; a file that --data names is always read
CHUNK = 1 << 18  # bytes read at a time, so that memory does not grow with the text


def find_text_files(path: Path) -> list[Path]:
    """The file itself, or a folder's TEXT_FILES, sorted by path. Raises UserError if none exist."""
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist. Name a text with --data.")
    if os.path.isfile(path):
        return [path]
    files = sorted(file for file in path.rglob(TEXT_FILES) if os.path.isfile(file))
    if not files:
        raise UserError(f"{path} is neither a file nor a folder with {TEXT_FILES} files.")
    return files


def read_chunks(files: list[Path], encoding: str) -> Iterator[str]:
    """The text of all files in chunks, joined by newlines. Raises UserError as `read_file` does."""
    for i, file in enumerate(files):
        if i > 0:
            yield "\n"
        yield from read_file(file, encoding)


def read_file(file: Path, encoding: str) -> Iterator[str]:
    """The text of one plain text file in chunks, without a byte order mark.

    Raises UserError if the file cannot be read; it names the first byte that cannot be decoded.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    size = 0
    try:
        with open(file, "rb") as stream:
            chunk = None
            while chunk != b"":
                chunk = stream.read(CHUNK)
                size += len(chunk)
                text = decoder.decode(chunk, final=not chunk)
                yield text.removeprefix("\ufeff") if size == len(chunk) else text
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


def read_text(file: Path, encoding: str) -> str:
    """The whole text of a small plain text file. Raises UserError as `read_file` does."""
    return "".join(read_file(file, encoding))
