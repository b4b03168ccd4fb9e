"""Training: each step, evaluations and checkpoints, resuming, what a run directory holds."""

import copy
import io
import itertools
import math
import os
import re
import shutil
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from configs.training import TrainConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils._python_dispatch import TorchDispatchMode

import train
from configs import prepare, report
from configs.flags import make_config
from configs.recipe import Budget, recipe, step_flops
from configs.settings import DataConfig, GPTConfig, OptimConfig
from data.corpus import open_corpus
from model import checkpoint
from model.network import make_network
from model.networks.quill import GPT
from model.system.device import Machine, seed_all
from model.system.logger import Logger, SilentLogger
from tests.conftest import LINES, TINY, curve, summary

STEPS = "--max_iters=16 --eval_interval=8 --log_interval=1"


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
        for field in one.keys() - {
            "seconds",
            "first_step_seconds",
            "train_seconds",
            "eval_seconds",
        }:
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


class Clock:
    """Simulated: only training steps and evaluations move it on, by these seconds."""

    def __init__(self, monkeypatch, step_seconds: float, eval_seconds: float) -> None:
        self.now, evaluate = 0.0, train.evaluate

        def pass_time(_):
            self.now += step_seconds

        def evaluate_slowly(*args):
            self.now += eval_seconds
            return evaluate(*args)

        monkeypatch.setattr(train, "START_TIME", 0.0)
        monkeypatch.setattr(train.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(train, "evaluate", evaluate_slowly)
        monkeypatch.setattr(prepare, "measure_speed", lambda *_: 1e12)
        at_steps(monkeypatch, range(10**6), pass_time)


def use_scaler(monkeypatch) -> None:
    """Train with a gradient scaler, as in float16."""
    monkeypatch.setattr(Machine, "make_scaler", lambda _: torch.amp.GradScaler("cpu", 1024.0))


def overflow_at(monkeypatch, steps) -> None:
    """Make the gradient of one matrix, so of a single optimizer, infinite in these steps."""
    make_optimizers, count = prepare.make_optimizers, itertools.count()

    def make_with_overflow(model, *args, **kwargs):
        weight = model.blocks[0].mlp_1.fc.weight
        weight.register_hook(lambda grad: grad * math.inf if next(count) in steps else grad)
        return make_optimizers(model, *args, **kwargs)

    monkeypatch.setattr(prepare, "make_optimizers", make_with_overflow)


@pytest.mark.parametrize(
    ("grad_clip", "parts", "scaled", "temperature"),
    [(0.0, 1, False, 1.0), (0.3, 2, False, 0.5), (0.3, 4, True, 2.0)],
)
def test_training_equals_a_plain_loop(
    tiny, text_file, monkeypatch, grad_clip, parts, scaled, temperature
):
    """With SGD: schedule, clipping, momentum, temperature, a teacher.

    Accumulation and scaling change nothing.
    """

    def make_sgd(model, *_, **__):
        return [torch.optim.SGD(model.named_parameters(), lr=0.0, momentum=0.5)]

    monkeypatch.setattr(prepare, "make_optimizers", make_sgd)
    if scaled:
        use_scaler(monkeypatch)
    flags = "--max_iters=5 --warmup_iters=1 --learning_rate=2 --log_interval=1 --dtype=float32"
    flags += f" --grad_clip={grad_clip} --gradient_accumulation_steps={parts}"
    assert tiny(f"{flags} --train_temperature={temperature} --out_dir=run") == 0

    corpus = open_corpus(DataConfig((str(text_file),)))
    network = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=16)

    def plain_loop(steps: int, seed: int) -> tuple[GPT, list]:
        """The trained network; loss, gradient norm and learning rate of each step."""
        seed_all(seed)
        model, log = GPT(network, vocab_size=len(corpus.tokenizer.vocab)), []
        velocities = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for step in range(steps):
            lr = 2 * min((step + 1) / 2, 1 - step / steps)  # a step of warmup, a linear decay
            x_BT, y_BT = corpus.batch(16, 4, seed=seed, step=step, rows=slice(4))
            logits_NV = model(x_BT).flatten(0, 1)
            logged_loss = F.cross_entropy(logits_NV, y_BT.flatten())  # as in evaluation
            log_probs_NV = (logits_NV / temperature).log_softmax(-1)
            loss = F.nll_loss(log_probs_NV, y_BT.flatten())
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
            log.append((logged_loss.item(), norm, lr))
            with torch.no_grad():
                clip_factor = min(1, grad_clip / norm) if grad_clip else 1
                triples = zip(model.parameters(), velocities, gradients, strict=True)
                for parameter, velocity, gradient in triples:
                    velocity.mul_(0.5).add_(clip_factor * gradient)
                    parameter.sub_(lr * velocity)
        return model, log

    model, expected = plain_loop(5, seed=1337)
    assert max(norm for _, norm, _ in expected) > 0.3  # so that it is clipped
    for i, tag in enumerate(("loss", "optimizer/grad_norm", "optimizer/learning_rate")):
        logged = [value for _, value in curve(Path("run"), "train", tag)]
        assert logged == pytest.approx([values[i] for values in expected], rel=1e-3)
    saved = checkpoint.load("run/last.pt").model
    for name, weight in model.state_dict().items():
        assert torch.allclose(saved[name], weight, rtol=1e-3, atol=1e-5)
    nats = 0.0  # of the validation split, where the temperature is 1
    for starts_B, T in corpus.eval_batches(16, 64):
        x_BT, y_BT = corpus.gather_examples(starts_B, T)
        nats += F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten(), reduction="sum").item()
    val_loss = summary(Path("run"))["val_loss"]
    assert val_loss == pytest.approx(nats / (corpus.val_chars - 1), rel=1e-4)


def test_an_overflow_skips_all_optimizers_and_halves_the_scale(tiny, monkeypatch):
    weights = []
    use_scaler(monkeypatch)
    overflow_at(monkeypatch, [3])
    at_steps(monkeypatch, range(6), lambda parameters: weights.append(copy.deepcopy(parameters)))
    assert tiny("--max_iters=6 --out_dir=run") == 0
    unchanged = [equal(before, after) for before, after in itertools.pairwise(weights)]
    assert unchanged == [False, False, False, True, False]
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512
    assert train.main(["--resume", "run", "--max_iters", "7"]) == 0
    assert checkpoint.load("run/last.pt").scaler["scale"] == 512


def test_float16_follows_float32_also_after_an_overflow_and_a_resume(tiny, monkeypatch):
    """On a CPU: it shows the scaler and the skipped step, not the numbers of a GPU."""
    flags = "--n_layer=1 --n_embd=32 --max_iters=60 --eval_interval=30 --log_interval=1"
    assert tiny(f"{flags} --dtype=float32 --out_dir=float32") == 0
    training_machine = train.training_machine
    monkeypatch.setattr(
        train, "training_machine", lambda *args: replace(training_machine(*args), dtype=torch.half)
    )
    with monkeypatch.context() as patch:
        overflow_at(patch, [40])
        at_steps(patch, [45], lambda _: shutil.copytree("float16", "killed"))  # saved at step 30
        assert tiny(f"{flags} --out_dir=float16") == 0
    losses = dict(curve(Path("float16"), "train"))
    for step, expected in curve(Path("float32"), "train")[:20]:
        assert losses[step] == pytest.approx(expected, abs=1e-2)
    assert summary(Path("float16"))["dtype"] == "float16"
    saved = checkpoint.load("float16/last.pt")
    assert saved.scaler["scale"] == checkpoint.load("killed/last.pt").scaler["scale"] / 2
    assert losses[59] < losses[20]
    overflow_at(monkeypatch, [10])
    assert train.main(["--resume", "killed"]) == 0
    assert_same_run(Path("float16"), Path("killed"))


def test_a_step_takes_few_operations(tiny, monkeypatch):
    """Each is at least one kernel on a GPU, which takes about 100 more for the casts of autocast.

    Views are none. Clipping is left out.
    """
    views = {"view", "t", "transpose", "slice", "split", "unsqueeze", "expand", "detach", "permute"}
    views |= {"select", "alias", "as_strided", "_unsafe_view", "split_with_sizes", "diagonal"}
    counts = Counter()

    class CountOperations(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            counts[operation.overloadpacket.__name__] += 1
            return operation(*args, **(kwargs or {}))

    machine = Machine(torch.device("cpu"), torch.bfloat16)
    config = make_config(TrainConfig, {"n_layer": 4, "n_embd": 160, "batch_size": 1})
    model, optimizers, _ = prepare.build(config, machine, 65)
    x_BT = torch.zeros(1, 256, dtype=torch.int64)
    for _ in range(2):  # in the first step, optimizers make their state
        counts.clear()
        with CountOperations():
            with machine.autocast():
                loss = train.training_loss(model(x_BT), x_BT, 1.0)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        model.zero_grad()
    kernels = {name: count for name, count in counts.most_common() if name not in views}
    assert sum(kernels.values()) <= 650, kernels


def test_gradients_that_overflow_at_the_smallest_scale_end_the_run(tiny, monkeypatch, capsys):
    use_scaler(monkeypatch)  # from 1024; 14 overflows make it 1/16
    overflow_at(monkeypatch, range(99))
    assert tiny("--max_iters=99 --log_interval=1") == 1
    assert "the gradient norm is inf at step 13." in capsys.readouterr().err.splitlines()[-1]


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
    """Neither weights nor buffers, whether it works or not."""

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

    def make_counting_network(*args, **options):
        model = make_network(*args, **options)
        model.register_buffer("calls", torch.zeros(()))
        model.register_forward_pre_hook(lambda *_: model.calls.add_(model.training) and None)
        return model

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(prepare, "make_network", make_counting_network)
    flags = "--max_iters=4 --dropout=0.2 --gradient_accumulation_steps=2 --log_interval=1"
    assert tiny(f"{flags} --compile=on --out_dir=tried") == 0
    warning = "warning: training without torch.compile: no C++ compiler\n"
    assert capsys.readouterr().err.count(warning) == (fails != "never")
    assert tiny(f"{flags} --compile=off --out_dir=eager") == 0
    eager, tried = (checkpoint.load(f"{run}/last.pt") for run in ("eager", "tried"))
    assert eager.model["calls"] == 8
    assert equal(eager.model, tried.model)
    assert equal(eager.optimizers, tried.optimizers)


def test_operations_that_do_not_repeat_exactly_are_refused_unless_allowed(tiny, monkeypatch):
    def loss_with_put(logits_BTV, *args):
        zeros = torch.zeros(9, dtype=torch.int64)
        changed_BTV = logits_BTV.put(zeros, logits_BTV.new_ones(9), accumulate=False)
        return training_loss(logits_BTV, *args) + 0 * changed_BTV.sum()

    training_loss = train.training_loss
    monkeypatch.setattr(train, "training_loss", loss_with_put)
    with pytest.raises(RuntimeError, match="deterministic"):
        tiny("--max_iters=1")
    assert tiny("--max_iters=1 --no-deterministic") == 0


@pytest.mark.parametrize("T", [16, 40], ids=["T = block_size", "T > block_size"])
def test_a_training_step_stays_on_the_device_of_the_model(T):
    """On the meta device, tensors of another device and reading a value are errors."""
    config = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=16)
    model = GPT(config, vocab_size=5).to("meta")
    ids_BT = torch.zeros(3, T, dtype=torch.int64, device="meta")
    logits_BTV = model(ids_BT)
    train.training_loss(logits_BTV, ids_BT, 0.9).backward()
    train.clip_grad_norm_(model.parameters(), 1.0)
    muon, _ = prepare.make_optimizers(model, OptimConfig(), muon_dtype=torch.bfloat16)
    muon.step()


def test_a_machine_may_lack_locks_and_hangup_signals(tiny, monkeypatch):
    """As Windows does."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.delattr(signal, "SIGHUP")
    assert tiny("--max_iters=3 --out_dir=run") == 0
    assert train.main(["--resume", "run", "--max_iters", "5"]) == 0


def test_evaluations_do_not_change_training_and_are_repeatable(tiny, monkeypatch):
    evaluate = train.evaluate

    def evaluate_twice(*args):
        loss = evaluate(*args)
        assert evaluate(*args) == loss
        return loss

    monkeypatch.setattr(train, "evaluate", evaluate_twice)
    for interval in ("5", "16"):
        flags = f"{STEPS} --dropout=0.3 --eval_interval={interval} --out_dir={interval}"
        assert tiny(flags) == 0
    assert curve(Path("5"), "train") == curve(Path("16"), "train")
    assert curve(Path("5"), "val")[-1] == curve(Path("16"), "val")[-1]


def test_what_a_run_directory_holds(tiny, text_file, capsys):
    run, text = Path("run"), text_file.read_text()
    run.mkdir()
    assert tiny("--max_iters=15 --eval_interval=10 --out_dir=run") == 0
    for name in ("notes.tmp", "best.pt.old.tmp"):
        Path("run", name).touch()  # what others put there is kept
    Path(f"run/best.pt.{'0123abcd' * 4}.tmp").touch()  # of a killed process
    assert train.main(["--resume", "run", "--max_iters", "25"]) == 0
    assert "warning" not in capsys.readouterr().out  # of TensorBoard
    names = {"config.toml", "last.pt", "best.pt", "summary.json", "train", "val", "notes.tmp"}
    names |= {"best.pt.old.tmp"}
    assert {path.name for path in run.iterdir()} == names
    result = summary(run)
    assert result["iters"] == 25
    assert result["train_chars"] + result["val_chars"] == len(text)
    assert result["vocab_size"] == len(set(text))
    assert result["bits_per_char"] == result["best_val_loss"] / math.log(2)
    assert result["seconds"] > 0 < result["chars_per_second"]

    losses = dict(curve(run, "val"))
    assert sorted(losses) == [10, 15, 20, 25]
    assert losses[result["best_iter"]] == pytest.approx(result["best_val_loss"])
    assert curve(run, "val", "loss_best")[-1][1] == pytest.approx(result["best_val_loss"])
    assert [step for step, _ in curve(run, "train")] == [0, 10, 20]
    assert curve(run, "train")[0][1] == pytest.approx(math.log(len(set(text))), rel=0.01)
    for tag in ("learning_rate", "grad_norm"):
        assert all(0 < value < 1e9 for _, value in curve(run, "train", f"optimizer/{tag}"))
    train_events, events = (EventAccumulator(f"run/{split}").Reload() for split in ("train", "val"))
    assert min(train_events.Tags()["scalars"]) == min(events.Tags()["scalars"]) == "loss"
    assert events.Tags()["tensors"] == ["sample/text_summary"]
    images = [f"map/block {block}, head {head}" for block in (1, 2) for head in (1, 2)]
    assert events.Tags()["images"] == images
    hparams = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"learning_rate" in hparams


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("err", [False, True])
def test_the_output_describes_the_run_and_shows_samples(out, err, tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    monkeypatch.setattr(report, "stream", lambda *_: [(0, "sampled\n"), (0, "\x1b[31mtext")])
    assert tiny("--max_iters=6 --eval_interval=3 --out_dir=run") == 0
    output = capsys.readouterr()
    for words in ("device  cpu", "corpus  ", "model   quill, 2 blocks", "parameters", "best    "):
        assert words in output.out
    for command in ("sample.py run", "train.py --resume run --max_iters 12", "tensorboard"):
        assert command in output.out
    assert output.out.count("validation loss") == 2
    assert ("\r" in output.err) == err  # a progress bar, and nothing else
    assert err or not output.err
    assert output.out.count("     sampled ␛[31mtext") == (2 if out else 0)
    assert "\x1b[31m" not in output.out + output.err


def test_nothing_shares_a_line_with_the_progress_bar(tiny, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    assert tiny("--max_iters=4 --eval_interval=2 --out_dir=run") == 0
    bars = 0
    for line in screen.getvalue().split("\n"):
        shown = ""
        for part in line.split("\r"):  # each overwrites what stands there
            shown = part + shown[len(part) :]
        if "%|" in shown:
            bars += 1
            assert shown.endswith("]")
    assert bars == 1


RUSSIAN = "Мой дядя самых честных правил. " * 150
HIGH = "The first validation loss, 9.0000, is above that of a uniform guess"


@pytest.mark.parametrize("split", ["--val_split=end", "--val_fraction=0.11 --val_split=spread"])
def test_weights_that_have_read_the_validation_text_are_refused(tiny, text_file, capsys, split):
    text_file.write_text(LINES * 12)
    assert tiny("--max_iters=2 --val_split=spread --out_dir=first") == 0
    sizes = [flag for flag in TINY if "n_" not in flag]
    for use in ("init_from",):
        argv = ["--data", str(text_file), *sizes, "--max_iters=2", f"--{use}=first"]
        capsys.readouterr()
        assert train.main([*argv, *split.split()]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "was trained on this text, but with other validation text" in line
        assert "--val_fraction 0.1 --val_split spread" in line
        assert train.main([*argv, "--val_split=spread"]) == 0
        another = text_file.with_name("another.txt")
        another.write_text(LINES * 13)
        assert train.main([*argv, "--data", str(another), *split.split()]) == 0


def test_stdin_run_repeats_file_run_and_resumes_with_file(tiny, text_file, monkeypatch, capsys):
    def give_standard_input(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    assert tiny(f"{STEPS} --out_dir=file") == 0
    give_standard_input(text_file.read_bytes())
    with monkeypatch.context() as patch:
        at_steps(patch, [11], lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert train.main(["--data", "-", *TINY, *STEPS.split(), "--out_dir=stdin"]) == 130
    assert "--resume stdin --data FILE" in capsys.readouterr().out
    assert train.main(["--resume", "stdin"]) == 2
    assert "--data FILE" in capsys.readouterr().err
    assert train.main(["--resume", "stdin", "--data", str(text_file)]) == 0
    assert_same_run(Path("file"), Path("stdin"))
    give_standard_input(text_file.read_bytes())
    assert train.main(["stdin/config.toml", "--out_dir=again"]) == 0
    assert curve(Path("again"), "train") == curve(Path("file"), "train")
    assert curve(Path("again"), "val") == curve(Path("file"), "val")


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
    """As when the terminal is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        monkeypatch.setattr(sys, "stderr", pipe)
        assert tiny("--max_iters=4 --eval_interval=2 --out_dir=run") == 0
    assert summary(Path("run"))["iters"] == 4


def test_the_other_processes_log_nothing():
    logger = SilentLogger()
    for name in dir(Logger):
        if not name.startswith("_"):
            assert getattr(logger, name)("tag", 1.0, step=3) is None
    assert logger.val.add_scalar("tag", 1.0, step=3) is logger.bar.update() is None


def test_init_from_keeps_the_loss_and_adds_rows_for_characters(trained_run, text_file, capsys):
    before, text = checkpoint.load(trained_run / "best.pt"), text_file.read_text()
    flags = "--max_iters=1 --learning_rate=0 --batch_size=4 --device=cpu --compile=off"
    shutil.copytree(trained_run, "base")
    Path("base/last.pt").unlink()  # best.pt is taken
    flags = ["--data", str(text_file), "--init_from", "base", *flags.split()]
    assert train.main([*flags, "--n_head", "2", "--out_dir", "same"]) == 0
    assert summary(Path("same"))["val_loss"] == pytest.approx(before.best_val_loss, rel=1e-6)
    assert train.main([*flags, "--block_size", "12", "--out_dir", "shorter"]) == 0
    assert summary(Path("shorter"))["val_loss"] == pytest.approx(before.best_val_loss, rel=0.2)

    text_file.write_text("~ß" + text, "utf-8")
    capsys.readouterr()
    assert train.main([*flags, "--out_dir", "larger"]) == 0
    assert "never seen: '~' 'ß'" in capsys.readouterr().out
    after = checkpoint.load("larger/last.pt")
    assert after.vocab == before.vocab + "~ß"
    for name, weights in before.model.items():
        assert torch.equal(after.model[name][: len(weights)], weights)
    assert after.model["embedding.weight"][-2:].abs().sum() > 0


def test_the_saved_config_repeats_a_run(trained_run, text_file, monkeypatch):
    """And a run from other weights resumes exactly, also when these are gone."""
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
    for _ in range(3):  # mostly in the same second
        assert train.main(["whole/config.toml"]) == 0
    shutil.rmtree("base")
    assert train.main(["--resume", "stopped"]) == 0
    repeated = list(Path("runs").iterdir())
    assert len(repeated) == 3
    for run in (*repeated, Path("stopped")):
        assert_same_run(Path("whole"), run)


def test_a_finished_run_completes_missing_files_and_goes_on(tiny, monkeypatch, capsys):
    clock = Clock(monkeypatch, step_seconds=3, eval_seconds=0)
    assert tiny("--max_iters=25 --eval_interval=10 --out_dir=run") == 0
    before = checkpoint.load("run/last.pt").model
    Path("run/summary.json").unlink()
    Path("runs").write_text("a file in the place of new runs")  # which a resumed run does not need
    capsys.readouterr()
    for flags in ([], ["--max_iters=40", "--log_interval=1"]):
        assert equal(checkpoint.load("run/last.pt").model, before)
        clock.now = 0.0  # of another process
        assert train.main(["--resume", "run/best.pt", *flags]) == 0
        assert re.search(r"step +25 .* best so far\n", capsys.readouterr().out)
        assert summary(Path("run"))["iters"] == (40 if flags else 25)
    assert checkpoint.load("run/last.pt").config["max_iters"] == 40
    assert [step for step, _ in curve(Path("run"), "val")] == [10, 20, 25, 30, 40]  # 25: the end
    assert summary(Path("run"))["seconds"] == 40 * 3
    speeds = [speed for _, speed in curve(Path("run"), "val", "speed/chars_per_second")[-2:]]
    assert speeds == pytest.approx([4 * 16 / 3] * 2)


def test_times_include_the_teacher_and_decide_when_to_save(tiny, monkeypatch):
    clock, saved, save = Clock(monkeypatch, step_seconds=100, eval_seconds=7), [], checkpoint.save

    def remember_and_save(state, *paths):
        saved.append(state.step)
        save(state, *paths)

    monkeypatch.setattr(checkpoint, "save", remember_and_save)
    assert tiny("--max_iters=20 --eval_interval=10 --out_dir=run") == 0
    # At step 0, at evaluations, and after more than SAVE_SECONDS = 600.
    assert saved == [0, 7, 10, 17, 20]
    state = checkpoint.load("run/last.pt")
    assert (state.train_seconds, state.seconds) == (2000, 2000 + 2 * 7)
    assert state.eval_seconds == 7  # of the one before: when it was saved, the last was not over
    assert clock.now == state.seconds


def test_minutes_end_a_run_by_the_clock(tiny, monkeypatch, capsys):
    """Also after a kill. The learning rate and the evaluations follow the time."""
    clock = Clock(monkeypatch, step_seconds=1, eval_seconds=2)
    clock.now = 10.0  # seconds that the imports took

    def compile(machine, network, *_):
        clock.now += 10
        return network

    monkeypatch.setattr(Machine, "compile", compile)
    with monkeypatch.context() as patch:
        at_steps(patch, [20, 45], lambda _: shutil.copytree("run", f"killed{clock.now:.0f}"))
        flags = "--minutes=2 --max_iters=400 --eval_interval=100 --warmup_iters=0 --log_interval=1"
        assert tiny(f"{flags} --learning_rate=0.01 --out_dir=run") == 0
    run = Path("run")
    ends = {run: 120}
    for path, end in ends.items():
        state, evaluated = checkpoint.load(path / "last.pt"), dict(curve(path, "val"))
        assert state.seconds == pytest.approx(end, abs=1)
        seconds = end - 1.3 * 2 - state.first_step_seconds  # of training, with evaluations
        progress = {  # before an evaluation
            step: (step + 2 * sum(other < step for other in evaluated)) / seconds
            for step in range(state.step + 1)
        }
        rates = curve(path, "train", "optimizer/learning_rate")
        expected = [0.01 * (1 - progress[step]) for step, _ in rates]
        assert [lr for _, lr in rates] == pytest.approx(expected, abs=0.01 / seconds)
        parts = [*np.arange(100, state.config["max_iters"], 100) / state.config["max_iters"], 1]
        assert [progress[step] for step in evaluated] == pytest.approx(parts, abs=3 / seconds)

    for path in (*Path().glob("killed*"), run):
        clock.now, minutes = 0.0, 3 if path == run else 2  # the clock of another process
        before = max(checkpoint.load(file).seconds for file in path.rglob("last.pt"))
        assert train.main(["--resume", str(path), f"--minutes={minutes}"]) == 0
        assert before + clock.now == pytest.approx(60 * minutes, abs=1)
        assert before + clock.now == summary(path)["seconds"]


def test_without_minutes_nothing_depends_on_the_clock(tiny, monkeypatch):
    """Nor with more minutes than the steps take."""
    flags = f"{STEPS} --dropout=0.2"
    runs = (("fast", 1, 2, 0), ("slow", 1000, 50, 0), ("limited", 1, 2, 9))
    for name, step_seconds, eval_seconds, minutes in runs:
        with monkeypatch.context() as patch:
            Clock(patch, step_seconds, eval_seconds)
            assert tiny(f"{flags} --minutes={minutes} --out_dir={name}") == 0
    assert_same_run(Path("fast"), Path("slow"))
    fast, limited = (checkpoint.load(f"{run}/last.pt") for run in ("fast", "limited"))
    assert equal(fast.model, limited.model)


def test_the_recipe_gets_the_measured_speed_and_the_time_left(text_file, monkeypatch):
    clock, budgets, cross_entropy = [100.0], [], F.cross_entropy

    def take_half_a_second(*args):
        clock[0] += 0.5
        return cross_entropy(*args)

    monkeypatch.setattr(prepare.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(F, "cross_entropy", take_half_a_second)
    corpus = open_corpus(DataConfig((str(text_file),)))
    monkeypatch.setattr(prepare, "recipe", lambda budget: budgets.append(budget) or recipe(budget))
    machine = Machine(torch.device("cpu"), torch.float32)
    config = make_config(TrainConfig, {"minutes": 10.0})
    prepare.choose_settings(config, corpus, machine, start_time=0.0)
    flops = step_flops(2, 128, batch_size=8) / 0.5 * (60 * 10 - clock[0])
    assert budgets[-1] == Budget(corpus.train_chars, flops, minutes=10.0)


def test_the_recipe_is_the_same_for_every_split(text_file, monkeypatch):
    """Although the training text is a little longer or shorter: a flag changes only itself."""
    text_file.write_text(LINES * 30)
    budgets, machine = [], Machine(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(prepare, "recipe", budgets.append)
    corpora = [open_corpus(DataConfig((str(text_file),), val_split=s)) for s in ("end", "spread")]
    for corpus in corpora:
        prepare.choose_settings(make_config(TrainConfig, {}), corpus, machine, 0.0)
    assert budgets[0] == budgets[1]


def test_a_far_max_iters_means_ten_evaluations(tiny, monkeypatch):
    Clock(monkeypatch, step_seconds=1, eval_seconds=0.5)
    assert tiny("--minutes=1 --max_iters=1000000 --eval_interval=1 --out_dir=run") == 0
    assert len(curve(Path("run"), "val")) == 10
    assert summary(Path("run"))["iters"] > 45


def test_the_shortest_run_makes_one_step(tiny, monkeypatch):
    Clock(monkeypatch, step_seconds=1, eval_seconds=2)
    assert tiny("--minutes=1e-9 --out_dir=run") == 0
    assert summary(Path("run"))["iters"] == 1


def test_a_resumed_run_takes_its_settings_from_the_checkpoint(tiny):
    """Whatever is written there."""
    assert tiny(f"{STEPS} --out_dir=run") == 0
    path = Path("run/config.toml")
    path.write_text(edited := "n_layer = 9\nmax_iters = 99\n")
    assert train.main(["--resume", "run", "--max_iters=20"]) == 0
    assert summary(Path("run"))["iters"] == 20
    assert path.read_text() == edited


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_a_resumed_run_replaces_a_missing_or_damaged_best_pt(tiny, content):
    assert tiny(f"{STEPS} --out_dir=run") == 0
    saved = checkpoint.load("run/last.pt")
    saved.best_step, saved.best_val_loss = 8, 0.1  # no later evaluation is as good
    checkpoint.save(saved, Path("run/last.pt"))
    Path("run/best.pt").unlink()
    if content is not None:
        Path("run/best.pt").write_bytes(content)
    assert train.main(["--resume", "run"]) == 0
    best = checkpoint.load("run/best.pt")
    assert best.step == best.best_step == summary(Path("run"))["best_iter"] == 16


def test_a_resumed_run_refuses_another_text(tiny, text_file, monkeypatch, capsys):
    """--data only says where the same text lies now."""
    at_steps(monkeypatch, [11], lambda _: shutil.copytree("whole", "run"))
    assert tiny(f"{STEPS} --out_dir=whole") == 0
    text = text_file.read_text()
    text_file.write_text(text.replace("moon", "noom"))
    Path("other.txt").write_text(f"{text}, with characters it has never seen: ÄÖÜ")
    for flags in ([], ["--data", str(text_file)], ["--data", "other.txt"]):
        assert train.main(["--resume", "run", *flags]) == 2
        message = "is not the text of this run. .* new run with --init_from run"
        assert re.search(message, capsys.readouterr().err)
    Path("moved.txt").write_text(text)
    assert train.main(["--resume", "run", "--data", "moved.txt"]) == 0
    for split in ("train", "val"):
        assert curve(Path("whole"), split) == curve(Path("run"), split)
