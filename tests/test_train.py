"""Tests of training: steps, evaluations, checkpoints, resuming, the files of a run."""

import copy
import itertools
import math
import os
import re
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn.utils import clip_grad_norm_

import sample
import train
from configs.flags import make_config, to_toml
from configs.recipe import Budget, block_parameters, recipe, step_flops
from configs.settings import DataConfig, GPTConfig, OptimConfig, TrainConfig
from data.corpus import Corpus, open_corpus
from model.loss import evaluate, training_loss
from model.networks import make_network
from model.networks.quill import GPT
from model.optim import make_optimizers
from model.run import checkpoint
from model.run import log as log_module
from model.run.checkpoint import Checkpoint
from model.run.setup import full_config
from model.system.device import Machine, choose_dtype, seed_all
from model.trained import TrainedModel
from tests.helpers import (
    AUTO_DTYPE,
    LINES,
    STEPS,
    TINY,
    Clock,
    after_each_save,
    assert_same_run,
    assert_similar,
    at_steps,
    change_network,
    curve,
    equal,
    overflow_at,
    summary,
    use_scaler,
)


@pytest.mark.parametrize(
    ("grad_clip", "parts", "scaled", "temperature"),
    [(0.0, 1, False, 1.0), (0.3, 2, False, 0.5), (0.3, 4, True, 2.0)],
)
def test_training_equals_a_plain_loop(
    tiny, text_file, monkeypatch, grad_clip, parts, scaled, temperature
):
    """The plain loop needs no accumulation and no scaling, because they must change nothing."""
    if scaled:
        use_scaler(monkeypatch)
    flags = "--max_iters=5 --warmup_iters=1 --learning_rate=0.05 --log_interval=1 --dtype=float32"
    flags += f" --grad_clip={grad_clip} --gradient_accumulation_steps={parts}"
    assert tiny(f"{flags} --train_temperature={temperature} --out_dir=run") == 0

    corpus = open_corpus(DataConfig((str(text_file),)))
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 16, "batch_size": 4}
    config = make_config(TrainConfig, sizes)
    seed_all(1337)
    model, expected = GPT(config, vocab_size=len(corpus.tokenizer.vocab)), []
    optimizers = make_optimizers(model, config, torch.float32)
    for step in range(5):
        lr = 0.05 * min((step + 1) / 2, 1 - step / 5)  # a step of warmup, a linear decay
        x_BT, y_BT = corpus.batch(config, step, rows=slice(4))
        logits_NV = model(x_BT).flatten(0, 1)
        logged_loss = F.cross_entropy(logits_NV, y_BT.flatten())  # without the temperature
        log_probs_NV = (logits_NV / temperature).log_softmax(-1)
        F.nll_loss(log_probs_NV, y_BT.flatten()).backward()
        norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
        expected.append((logged_loss.item(), norm.item(), lr))
        for parameter in model.parameters():
            parameter.grad *= min(1, grad_clip / norm) if grad_clip else 1
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        model.zero_grad()

    assert max(norm for _, norm, _ in expected) > 0.3  # so that clipping has an effect
    for i, tag in enumerate(("loss", "optimizer/grad_norm", "optimizer/learning_rate")):
        logged = [value for _, value in curve(Path("run"), "train", tag)]
        assert logged == pytest.approx([values[i] for values in expected], rel=1e-3)
    saved = checkpoint.load("run/last.pt").model
    for name, weight in model.state_dict().items():
        assert torch.allclose(saved[name], weight, rtol=1e-3, atol=1e-5), name
    nats = 0.0  # on the validation split, at temperature 1
    model.eval()
    for x_BT, y_BT in corpus.eval_batches(16, 64):
        nats += F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten(), reduction="sum").item()
    val_loss = summary(Path("run"))["val_loss"]
    assert val_loss == pytest.approx(nats / (corpus.val_chars - 1), rel=1e-4)


def test_an_overflow_skips_all_optimizers_and_halves_the_scale(tiny, monkeypatch):
    weights, steps = [], [3]
    use_scaler(monkeypatch)
    overflow_at(monkeypatch, steps)
    at_steps(monkeypatch, range(6), lambda model: weights.append(copy.deepcopy(model.state_dict())))
    assert tiny("--max_iters=6 --out_dir=run") == 0
    unchanged = [equal(before, after) for before, after in itertools.pairwise(weights)]
    assert unchanged == [False, False, True, False, False]
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512
    steps.clear()
    assert train.main(["--resume", "run", "--max_iters", "7"]) == 0
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512


@pytest.mark.slow
def test_a_compiled_run_resumes_exactly_and_equals_an_eager_run(tiny, monkeypatch, capsys):
    flags = f"{STEPS} --n_layer=1 --dropout=0.2 --dtype=float32"
    at_steps(monkeypatch, [13], lambda _: shutil.copytree("whole", "killed"))
    assert tiny(f"{flags} --compile=on --out_dir=whole") == 0
    assert train.main(["--resume", "killed"]) == 0
    assert "without torch.compile" not in capsys.readouterr().err
    assert_same_run(Path("whole"), Path("killed"))
    assert tiny(f"{flags} --out_dir=eager") == 0
    assert_similar(Path("whole"), Path("eager"))


@pytest.mark.parametrize("fails", ["never", "forward", "backward"])
def test_trying_the_compiler_changes_nothing_but_a_warning(tiny, monkeypatch, capsys, fails):
    """Weights and buffers stay the same, whether the compiler works or not."""

    def fail(*_):
        raise RuntimeError("no C++ compiler\nand a long story")

    def compile(network, **_):
        def compiled(x_BT):
            logits_BTV = network(x_BT)
            if fails == "forward":
                fail()
            if fails == "backward":
                logits_BTV.register_hook(fail)
            return logits_BTV

        return compiled

    def count_call(network, args):
        network.calls += network.training

    def count_calls(network):
        network.register_buffer("calls", torch.zeros(()))
        network.register_forward_pre_hook(count_call)

    change_network(monkeypatch, count_calls)
    monkeypatch.setattr(torch, "compile", compile)
    flags = "--max_iters=4 --dropout=0.2 --gradient_accumulation_steps=2"
    assert tiny(f"{flags} --compile=on --out_dir=tried") == 0
    warning = "without torch.compile: no C++ compiler\n"
    assert capsys.readouterr().err.count(warning) == (fails != "never")
    assert tiny(f"{flags} --compile=off --out_dir=eager") == 0
    eager, tried = (checkpoint.load(f"{run}/last.pt") for run in ("eager", "tried"))
    assert eager.model["calls"] == 8
    assert equal(eager.model, tried.model)
    assert equal(eager.optimizers, tried.optimizers)


@pytest.mark.parametrize("T", [16, 40], ids=["T = block_size", "T > block_size"])
def test_a_training_step_stays_on_the_device_of_the_model(T):
    """On the meta device, a tensor of another device is an error, and so is reading a value."""
    config = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=16)
    model = GPT(config, vocab_size=5).to("meta")
    ids_BT = torch.zeros(3, T, dtype=torch.int64, device="meta")
    logits_BTV = model(ids_BT)
    loss, _ = training_loss(logits_BTV, ids_BT, 0.9)
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    muon, _ = make_optimizers(model, OptimConfig(), muon_dtype=torch.bfloat16)
    muon.step()


def test_a_machine_may_lack_locks_and_hangup_signals(tiny, monkeypatch):
    """Windows has no fcntl and no SIGHUP."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(signal, "SIGHUP")
    assert tiny("--max_iters=3 --out_dir=run") == 0
    assert train.main(["--resume", "run", "--max_iters", "5"]) == 0


def test_evaluations_do_not_change_training_and_are_repeatable(tiny, text_file):
    for interval in ("5", "16"):
        flags = f"{STEPS} --dropout=0.3 --eval_interval={interval} --out_dir={interval}"
        assert tiny(flags) == 0
    assert curve(Path("5"), "train") == curve(Path("16"), "train")
    assert curve(Path("5"), "val")[-1] == curve(Path("16"), "val")[-1]
    saved, corpus = checkpoint.load("5/last.pt"), open_corpus(DataConfig((str(text_file),)))
    model = TrainedModel(Path("5/last.pt")).network
    batches = list(corpus.eval_batches(16, 64))
    nats, chars = evaluate(model, batches)
    assert (nats, chars) == evaluate(model, batches)
    # The run may compute in bfloat16.
    assert nats / chars == pytest.approx(saved.val_loss, rel=1e-2)


def test_a_point_of_the_training_curve_is_the_mean_since_the_last_one(tiny, monkeypatch):
    """If the run was stopped between the two points, it is the mean since the resume."""
    flags = "--max_iters=12 --eval_interval=4 --dropout=0.2 --out_dir="
    assert tiny(f"--log_interval=1 {flags}each") == 0
    at_steps(monkeypatch, [4], lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert tiny(f"--log_interval=3 {flags}mean") == 130
    assert train.main(["--resume", "mean"]) == 0
    losses, start = [loss for _, loss in curve(Path("each"), "train")], 0
    for step, loss in curve(Path("mean"), "train"):
        start = 5 if step == 6 else start
        assert loss == pytest.approx(sum(losses[start:step]) / (step - start))
        start = step


def test_what_a_run_directory_holds(tiny, text_file, capsys):
    run, text = Path("run"), text_file.read_text()
    run.mkdir()
    assert tiny("--max_iters=15 --eval_interval=10 --out_dir=run") == 0
    Path("run/notes.tmp").touch()  # a file of another program is kept
    assert train.main(["--resume", "run", "--max_iters", "25"]) == 0
    assert not capsys.readouterr().err  # no warning of TensorBoard
    names = {"config.toml", "last.pt", "best.pt", "summary.json", "train", "val", "notes.tmp"}
    assert {path.name for path in run.iterdir()} == names
    result = summary(run)
    assert result["step"] == 25
    assert result["train_chars"] + result["val_chars"] == len(text)
    assert result["seconds"] > 0 < result["chars_per_second"]
    assert result["train_loss"] == pytest.approx(curve(run, "train")[-1][1])

    losses = dict(curve(run, "val"))
    assert sorted(losses) == [0, 10, 15, 20, 25]
    assert losses[0] == pytest.approx(math.log(len(set(text))), rel=0.01)  # a new network guesses
    assert losses[result["best_step"]] == pytest.approx(result["best_val_loss"])
    assert [step for step, _ in curve(run, "train")] == [10, 20]
    for tag in ("learning_rate", "grad_norm"):
        assert all(0 < value < 1e9 for _, value in curve(run, "train", f"optimizer/{tag}"))
    train_events, events = (EventAccumulator(f"run/{split}").Reload() for split in ("train", "val"))
    assert min(train_events.Tags()["scalars"]) == min(events.Tags()["scalars"]) == "loss"
    assert sorted(events.Tags()["tensors"]) == ["sample/text_summary"]


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("err", [False, True])
def test_the_output_describes_the_run_and_shows_samples(out, err, tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(log_module, "SAMPLE_CHARS", 60)
    assert tiny("--max_iters=6 --eval_interval=3 --log_interval=2 --out_dir=run") == 0
    output = capsys.readouterr()
    for words in (
        "device  cpu",
        "corpus  ",
        "model   quill, n_layer 2, n_head 2, n_embd 16, dropout 0: ",
        "optim   learning_rate 0.007, ",
    ):
        assert words in output.out
    for words in ("sample.py run\n", "--attention page", "dir .\n"):
        assert words in output.out
    assert "--resume" not in output.out
    assert output.out.count("val loss") == 4  # three evaluations, and the best loss
    assert output.out.count("train loss") == 2  # step 0 has no training loss
    assert ("\r" in output.err) == err  # standard error has only a progress bar
    assert err or not output.err
    assert len(re.findall(r"\n     \S.*\n", output.out)) == (3 if out else 0)


def chosen(
    corpus: Corpus, saved: Checkpoint | None = None, device: str = "cpu", **given: float
) -> dict:
    """Return the settings that a run gets from the recipe."""
    draft, machine = TrainConfig(**given), Machine(torch.device(device), torch.float32)
    config = vars(full_config(draft, given, saved or Checkpoint(), corpus, machine))
    return {name: config[name] for name in recipe(Budget())}


def test_the_shortest_text_trains_on_a_gpu(text_file):
    text_file.write_text(LINES[:2600])
    assert chosen(open_corpus(DataConfig((str(text_file),))), device="cuda")["max_iters"] > 50


def test_the_recipe_knows_the_size_of_weights_to_start_with(text_file):
    corpus = open_corpus(DataConfig((str(text_file),)))
    numbers = {"blocks.0.weight": 10**7, "blocks.1.weight": 10**7, "head.weight": 10**8}
    weights = {name: torch.empty(count, device="meta") for name, count in numbers.items()}
    saved = Checkpoint(config={"block_size": 16}, model=weights)
    budget = Budget(corpus.train_chars, parameters=2 * 10**7, block_size=16)
    assert chosen(corpus, saved) == recipe(budget)


def test_the_recipe_gets_the_measured_speed_and_the_time_left(text_file, monkeypatch):
    clock, cross_entropy = [0.0], F.cross_entropy

    def take_half_a_second(*args):
        clock[0] += 0.5
        return cross_entropy(*args)

    text_file.write_text(LINES * 100)
    corpus = open_corpus(DataConfig((str(text_file),)))
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(F, "cross_entropy", take_half_a_second)
    settings = chosen(corpus, minutes=10.0)
    flops = step_flops(block_parameters(2, 128), 8 * 256) / 0.5 * (60 * 10 - clock[0])
    assert settings == recipe(Budget(corpus.train_chars, flops, minutes=10.0))
    assert settings != recipe(Budget(corpus.train_chars, 0.1 * flops, minutes=10.0))


def test_the_recipe_is_the_same_for_every_split(text_file):
    """A split makes the training text a little longer or shorter, but changes no other setting."""
    for length in range(22_200, 22_320):  # in this range, max_iters changes once
        text_file.write_text((6 * LINES)[:length])
        configs = [DataConfig((str(text_file),), val_split=split) for split in ("end", "spread")]
        end, spread = map(open_corpus, configs)
        assert chosen(end) == chosen(spread)


def test_weights_that_have_read_the_validation_text_are_refused(tiny, text_file, capsys):
    """A run with --init_from inherits the split into training and validation text."""
    text_file.write_text(LINES * 12)
    assert tiny("--max_iters=2 --val_fraction=0.2 --val_split=spread --out_dir=first") == 0
    sizes = [flag for flag in TINY if "n_" not in flag]
    argv = ["--data", str(text_file), *sizes, "--max_iters=2", "--init_from=first"]
    for split, message in {
        "--val_split=end": "val_split must be spread, as in",
        "--val_fraction=0.1": "val_fraction must be 0.2, as in",
    }.items():
        capsys.readouterr()
        assert train.main([*argv, split]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    assert train.main([*argv, "--out_dir=second"]) == 0
    config = checkpoint.load("second/last.pt").config
    assert (config["val_fraction"], config["val_split"]) == (0.2, "spread")


def test_the_average_is_that_of_the_weights_and_is_learned_from(tiny, text_file, monkeypatch):
    """The network learns from the average from step TEACHER_FROM on. Evaluations use only this."""
    monkeypatch.setattr(train, "TEACHER_FROM", 3)
    weights, modes = [], []

    def keep_mode(network, args):
        modes.append(network.training)

    change_network(monkeypatch, lambda network: network.register_forward_pre_hook(keep_mode))
    at_steps(
        monkeypatch, range(99), lambda model: weights.append(copy.deepcopy(model.state_dict()))
    )
    flags = f"{STEPS} --dropout=0.2 --train_temperature=0.7"
    assert tiny(f"{flags} --out_dir=without") == 0
    without = weights[:]
    weights.clear(), modes.clear()
    assert tiny(f"{flags} --ema_decay=0.8 --out_dir=run") == 0
    assert modes.count(True) == 16  # with dropout: once in each step
    assert modes.count(False) > 13  # without dropout: the average, in 13 steps and in evaluations
    same = [equal(a, b) for a, b in zip(weights, without, strict=True)]
    assert same == [True] * 3 + [False] * 13
    saved = checkpoint.load("run/last.pt")
    seed_all(1337)
    model = make_network(make_config(TrainConfig, saved.config), len(saved.vocab))
    average = copy.deepcopy(model.state_dict())
    for step, after in enumerate(weights):
        decay = min(0.8, (step + 1) / (step + 5))
        average = {name: decay * average[name] + (1 - decay) * after[name] for name in average}
    torch.testing.assert_close(saved.model, average)
    assert equal(saved.trained, weights[-1])
    without = checkpoint.load("without/last.pt")
    assert equal(without.trained, without.model)

    model.load_state_dict(saved.model)
    corpus = open_corpus(DataConfig((str(text_file),)))
    cpu = torch.device("cpu")
    machine = Machine(cpu, choose_dtype("auto", cpu))
    batches = corpus.eval_batches(16, machine.eval_batch_chars(len(saved.vocab)))
    with machine.autocast():
        nats, chars = evaluate(model.eval(), batches)
    assert saved.val_loss == pytest.approx(nats / chars, abs=1e-6)


def test_half_of_the_loss_is_that_of_the_averages_predictions():
    z_BTV, a_BTV = torch.randn(2, 2, 3, 5, requires_grad=True)
    y_BT = torch.tensor([[0, 1, 2], [3, 4, 0]])
    log_p_BTV, q_BTV = (z_BTV / 0.7).log_softmax(-1), (a_BTV / 0.7).softmax(-1)
    of_text = -log_p_BTV.gather(-1, y_BT[..., None]).mean()
    of_average = -(q_BTV * log_p_BTV).sum(-1).mean()
    loss, nats = training_loss(z_BTV, y_BT, 0.7, a_BTV)
    torch.testing.assert_close(nats, F.cross_entropy(z_BTV.detach().flatten(0, 1), y_BT.flatten()))
    torch.testing.assert_close(loss, (of_text + of_average) / 2)
    assert torch.autograd.grad(loss, a_BTV, allow_unused=True) == (None,)


def test_a_run_with_a_spread_validation_text_is_exact(tiny, text_file, monkeypatch, capsys):
    text_file.write_text(LINES * 12)
    at_steps(monkeypatch, [11], lambda _: shutil.copytree("whole", "killed"))
    assert tiny(f"{STEPS} --val_split=spread --out_dir=whole") == 0
    assert train.main(["--resume", "killed"]) == 0
    assert train.main(["whole/config.toml", "--out_dir=again"]) == 0
    for run in ("killed", "again"):
        assert_same_run(Path("whole"), Path(run))
    assert train.main(["--resume", "whole", "--val_split=end"]) == 2


def test_training_survives_closed_output_pipes(tiny, monkeypatch):
    """The pipes close if the terminal is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        assert tiny("--max_iters=4 --eval_interval=2 --out_dir=run") == 0
    assert summary(Path("run"))["step"] == 4


def test_init_from_keeps_the_loss_and_adds_rows_for_characters(trained_run, text_file):
    before, text = checkpoint.load(trained_run / "best.pt"), text_file.read_text()
    flags = "--max_iters=1 --learning_rate=0 --batch_size=4 --device=cpu --compile=off"
    shutil.copytree(trained_run, "base")
    Path("base/last.pt").unlink()  # so --init_from takes best.pt
    flags = ["--data", str(text_file), "--init_from", "base", *flags.split()]
    assert train.main([*flags, "--n_head", "2", "--out_dir", "same"]) == 0
    assert summary(Path("same"))["val_loss"] == pytest.approx(before.best_val_loss, rel=1e-6)
    assert checkpoint.load("same/best.pt").step == 0  # trained weights may be the best at step 0
    assert train.main([*flags, "--ema_decay", "0.9", "--out_dir", "average"]) == 0
    assert summary(Path("average"))["val_loss"] == pytest.approx(before.best_val_loss, rel=1e-6)
    assert train.main([*flags, "--block_size", "12", "--out_dir", "shorter"]) == 0
    assert summary(Path("shorter"))["val_loss"] == pytest.approx(before.best_val_loss, rel=0.2)

    text_file.write_text("~ß" + text, "utf-8")
    assert train.main([*flags, "--out_dir", "larger"]) == 0
    after = checkpoint.load("larger/last.pt")
    assert after.vocab == before.vocab + "~ß"
    for name, weights in before.model.items():
        assert torch.equal(after.model[name][: len(weights)], weights)
    assert after.model["embedding.weight"][-2:].abs().sum() > 0


def test_the_saved_config_repeats_a_run(trained_run, text_file, monkeypatch):
    """A run that began with other weights resumes exactly, even if those weights are deleted."""
    text_file.write_text("The moon is ~ and ß, so am I. " * 60, "utf-8")
    shutil.copytree(trained_run, "base")
    Path("preset.toml").write_text("block_size = 8")
    flags = ["preset.toml", "--data", str(text_file), "--init_from", "base", "--device", "cpu"]
    flags += [*STEPS.split(), "--dropout", "0.1", "--out_dir"]
    assert train.main([*flags, "whole"]) == 0
    config = checkpoint.load("whole/last.pt").config
    assert (config["n_embd"], config["block_size"], config["dropout"]) == (16, 8, 0.1)
    with monkeypatch.context() as patch:
        at_steps(patch, [5], lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert train.main([*flags, "stopped"]) == 130
    for _ in range(3):  # most of them start in the same second
        assert train.main(["whole/config.toml"]) == 0
    shutil.rmtree("base")
    assert train.main(["--resume", "stopped"]) == 0
    repeated = list(Path("runs").iterdir())
    assert len(repeated) == 3
    for run in (*repeated, Path("stopped")):
        assert_same_run(Path("whole"), run)


def test_config_toml_says_what_ran_but_a_run_goes_on_where_there_is_another_device(text_file):
    flags = [flag for flag in TINY if flag not in ("--n_head=2", "--device=cpu")]
    flags += ["--data", str(text_file), *STEPS.split(), "--out_dir"]
    assert train.main([*flags, "run"]) == 0
    ran = tomllib.loads(Path("run/config.toml").read_text())
    assert (ran["n_head"], ran["device"], ran["dtype"]) == (1, "cpu", AUTO_DTYPE)
    assert checkpoint.load("run/last.pt").config["device"] == "auto"
    assert train.main(["run/config.toml", "--device=cpu", "--out_dir=again"]) == 0
    assert curve(Path("again"), "val") == curve(Path("run"), "val")


def test_a_finished_run_completes_missing_files_and_goes_on(tiny, monkeypatch, capsys):
    clock = Clock(monkeypatch, step_seconds=3, eval_seconds=0)
    assert tiny("--max_iters=25 --eval_interval=10 --out_dir=run") == 0
    before = checkpoint.load("run/last.pt").model
    Path("run/summary.json").unlink()
    Path("runs").write_text("a file in the place of new runs")  # a resume needs no folder runs
    capsys.readouterr()
    for flags in ([], ["--max_iters=40"]):
        assert equal(checkpoint.load("run/last.pt").model, before)
        clock.now = 0.0  # the clock of another process
        assert train.main(["--resume", "run", *flags]) == 0
        output = capsys.readouterr().out
        assert "step     25" not in output  # step 25 was evaluated before
        assert summary(Path("run"))["step"] == (40 if flags else 25)
    assert checkpoint.load("run/last.pt").config["max_iters"] == 40
    steps = [step for step, _ in curve(Path("run"), "val")]
    assert steps == [0, 10, 20, 25, 30, 40]  # 25: the end of the first command
    assert summary(Path("run"))["seconds"] == 40 * 3
    assert summary(Path("run"))["chars_per_second"] == pytest.approx(4 * 16 / 3)


@pytest.mark.parametrize(
    ("first", "resumed", "limit"),
    [
        ("--max_iters=3", "", "--max_iters 3"),
        ("--max_iters=3", "--minutes=60", "--max_iters 3"),
        ("--max_iters=3", "--max_iters=2", "--max_iters 2"),
        ("--max_iters=99 --minutes=0.5", "", "--minutes 0.5"),
        ("--max_iters=99 --minutes=0.5", "--minutes=0.1", "--minutes 0.1"),
    ],
)
def test_a_resume_with_nothing_to_do_names_the_limit(
    first, resumed, limit, tiny, monkeypatch, capsys
):
    Clock(monkeypatch, step_seconds=3, eval_seconds=1)
    assert tiny(f"{first} --out_dir=run") == 0
    assert "is reached" not in capsys.readouterr().out
    step = summary(Path("run"))["step"]
    assert train.main(["--resume=run", *resumed.split()]) == 0
    assert f"nothing to do: {limit} is reached" in capsys.readouterr().out
    assert summary(Path("run"))["step"] == step


def test_max_iters_replaces_the_limit_of_a_run_with_minutes(tiny, monkeypatch, capsys):
    """It also replaces the minutes of an earlier resume. If a command has both, both are limits."""
    Clock(monkeypatch, step_seconds=3, eval_seconds=1)
    assert tiny("--minutes=0.5 --max_iters=999 --out_dir=run") == 0
    for flags in ("--max_iters=30", "--minutes=0.2", "--max_iters=35", ""):
        assert train.main(["--resume=run", *flags.split()]) == 0
    assert summary(Path("run"))["step"] == 35
    assert train.main(["--resume=run", "--max_iters=99", "--minutes=0.2"]) == 0
    assert "minutes 0.2 is reached" in capsys.readouterr().out


def test_times_are_measured_and_decide_when_to_save(tiny, monkeypatch, capsys):
    clock, saved = Clock(monkeypatch, step_seconds=100, eval_seconds=7), []
    after_each_save(monkeypatch, lambda path: saved.append(checkpoint.load(path)))
    assert tiny("--max_iters=20 --eval_interval=10 --out_dir=run") == 0
    # The run saves after each evaluation, and when its time passes a multiple of SAVE_SECONDS.
    assert [state.step for state in saved] == [0, 6, 10, 12, 18, 20]
    assert {state.eval_seconds for state in saved} == {7}
    state = checkpoint.load("run/last.pt")
    assert clock.now == state.seconds == 2000 + 3 * 7
    assert state.chars_per_second == 4 * 16 / 100  # evaluations do not count
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert lines[0].endswith("  00:07") and "  33:41  best so far" in lines[2]
    assert "  16:54, 16:47 left" in lines[1]


def test_minutes_end_a_run_by_the_clock(tiny, monkeypatch):
    """A killed and resumed run ends on time, too. The learning rate follows the clock."""
    clock = Clock(monkeypatch, step_seconds=1, eval_seconds=2)

    def compile(network, **_):
        clock.now += 10
        return network

    monkeypatch.setattr(torch, "compile", compile)
    with monkeypatch.context() as patch:
        at_steps(patch, [20, 45], lambda _: shutil.copytree("run", f"killed{clock.now:.0f}"))
        flags = "--minutes=2 --max_iters=400 --eval_interval=40 --warmup_iters=0 --log_interval=1"
        flags += " --learning_rate=0.01 --compile=on --out_dir=run"
        assert tiny(flags) == 0
    run = Path("run")
    state, evaluated = checkpoint.load(run / "last.pt"), dict(curve(run, "val"))
    assert state.seconds == pytest.approx(120, abs=1)
    assert [*evaluated] == [0, 40, 80, state.step]
    rates, start = curve(run, "train", "optimizer/learning_rate"), state.start_seconds
    assert rates[0] == (1, pytest.approx(0.01))
    for step, lr in [(done - 1, lr) for done, lr in rates[1:]]:
        seconds = step + 2 * (step >= 40) + 2 * (step >= 80)
        progress = max(step / 400, seconds / (120 - start - 2))
        assert lr == pytest.approx(0.01 * (1 - progress), rel=1e-3)

    for path in (*Path().glob("killed*"), run):
        clock.now, minutes = 0.0, 3 if path == run else 2  # the clock of another process
        before = checkpoint.load(path / "last.pt").seconds
        assert train.main(["--resume", str(path), f"--minutes={minutes}"]) == 0
        assert before + clock.now == pytest.approx(60 * minutes, abs=1)
        assert before + clock.now == summary(path)["seconds"]


@pytest.mark.parametrize("interval", [13, 26, 33, 38])
def test_minutes_are_used_whenever_evaluations_are_due(tiny, monkeypatch, interval):
    """An evaluation may be due so late that no time is left for a step after it."""
    clock = Clock(monkeypatch, step_seconds=1, eval_seconds=10)
    flags = f"--minutes=1 --max_iters=400 --eval_interval={interval} --out_dir=run"
    assert tiny(flags) == 0
    assert clock.now == pytest.approx(60, abs=1)


def test_without_minutes_nothing_depends_on_the_clock(tiny, monkeypatch):
    """With more minutes than the steps take, nothing depends on the clock, either."""
    runs = (("fast", 1, 2, 0), ("slow", 1000, 50, 0), ("limited", 1, 2, 9))
    for name, step_seconds, eval_seconds, minutes in runs:
        with monkeypatch.context() as patch:
            Clock(patch, step_seconds, eval_seconds)
            flags = f"{STEPS} --dropout=0.2 --minutes={minutes} --out_dir={name}"
            assert tiny(flags) == 0
    assert_same_run(Path("fast"), Path("slow"))
    fast, limited = (checkpoint.load(f"{run}/last.pt") for run in ("fast", "limited"))
    assert equal(fast.model, limited.model)


@pytest.mark.parametrize("eval_seconds", [0.5, 29, 35, 59])
def test_minutes_make_at_least_one_step(tiny, monkeypatch, eval_seconds):
    """If two evaluations do not fit, a run makes one step, late by less than an evaluation."""
    clock = Clock(monkeypatch, step_seconds=1, eval_seconds=eval_seconds)
    clock.now = 1e6  # this process may have made other runs before
    assert tiny("--minutes=1 --max_iters=1000000 --out_dir=run") == 0
    result = summary(Path("run"))
    assert (result["step"] == 1) == (eval_seconds > 30)
    assert 59 < result["seconds"] <= 60 + max(1, eval_seconds)


def test_the_learning_rate_never_rises_because_an_evaluation_takes_longer(tiny, monkeypatch):
    """The evaluations after it are shorter and leave more time, so progress could fall."""
    clock = Clock(monkeypatch, step_seconds=1, eval_seconds=1)
    at_steps(monkeypatch, [4], lambda _: setattr(clock, "eval_seconds", 15))
    at_steps(monkeypatch, [5], lambda _: setattr(clock, "eval_seconds", 1))
    flags = "--minutes=1 --max_iters=1000 --eval_interval=5 --warmup_iters=0 --log_interval=1"
    assert tiny(f"{flags} --out_dir=run") == 0
    rates = [lr for _, lr in curve(Path("run"), "train", "optimizer/learning_rate")]
    assert len(rates) > 20
    assert rates == sorted(rates, reverse=True)


def test_a_resumed_run_refuses_another_text(tiny, text_file, monkeypatch, capsys):
    """--data may only say where the same text is now."""
    at_steps(monkeypatch, [11], lambda _: shutil.copytree("whole", "run"))
    assert tiny(f"{STEPS} --out_dir=whole") == 0
    text = text_file.read_text()
    text_file.write_text(text.replace("moon", "noom"))
    Path("other.txt").write_text(f"{text}, with characters it has never seen: ÄÖÜ")
    for flags in ([], ["--data", str(text_file)], ["--data", "other.txt"]):
        assert train.main(["--resume", "run", *flags]) == 2
        message = "is not the text of this run. Start a new run, with --init_from .* without"
        assert re.search(message, capsys.readouterr().err)
    Path("moved.txt").write_text(text)
    assert train.main(["--resume", "run", "--data", "moved.txt"]) == 0
    for split in ("train", "val"):
        assert curve(Path("whole"), split) == curve(Path("run"), split)


def test_a_run_with_a_setting_that_the_code_lacks_is_not_resumed(trained_run):
    """It would go on without the setting. sample.py can still use the weights."""
    shutil.copytree(trained_run, "run")
    saved = checkpoint.load("run/last.pt")
    saved.config["renamed"] = 3
    checkpoint.save(saved, Path("run/last.pt"), Path("run/best.pt"))
    with pytest.raises(TypeError, match="unexpected keyword argument 'renamed'"):
        train.main(["--resume", "run"])
    assert sample.main(["run", "--max_new_tokens=3"]) == 0


def test_a_run_is_resumed_from_another_folder(tiny, text_file, monkeypatch):
    """--data and --init_from may be relative paths or begin with ~."""
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert tiny("--max_iters=1 --out_dir=base") == 0
    flags = "--max_iters=1 --batch_size=4 --device=cpu --compile=off --init_from=base"
    assert train.main([*flags.split(), f"--data=~/{text_file.name}", "--out_dir=run"]) == 0
    config = checkpoint.load("run/last.pt").config
    assert config["data"] == (str(text_file.absolute()),)
    assert config["init_from"] == str(Path("base").absolute())
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert train.main(["--resume", "../run", "--max_iters=2"]) == 0


def test_a_worse_model_never_replaces_best_pt(tiny, monkeypatch):
    """The run is killed after best.pt and before last.pt, and goes on with other settings."""
    replace, best = Path.replace, Path("run/best.pt")

    def replace_or_kill(source, path):
        if path.name == "last.pt" and best.exists() and checkpoint.load(best).step == 20:
            raise KeyboardInterrupt
        replace(source, path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_kill)
        assert tiny("--max_iters=40 --eval_interval=10 --warmup_iters=1 --out_dir=run") == 130
    before = best.read_bytes()
    assert checkpoint.load("run/last.pt").step == 10
    assert train.main(["--resume", "run", "--max_iters=11"]) == 0
    monkeypatch.setattr(train, "evaluate", lambda *_: (9.0, 1))  # at step 20, a worse model
    assert train.main(["--resume", "run", "--max_iters=20"]) == 0
    assert best.read_bytes() == before
    best.unlink()
    assert train.main(["--resume", "run", "--max_iters=21"]) == 0
    assert not best.exists() and summary(Path("run"))["best_step"] == 20


def test_the_summary_of_an_earlier_command_is_removed_while_a_run_trains(tiny, monkeypatch):
    assert tiny("--max_iters=2 --out_dir=run") == 0
    exists = []
    at_steps(monkeypatch, [0], lambda _: exists.append(Path("run/summary.json").exists()))
    assert train.main(["--resume", "run", "--max_iters=3"]) == 0
    assert exists == [False] and summary(Path("run"))["step"] == 3


WORDS = np.random.default_rng(0).integers(97, 117, (300, 6), np.uint8)


@pytest.mark.parametrize(("network", "bound"), [("quill", 2.2), ("gpt", 2.33)])
def test_the_default_settings_learn(network, bound):
    """24 steps are enough. With a fifth of the learning rate, the losses are 2.48 and 2.45."""
    rng = np.random.default_rng(0)
    words = [bytes(word[: 2 + i % 5]).decode() for i, word in enumerate(WORDS)]
    shares = 1 / np.arange(1, 301)
    Path("text.txt").write_text(" ".join(rng.choice(words, 20_000, p=shares / shares.sum())))
    Path("all.toml").write_text(to_toml(TrainConfig()))  # leaves nothing to the recipe
    flags = f"all.toml --data text.txt --val_fraction 0.02 --network {network} --max_iters 24"
    assert train.main([*flags.split(), "--dtype=float32", "--device=cpu", "--out_dir=run"]) == 0
    assert summary(Path("run"))["val_loss"] < bound
