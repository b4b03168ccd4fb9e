"""Tests of files that are written whole or not at all, and of run directories."""

import contextlib
import errno
import os
import time
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
    assert link.read_bytes() == b"old"  # it was not written in place
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.parametrize(("number", "is_ignored"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_may_have_no_fsync(tmp_path, monkeypatch, number, is_ignored):
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, "refused")))
    expected = contextlib.nullcontext() if is_ignored else pytest.raises(OSError, match="refused")
    with expected, atomic_write(tmp_path / "file") as file:
        file.write(b"content")
    assert (tmp_path / "file").exists() == is_ignored


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127])
def test_atomic_write_can_write_a_file_with_the_longest_name(tmp_path, name):
    with atomic_write(tmp_path / name) as file:
        file.write(b"content")
    assert (tmp_path / name).read_bytes() == b"content"


@pytest.mark.parametrize("failures", [3, 99])
def test_a_file_that_another_program_has_open_is_replaced_later(tmp_path, monkeypatch, failures):
    """Windows refuses to replace it meanwhile."""
    path, replace, calls = tmp_path / "file", Path.replace, []

    def refuse(self, target):
        calls.append(target)
        if len(calls) <= failures:
            raise PermissionError(13, "Access is denied")
        return replace(self, target)

    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    will_fail = pytest.raises(OSError) if failures == 99 else contextlib.nullcontext()
    with will_fail, atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == (b"old" if failures == 99 else b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_may_have_no_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    no_locks = Mock(side_effect=OSError(37, "No locks available"))
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with new_run_dir(str(tmp_path / "run")) as path:
        assert path.is_dir() and no_locks.called


def test_two_runs_that_begin_at_once_have_two_directories(elsewhere, monkeypatch):
    """Also where files cannot be locked."""
    mkdir, others = Path.mkdir, []

    def mkdir_after_another_run(path, *args, **kwargs):
        if path.parent.name == "runs" and not others:
            others.append(path)
            os.mkdir(path)
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", mkdir_after_another_run)
    with new_run_dir(None) as path:
        assert path.is_dir() and path not in others
        with new_run_dir(None) as third:
            assert third not in (path, *others)
