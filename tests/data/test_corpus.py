"""Tests of the corpus: every character kept, every prediction once, prepared files on disk."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data import corpus, prepared
from data.corpus import Corpus, DataConfig, open_corpus
from data.text import read_text
from model.errors import RunError, UserError
from tests.conftest import LINES


def open_path(path, block_size: int = 4, vocab: str = "", **values) -> Corpus:
    config = DataConfig(data=str(path), **values)
    return open_corpus(config, block_size, vocab, extend=not vocab)


def text_of(opened: Corpus) -> str:
    """The text, decoded from the ids."""
    (ids_N,) = opened.text.windows(np.zeros(1, int), opened.train_chars + opened.val_chars)
    return opened.tokenizer.decode(opened.to_model_ids[ids_N])


def write_numbered_text(length: int) -> Path:
    """A text of different characters in order, so that an id is a position."""
    path = Path("numbered.txt")
    path.write_text("".join(map(chr, range(0x4E00, 0x4E00 + length))), "utf-8")
    return path


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8"), min_size=60), st.integers(4, 9))
def test_a_text_is_kept_exactly_at_any_chunk_size(tmp_path_factory, text, chunk):
    folder = tmp_path_factory.mktemp("corpus")
    text += "\r\n\x85ab"
    (folder / "text").write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.text.CHUNK", chunk)
        patch.setattr(prepared, "PREPARED", folder / "prepared")
        opened = open_path(folder / "text")
    expected = text.removeprefix("\ufeff")
    assert text_of(opened) == expected
    assert opened.train_chars == int(len(expected) * 0.9)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32-be"])
def test_one_byte_order_mark_is_dropped(text_file, encoding):
    mark = "" if encoding == "utf-16" else "\ufeff"  # Python writes that of utf-16
    text_file.write_bytes((mark + LINES).encode(encoding))
    assert text_of(open_path(text_file, encoding=encoding)) == LINES
    assert read_text(text_file, encoding) == LINES


def test_latin_1_reads_any_bytes(text_file):
    content = bytes(range(256)) * 4
    text_file.write_bytes(content)
    assert text_of(open_path(text_file, encoding="latin-1")).encode("latin-1") == content


def test_the_texts_of_a_folder_are_joined_by_newlines_in_order_of_their_paths(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("b.txt", "a/z.txt", "a/c.txt", "d.md"):
        (tmp_path / name).write_text(name * 20)
    assert text_of(open_path(tmp_path)) == "\n".join(
        20 * n for n in ("a/c.txt", "a/z.txt", "b.txt")
    )


@pytest.mark.parametrize("at", [0, 5, 9, 300])
def test_the_first_byte_that_is_not_utf_8_is_named(text_file, monkeypatch, at):
    monkeypatch.setattr("data.text.CHUNK", 7)
    content = bytearray("é" * 5 + "a" * 400, "utf-8")
    content[at] = 0xFF
    text_file.write_bytes(content)
    offset = at - 1 if at in (5, 9) else at  # of a broken pair, the first byte is invalid
    with pytest.raises(UserError, match=rf"at offset {offset}\..*--encoding"):
        open_path(text_file)


def test_a_text_is_read_again_only_if_it_changed(text_file, monkeypatch):
    opened = open_path(text_file)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "read_chunks", None)
        assert text_of(open_path(text_file)) == LINES
    before = text_file.stat()
    text_file.write_text(LINES[::-1])
    os.utime(text_file, ns=(before.st_atime_ns, before.st_mtime_ns))  # its size is the same
    changed = open_path(text_file)
    assert text_of(changed) == LINES[::-1]
    assert text_of(opened) == LINES
    assert opened.text.sha256 != changed.text.sha256
    assert len(list(prepared.PREPARED.glob("*.ids"))) == 2
    copy = text_file.with_name("copy.txt")
    copy.write_text(LINES[::-1], "utf-16")
    assert open_path(copy, encoding="utf-16").text.sha256 == changed.text.sha256
    assert len(list(prepared.PREPARED.glob("*.ids"))) == 2


def test_a_text_that_has_just_changed_is_read_again(text_file, monkeypatch):
    monkeypatch.setattr(prepared, "SETTLED_SECONDS", 2)
    open_path(text_file)
    monkeypatch.setattr(prepared, "read_chunks", Mock(side_effect=ArithmeticError))
    with pytest.raises(ArithmeticError):
        open_path(text_file)


@pytest.mark.parametrize(("size", "bytes_per_id"), [(254, 1), (255, 1), (256, 2), (257, 2)])
def test_an_id_takes_one_byte_while_one_value_is_left_for_unknown_characters(
    size, bytes_per_id, text_file
):
    text = "".join(chr(0x4E00 + i) for i in range(size)) * 3
    text_file.write_text(text, "utf-8")
    opened = open_path(text_file)
    assert opened.text.ids_N.itemsize == bytes_per_id
    assert text_of(opened) == text


@settings(max_examples=25)
@given(st.lists(st.integers(1, 700), min_size=1, max_size=3), st.integers(1, 3000), st.randoms())
def test_every_id_can_be_read_whatever_the_size_of_the_vocabulary(
    tmp_path_factory, sizes, length, random
):
    """Ids of one byte, or two; the vocabulary may outgrow one byte late in the text."""
    text = "ab"
    for size in sizes:
        alphabet = [chr(0x20 + i) for i in range(size)] + ["\U0001f600"]
        text += "".join(random.choices(alphabet, k=length))
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text").write_text(text, "utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.text.CHUNK", 1000)
        patch.setattr(prepared, "PIECE", 512)
        patch.setattr(prepared, "PREPARED", folder / "prepared")
        opened = prepared.open_prepared([folder / "text"], "utf-8")
        assert sorted(opened.vocab) == sorted(set(text))
        assert opened.ids_N.itemsize == (1 if len(set(text)) < 256 else 2)
        for start in (0, len(text) // 2, len(text) - 1):
            (ids_T,) = opened.windows(np.array([start]), len(text) - start)
            assert "".join(opened.vocab[id_] for id_ in ids_T) == text[start:]


def test_ids_are_those_of_a_given_larger_vocabulary(text_file):
    vocab = "".join(sorted(set(LINES) | set("xyzé"), reverse=True))
    opened = open_path(text_file, vocab=vocab)
    assert opened.tokenizer.vocab == vocab
    assert text_of(opened) == LINES
    with pytest.raises(UserError, match="not in the vocabulary"):
        open_path(text_file, vocab="abc")


def test_batches_are_windows_of_the_training_split_up_to_both_ends():
    opened = open_path(write_numbered_text(60), block_size=8, val_fraction=0.4)
    starts = set()
    for step in range(200):
        x_BT, y_BT = opened.batch(8, 4, 0, step, slice(None))
        assert torch.equal(x_BT, x_BT[:, :1] + torch.arange(8))
        assert torch.equal(y_BT, x_BT + 1)
        starts |= set(x_BT[:, 0].tolist())
    assert starts == set(range(opened.train_chars - 8))


@given(st.integers(2, 400), st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_uses_every_window_once(length, block_size, seed, epoch):
    block_size = min(block_size, length - 1)
    starts = corpus.shuffled_windows(length, block_size, seed, epoch)
    targets = (starts[:, None] + 1 + np.arange(block_size)).flatten()
    assert len(set(targets)) == len(targets) > (length - 1) - 2 * block_size
    assert targets.min() >= 1
    assert targets.max() < length


def test_the_order_of_windows_is_random_and_different_in_every_epoch_and_for_every_seed():
    keys = [(1, 0), (1, 1), (1, 2), (2, 0)]
    orders = [np.argsort(corpus.shuffled_windows(10_000, 10, seed, epoch)) for seed, epoch in keys]
    for a, b in itertools.combinations([np.arange(len(orders[0])), *orders], 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


def test_the_order_of_windows_depends_on_the_seed_but_not_on_batch_size_and_rows():
    opened = open_path(write_numbered_text(640), block_size=8)
    windows_NT, _ = opened.batch(8, 240, seed=1, step=0, rows=slice(None))  # of several epochs
    other_NT, _ = opened.batch(8, 240, seed=2, step=0, rows=slice(None))
    assert not torch.equal(windows_NT, other_NT)
    for batch_size, step in ((1, 7), (2, 100), (80, 2)):
        batch_BT = windows_NT[step * batch_size : (step + 1) * batch_size]
        for rows in (slice(None), slice(1), slice(batch_size // 2, batch_size)):
            x_BT, _ = opened.batch(8, batch_size, seed=1, step=step, rows=rows)
            assert torch.equal(x_BT, batch_BT[rows])


@pytest.mark.parametrize("block_size", [1, 8, 63])
def test_validation_predicts_every_character_but_the_first_once(block_size):
    opened = open_path(write_numbered_text(640), block_size=block_size)
    targets = []
    for starts_B, T in opened.eval_windows(block_size):
        _, y_BT = opened.gather_windows(starts_B, T)
        targets += y_BT.flatten().tolist()
    assert targets == list(range(opened.train_chars + 1, 640))


def test_a_huge_validation_split_is_evaluated_at_even_distances(monkeypatch):
    monkeypatch.setattr(corpus, "MAX_EVAL_CHARS", 80)
    opened = open_path(write_numbered_text(4000), block_size=8)
    starts = np.concatenate([starts_B for starts_B, _ in opened.eval_windows(8)])
    assert len(starts) == len(set(starts)) == 10
    assert np.ptp(np.diff(starts)) <= 8
    assert starts[0] == opened.train_chars
    assert starts[-1] + 16 > 4000 - 1
    assert "evaluated on 80 of them" in opened.describe(8)


@pytest.mark.parametrize("length", [0, 5, -500, -32, None])
def test_a_damaged_prepared_file_is_made_again(text_file, length):
    open_path(text_file)
    (path,) = prepared.PREPARED.glob("*.ids")
    content = bytearray(path.read_bytes())
    content[400] ^= length is None  # flips a bit
    path.write_bytes(content[:length])
    assert text_of(open_path(text_file)) == LINES


def test_no_damaged_piece_of_a_large_prepared_file_is_read(text_file, monkeypatch):
    monkeypatch.setattr(prepared, "EAGER_PIECES", 0)
    monkeypatch.setattr(prepared, "PIECE", 256)
    open_path(text_file)
    (path,) = prepared.PREPARED.glob("*.ids")
    content = bytearray(path.read_bytes())
    content[600] ^= 1  # in the third piece
    path.write_bytes(content)
    opened = open_path(text_file)
    for start in (0, 511 - 16, 768, len(LINES) - 17):
        opened.gather_windows(np.array([start]), 16)
    for start in (512 - 16, 600, 767):
        with pytest.raises(RunError, match="damaged"):
            opened.gather_windows(np.array([0, start]), 16)


@pytest.mark.parametrize("addition", ["a", "é"])  # known and unknown to the vocabulary
def test_a_text_that_changes_while_it_is_read_is_refused(text_file, monkeypatch, addition):
    read_chunks = prepared.read_chunks

    def change_and_read(*args):
        for text in read_chunks(*args):
            text_file.write_text(LINES + addition)
            yield text

    monkeypatch.setattr("data.text.CHUNK", 1000)
    monkeypatch.setattr(prepared, "read_chunks", change_and_read)
    with pytest.raises(UserError, match="changed while it was being read"):
        open_path(text_file)
    assert not os.listdir(prepared.PREPARED)


def test_two_processes_may_prepare_the_same_text_at_the_same_time(text_file, monkeypatch):
    """Two threads, both of which have written the text before either gives it its name."""
    prepare, both = prepared._prepare, threading.Barrier(2, timeout=30)

    def prepare_and_wait(*args):
        name = prepare(*args)
        both.wait()
        return name

    monkeypatch.setattr(prepared, "_prepare", prepare_and_wait)
    with ThreadPoolExecutor() as pool:
        texts = list(pool.map(prepared.open_prepared, [[text_file]] * 2, ["utf-8"] * 2))
    for text in texts:
        assert "".join(text.vocab[id_] for id_ in text.ids_N) == LINES
