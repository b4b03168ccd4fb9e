"""The messages of a command: its errors and its lines on a terminal."""

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

from configs.errors import UserError


class AbortError(RuntimeError):
    """A command cannot go on, for example after a nan. It prints a line and ends with status 1."""


def report_errors(main: Callable[[list[str]], int | None]) -> Callable[..., int]:
    """Decorate a command's main(argv), so that an expected error is one line on standard error.

    Every other exception is a bug and keeps its traceback. The decorated main returns the exit
    status.
    """

    @functools.wraps(main)
    def wrapper(argv: list[str] | None = None) -> int:
        # Else, Python would end with a search for garbage in PyTorch's objects, which takes 0.7 s.
        atexit.register(gc.freeze)
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")
        try:
            return main(sys.argv[1:] if argv is None else argv) or 0
        except SystemExit as done:  # from argparse after --help
            return int(done.code or 0)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader, such as head, has ended
            discard_output(sys.stdout)
            return 0
        except (UserError, AbortError, OSError) as error:
            print_line("error: " + " ".join(str(error).split()), sys.stderr)
            return 2 if isinstance(error, UserError) else 1
        except (MemoryError, RuntimeError) as error:
            words = ("out of memory", "DefaultCPUAllocator")  # of PyTorch, on a GPU and a CPU
            if not isinstance(error, MemoryError) and not any(x in str(error) for x in words):
                raise
            advice = "Use more --gradient_accumulation_steps, a smaller network or a shorter text."
            print_line(f"error: out of memory. {advice}", sys.stderr)
            return 1

    return wrapper


def require_finite(name: str, value: float, step: int) -> None:
    """Raise AbortError if a value, such as a loss, is not finite."""
    if not math.isfinite(value):
        raise AbortError(
            f"the {name} is {value} at step {step}. Earlier checkpoints are intact. Start a new "
            "run with a lower --learning_rate, or, in half precision, resume with --dtype float32."
        )


def quote(path: Path) -> str:
    """Return a path as an argument for a command in a shell. It is relative if it lies here."""
    here = Path.cwd()
    return shlex.quote((path.relative_to(here) if path.is_relative_to(here) else path).as_posix())


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
