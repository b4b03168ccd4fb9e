"""Tests of files that are written whole or not at all, and of run directories."""

import contextlib
import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from model.system.files import atomic_write, new_run_dir


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "Full"), OSError),
        (ValueError("a bug"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_atomic_write_replaces_the_file_only_when_it_is_complete(tmp_path, error, raised):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    os.link(path, link)
    with pytest.raises(raised), atomic_write(path) as file:
        file.write(b"new content")
        raise error
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"new content")
    assert path.read_bytes() == b"new content"
    assert link.read_bytes() == b"old"  # the file was replaced, not overwritten
    (tmp_path / "file.tmp").write_bytes(b"of a killed process")
    with atomic_write(path) as file:
        file.write(b"new content")
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.parametrize(("number", "is_ignored"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_may_have_no_fsync(tmp_path, monkeypatch, number, is_ignored):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, "refused")))
    expected = contextlib.nullcontext() if is_ignored else pytest.raises(OSError, match="refused")
    with expected, atomic_write(tmp_path / "file") as file:
        file.write(b"content")
    assert (tmp_path / "file").exists() == is_ignored


def test_a_file_system_may_have_no_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    no_locks = Mock(side_effect=OSError(37, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with new_run_dir(str(tmp_path / "run")) as path:
        assert path.is_dir() and no_locks.called


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(monkeypatch):
    clock = Mock(**{"now.return_value.strftime.return_value": "runs/now"})
    monkeypatch.setattr("model.system.files.datetime", clock)
    with new_run_dir(None) as first, new_run_dir(None) as second:
        assert [first, second] == [Path("runs/now"), Path("runs/now+")]
    assert not list(Path("runs").iterdir())  # empty folders are removed
