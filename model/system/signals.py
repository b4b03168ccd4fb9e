"""Ctrl-C and other signals that end a run once it is saved."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

STOPPING = b"\nThe run saves and stops after this step or evaluation. Ctrl-C again stops at once.\n"


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list that collects SIGINT, SIGTERM and SIGHUP. A second SIGINT acts at once.

    The first signal is answered on standard error. SIGTERM may come twice: from torchrun, and from
    what stops torchrun. A signal that was ignored before, as SIGHUP is under nohup, stays ignored.
    Outside the main thread, where Python handles no signals, none is caught.
    """
    caught: list[int] = []
    before = {}

    def handle(number: int, frame: object) -> None:
        if not caught:
            with contextlib.suppress(OSError):  # a closed terminal
                os.write(2, STOPPING)  # print may be in the middle of a line
        caught.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
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
