"""The directory of a run, and its lock."""

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from configs.command import Command
from model.run import checkpoint
from model.system.errors import UserError
from model.system.processes import Processes
from model.system.terminal import quote


@contextlib.contextmanager
def open_run_dir(command: Command, processes: Processes) -> Iterator[Path]:
    """The run directory, that of --resume or a new one. The main process locks it."""
    if command.resume is None:
        out_dir = command.given.get("out_dir")
        with new_run_dir(out_dir) if processes.is_main else contextlib.nullcontext() as run_dir:
            yield processes.broadcast(run_dir)
        return
    run_dir = checkpoint.resolve(command.resume, "last").parent
    with lock_run_dir(run_dir) if processes.is_main else contextlib.nullcontext():
        yield run_dir


@contextlib.contextmanager
def new_run_dir(out_dir: str | None) -> Iterator[Path]:
    """Create and lock `out_dir`, or a new folder under runs/ named after the time.

    Raises UserError if it is not empty or cannot be written. If nothing is written to it, it is
    removed again.
    """
    if out_dir is not None and str(Path(out_dir)).startswith("-"):
        raise UserError(f"out_dir is {out_dir!r}. Name a directory without a - in front.")
    path = Path(out_dir or datetime.now().strftime("runs/%Y%m%d-%H%M%S")).expanduser()
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
def lock_run_dir(run_dir: Path) -> Iterator[None]:
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
        yield
