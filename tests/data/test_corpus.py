"""Tests of the corpus: its vocabulary, its training batches, its evaluation batches."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from configs.settings import DataConfig, TrainConfig
from data.corpus import (
    MAX_EVAL_CHARS,
    Corpus,
    cut_windows,
    gather_examples,
    open_corpus,
    shuffled_starts,
)
from tests.helpers import LINES


def numbered_text(length: int, val_fraction: float = 0.1, val_split: str = "end") -> Corpus:
    """Return a corpus of different characters in order, so that an id is a position."""
    text = "".join(map(chr, range(0x10000, 0x10000 + length)))
    Path("numbered.txt").write_text(text, "utf-8")
    return open_corpus(
        DataConfig(("numbered.txt",), val_fraction=val_fraction, val_split=val_split)
    )


def of(block_size: int, batch_size: int, seed: int) -> TrainConfig:
    """Return a config with the settings that a batch depends on."""
    return TrainConfig(block_size=block_size, batch_size=batch_size, seed=seed)


@pytest.mark.parametrize("known", ["", "zeé", "".join(sorted(set(LINES), reverse=True))])
def test_given_vocabulary_is_extended_by_new_sorted_characters(text_file, known):
    opened = open_corpus(DataConfig((str(text_file),)), known)
    vocab = opened.tokenizer.vocab
    assert vocab == known + "".join(sorted(set(LINES) - set(known)))
    x_BT, y_BT = gather_examples(opened.ids_N, np.array([0, 5]), len(LINES) - 6)
    assert ["".join(vocab[i] for i in x_T) for x_T in x_BT] == [LINES[:-6], LINES[5:-1]]
    assert ["".join(vocab[i] for i in y_T) for y_T in y_BT] == [LINES[1:-5], LINES[6:]]
    assert opened.train_chars == int(len(LINES) * 0.9)
    assert open_corpus(DataConfig((str(text_file),)), vocab).tokenizer.vocab == vocab
    new = len(vocab) - len(known) if known else 0
    assert str(opened).endswith(f" ({new} new to the model)" if new else f" {len(vocab)}")
    Path("notes.md").touch()
    assert str(open_corpus(DataConfig((".",)))).startswith(". (1 files read, 1 left out): ")


def test_batches_are_examples_spanning_exactly_the_training_split():
    opened, starts = numbered_text(60, val_fraction=0.4), set()
    for step in range(200):
        x_BT, y_BT = opened.batch(of(8, 4, 0), step, slice(None))
        assert torch.equal(x_BT, x_BT[:, :1] + torch.arange(8))
        assert torch.equal(y_BT, x_BT + 1)
        starts |= set(x_BT[:, 0].tolist())
    assert starts == set(range(opened.train_chars - 8))


@given(st.integers(2, 400), st.integers(1, 60), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_uses_every_example_once(length, block_size, seed, epoch):
    block_size = min(block_size, length - 1)
    starts = shuffled_starts(length, block_size, seed, epoch)
    targets = (starts[:, None] + 1 + np.arange(block_size)).flatten()
    assert len(set(targets)) == len(targets) > (length - 1) - 2 * block_size
    assert targets.min() >= 1
    assert targets.max() < length


@pytest.mark.parametrize("length", [50, 41_000, 300_000])
@pytest.mark.parametrize("val_fraction", [0.1, 0.7])
@pytest.mark.parametrize("val_split", ["end", "spread"])
def test_training_and_validation_use_each_character_once(length, val_fraction, val_split):
    """Both keep the order of the text."""
    opened = numbered_text(length, val_fraction, val_split)
    train_N, val_N = np.split(opened.ids_N.astype(int), [opened.train_chars])
    assert set(train_N) | set(val_N) == set(range(length))
    assert len(train_N) + len(val_N) == length
    assert (np.diff(train_N) > 0).all()
    assert (np.diff(val_N) > 0).all()
    nominal = length - int(length * (1 - val_fraction))
    pieces = int(np.clip(length * val_fraction // 2000, 2, 100)) if val_split == "spread" else 1
    assert len(val_N) == pytest.approx(nominal, abs=pieces)
    if pieces == 1:
        assert opened.train_chars == int(length * (1 - val_fraction))
        return
    stretches = np.split(val_N, np.flatnonzero(np.diff(val_N) > 1) + 1)
    assert len(stretches) == pieces  # one stretch at the end of each equal piece
    ends = np.array([stretch[-1] + 1 for stretch in stretches])
    np.testing.assert_allclose(ends, length / pieces * np.arange(1, len(ends) + 1), atol=1)
    assert np.ptp([len(stretch) for stretch in stretches]) <= 2


def test_example_order_is_randomly_reshuffled_per_epoch_and_seed():
    keys = [(1, 0), (1, 1), (1, 2), (2, 0)]
    orders = [np.argsort(shuffled_starts(10_000, 10, seed, epoch)) for seed, epoch in keys]
    for a, b in itertools.combinations([np.arange(len(orders[0])), *orders], 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


def test_example_order_is_independent_of_batch_size_and_rows():
    opened = numbered_text(640)
    examples_NT, _ = opened.batch(of(8, 240, 1), 0, slice(None))  # the examples of several epochs
    for batch_size, step in ((1, 7), (2, 100), (80, 2)):
        batch_BT = examples_NT[step * batch_size : (step + 1) * batch_size]
        for rows in (slice(None), slice(1), slice(batch_size // 2, batch_size)):
            x_BT, _ = opened.batch(of(8, batch_size, 1), step, rows)
            assert torch.equal(x_BT, batch_BT[rows])


@pytest.mark.parametrize("block_size", [1, 8, 63])
@pytest.mark.parametrize("chars", [1, 16, 10**6])
def test_evaluation_predicts_every_validation_character_but_the_first_once(block_size, chars):
    opened, targets = numbered_text(640), []
    for x_BT, y_BT in opened.eval_batches(block_size, chars):
        assert x_BT.numel() <= max(chars, block_size)
        targets += y_BT.flatten().tolist()
    assert targets == list(range(opened.train_chars + 1, 640))


def test_a_huge_validation_split_is_evaluated_at_even_distances():
    Path("huge.txt").write_text("ab" * 600_000)
    opened = open_corpus(DataConfig(("huge.txt",), val_fraction=0.9))
    batches = list(opened.eval_batches(8, 4096))
    assert {x_BT.size(1) for x_BT, _ in batches} == {8}
    assert sum(len(x_BT) for x_BT, _ in batches) == MAX_EVAL_CHARS / 8
    windows = cut_windows(opened.val_chars, 8, 4096, MAX_EVAL_CHARS // 8)
    starts = np.concatenate([starts_B for starts_B, _ in windows])
    assert np.ptp(np.diff(starts)) <= 8
    assert starts[0] == 0
    assert starts[-1] + 16 > opened.val_chars - 1
