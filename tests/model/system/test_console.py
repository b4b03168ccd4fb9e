"""Tests of error reports, and of paths in them."""

import shlex
from pathlib import PurePosixPath

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import UserError
from model.system.console import AbortError, quote, report_errors

OUT_OF_MEMORY = "error: out of memory. Use more --gradient_accumulation_steps, "
OUT_OF_MEMORY += "a smaller network or a shorter text.\n"


def run_main(error: BaseException) -> int:
    """Return the exit status of a command that raises `error`."""

    @report_errors
    def main(argv: list[str]) -> int:
        raise error

    return main([])


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("n is 3.\n It must be 2."), 2, "error: n is 3. It must be 2.\n"),
        (AbortError("The disk is full."), 1, "error: The disk is full.\n"),
        (OSError(28, "No space left", "a.pt"), 1, "error: [Errno 28] No space left: 'a.pt'\n"),
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


@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_any_other_error_keeps_its_traceback(capsys, kind):
    with pytest.raises(kind, match="a bug"):
        run_main(kind("a bug"))
    assert capsys.readouterr() == ("", "")


@given(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_a_quoted_path_is_one_argument_of_a_shell(name):
    (argument,) = shlex.split(quote(PurePosixPath(name)))
    assert PurePosixPath(argument) == PurePosixPath(name)
