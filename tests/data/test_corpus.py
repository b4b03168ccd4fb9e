"""The laws of the corpus: no character lost, none invented, every target once."""

import errno
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data import corpus
from data.corpus import DataConfig, open_corpus
from data.text import read_text
from tests.conftest import LINES


def whole(opened: corpus.Corpus) -> str:
    """The text, back from the ids."""
    return opened.tokenizer.decode(opened.to_model[np.concatenate([opened.train, opened.val])])


def opened(path, block_size: int = 4, vocab: str | None = None, **keys) -> corpus.Corpus:
    return open_corpus(DataConfig(data=str(path), **keys), block_size, vocab)


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), min_size=60), st.integers(4, 9))
def test_a_text_comes_back_whole_whatever_the_size_of_the_pieces(tmp_path_factory, text, chunk):
    folder = tmp_path_factory.mktemp("corpus")
    path = folder / "text"
    text += "\r\n\x85ab"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.text.CHUNK", chunk)
        patch.setattr(corpus, "PREPARED", folder / "prepared")
        back = opened(path)
    expected = text.removeprefix("\ufeff")
    assert whole(back) == expected
    assert len(back.train) == int(len(expected) * 0.9)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32-be"])
def test_a_byte_order_mark_is_dropped_once(text_file, encoding):
    text = text_file.read_text()
    text_file.write_bytes(
        ("\ufeff" + text).encode(encoding) if encoding != "utf-16" else text.encode(encoding)
    )
    assert whole(opened(text_file, encoding=encoding)) == text
    assert read_text(text_file, encoding) == text


def test_latin_1_reads_any_bytes(text_file):
    content = bytes(range(256)) * 4
    text_file.write_bytes(content)
    assert whole(opened(text_file, encoding="latin-1")).encode("latin-1") == content


def test_a_folder_is_its_texts_in_order_with_a_newline_between(tmp_path):
    for name, text in {
        "b.txt": "bee" * 20,
        "a/z.txt": "zoo\n" * 20,
        "a/c.txt": "cat" * 20,
        "d.md": "no",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert whole(opened(tmp_path)) == "cat" * 20 + "\n" + "zoo\n" * 20 + "\n" + "bee" * 20


@pytest.mark.parametrize("at", [0, 5, 9, 300])
def test_a_byte_that_is_not_utf_8_is_named(text_file, monkeypatch, at):
    monkeypatch.setattr("data.text.CHUNK", 7)
    content = bytearray("é" * 5 + "a" * 400, "utf-8")
    content[at] = 0xFF
    text_file.write_bytes(content)
    where = at - 1 if at in (5, 9) else at  # the first byte of a broken pair is what is wrong
    with pytest.raises(ValueError, match=rf"offset {where};.*--encoding"):
        opened(text_file)


def test_a_second_start_reads_what_the_first_prepared(text_file, monkeypatch):
    first = opened(text_file)
    monkeypatch.setattr(corpus, "_prepare", None)
    again = opened(text_file)
    assert whole(again) == whole(first)
    moved = text_file.rename(text_file.with_name("moved.txt"))
    assert whole(opened(moved)) == whole(first)


def test_what_was_prepared_from_a_text_is_not_used_for_another(text_file):
    first = opened(text_file)
    text = text_file.read_text()
    text_file.write_text(
        text.replace("moon", "noom")
    )  # of the same length, with the same characters
    second = opened(text_file)
    assert whole(first) == text
    assert whole(second) == text.replace("moon", "noom")
    assert first.sha256 != second.sha256
    text_file.write_bytes("éè".encode() * 50)
    assert (
        opened(text_file, encoding="latin-1").sha256 != opened(text_file, encoding="utf-8").sha256
    )


def test_ids_can_be_those_of_a_larger_vocabulary(text_file):
    vocab = "zyx" + "".join(sorted(set(text_file.read_text()), reverse=True)).replace(
        "x", ""
    ).replace("y", "")
    given_vocab = opened(text_file, vocab=vocab)
    assert given_vocab.tokenizer.vocab == vocab
    assert whole(given_vocab) == whole(opened(text_file))
    with pytest.raises(ValueError, match="has no"):
        opened(text_file, vocab="abc")


def test_a_batch_is_a_function_of_seed_and_step_sliced_by_rank(text_file):
    data = opened(text_file)
    x_BT, y_BT = data.batch(16, 8, seed=1, step=5, rows=slice(None))
    assert x_BT.shape == y_BT.shape == (8, 16)
    assert (x_BT[:, 1:] == y_BT[:, :-1]).all()
    again, _ = data.batch(16, 8, seed=1, step=5, rows=slice(None))
    assert (again == x_BT).all()
    for rows in (slice(0, 4), slice(4, 8), slice(2, 3)):
        assert (data.batch(16, 8, seed=1, step=5, rows=rows)[0] == x_BT[rows]).all()
    for seed, step in ((1, 6), (2, 5)):
        assert (data.batch(16, 8, seed, step, slice(None))[0] != x_BT).any()


def test_batches_are_windows_of_the_training_part_up_to_both_ends(text_file):
    text_file.write_text(
        "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    )  # a character tells where it stands
    data, starts = opened(text_file, block_size=8, val_fraction=0.4), set()
    for step in range(200):
        x_BT, y_BT = data.batch(8, 4, 0, step, slice(None))
        assert (x_BT == x_BT[:, :1] + torch.arange(8)).all()
        assert (y_BT == x_BT + 1).all()
        starts |= set(x_BT[:, 0].tolist())
    assert starts == set(range(len(data.train) - 8))


@given(st.integers(2, 400), st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_deals_every_window_once(length, block_size, seed, epoch):
    block_size = min(block_size, length - 1)
    starts = corpus.shuffled_windows(length, block_size, seed, epoch)
    targets = (starts[:, None] + 1 + np.arange(block_size)).flatten()
    assert len(set(targets)) == len(targets) > (length - 1) - 2 * block_size
    assert targets.min() >= 1
    assert targets.max() < length


def test_every_epoch_deals_in_an_order_of_its_own():
    orders = [np.argsort(corpus.shuffled_windows(10_000, 10, 1, epoch)) for epoch in range(3)]
    for order in (*orders, orders[0][orders[1]], orders[1][orders[2]]):
        assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.15


def test_windows_come_in_one_order_whatever_the_batch(text_file):
    data = opened(text_file, block_size=8)
    epoch = len(corpus.shuffled_windows(len(data.train), 8, 1, 0))

    def starts(batch_size: int) -> list:
        return [
            x_BT
            for step in range(3 * epoch // batch_size)
            for x_BT in data.batch(8, batch_size, 1, step, slice(None))[0]
        ]

    singly = starts(1)
    for batch_size in (2, 3, epoch + 1):
        dealt = starts(batch_size)
        assert torch.equal(torch.stack(dealt), torch.stack(singly[: len(dealt)]))
    assert not torch.equal(torch.stack(singly[:epoch]), torch.stack(singly[epoch : 2 * epoch]))


@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 63])
def test_validation_predicts_every_character_but_the_first_once(text_file, block_size):
    text_file.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 640))))
    data = opened(text_file, block_size=block_size)
    targets = [
        y
        for starts, T in data.windows(block_size)
        for y in data.pairs(data.val, starts, T)[1].flatten().tolist()
    ]
    assert targets == list(range(len(data.train) + 1, 640))


def test_a_huge_validation_split_is_seen_at_even_distances_and_says_so(text_file, monkeypatch):
    monkeypatch.setattr(corpus, "MOST_VAL_CHARS", 80)
    text_file.write_text("".join(map(chr, range(0x4E00, 0x4E00 + 4000))))
    data = opened(text_file, block_size=8)
    starts = np.concatenate([starts for starts, _ in data.windows(8)])
    assert len(starts) == len(set(starts)) == 10
    assert np.ptp(np.diff(starts)) <= 8
    assert starts[0] == 0
    assert starts[-1] + 16 > len(data.val) - 1
    assert "80 of them" in data.describe(8)


def test_no_partial_preparation_is_left_or_used(text_file, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus.CharTokenizer, "encode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened(text_file)
    assert not list(corpus.PREPARED.iterdir())
    assert whole(opened(text_file)) == text_file.read_text()


def test_a_full_disk_is_named_and_nothing_of_the_text_is_left(text_file, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"prepared/.*npy cannot be written \(No space"):
        opened(text_file)
    assert not list(corpus.PREPARED.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"short",
        lambda content: content[:-500],
        lambda content: content[:-32],
        lambda content: content[:400] + bytes([content[400] ^ 1]) + content[401:],
    ],
    ids=["empty", "short", "cut", "without a digest", "a bit"],
)
def test_a_preparation_that_is_damaged_is_made_anew(text_file, damage):
    whole(opened(text_file))
    (prepared,) = corpus.PREPARED.iterdir()
    prepared.write_bytes(damage(prepared.read_bytes()))
    assert whole(opened(text_file)) == text_file.read_text()


@pytest.mark.parametrize("then", [LINES[::-1], LINES + "é"], ids=["known", "unknown"])
def test_a_text_that_changes_while_it_is_read_is_refused(text_file, monkeypatch, then):
    monkeypatch.setattr("data.text.CHUNK", 1000)
    encode = corpus.CharTokenizer.encode

    def meanwhile(self, text, name="the text"):
        text_file.write_text(then)
        return encode(self, text, name)

    monkeypatch.setattr(corpus.CharTokenizer, "encode", meanwhile)
    with pytest.raises(ValueError, match="changed"):
        opened(text_file)
    assert not list(corpus.PREPARED.iterdir())
