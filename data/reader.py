"""Finds text files and decodes them.

For another format, such as JSON Lines, change TEXT_FILES, and make text of a file with that ending
in `read_chunks`. `read_file` decodes; sample.py also uses it for prompts.
"""

import codecs
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from model.system.errors import UserError

TEXT_FILES = ".txt"  # what is read of a folder, in any case; a file that is named is always read
STANDARD_INPUT = Path("-")
CHUNK = 1 << 18  # bytes are read and decoded in chunks, which saves memory


def find_text_files(paths: Sequence[str]) -> list[Path]:
    """The files to read, in order. Raises UserError if a folder has none.

    A path is a file (or a pipe, or - for standard input), or a folder, which stands for the
    TEXT_FILES in it and its subfolders, in the order in which a person counts. Names that begin
    with a dot are left out.
    """
    files = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(path)
            continue
        found = [
            file
            for file in path.rglob("*")
            if file.suffix.lower() == TEXT_FILES
            and file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
        if not found:
            raise UserError(f"{path} has no {TEXT_FILES} files. Name files of text: --data A B.")
        files += sorted(found, key=counting_order)
    return files


def is_stream(path: Path | str) -> bool:
    """Whether a path is standard input, a pipe or a device, which can be read only once."""
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return is_special or Path(path) == STANDARD_INPUT


def counting_order(path: Path) -> list[list]:
    """A key to sort paths by: numbers in names by their value, letters without regard to case."""
    folded = [re.split(r"(\d+)", part.casefold()) for part in path.parts]
    numbers = [[int(x) if i % 2 else x for i, x in enumerate(part)] for part in folded]
    return [numbers, list(path.parts)]


def read_chunks(files: list[Path], encoding: str) -> Iterator[str]:
    """The text of all files in chunks, joined by newlines. Raises UserError as `read_file` does."""
    for i, file in enumerate(files):
        if i > 0:
            yield "\n"
        yield from read_file(file, encoding)


def read_file(file: Path, encoding: str) -> Iterator[str]:
    """The text of one plain text file in chunks, without a byte order mark.

    Raises UserError if the file cannot be read or is not plain text; it names the first byte that
    cannot be decoded.
    """
    is_standard_input = file == STANDARD_INPUT
    name, size = "standard input" if is_standard_input else file, 0
    convert = "Convert it to plain text, or name its --encoding (utf-16, cp1252, gb18030, ...)."
    try:
        "".encode(encoding)  # a codec such as base64 is not for text
        decoder = codecs.getincrementaldecoder(encoding)()
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if is_standard_input else stack.enter_context(file.open("rb"))
            chunk = None
            while chunk != b"":
                chunk = stream.read(CHUNK)
                size += len(chunk)
                text = decoder.decode(chunk, final=not chunk)
                if "\0" in text:
                    raise UserError(f"{name} is not {encoding} text: it has NUL bytes. {convert}")
                yield text.removeprefix("\ufeff") if size == len(chunk) else text
    except UnicodeDecodeError as error:
        offset = size - len(error.object) + error.start
        problem = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
        raise UserError(f"{name} is not {encoding} text: {problem}. {convert}") from None
    except UnicodeError as error:
        raise UserError(f"{name} is not {encoding} text: {error}. {convert}") from None
    except LookupError:
        raise UserError(f"encoding is {encoding!r}. Python does not know it.") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None


def read_text(file: Path, encoding: str) -> str:
    """The whole text of a small plain text file. Raises UserError as `read_file` does."""
    return "".join(read_file(file, encoding))
