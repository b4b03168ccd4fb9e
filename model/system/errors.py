"""What a command says: its errors, its lines on a terminal, paths in them."""

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

# At its end, Python would look for garbage among PyTorch's objects, which takes 0.7 s.
atexit.register(gc.freeze)


class UserError(ValueError):
    """The input is wrong: a flag, a file, a text. Shown as one line; exit status 2."""


class AbortError(RuntimeError):
    """The run cannot go on: disk, memory, divergence. Shown as one line; exit status 1."""


def report_errors(main: Callable[[list[str]], None]) -> Callable[..., int]:
    """Decorator of a command's main(argv): an expected error becomes one line on standard error.

    These are UserError, AbortError, a full disk (any OSError), too little memory. Every other
    exception is a bug and keeps its traceback. Returns the exit status.
    """

    @functools.wraps(main)
    def wrapper(argv: list[str] | None = None) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")
        try:
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # during the imports
                signal.signal(signal.SIGINT, signal.default_int_handler)
            main(sys.argv[1:] if argv is None else argv)
        except SystemExit as done:  # argparse after --help, training after a signal
            return int(done.code or 0)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader, such as head, has enough
            discard_output(sys.stdout)
        except (UserError, AbortError, OSError) as error:
            print_line("error: " + " ".join(str(error).split()), sys.stderr)
            return 2 if isinstance(error, UserError) else 1
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            advice = (
                "Use more --gradient_accumulation_steps, a smaller network, fewer or shorter texts."
            )
            print_line(f"error: out of memory. {advice}", sys.stderr)
            return 1
        return 0

    return wrapper


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, or PyTorch on a GPU or a CPU, found no more memory."""
    words = ("out of memory", "DefaultCPUAllocator")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def require_finite(name: str, value: float, step: int) -> None:
    """Raise AbortError if a loss or norm is not finite."""
    if not math.isfinite(value):
        raise AbortError(
            f"the {name} is {value} at step {step}. Checkpoints saved before are intact. In a new "
            "run, try a smaller --learning_rate; in half precision, resume with --dtype float32."
        )


def print_line(text: str, stream: TextIO) -> None:
    """Print `text`, above the progress bar if there is one.

    If the reader is gone (`| head`, a closed terminal), only the text is lost.
    """
    try:
        with tqdm.external_write_mode(stream):
            print(text, file=stream, flush=True)
    except OSError:
        discard_output(stream)


def discard_output(stream: TextIO) -> None:
    """Discard all further output to `stream`, also what Python writes when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def quote(path: Path | str) -> str:
    """`path` as an argument of a command in a shell."""
    return shlex.quote(shorten(path).as_posix())


def shorten(path: Path | str) -> Path:
    """`path` as seen from the working directory, if it lies below it."""
    path, here = Path(path), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
