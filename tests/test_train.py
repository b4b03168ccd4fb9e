"""Training: each step, evaluations and checkpoints, resuming, what a run directory holds."""

import copy
import itertools
import math
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._python_dispatch import TorchDispatchMode

import sample
import train
from configs import read_toml
from data.corpus import DataConfig, open_corpus
from model import checkpoint, csampler
from model.device import seed_all
from model.gpt import GPT, GPTConfig
from model.optim import OptimConfig
from tests.conftest import curve, summary

STEPS = ["--max_iters", "16", "--eval_interval", "8", "--log_interval", "1"]


def equal(a, b) -> bool:
    """Whether two nested structures of dicts, lists and tensors are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def assert_same_run(a: Path, b: Path) -> None:
    """Both checkpoints and all curves are equal, except for measured times."""
    for name in ("last.pt", "best.pt"):
        one, other = vars(checkpoint.load(a / name)), vars(checkpoint.load(b / name))
        for field in one.keys() - {"seconds", "train_seconds"}:
            assert equal(one[field], other[field]), f"{field} in {name}"
    for tag in ("loss", "optimizer/learning_rate", "optimizer/grad_norm"):
        assert curve(a, "train", tag) == curve(b, "train", tag)
    assert curve(a, "val") == curve(b, "val")


def assert_similar(a: Path, b: Path) -> None:
    """The curves are equal up to rounding, and so are the names of the weights."""
    one, other = (checkpoint.load(run / "last.pt").model for run in (a, b))
    assert one.keys() == other.keys()  # a wrapper or compiler adds no prefix
    for split, tag in (("train", "loss"), ("train", "optimizer/grad_norm"), ("val", "loss")):
        values, expected = ([value for _, value in curve(run, split, tag)] for run in (a, b))
        assert values == pytest.approx(expected, rel=1e-3)


def at_steps(monkeypatch, steps, action) -> None:
    """Call action(parameters) in the middle of these steps, counted from the start of a command."""
    clip, count = train.clip_grad_norm_, itertools.count()

    def act_and_clip(parameters, max_norm):
        parameters = list(parameters)
        if next(count) in steps:
            action(parameters)
        return clip(parameters, max_norm)

    monkeypatch.setattr(train, "clip_grad_norm_", act_and_clip)


def use_scaler(monkeypatch) -> None:
    """Train with a gradient scaler, as in float16."""
    monkeypatch.setattr(train, "make_scaler", lambda *_: torch.amp.GradScaler("cpu", 1024.0))


def overflow_at(monkeypatch, steps) -> None:
    """Make the gradient of one matrix, so of a single optimizer, infinite in these steps."""
    make_optimizers, count = train.make_optimizers, itertools.count()

    def make_with_overflow(model, *args, **kwargs):
        weight = model.blocks[0].mlp_1.fc.weight
        weight.register_hook(lambda grad: grad * math.inf if next(count) in steps else grad)
        return make_optimizers(model, *args, **kwargs)

    monkeypatch.setattr(train, "make_optimizers", make_with_overflow)


@pytest.mark.parametrize(
    ("grad_clip", "parts", "scaled", "temperature"),
    [(0.0, 1, False, 1.0), (0.3, 2, False, 0.5), (0.3, 4, True, 2.0)],
)
def test_training_equals_a_plain_loop(
    tiny, text_file, monkeypatch, grad_clip, parts, scaled, temperature
):
    """With SGD: schedule, clipping, temperature; accumulation and scaling change nothing."""

    def make_sgd(model, *_, **__):
        return [torch.optim.SGD(model.named_parameters(), lr=0.0)]

    monkeypatch.setattr(train, "make_optimizers", make_sgd)
    if scaled:
        use_scaler(monkeypatch)
    flags = {"max_iters": 5, "warmup_iters": 1, "learning_rate": 2.0, "grad_clip": grad_clip}
    flags |= {"gradient_accumulation_steps": parts, "log_interval": 1, "dtype": "float32"}
    flags |= {"train_temperature": temperature}
    assert tiny("--out_dir", "run", *(f"--{key}={value}" for key, value in flags.items())) == 0

    corpus = open_corpus(DataConfig(data=str(text_file)), block_size=16)
    seed_all(1337)
    model = GPT(GPTConfig(2, 2, 16, 16), vocab_size=len(corpus.tokenizer.vocab))
    expected = []
    for step, lr in enumerate([1.0, 1.6, 1.2, 0.8, 0.4]):  # one step of warmup, then linear decay
        x_BT, y_BT = corpus.batch(16, 4, seed=1337, step=step, rows=slice(4))
        loss = F.cross_entropy(model(x_BT).flatten(0, 1) / temperature, y_BT.flatten())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        expected.append((loss.item(), norm, lr))
        with torch.no_grad():
            clip_factor = min(1, grad_clip / norm) if grad_clip else 1
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(lr * clip_factor * gradient)
    assert max(norm for _, norm, _ in expected) > 0.3  # so that it is clipped
    for i, tag in enumerate(("loss", "optimizer/grad_norm", "optimizer/learning_rate")):
        logged = [value for _, value in curve(Path("run"), "train", tag)]
        assert logged == pytest.approx([values[i] for values in expected], rel=1e-3)
    saved = checkpoint.load("run/last.pt").model
    for name, weight in model.state_dict().items():
        assert torch.allclose(saved[name], weight, rtol=1e-3, atol=1e-5)
    nats = 0.0  # of the validation split, where the temperature is 1
    for starts_B, T in corpus.eval_windows(16):
        x_BT, y_BT = corpus.gather_windows(starts_B, T)
        nats += F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten(), reduction="sum").item()
    assert summary(Path("run"))["val_loss"] == pytest.approx(
        nats / (corpus.val_chars - 1), rel=1e-4
    )


def test_an_overflow_skips_the_step_of_all_optimizers_and_halves_the_scale(tiny, monkeypatch):
    weights = []
    use_scaler(monkeypatch)
    overflow_at(monkeypatch, [3])
    at_steps(monkeypatch, range(6), lambda parameters: weights.append(copy.deepcopy(parameters)))
    assert tiny("--max_iters", "6", "--out_dir", "run") == 0
    unchanged = [equal(before, after) for before, after in itertools.pairwise(weights)]
    assert unchanged == [False, False, False, True, False]
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512
    assert train.main(["--resume", "run", "--max_iters", "7"]) == 0
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512


def test_at_most_19_overflows_in_a_row_are_tolerated(tiny, monkeypatch, capsys):
    use_scaler(monkeypatch)
    overflow_at(monkeypatch, [*range(19), *range(20, 40)])
    assert tiny("--max_iters", "50") == 1
    assert re.search("gradient norm became .* at step 39 ", capsys.readouterr().err)


def test_a_compiled_run_resumes_exactly_and_equals_an_eager_run(tiny, monkeypatch, capsys):
    flags = [*STEPS, "--n_layer", "1", "--dropout", "0.2", "--dtype", "float32"]
    at_steps(monkeypatch, [13], lambda _: shutil.copytree("whole", "killed"))
    assert tiny(*flags, "--compile", "on", "--out_dir", "whole") == 0
    assert train.main(["--resume", "killed"]) == 0
    assert "warning" not in capsys.readouterr().err, "compilation failed"
    assert_same_run(Path("whole"), Path("killed"))
    assert tiny(*flags, "--out_dir", "eager") == 0
    assert_similar(Path("whole"), Path("eager"))


class CountReads(TorchDispatchMode):
    """Counts the values that are read from tensors: on a GPU, each waits for all computations."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **kwargs or {})


def test_only_logged_steps_read_values_from_the_device(tiny, monkeypatch):
    reads = []
    with CountReads() as counter:
        at_steps(monkeypatch, range(22), lambda _: reads.append(counter.count))
        assert tiny("--max_iters", "22", "--log_interval", "10") == 0
    reads_of_step = np.diff(reads)  # from the middle of a step to that of the next one
    assert np.flatnonzero(reads_of_step).tolist() == [0, 10, 20]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("T", [16, 40], ids=["T = block_size", "T > block_size"])
def test_a_training_step_stays_on_the_device_of_the_model(T, checkpointing):
    """On the meta device, tensors of another device and reading a value are errors."""
    config = GPTConfig(
        n_layer=2, n_head=2, n_embd=16, block_size=16, activation_checkpointing=checkpointing
    )
    model = GPT(config, vocab_size=5).to("meta")
    ids_BT = torch.zeros(3, T, dtype=torch.int64, device="meta")
    loss = train.cross_entropy(model(ids_BT), ids_BT)
    loss.backward()
    grad_norm = train.clip_grad_norm_(model.parameters(), 1.0)
    muon, _ = train.make_optimizers(model, OptimConfig(), torch.bfloat16)
    muon.step()
    train.DivergenceCheck().add(0, 0.1, loss, grad_norm)


def test_a_machine_may_lack_locks_hangup_signals_bfloat16_and_a_compiler(tiny, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # Windows
    monkeypatch.delattr(signal, "SIGHUP")
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(csampler, "load_library", csampler.load_library.__wrapped__)  # not cached
    assert tiny("--max_iters", "3", "--out_dir", "run") == 0
    assert train.main(["--resume", "run", "--max_iters", "5"]) == 0
    assert sample.main(["run", "--max_new_tokens", "20"]) == 0
    assert summary(Path("run"))["dtype"] == "float32"
    assert "note: no C compiler was found" in capsys.readouterr().err


def test_evaluations_do_not_change_training_and_are_repeatable(tiny, monkeypatch):
    evaluate = train.evaluate

    def evaluate_twice(*args):
        loss = evaluate(*args)
        assert evaluate(*args) == loss
        return loss

    monkeypatch.setattr(train, "evaluate", evaluate_twice)
    for interval in ("5", "16"):
        flags = ["--dropout", "0.3", "--eval_interval", interval, "--out_dir", interval]
        assert tiny(*STEPS, *flags) == 0
    assert curve(Path("5"), "train") == curve(Path("16"), "train")
    assert curve(Path("5"), "val")[-1] == curve(Path("16"), "val")[-1]


def test_a_run_directory_holds_config_checkpoints_summary_and_curves(tiny, text_file):
    assert tiny("--max_iters", "25", "--eval_interval", "10", "--out_dir", "run") == 0
    run, text = Path("run"), text_file.read_text()
    names = {"config.toml", "last.pt", "best.pt", "summary.json", "train", "val"}
    assert {path.name for path in run.iterdir()} == names
    result = summary(run)
    assert result["iters"] == 25
    assert result["train_chars"] + result["val_chars"] == len(text)
    assert result["vocab_size"] == len(set(text))
    assert result["bits_per_char"] == result["best_val_loss"] / math.log(2)
    assert result["seconds"] > 0 < result["chars_per_second"]
    losses = dict(curve(run, "val"))
    assert sorted(losses) == [10, 20, 25]
    assert losses[result["best_iter"]] == pytest.approx(result["best_val_loss"])
    assert [step for step, _ in curve(run, "train")] == [0, 10, 20]
    assert curve(run, "train")[0][1] == pytest.approx(math.log(len(set(text))), rel=1e-3)
    for tag in ("optimizer/learning_rate", "optimizer/grad_norm", "speed/chars_per_second"):
        assert curve(run, "train", tag)


def test_tensorboard_gets_images_a_sample_the_config_and_the_embedding(tiny, capsys):
    for max_iters, flags in ((10, ("--out_dir", "run")), (20, ())):
        command = tiny if flags else lambda *more: train.main(["--resume", "run", *more])
        assert command("--max_iters", str(max_iters), *flags) == 0
        events = EventAccumulator("run/val").Reload()
        assert events.Tags()["tensors"] == ["sample/text_summary"]
        images = [f"map/layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
        assert events.Tags()["images"] == images
        hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        assert b"learning_rate" in hparams
        best = min(loss for _, loss in curve(Path("run"), "val"))
        assert curve(Path("run"), "val", "loss_best")[-1][1] == pytest.approx(best)
        for optimizer in ("Muon", "AdamW"):
            ratios = curve(Path("run"), "train", f"optimizer/update_ratio {optimizer}")
            assert all(0 < ratio < 1e9 for _, ratio in ratios)
        embedding = checkpoint.load("run/last.pt").model["embedding.weight"]
        projected = np.loadtxt("run/val/00000/embedding/tensors.tsv")
        np.testing.assert_allclose(projected, embedding, rtol=1e-4, atol=1e-6)
        assert len(Path("run/val/00000/embedding/metadata.tsv").read_text().splitlines()) == 32
        assert Path("run/val/projector_config.pbtxt").read_text().count("tensor_path") == 1
        assert "warning" not in capsys.readouterr().out


@pytest.mark.parametrize("leftover", [True, False])
def test_event_files_of_a_run_without_a_checkpoint_are_removed_and_others_are_kept(leftover, tiny):
    assert tiny("--max_iters", "6", "--seed", "1", "--out_dir", "run") == 0
    for name in ("last.pt", "best.pt", *([] if leftover else ["config.toml"])):
        Path("run", name).unlink()
    assert tiny("--max_iters", "6", "--seed", "2", "--out_dir", "run") == 0
    for split in ("train", "val"):
        assert len(list(Path("run", split).glob("events*"))) == (1 if leftover else 2)


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("err", [False, True])
def test_a_terminal_shows_the_samples_and_a_chart_and_a_file_does_not(
    out, err, tiny, monkeypatch, capsys
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(train, "write_sample", lambda *_: "sampled\n\x1b[31mtext")
    assert tiny("--max_iters", "6", "--eval_interval", "3", "--out_dir", "run") == 0
    output = capsys.readouterr()
    assert ("● validation" in output.out) == out
    assert output.err.count("     sampled ␛[31mtext") == (2 if out and err else 0)
    assert "\x1b[31m" not in output.out + output.err


def test_a_run_from_other_weights_starts_with_their_loss(trained_run, text_file):
    """Also with another context length, and where the network is larger than the preset's."""
    flags = ["--data", str(text_file), "--init_from", str(trained_run), "--device", "cpu"]
    flags += ["--compile", "off", "--max_iters", "1", "--learning_rate", "0", "--batch_size", "4"]
    assert train.main([*flags, "--out_dir", "same"]) == 0
    expected = summary(trained_run)["best_val_loss"]
    assert summary(Path("same"))["val_loss"] == pytest.approx(expected, rel=1e-6)
    assert checkpoint.load("same/last.pt").config["n_embd"] == 16
    assert train.main([*flags, "--block_size", "12", "--out_dir", "shorter"]) == 0
    assert summary(Path("shorter"))["val_loss"] == pytest.approx(expected, rel=0.2)
    assert train.main([*flags, "--n_head", "2", "--out_dir", "same sizes"]) == 0
    assert train.main([*flags, "--n_layer", "3", "--out_dir", "refused"]) == 2
    assert not Path("refused").exists()


def test_new_characters_get_new_rows_and_all_others_keep_theirs(trained_run, capsys):
    before = checkpoint.load(trained_run / "best.pt")
    Path("other.txt").write_text("The moon is ~ and ß " * 60, "utf-8")
    flags = ["--data", "other.txt", "--init_from", str(trained_run), "--device", "cpu"]
    flags += ["--max_iters", "1", "--batch_size", "4", "--learning_rate", "0", "--compile", "off"]
    assert train.main([*flags, "--out_dir", "run"]) == 0
    after = checkpoint.load("run/last.pt")
    assert after.vocab == before.vocab + "~ß"
    assert "never seen: '~' 'ß'" in capsys.readouterr().out
    for name, weights in before.model.items():
        assert torch.equal(after.model[name][: len(weights)], weights)
    assert after.model["embedding.weight"][-2:].abs().sum() > 0


def test_a_run_from_other_weights_resumes_exactly_and_its_saved_config_repeats_it(
    trained_run, text_file, monkeypatch
):
    text_file.write_text("The moon is ~ and ß, so am I. " * 60, "utf-8")
    shutil.copytree(trained_run, "base")
    flags = ["--data", str(text_file), "--init_from", "base", "--device", "cpu", "--dropout", "0.1"]
    flags += ["--compile", "off", "--max_iters", "8", "--eval_interval", "4", "--log_interval", "1"]
    Path("preset.toml").write_text("block_size = 8")
    flags = ["preset.toml", *flags]
    assert train.main([*flags, "--out_dir", "whole"]) == 0
    config = checkpoint.load("whole/last.pt").config
    assert (config["n_embd"], config["block_size"], config["dropout"]) == (16, 8, 0.1)
    assert train.main(["whole/config.toml", "--out_dir", "repeated"]) == 0
    assert_same_run(Path("whole"), Path("repeated"))
    with monkeypatch.context() as patch:
        at_steps(patch, [5], lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert train.main([*flags, "--out_dir", "stopped"]) == 130
    shutil.rmtree("base")
    assert train.main(["--resume", "stopped"]) == 0
    assert_same_run(Path("whole"), Path("stopped"))


def test_the_saved_config_trains_the_same_again_in_a_new_directory(tiny):
    assert tiny("--max_iters", "8", "--log_interval", "1", "--out_dir", "first", "--seed", "5") == 0
    for _ in range(3):  # mostly in the same second
        assert train.main(["first/config.toml"]) == 0
    repeated = list(Path("runs").iterdir())
    assert len(repeated) == 3
    for run in repeated:
        assert_same_run(Path("first"), run)


def test_patience_ends_a_run_and_best_pt_holds_its_best(tiny, monkeypatch, capsys):
    losses = iter([2.0, 1.0, 3.0, 1.5, 0.5])
    monkeypatch.setattr(train, "evaluate", lambda *_: next(losses))
    flags = ["--max_iters", "25", "--eval_interval", "5", "--patience", "2", "--out_dir", "run"]
    assert tiny(*flags) == 0
    assert checkpoint.load("run/best.pt").step == 10
    assert checkpoint.load("run/last.pt").step == 20
    assert (summary(Path("run"))["best_val_loss"], summary(Path("run"))["val_loss"]) == (1.0, 1.5)
    assert "--resume run --patience 0" in capsys.readouterr().out


def test_resuming_a_finished_run_completes_missing_files(tiny, monkeypatch):
    losses = itertools.count(1)  # a new best.pt holds the last evaluation, although it is worse
    monkeypatch.setattr(train, "evaluate", lambda *_: float(next(losses)))
    assert tiny("--max_iters", "20", "--eval_interval", "10", "--out_dir", "run") == 0
    weights = checkpoint.load("run/last.pt").model
    for name in ("summary.json", "best.pt", "config.toml"):
        Path("run", name).unlink()
    assert train.main(["--resume", "run"]) == 0
    assert equal(checkpoint.load("run/last.pt").model, weights)
    assert checkpoint.load("run/best.pt").step == summary(Path("run"))["best_iter"] == 20
    assert read_toml("run/config.toml")["max_iters"] == 20
    assert [step for step, _ in curve(Path("run"), "val")] == [10, 20]


def test_a_finished_run_goes_on_with_more_steps(tiny, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(train, "START_TIME", time.perf_counter() - 5000)
        assert tiny("--max_iters", "25", "--eval_interval", "10", "--out_dir", "run") == 0
    Path("runs").write_text("a file in the place of new runs")  # which a resumed run does not need
    assert train.main(["--resume", "run/best.pt", "--max_iters", "40"]) == 0
    result = summary(Path("run"))
    assert result["iters"] == read_toml("run/config.toml")["max_iters"] == 40
    assert result["seconds"] > 5000  # of both parts
    assert [step for step, _ in curve(Path("run"), "val")] == [10, 20, 25, 30, 40]  # 25: the end


def test_a_changed_text_is_refused_unless_it_is_named(tiny, text_file, monkeypatch, capsys):
    assert tiny("--max_iters", "5", "--out_dir", "run") == 0
    text_file.write_text(text_file.read_text().replace("moon", "noom"))
    assert train.main(["--resume", "run", "--max_iters", "8"]) == 2
    assert "--data" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", lambda *_: 99.0)  # still the best for the new text
        assert train.main(["--resume", "run", "--max_iters", "8", "--data", str(text_file)]) == 0
    assert summary(Path("run"))["best_val_loss"] == 99.0


def test_the_console_output_describes_the_run(tiny, capsys):
    assert tiny("--max_iters", "5", "--out_dir", "run") == 0
    out, err = capsys.readouterr()
    for words in ("device  cpu", "corpus  ", "model   2 blocks", "parameters", "best    "):
        assert words in out
    for command in ("sample.py run", "train.py --resume run --max_iters 10", "tensorboard"):
        assert command in out
    assert "validation loss" in err
    assert "\r" not in err, "a progress bar outside a terminal"


def test_training_survives_closed_output_pipes(tiny, monkeypatch):
    """As when the terminal is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        assert tiny("--max_iters", "4", "--eval_interval", "2", "--out_dir", "run") == 0
    assert summary(Path("run"))["iters"] == 4
