"""Tests of error reports."""

import re
from pathlib import Path

import pytest
import torch

from configs.flags import UserError
from model.system.errors import (
    AbortError,
    disk_errors,
    out_of_memory_hint,
    report_errors,
)

OUT_OF_MEMORY = "error: out of memory. Use a smaller --batch_size.\n"


def run_main(error: BaseException) -> int:
    """The exit status of a command that raises `error`."""

    @report_errors
    def main(argv: list[str]) -> int:
        with out_of_memory_hint("Use a smaller --batch_size."):
            raise error

    return main([])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("n is 3.\n It must be 2."), 2, "error: n is 3. It must be 2.\n"),
        (AbortError("The disk is full."), 1, "error: The disk is full.\n"),
        (MemoryError(), 1, OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), 1, OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, OUT_OF_MEMORY),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(0), 0, ""),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_status(capsys, error, status, line):
    assert run_main(error) == status
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, OSError])
def test_any_other_error_keeps_its_traceback(capsys, kind):
    with pytest.raises(kind, match="a bug"):
        run_main(kind("a bug"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(28, "No space left"), AbortError, "[Errno 28] No space left: 'runs/it'"),
        (OSError(28, "No space left", "a.pt"), AbortError, "[Errno 28] No space left: 'a.pt'"),
        (OSError(28, "No space left", b"a.pt"), AbortError, "[Errno 28] No space left: 'a.pt'"),
        (BrokenPipeError("closed"), BrokenPipeError, "closed"),  # the reader of a pipe has enough
    ],
)
def test_an_error_of_the_disk_names_the_file(error, raised, message):
    with pytest.raises(raised, match=re.escape(message)), disk_errors(Path("runs/it")):
        raise error
