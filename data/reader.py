"""Finds text files and decodes them.

For another format, such as JSON Lines, change TEXT_FILES, and make text of a file with that ending
in `read_chunks`. `read_file` decodes; sample.py also uses it for prompts.
"""

import codecs
import contextlib
import fnmatch
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from model.system.errors import UserError

TEXT_FILES = "*.txt"  # what is read of a folder, in any case; a file that is named is always read
STANDARD_INPUT = Path("-")
CHUNK = 1 << 18  # bytes are read and decoded in chunks, which saves memory
NUL_HINT = "It has NUL characters, so it is binary, or has another --encoding: utf-16, utf-16-le."
# How files begin that people take for text
FORMATS = {
    b"\x1f\x8b": "compressed (gzip)",
    b"BZh91AY&SY": "compressed (bzip2)",
    b"\xfd7zXZ": "compressed (xz)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"PK\x03\x04": "a ZIP archive, as office documents and e-books are (.docx, .odt, .epub)",
    b"\xd0\xcf\x11\xe0": "an office document (such as .doc or .xls)",
    b"{\\rtf1": "an office document (RTF)",
    b"%PDF-": "a PDF",
}


def find_text_files(paths: Sequence[str]) -> tuple[list[Path], Counter[str]]:
    """The files to read, in order, and how many were left out, by their ending.

    A path is a file (or a pipe, or - for standard input), or a folder, which stands for the
    TEXT_FILES in it and its subfolders, in the order in which a person counts. Names that begin
    with a dot are left out. Raises UserError if a folder has no such files, cannot be read, or
    has a link to a folder (which might lead back).
    """

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}. Use another --data.")

    files, left_out = [], Counter()
    for path in map(Path, paths):
        if os.path.isfile(path) or is_stream(path):
            files.append(path)
            continue
        found, others = [], Counter()
        for folder, subfolders, names in os.walk(path, onerror=refuse):
            for name in names:
                file = Path(folder, name)
                if name.startswith(".") or not os.path.isfile(file):
                    continue
                if fnmatch.fnmatchcase(name.lower(), TEXT_FILES):
                    found.append(file)
                else:
                    others[file.suffix.lower() or "without an ending"] += 1
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for name in subfolders:
                if os.path.islink(linked := Path(folder, name)):
                    raise UserError(f"{linked} is a link to a folder. Name the folder itself.")
        if not found:
            there = f"It has {describe_endings(others)}; name those" if others else "Name files"
            raise UserError(f"{path} has no {TEXT_FILES} files. {there} that are text: --data A B.")
        files += sorted(found, key=counting_order)
        left_out += others
    return files, left_out


def is_stream(path: Path | str) -> bool:
    """Whether a path is standard input, a pipe or a device, which can be read only once."""
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return is_special or Path(path) == STANDARD_INPUT


def counting_order(path: Path) -> list[list]:
    """A key to sort paths by: numbers in names by their value, letters without regard to case."""
    folded = [re.split(r"(\d+)", part.casefold()) for part in path.parts]
    numbers = [[int(x) if i % 2 else x for i, x in enumerate(part)] for part in folded]
    return [numbers, list(path.parts)]


def describe_endings(counts: Counter[str]) -> str:
    """For a person: "2 .md, 1 .py"."""
    return ", ".join(f"{count:,} {ending}" for ending, count in counts.most_common())


def read_chunks(files: list[Path], encoding: str) -> Iterator[str]:
    """The text of all files in chunks, joined by newlines. Raises UserError as `read_file` does."""
    for i, file in enumerate(files):
        if i > 0:
            yield "\n"
        yield from read_file(file, encoding)


def read_file(file: Path, encoding: str) -> Iterator[str]:
    """The text of one plain text file in chunks, without a byte order mark.

    Raises UserError if the file cannot be read, is not plain text, or changes while it is read. It
    names the first byte that cannot be decoded.
    """
    is_standard_input = file == STANDARD_INPUT
    name = "standard input" if is_standard_input else file
    decoder = codecs.getincrementaldecoder(encoding)()
    size = 0
    try:
        before = state_of(file)
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if is_standard_input else stack.enter_context(file.open("rb"))
            chunk = None
            while chunk != b"":
                chunk = stream.read(CHUNK)
                size += len(chunk)
                is_first = size == len(chunk)
                what = next((FORMATS[start] for start in FORMATS if chunk.startswith(start)), "")
                if is_first and what:
                    raise UserError(f"{name} is {what}. Unpack it, or convert it to plain text.")
                text = decoder.decode(chunk, final=not chunk)
                if "\0" in text:
                    raise UserError(f"{name} is not {encoding} text. {NUL_HINT}")
                yield text.removeprefix("\ufeff") if is_first else text
        if state_of(file) != before:
            raise UserError(f"{name} changed while it was read. Copy it first, and use the copy.")
    except UnicodeError as error:
        problem = str(error)
        if isinstance(error, UnicodeDecodeError):
            offset = size - len(error.object) + error.start
            problem = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
        hint = "Convert it, or name its --encoding (such as cp1252, cp1251, gb18030)."
        if b"\0" in chunk:
            hint = NUL_HINT
        elif not chunk:
            hint = "It ends in the middle of a character, so it may have been cut off."
        raise UserError(f"{name} is not {encoding}: {problem}. {hint}") from None
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None


def state_of(file: Path) -> tuple[int, int] | None:
    """What changes when somebody writes to a file; None for a stream."""
    if is_stream(file):
        return None
    info = os.stat(file)
    return info.st_size, info.st_mtime_ns


def read_text(file: Path, encoding: str) -> str:
    """The whole text of a small plain text file. Raises UserError as `read_file` does."""
    return "".join(read_file(file, encoding))
