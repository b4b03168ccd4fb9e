"""Errors and how they are reported."""

import functools
import gc
import math
import signal
import sys
from collections.abc import Callable

from model.system.terminal import print_line, redirect_to_devnull

LESS_MEMORY = (
    "Use a larger --gradient_accumulation_steps or a smaller network; in sampling a smaller "
    "--num_samples or a shorter text."
)


class UserError(ValueError):
    """The input is wrong: a flag, a file, a text. Shown as one line; exit status 2."""


class AbortError(RuntimeError):
    """The run cannot go on: disk, memory, divergence. Shown as one line; exit status 1."""


def report_errors(main: Callable[[list[str]], None]) -> Callable[..., int]:
    """Decorator of a command's main(argv): an expected error becomes one line on standard error.

    These are UserError, AbortError, a full disk (any OSError), too little memory. Returns the exit
    status: 2, 1, 130 after Ctrl-C, that of sys.exit, or 0, also if nobody reads standard output any
    more. Every other exception is a bug and keeps its traceback.
    """

    @functools.wraps(main)
    def wrapper(argv: list[str] | None = None) -> int:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="")
        try:
            main(sys.argv[1:] if argv is None else argv)
        except SystemExit as done:  # argparse after --help, training after a signal
            return int(done.code or 0)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BrokenPipeError:  # the reader, such as head, has enough
            redirect_to_devnull(sys.stdout)
        except (UserError, AbortError, OSError) as error:
            print_line("error: " + " ".join(str(error).split()), sys.stderr)
            return 2 if isinstance(error, UserError) else 1
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            print_line(f"error: out of memory. {LESS_MEMORY}", sys.stderr)
            return 1
        finally:
            if argv is None:  # the program ends; to look for garbage would take it 0.7 s
                gc.freeze()
        return 0

    return wrapper


def is_out_of_memory(error: Exception) -> bool:
    """Whether PyTorch, NumPy or Python found no more memory."""
    # PyTorch on CUDA; on a CPU of Linux, of Windows
    messages = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(words in str(error) for words in messages)


def require_finite(name: str, value: float, step: int) -> None:
    """Raise AbortError if a loss or norm is not finite."""
    if not math.isfinite(value):
        raise AbortError(
            f"the {name} is {value} at step {step}. Checkpoints saved before are intact. In a new "
            "run, try a smaller --learning_rate or more --warmup_iters; in half precision, resume "
            "with --dtype float32."
        )
