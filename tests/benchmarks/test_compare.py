"""Tests of compare.py: what it concludes from losses, and what it runs again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from configs.settings import DataConfig
from data.corpus import open_corpus
from model.system.files import lock_run_dir
from tests.benchmarks import compare
from tests.benchmarks.compare import SMALL, Speed, answer, difference, seeds_needed
from tests.conftest import LINES, ROOT, TINY

SPREAD = 0.0042


def share_of(words: str, true_difference: float, seeds: int) -> float:
    """How often the answer about normally distributed losses has these words."""
    rng = np.random.default_rng(0)
    losses = rng.normal(1.42, SPREAD, (4000, 2, seeds))
    losses[:, 0] += true_difference
    answers = [answer(difference(a.tolist(), b.tolist()), "a", "b") for a, b in losses]
    return sum(words in text for text in answers) / len(answers)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_two_equal_networks_differ_in_one_of_twenty_comparisons(seeds):
    alarms = share_of("worse", 0, seeds) + share_of("better", 0, seeds)
    assert 0.03 < alarms < 0.07


@pytest.mark.parametrize("size", [0.015, 0.01, 0.005, 0.002])
def test_a_difference_is_found_with_the_seeds_it_needs(size):
    seeds = seeds_needed(size, SPREAD)
    assert share_of("worse", size, seeds) > 0.78
    assert share_of("better", -size, seeds) > 0.78
    assert share_of("worse", size, seeds - 1) < 0.85


def test_interval_is_symmetric_and_wider_with_uncertain_speed():
    a, b = [1.42, 1.43, 1.44], [1.41, 1.44, 1.42]
    forth, back, timed = difference(a, b), difference(b, a), difference(a, b, speed_error=0.1)
    assert (forth.value, forth.low, forth.high) == (-back.value, -back.high, -back.low)
    assert timed.value == forth.value
    assert timed.low < forth.low
    assert timed.high > forth.high


def test_the_answer_says_what_the_interval_allows():
    steady = [1.42, 1.421, 1.422]
    assert answer(difference(steady, steady), "a", "b") == "a and b are the same, bit for bit."
    other = [loss + 0.001 for loss in steady]
    assert answer(difference(steady, other), "a", "b").startswith(
        f"No difference larger than {SMALL}"
    )
    # -0.003 to 0.015, and the reverse
    one, another = [1.426, 1.43, 1.434], [1.42, 1.424, 1.428]
    assert answer(difference(one, another), "a", "b").startswith("3 seeds do not tell")
    assert answer(difference(another, one), "a", "b").startswith("3 seeds do not tell")
    assert "speeds are too uncertain" in answer(difference(one, another, 0.1), "a", "b")


@pytest.fixture
def copied_tree(tmp_path, monkeypatch) -> Path:
    """The repository, as far as compare.py needs it; A is 1.5 times as fast as B."""
    for part in ("model", "configs", "data"):
        ignore = shutil.ignore_patterns("*.txt*", "__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignore)
    shutil.copy(ROOT / "train.py", tmp_path)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    config = {"max_iters": 4, "lr_decay_iters": 0, "teacher": "none"}
    config |= {"batch_size": 4, "block_size": 16}
    speed = Speed([(3.0, 2.0), (9.0, 4.0), (4.0, 4.0)], [config, config])
    monkeypatch.setattr(compare, "measure_speed", lambda *_: speed)
    return tmp_path


def made_runs() -> dict[str, int]:
    """When each run was finished."""
    return {
        f"{path.parts[-3]}/{path.parts[-2]}": path.stat().st_mtime_ns
        for path in compare.FOLDER.rglob("inputs.json")
    }


def test_compare_runs_again_only_what_has_changed(copied_tree, text_file, capsys):
    flags = ["gpt", "gpt", "--a.learning_rate=0.01", f"--data={text_file}", *TINY]
    flags += ["--max_iters=4", "--seeds=2", "--val_fraction=0.2"]
    assert compare.main(flags) == 0
    names = ("gpt, learning_rate 0.01", "gpt", "gpt, learning_rate 0.01, equal time")
    first = made_runs()
    assert sorted(first) == sorted(f"{name}/seed-{seed}" for name in names for seed in (1, 2))
    longer = (compare.FOLDER / names[2] / "seed-1/config.toml").read_text()
    assert "max_iters = 6\n" in longer
    assert "seed = 2\n" in (compare.FOLDER / "gpt/seed-2/config.toml").read_text()

    # It trains on the training text alone.
    corpus = open_corpus(DataConfig((str(text_file),), val_fraction=0.2))
    assert (compare.FOLDER / "text.txt").read_text() == LINES[: corpus.train_chars]
    assert "val_fraction = 0.2\n" in longer

    networks = copied_tree / "model/networks"
    (networks / "quill.py").write_text("raise RuntimeError  # of another network\n")
    (compare.FOLDER / "gpt/seed-2/inputs.json").unlink()  # as if it had been stopped
    assert compare.main(flags) == 0
    second = made_runs()
    assert {name for name in first if first[name] != second[name]} == {"gpt/seed-2"}

    capsys.readouterr()
    (networks / "gpt.py").write_text((networks / "gpt.py").read_text() + "# edited\n")
    assert compare.main(flags) == 0
    assert not set(made_runs().items()) & set(second.items())
    assert capsys.readouterr().out.count("this changed: model/networks/gpt.py") == 6


def test_what_changes_no_weight_is_the_same_bit_for_bit(
    copied_tree, text_file, capsys, monkeypatch
):
    config = compare.measure_speed().configs[0]
    monkeypatch.setattr(compare, "measure_speed", lambda *_: Speed([(1.0, 1.0)] * 3, [config] * 2))
    flags = [f"--data={text_file}", *TINY, "--max_iters=2", "--seeds=2"]
    assert compare.main(["gpt", "gpt", "--a.log_interval=7", *flags]) == 0
    assert "gpt, log_interval 7 and gpt are the same, bit for bit" in capsys.readouterr().out


def test_the_speed_is_measured_in_turn_and_kept(elsewhere, text_file, monkeypatch):
    monkeypatch.setattr(compare, "ROUNDS", 3)
    monkeypatch.setattr(compare, "ROUND_SECONDS", 0.1)
    compare.FOLDER.mkdir(parents=True)
    flags = [*TINY, "--teacher=own"]
    a, b = (compare.make_variant(name, flags, [], "") for name in ("gpt", "quill"))
    source = elsewhere / "source"
    source.mkdir()
    compare.copy_source(source)
    speed = compare.measure_speed(a, b, text_file, source)
    assert len(speed.rounds) == 3
    assert all(value > 0 for pair in speed.rounds for value in pair)
    assert [config["network"] for config in speed.configs] == ["gpt", "quill"]
    networks = source / "model/networks"
    (networks / "other.py").write_text("# of another comparison\n")
    kept = compare.measure_speed(a, b, text_file, source).rounds
    assert [tuple(pair) for pair in kept] == [tuple(pair) for pair in speed.rounds]
    (networks / "gpt.py").write_text((networks / "gpt.py").read_text() + "# edited\n")
    assert compare.measure_speed(a, b, text_file, source).rounds != kept


@pytest.mark.parametrize("faster", [1.0, 1.05, 1.08, 2.0])
@pytest.mark.parametrize("max_iters", [499, 500])
def test_what_makes_equal_time_uncertain_is_said(faster, max_iters):
    speed = Speed([(1.0, 1.0), (faster, 1.0)] * 4, [{"max_iters": max_iters}] * 2)
    said = speed.describe("gpt", "quill")
    assert ("differ too much" in said) == (faster > 1.06)
    assert ("too narrow" in said) == (max_iters < 500)


def test_an_error_of_a_run_names_it_and_its_file(copied_tree, text_file, capsys):
    network = copied_tree / "model/networks/gpt.py"
    old = "    def forward(self, ids_BT"
    text = network.read_text()
    assert text.count(old) == 1
    network.write_text(text.replace(old, "    def forward(self, x, ids_BT"))
    flags = [f"--data={text_file}", *TINY, "--max_iters=2"]
    assert compare.main(["gpt", "quill", *flags]) == 1
    error = capsys.readouterr().err
    assert str(network) in error or str(copied_tree / "train.py") in error
    assert error.splitlines()[-1].startswith("error: gpt: TypeError")


def test_a_network_that_looks_ahead_is_refused(copied_tree, text_file, capsys):
    network = copied_tree / "model/networks/gpt.py"
    old = "causal=True"
    assert network.read_text().count(old) == 1
    network.write_text(network.read_text().replace(old, "causal=False"))
    flags = [f"--data={text_file}", *TINY, "--max_iters=2"]
    assert compare.main(["gpt", "quill", *flags]) == 2
    assert "error: gpt: the network looks ahead" in capsys.readouterr().err


def test_warnings_of_runs_and_of_the_text_are_shown(copied_tree, text_file, capsys):
    network = copied_tree / "model/networks/gpt.py"
    old = "torch.arange(start, start + T"
    assert network.read_text().count(old) == 1
    network.write_text(network.read_text().replace(old, "torch.arange(0, T"))
    text_file.write_text(3 * LINES)
    flags = [f"--data={text_file}", *TINY, "--max_iters=2", "--seeds=2"]
    assert compare.main(["gpt", "quill", *flags]) == 0
    output = capsys.readouterr().out
    runs = ("gpt", "gpt, equal time")
    assert output.count("the cache of the network gpt changes its logits") == len(runs)
    assert output.count("word for word in the training text") == 1


def test_two_comparisons_at_once_are_refused(text_file, capsys, monkeypatch):
    monkeypatch.setattr(compare, "measure_speed", lambda *_: pytest.fail("was not refused"))
    compare.FOLDER.mkdir(parents=True)
    with lock_run_dir(compare.FOLDER):
        assert compare.main(["gpt", "quill", f"--data={text_file}"]) == 2
    assert "another process" in capsys.readouterr().err


def test_a_preset_is_of_both_wherever_it_stands(tmp_path):
    preset = tmp_path / "p.toml"
    preset.write_text('network = "gpt"\nn_embd = 8\n')
    _, common, own = compare.parse(["gpt", "quill", "--a.dropout", "0.1", str(preset)])
    a, b = (compare.make_variant("gpt", common, flags, "") for flags in own)
    assert a.inputs["settings"]["n_embd"] == b.inputs["settings"]["n_embd"] == 8
    assert "dropout" in a.inputs["settings"]
    assert "dropout" not in b.inputs["settings"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("gpt gpt", "both are gpt"),
        ("gpt quill --seeds 1", "seeds is 1"),
        ("gpt quill --minutes 3", "minutes cannot be given"),
        ("gpt quill --patience 3", "patience cannot be given"),
        ("gpt quill --init_from x.pt", "init_from cannot be given"),
        ("gpt quill --teacher x.pt", "teacher cannot be given"),
        ("gpt quill --resume x", "resume cannot be given"),
        ("gpt quill --a.data x.txt", "data cannot be given"),
        ("gpt quill --b.max_iters 3", "max_iters cannot be given"),
        ("gpt gpt --b.network quill", "without --network"),
        ("gpt quill --network=gpt", "without --network"),
        ("gpt quill --chart curves.png", "chart is curves.png"),
        ("gpt nothing", "nothing"),
        ("gpt quill --lerning_rate 3", "unknown key"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    flags, message, text_file, capsys, monkeypatch
):
    monkeypatch.setattr(compare, "measure_speed", lambda *_: pytest.fail("was not refused"))
    assert compare.main([*flags.split(), f"--data={text_file}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
