"""The laws of training: what resumes is the same run; what is written can be trusted."""

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from configs.schema import read_toml
from data import corpus
from model import checkpoint
from tests.conftest import TINY, curve, summary

ROOT = Path(__file__).parent.parent
SIXTY = ["--max_iters", "60", "--eval_interval", "20", "--log_interval", "1"]


def same_tensors(a, b) -> bool:
    """Whether two nests of dicts, lists and tensors are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tensors(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_tensors, a, b))
    return a == b


def assert_same_run(a: Path, b: Path) -> None:
    """Weights, optimisers, losses and curves are equal."""
    one, other = checkpoint.load(a / "last.pt"), checkpoint.load(b / "last.pt")
    for name in (
        "model",
        "optimizers",
        "step",
        "val_loss",
        "best_val_loss",
        "best_iter",
        "config",
        "vocab",
    ):
        assert same_tensors(getattr(one, name), getattr(other, name)), name
    for split, tag in (
        ("train", "loss"),
        ("train", "learning_rate"),
        ("train", "grad_norm"),
        ("val", "loss"),
    ):
        assert curve(a, split, tag) == curve(b, split, tag)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def at_step(monkeypatch, step: int, happen) -> None:
    """Let something happen in the middle of a step."""
    update, count = train.optim.update, iter(range(10**6))

    def watched(*args):
        if next(count) == step:
            happen()
        return update(*args)

    monkeypatch.setattr(train.optim, "update", watched)


def kill() -> None:
    raise Killed


@pytest.mark.parametrize(
    "flags",
    [[], ["--dropout", "0.2", "--gradient_accumulation_steps", "2"]],
    ids=["plain", "dropout"],
)
def test_a_run_killed_and_resumed_is_the_run_never_killed(tiny, monkeypatch, flags):
    assert tiny(*SIXTY, *flags, "--out_dir", "whole") == 0
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 33, kill)  # past the checkpoint of step 20: 13 steps are drawn twice
        tiny(*SIXTY, *flags, "--out_dir", "killed")
    assert train.main(["--resume", "killed"]) == 0
    assert_same_run(Path("whole"), Path("killed"))
    assert [step for step, _ in curve(Path("killed"), "train")] == list(range(60))
    assert [step for step, _ in curve(Path("killed"), "val")] == [20, 40, 60]


def test_curves_are_on_disk_before_the_checkpoint_they_lead_to(tiny, monkeypatch):
    """Or a kill would lose points that a resumed run does not plot again."""
    save, seen = checkpoint.save, []

    def watched(state, *paths):
        seen.append((state.step, len(curve(Path("run"), "train")), len(curve(Path("run"), "val"))))
        save(state, *paths)

    monkeypatch.setattr(checkpoint, "save", watched)
    assert tiny(*SIXTY, "--out_dir", "run") == 0
    assert set(seen) == {(20, 20, 1), (40, 40, 2), (60, 60, 3)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_step_saves_and_says_how_to_resume(tiny, monkeypatch, capsys, number):
    assert tiny(*SIXTY, "--out_dir", "whole") == 0
    with monkeypatch.context() as patch:
        at_step(patch, 29, lambda: os.kill(os.getpid(), number))
        assert tiny(*SIXTY, "--out_dir", "stopped") == 128 + number
    assert "train.py --resume stopped" in capsys.readouterr().out
    assert checkpoint.load("stopped/last.pt").step == 30
    assert train.main(["--resume", "stopped"]) == 0
    assert_same_run(Path("whole"), Path("stopped"))
    assert [step for step, _ in curve(Path("stopped"), "train")] == list(range(60))


def test_a_compiled_run_resumes_as_exactly(tiny, monkeypatch, capsys):
    sixty = [*SIXTY, "--dropout", "0.2", "--dtype", "float32"]
    flags = [*sixty, "--compile", "on"]
    assert tiny(*flags, "--out_dir", "whole") == 0
    with monkeypatch.context() as patch:
        at_step(patch, 29, lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert tiny(*flags, "--out_dir", "stopped") == 128 + signal.SIGTERM
    assert train.main(["--resume", "stopped"]) == 0
    assert "warning" not in capsys.readouterr().err, "it did not compile"
    assert_same_run(Path("whole"), Path("stopped"))
    assert tiny(*sixty, "--out_dir", "eager") == 0
    compiled, eager = (checkpoint.load(f"{name}/last.pt").model for name in ("whole", "eager"))
    assert compiled.keys() == eager.keys()  # no prefix of a wrapper reaches a file
    losses = [[loss for _, loss in curve(Path(name), "train")] for name in ("whole", "eager")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # what is dropped is the same, too


def test_how_often_one_looks_changes_nothing(tiny):
    for interval in ("7", "60"):
        flags = [
            "--max_iters",
            "60",
            "--log_interval",
            "1",
            "--dropout",
            "0.1",
            "--eval_interval",
            interval,
        ]
        assert tiny(*flags, "--out_dir", interval) == 0
    assert curve(Path("7"), "train") == curve(Path("60"), "train")
    assert curve(Path("7"), "val")[-1] == curve(Path("60"), "val")[-1]


def test_a_step_in_parts_is_the_step(tiny):
    flags = ["--max_iters", "5", "--log_interval", "1", "--dtype", "float32"]
    for parts in ("1", "4"):
        assert tiny(*flags, "--gradient_accumulation_steps", parts, "--out_dir", parts) == 0
    whole, parts = curve(Path("1"), "train"), curve(Path("4"), "train")
    assert [loss for _, loss in whole] == pytest.approx([loss for _, loss in parts], rel=1e-4)


def test_two_processes_train_as_one(text_file, elsewhere):
    flags = [
        "--max_iters",
        "5",
        "--log_interval",
        "1",
        "--dtype",
        "float32",
        "--data",
        str(text_file),
        *TINY,
    ]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    for command, name in (([sys.executable], "1"), (torchrun, "2")):
        subprocess.run(
            [*command, str(ROOT / "train.py"), *flags, "--out_dir", name],
            check=True,
            capture_output=True,
            timeout=120,
        )
    one, two = (checkpoint.load(f"{name}/last.pt").model for name in "12")
    assert one.keys() == two.keys()
    for split in ("train", "val"):
        one, two = curve(Path("1"), split), curve(Path("2"), split)
        assert [loss for _, loss in one] == pytest.approx([loss for _, loss in two], rel=1e-4)


def test_a_run_s_folder_holds_what_it_promises(tiny, text_file):
    assert (
        tiny("--max_iters", "25", "--eval_interval", "10", "--out_dir", "run", "--seed", "5") == 0
    )
    run = Path("run")
    assert {path.name for path in run.iterdir()} == {
        "config.toml", "last.pt", "best.pt", "summary.json", "train", "val"
    }  # fmt: skip
    came = summary(run)
    assert came["iters"] == 25
    assert came["train_chars"] + came["val_chars"] == len(text_file.read_text())
    assert came["vocab_size"] == len(set(text_file.read_text()))
    assert came["bits_per_char"] == came["best_val_loss"] / math.log(2)
    assert came["seconds"] > 0 < came["chars_per_second"]
    assert came["params"] == sum(w.numel() for w in checkpoint.load(run / "last.pt").model.values())
    losses = dict(curve(run, "val"))
    assert sorted(losses) == [10, 20, 25]
    assert losses[came["best_iter"]] == pytest.approx(came["best_val_loss"])
    assert came["best_val_loss"] == pytest.approx(min(losses.values()))
    assert [step for step, _ in curve(run, "train")] == [0, 10, 20]
    for tag in ("learning_rate", "grad_norm", "chars_per_second"):
        assert curve(run, "train", tag)
    for split, tag in (("val", "sample/text_summary"), ("train", "config/text_summary")):
        events = EventAccumulator(str(run / split)).Reload()
        assert events.Tensors(tag)[0].tensor_proto.string_val[0].startswith(b"    ")


def test_the_first_loss_is_that_of_knowing_nothing(tiny, text_file):
    assert tiny("--max_iters", "1", "--out_dir", "run") == 0
    assert curve(Path("run"), "train")[0][1] == pytest.approx(
        math.log(len(set(text_file.read_text()))), rel=1e-3
    )


def test_its_config_trains_the_same_again(tiny):
    assert tiny(*SIXTY, "--out_dir", "first", "--n_layer", "1") == 0
    assert train.main(["first/config.toml"]) == 0
    (again,) = Path("runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}", again.name)
    assert_same_run(Path("first"), again)


def test_runs_of_one_second_get_folders_of_their_own(tiny):
    for _ in range(4):
        assert tiny("--max_iters", "1") == 0
    assert len(list(Path("runs").iterdir())) == 4


def test_a_worse_evaluation_never_touches_the_best(tiny, monkeypatch):
    losses = iter([2.0, 1.0, 3.0, 1.5])
    monkeypatch.setattr(train, "evaluate", lambda *args: next(losses))
    assert tiny("--max_iters", "40", "--eval_interval", "10", "--out_dir", "run") == 0
    assert checkpoint.load("run/best.pt").step == 20
    assert checkpoint.load("run/last.pt").step == 40
    assert (summary(Path("run"))["best_val_loss"], summary(Path("run"))["val_loss"]) == (1.0, 1.5)


def test_patience_ends_a_run_that_no_longer_improves(tiny, monkeypatch, capsys):
    losses = iter([2.0, 1.0, 3.0, 1.5, 0.5])
    monkeypatch.setattr(train, "evaluate", lambda *args: next(losses))
    assert (
        tiny("--max_iters", "90", "--eval_interval", "10", "--patience", "2", "--out_dir", "run")
        == 0
    )
    assert summary(Path("run"))["iters"] == 40
    assert "--resume run --patience 0" in capsys.readouterr().out


def test_evaluating_twice_gives_the_same_figure(tiny, monkeypatch):
    evaluate = train.evaluate

    def twice(*args):
        first, second = evaluate(*args), evaluate(*args)
        assert first == second
        return first

    monkeypatch.setattr(train, "evaluate", twice)
    assert tiny("--max_iters", "5", "--dropout", "0.5") == 0


def test_a_finished_run_resumed_completes_what_is_missing(tiny):
    assert tiny("--max_iters", "20", "--out_dir", "run") == 0
    before = checkpoint.load("run/last.pt")
    for name in ("summary.json", "best.pt", "config.toml"):
        Path("run", name).unlink()
    assert train.main(["--resume", "run"]) == 0
    assert same_tensors(checkpoint.load("run/last.pt").model, before.model)
    assert summary(Path("run"))["best_val_loss"] == before.best_val_loss
    assert checkpoint.load("run/best.pt").step == 20
    assert len(curve(Path("run"), "val")) == 1


def test_a_finished_run_with_more_steps_goes_on(tiny):
    assert tiny("--max_iters", "20", "--out_dir", "run") == 0
    seconds = summary(Path("run"))["seconds"]
    assert train.main(["--resume", "run/best.pt", "--max_iters", "30", "--eval_interval", "5"]) == 0
    assert summary(Path("run"))["iters"] == 30
    assert summary(Path("run"))["seconds"] > seconds
    assert [step for step, _ in curve(Path("run"), "val")] == [20, 25, 30]
    assert read_toml("run/config.toml")["max_iters"] == 30


def test_a_run_that_ended_between_evaluations_keeps_its_last_point_when_it_goes_on(tiny):
    assert tiny("--max_iters", "25", "--eval_interval", "10", "--out_dir", "run") == 0
    assert train.main(["--resume", "run", "--max_iters", "40"]) == 0
    assert [step for step, _ in curve(Path("run"), "val")] == [10, 20, 25, 30, 40]


def test_a_text_that_changed_is_noticed_and_taken_if_named(tiny, text_file, monkeypatch, capsys):
    assert tiny("--max_iters", "5", "--out_dir", "run") == 0
    text_file.write_text(text_file.read_text().replace("moon", "noom"))
    assert train.main(["--resume", "run", "--max_iters", "8"]) == 2
    assert "--data" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(
            train, "evaluate", lambda *args: 99.0
        )  # however hard the new text is, its best is its own
        assert train.main(["--resume", "run", "--max_iters", "8", "--data", str(text_file)]) == 0
    assert summary(Path("run"))["best_val_loss"] == 99.0
    text_file.write_text(text_file.read_text() + "é")
    assert train.main(["--resume", "run", "--max_iters", "9", "--data", str(text_file)]) == 2
    assert "'é'" in capsys.readouterr().err


def test_divergence_ends_with_status_1_and_the_last_checkpoint_whole(tiny, monkeypatch, capsys):
    loss_of = train.loss_of
    count = iter(range(10**6))
    monkeypatch.setattr(
        train, "loss_of", lambda *args: loss_of(*args) * (math.nan if next(count) > 40 else 1)
    )
    assert (
        tiny("--max_iters", "60", "--eval_interval", "5", "--log_interval", "1", "--out_dir", "run")
        == 1
    )
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert "learning rate" in error
    assert all(w.isfinite().all() for w in checkpoint.load("run/last.pt").model.values())


def test_what_it_says_before_and_after(tiny, capsys):
    assert tiny("--max_iters", "5", "--out_dir", "run") == 0
    said = capsys.readouterr()
    for words in (
        "device  cpu",
        "corpus  ",
        "model   2 layers",
        "parameters",
        "best    ",
        "python sample.py run",
        "python train.py --resume run",
        "tensorboard --logdir",
    ):
        assert words in said.out
    assert "validation loss" in said.err
    assert "\r" not in said.err, "a bar is for terminals"


def test_the_second_start_does_not_prepare_the_text_again(tiny, monkeypatch):
    assert tiny("--max_iters", "1") == 0
    monkeypatch.setattr(corpus, "_prepare", None)
    assert tiny("--max_iters", "1") == 0


def test_a_signal_while_it_compiles_leaves_a_run_that_can_be_resumed(tiny, monkeypatch):
    def compile_slowly(self, function, *example):
        os.kill(os.getpid(), signal.SIGTERM)
        return function

    with monkeypatch.context() as patch:
        patch.setattr(train.Runtime, "compile", compile_slowly)
        assert tiny("--max_iters", "20", "--out_dir", "run") == 128 + signal.SIGTERM
    assert checkpoint.load("run/last.pt").step == 0
    assert train.main(["--resume", "run"]) == 0
    assert tiny("--max_iters", "20", "--out_dir", "whole") == 0
    assert_same_run(Path("whole"), Path("run"))


def test_a_resumed_run_needs_no_place_for_new_ones(tiny):
    assert tiny("--max_iters", "5", "--out_dir", "run") == 0
    Path("runs").write_text("a file where new runs would go")
    assert train.main(["--resume", "run", "--max_iters", "8"]) == 0


@pytest.mark.parametrize("deaf", ["stdout", "stderr"])
def test_a_reader_that_goes_away_does_not_end_training(text_file, deaf):
    """As when `head`, or the terminal, closes: what is lost is the words, not the night."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        "--data",
        str(text_file),
        *TINY,
        *SIXTY,
        "--out_dir",
        "run",
    ]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, deaf: writer}
    assert subprocess.run(command, check=False, timeout=120, **streams).returncode == 0
    assert summary(Path("run"))["iters"] == 60
