"""Files that are written whole or not at all."""

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` once it is complete and on disk.

    Raises OSError if the disk is full or not writable; then `path` is as it was.
    """
    temporary = path.with_name(f"{path.name[:50]}.{uuid.uuid4().hex}.tmp")  # a name has a limit
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def replace(source: Path, path: Path) -> None:
    """Move a file over another. Windows refuses while a program has that open: try for 0.5 s."""
    for _ in range(10):
        with contextlib.suppress(PermissionError):
            source.replace(path)
            return
        time.sleep(0.05)
    source.replace(path)
