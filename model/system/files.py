"""Writes a file as a whole or not at all. Creates and locks run directories."""

import contextlib
import errno
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from configs.errors import UserError
from model.system.console import quote

NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # some network file systems refuse fsync


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` when it is complete and on disk.

    If writing fails, for example on a full disk, `path` stays as it was.
    """
    temporary = path.with_name(path.name + ".tmp")  # replaces a killed process's file
    with open(temporary, "wb") as file:
        yield file
        file.flush()
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in NO_FSYNC:
                raise
    temporary.replace(path)


@contextlib.contextmanager
def new_run_dir(out_dir: str | None) -> Iterator[Path]:
    """Create and lock `out_dir`, or without it a folder in runs/ with the time as its name.

    At the end, an empty folder is removed again.
    """
    path = Path(out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S"))
    while not out_dir and path.exists():  # another run may have begun in the same second
        path = path.with_name(path.name + "+")
    path.mkdir(parents=True, exist_ok=True)
    with lock_run_dir(path):
        if any(path.iterdir()):
            raise UserError(
                f"out_dir {path} is not empty. Name another folder, or, if last.pt is in it, "
                f"continue with --resume {quote(path)}."
            )
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # the folder is not empty
                path.rmdir()


@contextlib.contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[Path]:
    """Lock a run directory inside `with`. Raises UserError if another process holds the lock.

    The system releases the lock even if the process is killed. Windows locks nothing.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            handle = os.open(run_dir, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{run_dir} is being trained by another process.") from None
        yield run_dir
