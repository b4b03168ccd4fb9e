"""Tests of compare.py: what it concludes from losses, and what it runs again."""

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from configs.settings import DataConfig, TrainConfig
from data.corpus import open_corpus
from model.optim import AVERAGE_FROM
from model.system.files import lock_run_dir
from tests.benchmarks import compare
from tests.benchmarks.compare import SMALL, Speed, Variant, answer, difference, seeds_needed
from tests.benchmarks.compare_child import make_rounds
from tests.conftest import LINES, ROOT, TINY

SPREAD = 0.0042


def share_of(words: str, true_difference: float, seeds: int) -> float:
    """How often the answer about normally distributed losses has these words."""
    rng = np.random.default_rng(0)
    losses = rng.normal(1.42, SPREAD, (2000, 2, seeds))
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
    """The repository, as far as compare.py needs it."""
    for part in ("model", "configs", "data"):
        ignore = shutil.ignore_patterns("*.txt*", "__pycache__")
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignore)
    shutil.copy(ROOT / "train.py", tmp_path)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    return tmp_path


def make_variants(flags: list[str]) -> list[Variant]:
    """Those of this command line."""
    args, common, own = compare.parse(flags)
    compare.FOLDER.mkdir(parents=True, exist_ok=True)
    text = compare.training_part(common)
    return [compare.make_variant(args.networks[i], common, own[i], text) for i in (0, 1)]


def keep_speed(flags: list[str], *rounds: tuple[float, float]) -> None:
    """Write what measure_speed keeps for a second start, so that compare measures nothing."""
    a, b = make_variants(flags)
    kept = {"rounds": rounds, "inputs": [a.inputs, b.inputs], "files": {}}
    (compare.FOLDER / f"{a.name} - {b.name}.json").write_text(json.dumps(kept))


def made_runs() -> dict[str, int]:
    """When each run was finished."""
    return {
        f"{path.parts[-3]}/{path.parts[-2]}": path.stat().st_mtime_ns
        for path in compare.FOLDER.rglob("inputs.json")
    }


def test_compare_runs_again_only_what_has_changed(copied_tree, text_file, capsys):
    """Equal runs are the same bit for bit; warnings are shown once for each network."""
    quill = copied_tree / "model/networks/quill.py"
    old = "cache.kept[self] = padded_BTC[:, -2:]"
    assert quill.read_text().count(old) == 1
    quill.write_text(quill.read_text().replace(old, "pass"))
    text_file.write_text(3 * LINES)
    flags = ["quill", "quill", "--a.log_interval=7", f"--data={text_file}", *TINY]
    flags += ["--max_iters=2", "--seeds=2", "--val_fraction=0.2"]
    keep_speed(flags, (1.0, 1.0), (1.0, 1.0))
    capsys.readouterr()
    assert compare.main(flags) == 0
    output = capsys.readouterr().out
    assert "quill, log_interval 7 and quill are the same, bit for bit" in output
    assert output.count("the cache of the network quill changes its logits") == 2
    assert output.count("word for word in the training text") == 1
    first = made_runs()
    names = ("quill, log_interval 7", "quill")
    assert sorted(first) == sorted(f"{name}/seed-{seed}" for name in names for seed in (1, 2))
    assert "seed = 2\n" in (compare.FOLDER / "quill/seed-2/config.toml").read_text()

    # It trains on the training text alone.
    corpus = open_corpus(DataConfig((str(text_file),), val_fraction=0.2))
    assert compare.TEXT.read_text() == (3 * LINES)[: corpus.train_chars]
    assert "val_fraction = 0.2\n" in (compare.FOLDER / "quill/seed-1/config.toml").read_text()

    # A run is made again if it was stopped or its own network has changed.
    run, inputs = compare.FOLDER / "quill/seed-2", make_variants(flags)[1].inputs
    (copied_tree / "model/networks/gpt.py").write_text("raise RuntimeError  # another network\n")
    assert compare.is_current(run, inputs, copied_tree)
    assert not compare.is_current(run, inputs | {"max_iters": 3}, copied_tree)
    (run / "inputs.json").unlink()
    assert not compare.is_current(run, inputs, copied_tree)
    capsys.readouterr()
    quill.write_text("raise RuntimeError('edited')\n")
    assert compare.main(flags) == 1
    output = capsys.readouterr()
    assert "seed-1 is made again, since this changed: model/networks/quill.py" in output.out
    assert output.err.splitlines()[-1].endswith("RuntimeError: edited")


def test_the_faster_network_also_gets_the_steps_of_the_other_ones_time(text_file):
    flags = ["gpt", "gpt", "--a.learning_rate=0.01", f"--data={text_file}", *TINY, "--max_iters=4"]
    a, b = make_variants(flags)
    speed = Speed([(3.0, 2.0), (9.0, 4.0), (4.0, 4.0)], (a.config, b.config))
    assert compare.longer(a, speed).config.max_iters == 6


def test_the_speed_is_measured_in_turn_and_kept(copied_tree, text_file, monkeypatch):
    monkeypatch.setattr(compare, "ROUNDS", 2)
    monkeypatch.setattr(compare, "ROUND_SECONDS", 0.1)
    a, b = make_variants(["gpt", "quill", f"--data={text_file}", *TINY, "--ema_decay=0.9"])
    speed = compare.measure_speed(a, b, copied_tree)
    assert len(speed.rounds) == 2
    assert all(value > 0 for pair in speed.rounds for value in pair)
    networks = copied_tree / "model/networks"
    (networks / "other.py").write_text("# of another comparison\n")
    kept = compare.measure_speed(a, b, copied_tree).rounds
    assert [tuple(pair) for pair in kept] == speed.rounds
    (networks / "gpt.py").write_text("# edited\n")
    files = json.loads(next(compare.FOLDER.glob("*.json")).read_text())["files"]
    assert compare.changed_files(files, copied_tree) == ["model/networks/gpt.py"]


def test_the_warm_up_round_lasts_until_the_average_is_learned_from(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\n"))
    steps = 0
    with pytest.raises(SystemExit):
        for _ in make_rounds(1e-9):
            steps += 1
    assert steps == AVERAGE_FROM


@pytest.mark.parametrize("faster", [1.0, 1.05, 1.08, 2.0])
@pytest.mark.parametrize("max_iters", [499, 500])
def test_what_makes_equal_time_uncertain_is_said(faster, max_iters):
    speed = Speed([(1.0, 1.0), (faster, 1.0)] * 4, [TrainConfig(max_iters=max_iters)] * 2)
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
    old = ".masked_fill(is_later_TT, -torch.inf)"
    assert network.read_text().count(old) == 1
    network.write_text(network.read_text().replace(old, ""))
    flags = ["gpt", "quill", f"--data={text_file}", *TINY, "--max_iters=2"]
    keep_speed(flags, (1.0, 1.0), (1.0, 1.0))
    assert compare.main(flags) == 2
    assert capsys.readouterr().err.startswith("error: gpt: the network gpt looks ahead")
    assert not made_runs()


def test_two_comparisons_at_once_are_refused(text_file, capsys):
    compare.FOLDER.mkdir(parents=True)
    with lock_run_dir(compare.FOLDER):
        assert compare.main(["gpt", "quill", f"--data={text_file}"]) == 2
    assert "another process" in capsys.readouterr().err


def test_a_preset_is_of_both_wherever_it_stands(text_file):
    preset = text_file.with_name("p.toml")
    preset.write_text('network = "gpt"\nn_embd = 8\ndata = "text.txt"\n')
    a, b = (v.config for v in make_variants(["gpt", "quill", "--a.dropout", "0.1", str(preset)]))
    assert (a.network, a.n_embd, a.dropout) == ("gpt", 8, 0.1)
    assert (b.network, b.n_embd, b.dropout) == ("quill", 8, 0.0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("gpt gpt", "both are gpt"),
        ("gpt quill --seeds 1", "seeds is 1"),
        ("gpt quill --minutes 3", "minutes cannot be given"),
        ("gpt quill --init_from x.pt", "init_from cannot be given"),
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
def test_a_comparison_that_makes_no_sense_is_refused(flags, message, text_file, capsys):
    assert compare.main([*flags.split(), f"--data={text_file}"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
