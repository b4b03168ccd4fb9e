"""The error of a wrong input, and paths in messages. All folders import this file."""

import shlex
from pathlib import Path


class UserError(ValueError):
    """A flag, a file or a text is wrong. The command prints a line and ends with status 2."""


def quote(path: Path | str) -> str:
    """Return `path` as an argument for a command in a shell."""
    return shlex.quote(shorten(path).as_posix())


def shorten(path: Path | str) -> Path:
    """Return `path` relative to the working directory, if it lies in this directory."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
