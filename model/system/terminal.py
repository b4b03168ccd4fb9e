"""Text for a terminal or a file: line ends, control characters, closed pipes."""

import os
import re
import shlex
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

# A corpus may hold escape sequences that would take over a terminal.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
CONTROL_PICTURES |= dict.fromkeys(range(127, 160), "�")
# Line separators, and what overrides the direction of a line.
CONTROL_PICTURES |= dict.fromkeys([*range(0x2028, 0x202F), *range(0x2066, 0x206A)], "�")


def print_line(text: str, stream: TextIO) -> None:
    """Print `text`, above the progress bar if there is one.

    If the reader is gone (`| head`, a closed terminal), only the text is lost.
    """
    try:
        with tqdm.external_write_mode(stream):
            print(escape_control_chars(text, stream), file=stream, flush=True)
    except OSError:
        redirect_to_devnull(stream)


def escape_control_chars(text: str, stream: TextIO) -> str:
    """`text` for `stream`: on a terminal, control characters are replaced by visible symbols."""
    return text.translate(CONTROL_PICTURES) if stream.isatty() else text


def quote(path: Path | str) -> str:
    """`path` as an argument of a command in a POSIX shell."""
    return shlex.quote(re.sub("^-", "./-", shorten(path).as_posix()))  # a dash would begin a flag


def shorten(path: Path | str) -> Path:
    """`path` as seen from the working directory, if it lies below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def redirect_to_devnull(stream: TextIO) -> None:
    """Discard all further output to `stream`, also that of the interpreter's flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
