"""Tests of files that are written whole or not at all."""

import os

import pytest

from model.run.files import atomic_write


@pytest.mark.parametrize("error", [OSError(28, "Full"), ValueError("a bug"), KeyboardInterrupt()])
def test_atomic_write_replaces_the_file_only_when_it_is_complete(tmp_path, error):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    os.link(path, link)
    with pytest.raises(type(error)), atomic_write(path) as file:
        file.write(b"new content")
        raise error
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"new content")
    assert path.read_bytes() == b"new content"
    assert link.read_bytes() == b"old"  # it was not written in place
    assert sorted(tmp_path.iterdir()) == [path, link]
