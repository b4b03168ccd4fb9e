"""The laws of ending: one signal is remembered, one line says what went wrong."""

import io
import itertools
import os
import signal
import sys
import unicodedata

import pytest
import torch

from model import ending
from model.ending import exit_status, keep_within_memory, memory_for, remembered_signals, say, shown


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
    ],
)
def test_a_failure_is_one_line_and_a_status(capsys, error, status):
    def fail() -> int:
        raise error

    assert exit_status(fail) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_says_what_for_and_the_mend(capsys, error):
    def fail() -> int:
        with memory_for("9 elephants; take 8"):
            raise error

    assert exit_status(fail) == 1
    assert capsys.readouterr().err == "error: out of memory for 9 elephants; take 8\n"


def test_a_bug_keeps_its_traceback():
    def fail() -> int:
        with memory_for("this"):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        exit_status(fail)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_there_is_no_more_memory_than_the_machine_s_or_a_limit_set_before(monkeypatch, tmp_path):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for limit, container in itertools.product((before[1], most // 2), ("max", str(most // 3))):
            resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
            monkeypatch.setattr(ending, "CONTAINER", tmp_path / "memory.max")
            ending.CONTAINER.write_text(container)
            keep_within_memory()
            limits = [
                most,
                *([limit] if limit != resource.RLIM_INFINITY else []),
                *([most // 3] if container != "max" else []),
            ]
            assert resource.getrlimit(resource.RLIMIT_DATA) == (min(limits), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_control_character_reaches_a_terminal_and_all_else_does():
    everything, terminal, file = (
        "".join(map(chr, range(0x250))).replace("\r", ""),
        Terminal(),
        io.StringIO(),
    )
    say(everything, terminal)
    say(everything, file)
    assert file.getvalue() == everything + "\n"
    for sent, came in zip(everything + "\n", terminal.getvalue(), strict=True):
        assert came == sent or (unicodedata.category(sent) == "Cc" and sent not in "\t\n")
        assert unicodedata.category(came) != "Cc" or came in "\t\n"
    assert shown("\x1b[2J", terminal) == "␛[2J"
    assert shown("safe\revil\r\n", terminal) == "safeevil\n"
