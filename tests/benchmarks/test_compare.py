"""Tests of compare: its interval is right 19 times out of 20, and it makes the right runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from model.networks import gpt
from tests.benchmarks import compare
from tests.helpers import TINY, attend_without_mask


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("size", [0.0, 0.01])
def test_the_interval_holds_the_difference_in_19_of_20_comparisons(seeds, size):
    rng, hits = np.random.default_rng(0), 0
    for _ in range(2000):
        a, b = rng.normal([[size], [0.0]], 0.004, (2, seeds)).tolist()
        _, low, high = compare.difference(a, b)
        hits += low < size < high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_the_interval_is_symmetric_and_wider_with_uncertain_speeds():
    a, b = [1.0, 1.1, 1.2], [1.4, 1.3, 1.1]
    value, low, high = compare.difference(a, b)
    assert compare.difference(b, a) == pytest.approx((-value, -high, -low))
    _, lower, higher = compare.difference(a, b, time_error=0.1)
    assert lower < low < value < high < higher
    assert compare.answer(0.1, 0.2, "a") == "a is worse."
    assert compare.answer(-0.2, -0.1, "a") == "a is better."
    assert "0.200" in compare.answer(-0.2, 0.1, "a")


def test_a_preset_is_for_both_networks():
    Path("preset.toml").write_text("dropout = 0.1")
    _, flags = compare.parse(["quill", "quill", "--b.max_iters=4", "preset.toml"])
    assert all("preset.toml" in words for words in flags[:2])


@pytest.mark.slow
def test_runs_take_turns_and_never_see_the_validation_text(text_file, capsys, monkeypatch):
    text, seen = text_file.read_text(), []
    train = compare.train

    def keep_and_train(flags, path, seed, out_dir):
        assert text.startswith(Path(path).read_text())
        assert len(Path(path).read_text()) == int(0.9 * len(text))
        seen.append((out_dir.name, flags[-1]))
        if "one step" in out_dir.name:  # another test makes these runs
            return {}
        run = train(flags, path, seed, out_dir)
        assert run["train_chars"] + run["val_chars"] == int(0.9 * len(text))
        return run | {"step_seconds": 2.0 if "gpt" in flags else 3.0}

    monkeypatch.setattr(compare, "train", keep_and_train)
    flags = ["--seeds=2", f"--data={text_file}", *TINY, "--a.max_iters=4", "--b.max_iters=4"]
    assert compare.main(["gpt", "quill", *flags]) == 0
    names = ["a, one step", "b, one step", "a-1", "b-1", "a-2", "b-2"]
    names += ["a-1, 6 steps", "a-2, 6 steps"]
    assert [name for name, _ in seen] == names
    assert [flag for _, flag in seen[-2:]] == ["6", "6"]  # the steps that fit in the time of B
    output = capsys.readouterr().out
    assert re.search(r"\ngpt - quill +[+-]0\.\d{4} +[+-]0\.\d{4}, 95 % interval ", output)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--seeds=1", "seeds is 1"),
        ("--seed=3", "seed cannot be given"),
        ("--a.init_from=run", "init_from cannot be given"),
        ("--minutes=1", "minutes cannot be given"),
        ("--a.data=a.txt --b.data=b.txt", "the same text"),
        ("--b.encoding=utf-16", "the same text"),
        ("--network=gpt", "network cannot be given"),
        ("--a.network gpt", "network cannot be given"),
        ("--a.val_fraction=0.2", "split alike"),
        ("--val_fraction=0.2 --b.val_split=spread", "split alike"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(flags, message, capsys):
    assert compare.main(["quill", "quill", *flags.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("b", "flags", "message"),
    [
        ("typo", "", "network is 'typo'"),
        ("gpt", "--b.block_size=1000", "block_size is 1000"),
    ],
)
def test_what_is_wrong_with_b_is_found_before_a_is_trained(b, flags, message, text_file, capfd):
    flags = [f"--data={text_file}", *TINY, "--max_iters=99", *flags.split()]
    assert compare.main(["quill", b, *flags]) == 2
    assert message in capfd.readouterr().err
    assert not list(Path().glob("runs/compare/*/a-1"))
    assert Path("runs").exists() == (b != "typo")  # an unknown network is refused before any run


@pytest.mark.parametrize("names", [["gpt", "quill"], ["quill", "gpt"]])
def test_a_network_that_looks_ahead_is_refused(names, monkeypatch, capsys):
    """It would have the lowest loss, because it reads the characters that it should predict."""
    monkeypatch.setattr(gpt.Attention, "forward", attend_without_mask)
    assert compare.main(names) == 2
    assert capsys.readouterr().err.startswith("error: the network gpt looks ahead")
