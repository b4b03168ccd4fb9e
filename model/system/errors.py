"""The messages of a command: its errors, its lines on a terminal, and paths in them."""

import atexit
import functools
import gc
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

# Without this, Python would end with a search for garbage in PyTorch's objects, which takes 0.7 s.
atexit.register(gc.freeze)


class UserError(ValueError):
    """A flag, a file or a text is wrong. The command prints a line and ends with status 2."""


class AbortError(RuntimeError):
    """A command cannot go on, for example after a nan. It prints a line and ends with status 1."""


def report_errors(main: Callable[[list[str]], None]) -> Callable[..., int]:
    """Decorate a command's main(argv), so that an expected error is one line on standard error.

    Expected errors are UserError, AbortError, any OSError (such as a full disk) and too little
    memory. Every other exception is a bug and keeps its traceback. The decorated main returns the
    exit status.
    """

    @functools.wraps(main)
    def wrapper(argv: list[str] | None = None) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")
        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # set during the imports
                signal.signal(signal.SIGINT, signal.default_int_handler)
            main(sys.argv[1:] if argv is None else argv)
        except SystemExit as done:  # from argparse after --help, from train.py after a signal
            return int(done.code or 0)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader, such as head, has ended
            discard_output(sys.stdout)
        except (UserError, AbortError, OSError) as error:
            print_line("error: " + " ".join(str(error).split()), sys.stderr)
            return 2 if isinstance(error, UserError) else 1
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            advice = (
                "Use more --gradient_accumulation_steps, a smaller network, shorter or fewer texts."
            )
            print_line(f"error: out of memory. {advice}", sys.stderr)
            return 1
        return 0

    return wrapper


def is_out_of_memory(error: Exception) -> bool:
    """Return whether Python or PyTorch, on a GPU or a CPU, has run out of memory."""
    words = ("out of memory", "DefaultCPUAllocator")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def require_finite(name: str, value: float, step: int) -> None:
    """Raise AbortError if a value, such as a loss, is not finite."""
    if not math.isfinite(value):
        raise AbortError(
            f"the {name} is {value} at step {step}. Earlier checkpoints are intact. Start a new "
            "run with a lower --learning_rate, or, in half precision, resume with --dtype float32."
        )


def print_line(text: str, stream: TextIO) -> None:
    """Print `text`. If there is a progress bar, the text appears above it.

    If nobody reads the stream any more (`| head`, a closed terminal), the text is discarded.
    """
    try:
        with tqdm.external_write_mode(stream):
            print(text, file=stream, flush=True)
    except OSError:
        discard_output(stream)


def discard_output(stream: TextIO) -> None:
    """Discard all further output to `stream`, including what Python writes at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def quote(path: Path | str) -> str:
    """Return `path` as an argument for a command in a shell."""
    return shlex.quote(shorten(path).as_posix())


def shorten(path: Path | str) -> Path:
    """Return `path` relative to the working directory, if it lies in this directory."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
