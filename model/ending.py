"""How a run ends: by a signal, by an error, by itself, but never because nobody listens."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

CONTAINER = Path("/sys/fs/cgroup/memory.max")

# A lone carriage return would write over what stands there: it goes, as the terminal's newline has its own.
PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | dict.fromkeys(range(127, 160), "�")
PICTURES[ord("\r")] = ""


@contextlib.contextmanager
def remembered_signals() -> Iterator[list[int]]:
    """A list that fills with the signals that ask to stop; a second of a kind ends the process at once.

    A signal that was ignored before, as SIGHUP is under nohup, stays so.
    """
    caught: list[int] = []

    def remember(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, remember)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def shown(text: str, stream: TextIO) -> str:
    """`text` as it goes to `stream`: a terminal gets pictures of control characters, which could take it over."""
    return text.translate(PICTURES) if stream.isatty() else text


def say(text: str, stream: TextIO) -> None:
    """Write a line. Where the reader is gone, a closed terminal or `head`, nothing is lost but the line."""
    try:
        print(shown(text, stream), file=stream, flush=True)
    except OSError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Let what is still written to `stream` vanish, at the interpreter's last flush too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def keep_within_memory() -> None:
    """Let memory run out in an error that can be told: Linux kills whoever uses more than there is."""
    if sys.platform == "linux":
        import resource  # noqa: PLC0415  (of Unix alone)

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        with contextlib.suppress(OSError, ValueError):  # a container's own, if it has one
            most = min(most, int(CONTAINER.read_text()))
        resource.setrlimit(resource.RLIMIT_DATA, (most if soft == resource.RLIM_INFINITY else min(most, soft), hard))


@contextlib.contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Have every way of running out of memory end as a MemoryError that says what it was for, and the mend."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = any(words in str(error) for words in ("allocate memory", "out of memory"))  # in a RuntimeError
        if not isinstance(error, MemoryError) and not known:
            raise
        raise MemoryError(f"out of memory for {what}") from None


def exit_status(work: Callable[[], int]) -> int:
    """Run `work`; its failures become one line on standard error and the exit status.

    2 for input that is wrong (ValueError); 1 where it could not go on: the disk (OSError), the
    numbers (FloatingPointError), memory. Anything else is a bug, and keeps its traceback.
    Standard output is UTF-8, whatever code page Python was told to print in.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started this process
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):  # what a test or a notebook puts in its place may have none
        sys.stdout.reconfigure(encoding="utf-8", newline="")
    try:
        return work()
    except SystemExit as done:
        return int(done.code or 0)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (ValueError, FloatingPointError, MemoryError) as error:
        message, status = str(error) or "out of memory", 2 if isinstance(error, ValueError) else 1
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "writing"
        where = f"{name} failed ({error.strerror}); what was saved before is whole"
        message, status = where if error.strerror else str(error), 1
    say("error: " + " ".join(message.split()), sys.stderr)
    return status
