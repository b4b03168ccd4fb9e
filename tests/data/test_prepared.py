"""Tests of prepared texts: every character kept, made again if anything changed."""

import itertools
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import prepared, reader
from data.prepared import PreparedText, open_prepared
from data.reader import find_text_files
from model.run.errors import UserError
from tests.conftest import LINES

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\ufeff")  # the byte order mark
ENCODINGS = st.sampled_from(["utf-8", "utf-16", "utf-16-le", "utf-32-be"])
numbers = itertools.count()


def prepare(text: str, encoding: str = "utf-8") -> PreparedText:
    """`text` from a new file."""
    path = Path(f"{next(numbers)}.txt")
    path.write_bytes(text.encode(encoding))
    return open_prepared([path], encoding)


def text_of(text: PreparedText) -> str:
    return "".join(text.vocab[i] for i in text.ids_N)


@settings(max_examples=50)
@given(st.text(CHARACTERS), ENCODINGS, st.integers(4, 9))
def test_a_text_is_kept_exactly_at_any_chunk_size(text, encoding, chunk):
    text += "\r\n\x85"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK", chunk)
        opened = prepare(text, encoding)
    assert text_of(opened) == text
    assert opened.vocab == "".join(sorted(set(text)))


@pytest.mark.parametrize(
    ("vocab_size", "bytes_per_id"),
    [(1, 1), (255, 1), (256, 1), (257, 2), (65_535, 2), (65_536, 2), (65_537, 4)],
)
def test_ids_are_as_small_as_the_vocabulary_allows(vocab_size, bytes_per_id):
    text = "".join(chr(0x10000 + i) for i in reversed(range(vocab_size))) * 2
    opened = prepare(text)
    assert opened.ids_N.itemsize == bytes_per_id
    assert text_of(opened) == text


@given(st.text("abc\xff", min_size=1, max_size=4), st.text("abc\xff", min_size=1), ENCODINGS)
def test_the_identity_of_a_text_is_that_of_its_characters(text, other, encoding):
    sha256 = prepare(text).sha256
    assert prepare(text, encoding).sha256 == sha256
    assert (prepare(other, encoding).sha256 == sha256) == (other == text)


def test_a_text_is_read_again_only_if_it_or_the_code_of_the_reader_changed(text_file, monkeypatch):
    Path("first.txt").write_text("stays")

    def current_text() -> str:
        text = text_of(open_prepared([Path("first.txt"), text_file], "utf-8"))
        return text.removeprefix("stays\n")

    (source,) = (path for path in prepared.SOURCES if path.name == "reader.py")
    monkeypatch.setattr(prepared, "SOURCES", [Path(shutil.copy(source, "reader.py"))])
    assert current_text() == LINES
    before = text_file.stat()
    while text_file.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock is coarse
        text_file.write_text(LINES[::-1])
        os.utime(text_file, ns=(before.st_atime_ns, before.st_mtime_ns))  # its size is the same
    assert current_text() == LINES[::-1]

    monkeypatch.setattr(prepared, "read_chunks", lambda *args: iter(["edited"]))
    assert current_text() == LINES[::-1]
    Path("reader.py").write_bytes(source.read_bytes().replace(b'"\\n"', b'"\\t"'))
    assert current_text() == "edited"


def test_a_text_is_read_again_with_another_encoding(text_file):
    text_file.write_bytes("é".encode())
    assert text_of(open_prepared([text_file], "utf-8")) == "é"
    assert text_of(open_prepared([text_file], "latin-1")) == "Ã©"


def test_a_truncated_extended_or_zeroed_file_is_made_again(text_file):
    text_file.write_text("abcdefgh")
    open_prepared([text_file], "utf-8")
    (path,) = prepared.PREPARED.iterdir()
    whole = path.read_bytes()
    truncated = [whole[:end] for end in range(0, len(whole), 5)]
    extended = [b"\0" + whole, whole + b"\0"]
    renamed = [whole.replace(b'"vocab"', b'"vocaa"')]
    zeros = [whole[:end] + bytes(len(whole) - end) for end in range(0, len(whole), 5)]
    for damaged in truncated + extended + renamed + zeros:
        path.write_bytes(damaged)
        open_prepared([text_file], "utf-8")
        assert path.read_bytes() == whole


def test_prepared_files_are_no_text_files(text_file):
    """So `--data data/` does not train on data/prepared."""
    for _ in range(2):
        assert text_of(open_prepared(find_text_files(Path()), "utf-8")) == LINES
    assert [path.suffix for path in prepared.PREPARED.rglob("*")] == [".ids"]


@pytest.mark.parametrize("addition", ["a", "é"])  # known and unknown to the vocabulary
def test_a_text_that_changes_while_it_is_read_is_refused(text_file, monkeypatch, addition):
    read_chunks = prepared.read_chunks

    def change_and_read(*args):
        for text in read_chunks(*args):
            text_file.write_text(LINES + addition)
            yield text

    monkeypatch.setattr(prepared, "read_chunks", change_and_read)
    with pytest.raises(UserError, match="changed while it was being read"):
        open_prepared([text_file], "utf-8")
    assert not os.listdir(prepared.PREPARED)


@pytest.mark.parametrize(("content", "problem"), [("", "empty"), (r"a\ud800", "surrogate")])
def test_texts_without_characters_or_with_half_of_one_are_refused(content, problem):
    with pytest.raises(UserError, match=problem):
        prepare(content, "raw_unicode_escape")


def test_two_processes_may_prepare_the_same_text_at_the_same_time(text_file, monkeypatch):
    """Two threads, neither of which finds the text prepared."""
    prepare_now, both = prepared._prepare, threading.Barrier(2, timeout=30)

    def wait_and_prepare(*args):
        both.wait()
        prepare_now(*args)
        both.wait()

    monkeypatch.setattr(prepared, "_prepare", wait_and_prepare)
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(open_prepared, [[text_file]] * 2, ["utf-8"] * 2))
    assert [text_of(text) for text in texts] == [LINES] * 2
