"""The laws of ending: one signal is remembered, one line says what went wrong."""

import os
import signal

import pytest
import torch

from model.ending import exit_status, remembered_signals


def test_the_first_signal_is_remembered_the_second_obeyed():
    with remembered_signals() as caught:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert caught == [signal.SIGINT, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_that_was_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with remembered_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not caught
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("wrong"), 2),
        (OSError(28, "No space left on device"), 1),
        (FloatingPointError("diverged"), 1),
        (MemoryError(), 1),
        (torch.OutOfMemoryError("CUDA out of memory"), 1),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1),
    ],
)
def test_a_failure_is_one_line_and_a_status(capsys, error, status):
    def fail() -> int:
        raise error

    assert exit_status(fail) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")


def test_a_bug_keeps_its_traceback():
    def fail() -> int:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        exit_status(fail)
