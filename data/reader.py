"""Finds text files and decodes them.

For another format, such as JSON Lines, change TEXT_FILES, and let `read_file`, which makes text of
one file, treat files with that ending in another way.
"""

import codecs
import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from model.system.errors import UserError

TEXT_FILES = "*.txt"  # what is read of a folder; a file that is named is always read
CHUNK = 1 << 18  # bytes read at a time, so that memory does not grow with the text


def find_text_files(path: Path) -> list[Path]:
    """The file itself, or the TEXT_FILES of a folder and its subfolders, sorted by path.

    Names that begin with a dot are left out. Raises UserError if there are no files, or a folder
    cannot be read or is a link (which might lead back).
    """
    if os.path.isfile(path):
        return [path]

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}. Use another --data.")

    files = []
    for folder, subfolders, names in os.walk(path, onerror=refuse):
        for name in fnmatch.filter(names, TEXT_FILES):
            if os.path.isfile(file := Path(folder, name)) and not name.startswith("."):
                files.append(file)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in subfolders:
            if os.path.islink(linked := Path(folder, name)):
                raise UserError(f"{linked} is a link to a folder. Name the folder itself.")
    if not files:
        raise UserError(f"{path} has no {TEXT_FILES} files.")
    return sorted(files)


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
            "Convert it, or train with its --encoding (latin-1 reads any bytes)."
        ) from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def read_text(file: Path, encoding: str) -> str:
    """The whole text of a small plain text file. Raises UserError as `read_file` does."""
    return "".join(read_file(file, encoding))
