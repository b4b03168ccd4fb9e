"""Files that are written whole or not at all; run directories and their locks."""

import contextlib
import errno
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from model.system.errors import UserError, quote

NO_FSYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # some network file systems refuse it


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` once it is complete and on disk.

    If that fails, as on a full disk, `path` is as it was, and a file beside it ends with .tmp.
    """
    temporary = path.with_name(path.name + ".tmp")  # that of a killed process is replaced
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
    """Create and lock `out_dir`, or a new folder under runs/ named after the time.

    Raises UserError if it is not empty or cannot be made. If nothing is written to it, it is
    removed again.
    """
    path = Path(os.path.expanduser(out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S")))
    while not out_dir and path.exists():  # another run may have begun in the same second
        path = path.with_name(path.name + "+")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out_dir {path} cannot be written: {error}.") from None
    with lock_run_dir(path):
        if any(path.iterdir()):
            raise UserError(
                f"out_dir {path} is not empty. Name another folder, or if a last.pt is in it, "
                f"--resume {quote(path)}."
            )
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # not empty
                path.rmdir()


@contextlib.contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[Path]:
    """Hold the lock of a run directory. Raises UserError if another process holds it.

    The lock ends with the process, however it ends. Windows and some file systems have no locks.
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
