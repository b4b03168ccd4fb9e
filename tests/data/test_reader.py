"""Tests of the reader: files to text."""

import os
from pathlib import Path

import pytest

from data.reader import find_text_files, read_chunks, read_text
from model.system.errors import UserError


def test_the_text_files_of_a_folder_are_joined_by_newlines_in_order_of_their_paths(tmp_path):
    (tmp_path / "a.txt").mkdir()
    for name in ("b.txt", "a.txt/z.txt", "a.txt/c.txt", "d.md"):
        (tmp_path / name).write_text(name)
    chunks = read_chunks(find_text_files(tmp_path), "utf-8")
    assert "".join(chunks) == "a.txt/c.txt\na.txt/z.txt\nb.txt"


def test_a_folder_is_read_whole_but_for_hidden_names_or_refused(tmp_path, monkeypatch):
    for name in ("a/b.txt", ".git/c.txt", "a/.d.txt", "a/.e/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "g.txt").symlink_to("a/b.txt")
    assert find_text_files(tmp_path) == [tmp_path / "a/b.txt", tmp_path / "g.txt"]
    (tmp_path / "linked").symlink_to("a")
    with pytest.raises(UserError, match="linked is a link to a folder"):
        find_text_files(tmp_path)
    (tmp_path / "linked").unlink()

    def scandir(path):  # root may read every folder
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", path)
        return scandir_of_os(path)

    scandir_of_os = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match="a cannot be read: Permission denied"):
        find_text_files(tmp_path)


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
