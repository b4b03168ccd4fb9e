"""Files that are written whole or not at all; run directories and their locks."""

import contextlib
import errno
import os
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from model.system.errors import UserError
from model.system.terminal import quote

NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # of some network file systems


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
            try:
                os.fsync(file.fileno())
            except OSError as error:
                if error.errno not in NO_FSYNC:
                    raise
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


@contextlib.contextmanager
def new_run_dir(out_dir: str | None) -> Iterator[Path]:
    """Create and lock `out_dir`, or a new folder under runs/ named after the time.

    Raises UserError if it is not empty or cannot be written. If nothing is written to it, it is
    removed again.
    """
    path = Path(os.path.expanduser(out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S")))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not out_dir:  # until a name is free: another run may begin in the same second
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                break
            path = path.with_name(path.name + "+")
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"out_dir {path} cannot be written: {error}.") from None
    with lock_run_dir(path):
        if any(path.iterdir()):
            has_run = (path / "last.pt").exists()
            hint = f"Continue its run with --resume {quote(path)}, or name" if has_run else "Name"
            raise UserError(f"out_dir {path} is not empty. {hint} another folder.")
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


@contextlib.contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[Path]:
    """Hold the lock of a run directory. Raises UserError if another process holds it.

    The lock ends with the process, however it ends. Windows has no such lock, some file systems
    have none either.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(run_dir, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"{run_dir} is being trained by another process. Wait for it."
                raise UserError(message) from None
        yield run_dir
