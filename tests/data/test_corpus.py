"""Tests of the corpus: every character kept, every prediction once, prepared files on disk."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data import corpus
from data.corpus import Corpus, DataConfig, open_corpus
from data.text import read_text
from model.errors import UserError
from tests.conftest import LINES


def open_path(path, block_size: int = 4, vocab: str | None = None, **values) -> Corpus:
    return open_corpus(DataConfig(data=str(path), **values), block_size, vocab)


def text_of(opened: Corpus) -> str:
    """The text, decoded from the ids."""
    ids_N = np.concatenate([opened.train, opened.val])
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
        patch.setattr(corpus, "PREPARED", folder / "prepared")
        opened = open_path(folder / "text")
    expected = text.removeprefix("\ufeff")
    assert text_of(opened) == expected
    assert len(opened.train) == int(len(expected) * 0.9)


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


def test_prepared_ids_are_used_again_for_the_same_text_only(text_file, monkeypatch):
    opened = open_path(text_file)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_prepare", None)
        moved = text_file.rename(text_file.with_name("moved.txt"))
        assert text_of(open_path(moved)) == LINES
    text_file.write_text(LINES[::-1])
    changed = open_path(text_file)
    assert text_of(changed) == LINES[::-1]
    assert text_of(opened) == LINES
    assert len({x.sha256 for x in (opened, changed, open_path(text_file, encoding="cp1252"))}) == 3


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
    assert starts == set(range(len(opened.train) - 8))


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
        _, y_BT = opened.gather_windows(opened.val, starts_B, T)
        targets += y_BT.flatten().tolist()
    assert targets == list(range(len(opened.train) + 1, 640))


def test_a_huge_validation_split_is_evaluated_at_even_distances(monkeypatch):
    monkeypatch.setattr(corpus, "MAX_EVAL_CHARS", 80)
    opened = open_path(write_numbered_text(4000), block_size=8)
    starts = np.concatenate([starts_B for starts_B, _ in opened.eval_windows(8)])
    assert len(starts) == len(set(starts)) == 10
    assert np.ptp(np.diff(starts)) <= 8
    assert starts[0] == 0
    assert starts[-1] + 16 > len(opened.val) - 1
    assert "evaluated on 80 of them" in opened.describe(8)


@pytest.mark.parametrize("length", [0, 5, -500, -32, None])
def test_a_damaged_prepared_file_is_made_again(text_file, length):
    open_path(text_file)
    (prepared,) = corpus.PREPARED.iterdir()
    content = bytearray(prepared.read_bytes())
    content[400] ^= length is None  # flips a bit
    prepared.write_bytes(content[:length])
    assert text_of(open_path(text_file)) == LINES


@pytest.mark.parametrize("addition", ["a", "é"])  # known and unknown to the vocabulary
def test_a_text_that_changes_while_it_is_read_is_refused(text_file, monkeypatch, addition):
    encode = corpus.CharTokenizer.encode

    def change_and_encode(self, text, name="the text"):
        text_file.write_text(LINES + addition)
        return encode(self, text, name)

    monkeypatch.setattr("data.text.CHUNK", 1000)
    monkeypatch.setattr(corpus.CharTokenizer, "encode", change_and_encode)
    with pytest.raises(UserError, match="changed while it was being read"):
        open_path(text_file)
    assert not os.listdir(corpus.PREPARED)
