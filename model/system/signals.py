"""Ctrl-C and other signals that end a run once it is saved."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list that collects SIGINT, SIGTERM and SIGHUP. A second signal of a kind acts at once.

    A signal that was ignored before, as SIGHUP is under nohup, stays ignored.
    """
    caught: list[int] = []
    before = {}

    def handle(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.getsignal(number)
            signal.signal(number, handle)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
