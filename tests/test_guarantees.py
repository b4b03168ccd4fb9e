"""Tests of long runs: no saved work is lost, and a resumed run equals an uninterrupted run."""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from multiprocessing import Process
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.summary.writer.record_writer import RecordWriter

import sample
import train
from configs.settings import TrainConfig
from model.run import checkpoint
from model.run.log import Log
from model.system import device
from model.system.processes import catch_signals
from tests.helpers import (
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
    torchrun_variables,
)

DISK_ERROR = r"(?m)^error: \[Errno \d+\] .+\n$"


def assert_intact(run: Path) -> None:
    """Check that the curves have one point for each step, and best.pt has the best evaluation."""
    val = curve(run, "val")
    for points in (val, curve(run, "train")):
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps))
    best = checkpoint.load(run / "best.pt")
    assert best.best_val_loss == best.val_loss == pytest.approx(min(loss for _, loss in val))
    assert best.step == best.best_step == min(val, key=lambda point: point[1])[0]


@pytest.mark.parametrize(
    ("network", "save_seconds", "decay"), [("gpt", 600, 0), ("quill", 1e-9, 0), ("quill", 600, 0.9)]
)
def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(
    tiny, monkeypatch, network, save_seconds, decay
):
    """Copies made in steps, in evaluations and at every write hold what SIGKILL would leave."""
    monkeypatch.setattr("model.run.progress.SAVE_SECONDS", save_seconds)
    monkeypatch.setattr(train, "TEACHER_FROM", 3)
    flags = f"--network={network} --max_iters=8 --eval_interval=4 --log_interval=1 --dropout=0.2"
    flags += f" --gradient_accumulation_steps=2 --ema_decay={decay} --out_dir="
    fsync, write, add_sample = os.fsync, RecordWriter.write, Log.add_sample
    copies, whole = [], Path("whole")

    def copy_run(_=None):
        copies.append(Path(shutil.copytree(whole, f"killed{len(copies)}")))

    def copy_run_and_sync(file):
        if any(whole.rglob("*.tmp")):
            copy_run()
        fsync(file)

    def copy_run_and_add_sample(log):  # the run is evaluated, but not yet saved
        copy_run()
        add_sample(log)

    def write_slowly(*args):  # each save must wait for the event files
        time.sleep(0.005)
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", copy_run_and_sync)
        patch.setattr(RecordWriter, "write", write_slowly)
        patch.setattr(Log, "add_sample", copy_run_and_add_sample)
        at_steps(patch, [2, 5], copy_run)
        after_each_save(patch, copy_run)
        assert tiny(f"{flags}whole") == 0
    files = [path for copy in copies for path in copy.glob("*.*")]
    unfinished = {path.name.split(".")[0] for path in files if path.suffix == ".tmp"}
    assert unfinished == {"config", "last", "best", "summary"}
    saved = {checkpoint.load(path).step for path in files if path.name == "last.pt"}
    assert saved == (set(range(9)) if save_seconds < 1 else {0, 4, 8})
    for copy in copies:
        if not (copy / "last.pt").exists():  # it cannot be resumed, so start it again
            assert tiny(f"{flags}{copy}") == 2
            shutil.rmtree(copy)
            assert tiny(f"{flags}{copy}") == 0
        assert train.main(["--resume", str(copy)]) == 0
        assert_same_run(whole, copy)
        assert_intact(copy)
        assert (copy / "config.toml").read_text() == (whole / "config.toml").read_text()
        assert [step for step, _ in curve(copy, "train")] == list(range(1, 9))


def stop_by(number: int) -> Callable:
    return lambda *_: os.kill(os.getpid(), number)


def stop_before_the_first_step(patch: pytest.MonkeyPatch, number: int) -> None:
    @contextlib.contextmanager
    def catch_and_stop():
        with catch_signals() as signals:
            os.kill(os.getpid(), number)
            yield signals

    patch.setattr(train, "catch_signals", catch_and_stop)


def test_a_signal_saves_and_tells_how_to_resume(tiny, monkeypatch, capsys):
    """The signal comes before or in the first step, before an evaluation, or in the last step."""
    flags = f"{STEPS} --out_dir="
    assert tiny(f"{flags}whole") == 0
    for step, number in {8: signal.SIGINT, 16: signal.SIGTERM, 1: signal.SIGHUP, 0: 15}.items():
        run, name = Path(f"stopped{step}"), f"stopped{step}"
        with monkeypatch.context() as patch:
            at_steps(patch, [step - 1], stop_by(number))
            if step == 0:
                stop_before_the_first_step(patch, number)
            capsys.readouterr()
            assert tiny(f"{flags}{name}") == 128 + number
        output = capsys.readouterr().out
        assert f"resume  python train.py --resume {name}\n" in output
        assert (run / "best.pt").exists() == (step > 8)  # the model of step 0 has learned nothing
        assert sample.main([name, "--max_new_tokens=3"]) == 0
        assert checkpoint.load(run / "last.pt").step == step
        steps = []  # no step is made again
        with monkeypatch.context() as patch:
            at_steps(patch, range(99), steps.append)
            assert train.main(["--resume", name]) == 0
        assert len(steps) == 16 - step
        assert_same_run(Path("whole"), run)


def test_a_signal_in_the_last_evaluation_changes_nothing(tiny, monkeypatch):
    """The run is complete, so its exit status is 0, and a command after && runs."""

    def stop(log: Log) -> None:
        if log.state.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Log, "add_sample", stop)
    assert tiny("--max_iters=4 --eval_interval=2 --out_dir=run") == 0
    assert summary(Path("run"))["step"] == checkpoint.load("run/last.pt").val_step == 4


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_layers_of_equal_shapes_in_another_order_are_refused(optimizer, tiny, monkeypatch, capsys):
    """PyTorch would give each layer the optimizer state of another layer."""
    assert tiny(f"--max_iters=4 --optimizer={optimizer} --out_dir=run") == 0

    def swap(network: torch.nn.Module) -> None:
        network.blocks._modules = dict(reversed(network.blocks._modules.items()))

    change_network(monkeypatch, swap)
    assert train.main(["--resume=run", "--max_iters=6"]) == 2
    assert "in another order" in capsys.readouterr().err


def test_a_run_directory_in_use_is_refused(tiny, monkeypatch, capsys):
    def train_again(_):
        for argv in (["--resume=run"], [*TINY, "--out_dir=run"]):
            assert train.main(argv) == 2
            assert "is being trained by another process" in capsys.readouterr().err

    at_steps(monkeypatch, [1], train_again)
    assert tiny("--max_iters=4 --out_dir=run") == 0


def run_process(variables: dict[str, str], flags: str, edit: Callable | None) -> None:
    """Change the code by edit(rank), then train. A new process calls this function."""
    os.environ.update(variables)
    rank = int(os.environ["RANK"])
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    device.CPU_EVAL_CHARS = 64  # gives each process several batches
    if edit is not None:
        edit(rank)
    flags += " --dtype=float32" if "--data" in flags else " --dtype=float32 --data=text.txt"
    sizes = [] if "--resume" in flags else [*TINY, "--log_interval=1"]
    sys.exit(train.main([*sizes, *flags.split()]))


@pytest.fixture
def train_in_two(forkserver, text_file):
    """Yield train_in_two(flags, edit), which starts a run of two processes, as torchrun does."""
    started = []

    def start(flags: str, edit: Callable | None = None) -> list[Process]:
        for variables in torchrun_variables(2):
            started.append(forkserver.Process(target=run_process, args=(variables, flags, edit)))
            started[-1].start()
        return started[-2:]

    yield start
    for process in started:
        process.kill()


def end(*processes: Process) -> list[int]:
    """Wait for the end of the processes. Return their exit statuses."""
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def copy_after_each_save(rank: int) -> None:
    def copy_run(path: Path) -> None:
        step = checkpoint.load(path).step
        shutil.copytree(path.parent, f"{path.parent.name}{step}", dirs_exist_ok=True)

    after_each_save(pytest.MonkeyPatch(), copy_run)


def die_after_an_evaluation(rank: int) -> None:
    def die(path: Path) -> None:
        if checkpoint.load(path).step > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    after_each_save(pytest.MonkeyPatch(), die)


def test_resuming_a_killed_run_of_two_processes_is_exact(train_in_two):
    """One process may resume a run of two. Then the results differ only by rounding."""
    flags = "--max_iters=12 --warmup_iters=1 --eval_interval=5 --out_dir="
    assert end(*train_in_two(f"{flags}whole", copy_after_each_save)) == [0, 0]
    assert "2 processes" in Path("out0").read_text()
    # Only one process prints. (In PyTorch 2.9, Gloo prints a line, too.)
    assert re.fullmatch(r"(\[Gloo\] .*\n)?", Path("out1").read_text())
    assert "arning" not in Path("err0").read_text() + Path("err1").read_text()
    shutil.copytree("whole5", "again")
    assert end(*train_in_two("--resume=again")) == [0, 0]
    assert_same_run(Path("again"), Path("whole"))
    assert end(*train_in_two(f"{flags}killed", die_after_an_evaluation)) == [-signal.SIGKILL, 1]
    error = Path("err1").read_text()
    assert error.splitlines()[-1].startswith("error: another process of this run has ended")
    assert "Traceback" not in error
    # TensorBoard orders event files by second. A new process would take longer than that to start.
    time.sleep(1)
    assert train.main(["--resume", "killed"]) == 0
    assert_similar(Path("killed"), Path("whole"))
    assert_intact(Path("killed"))


def start_late(late_rank: int, rank: int) -> None:
    """Start one process 7 seconds after the other, and let the two clocks run at unequal speed.

    The clock of the late process shows less. Each process writes its weights in every step.
    """
    patch, join = pytest.MonkeyPatch(), dist.init_process_group
    clock = Clock(patch, step_seconds=1 + 0.01 * rank, eval_seconds=0)

    def wait_and_join(*args):  # the early process waits for the late one
        clock.now += 0.0 if rank == late_rank else 7.0
        join(*args)

    def write_weights(model):
        weight = sum(parameter.double().sum().item() for parameter in model.parameters())
        with Path(f"weights{rank}").open("a") as file:
            print(weight, file=file)

    patch.setattr(dist, "init_process_group", wait_and_join)
    at_steps(patch, range(10**6), write_weights)


@pytest.mark.parametrize("late_rank", [0, 1])
def test_processes_that_start_apart_have_the_same_learning_rates(train_in_two, late_rank):
    """So their weights are equal, and they end together. The process that ran longer decides."""
    flags = "--minutes=1 --max_iters=999 --eval_interval=20 --out_dir=run"
    assert end(*train_in_two(flags, partial(start_late, late_rank))) == [0, 0]
    weights = [Path(f"weights{rank}").read_text().split() for rank in (0, 1)]
    assert weights[0] == weights[1]
    assert len(set(weights[0])) == len(weights[0]) > 40
    seconds = summary(Path("run"))["seconds"]
    assert seconds == pytest.approx(60, abs=1.5)


def terminate_the_main_process(rank: int) -> None:
    if rank == 0:
        at_steps(pytest.MonkeyPatch(), [7], stop_by(signal.SIGTERM))


def test_all_processes_stop_when_the_main_process_receives_a_signal(train_in_two):
    flags = "--max_iters=20 --eval_interval=5 --out_dir=run"
    assert end(*train_in_two(flags, terminate_the_main_process)) == [128 + signal.SIGTERM] * 2
    assert "stopped at step 8 " in Path("out0").read_text()
    assert checkpoint.load("run/last.pt").step == 8


def freeze_blocks(rank: int) -> None:
    change_network(pytest.MonkeyPatch(), lambda network: network.blocks.requires_grad_(False))


def test_frozen_blocks_do_not_change_in_two_processes(train_in_two):
    for steps in (1, 6):
        flags = f"--max_iters={steps} --out_dir={steps}"
        assert end(*train_in_two(flags, freeze_blocks)) == [0, 0]
    before, after = (checkpoint.load(f"{steps}/last.pt").model for steps in (1, 6))
    for name in before:
        assert torch.equal(before[name], after[name]) == name.startswith("blocks."), name


def compile_simply(rank: int) -> None:
    """Make torch.compile produce a graph that PyTorch runs itself, without a C++ compiler."""
    compile = torch.compile
    torch.compile = lambda function, **_: compile(function, backend="eager", dynamic=False)


def test_a_compiled_run_of_two_processes_equals_an_eager_run(train_in_two, tiny):
    flags = "--max_iters=8 --warmup_iters=1 --gradient_accumulation_steps=2"
    processes = train_in_two(f"{flags} --compile=on --out_dir=two", compile_simply)
    assert end(*processes) == [0, 0]
    assert tiny(f"{flags} --dtype=float32 --log_interval=1 --out_dir=one") == 0
    assert_similar(Path("one"), Path("two"))


def read_standard_input(rank: int) -> None:
    sys.stdin = io.TextIOWrapper(io.FileIO("text.txt")) if rank == 0 else None


def test_the_main_process_reads_standard_input_for_all(train_in_two):
    assert end(*train_in_two("--max_iters=4 --out_dir=file")) == [0, 0]
    flags = "--max_iters=4 --data=- --out_dir=input"
    assert end(*train_in_two(flags, read_standard_input)) == [0, 0]
    assert equal(*(checkpoint.load(f"{run}/last.pt").model for run in ("file", "input")))


def fail_in_process_1(rank: int) -> None:
    def fail(_):
        raise ValueError("a bug in an edit")

    if rank == 1:
        at_steps(pytest.MonkeyPatch(), [3], fail)
    dist.destroy_process_group = lambda: Path(f"left{rank}").touch()


def test_an_error_in_one_process_ends_all(train_in_two):
    """After an error, no process waits for the others before it leaves. NCCL would hang."""
    assert end(*train_in_two("--max_iters=8 --out_dir=run", fail_in_process_1)) == [1, 1]
    assert "Traceback" in Path("err1").read_text()
    assert Path("err1").read_text().splitlines()[-1] == "ValueError: a bug in an edit"
    assert Path("err0").read_text().splitlines()[-1].startswith("error: another process of this")
    assert not list(Path().glob("left*"))


def test_weights_that_are_not_finite_are_never_saved(tiny, monkeypatch, capsys):
    """Before the next loss, a signal tells the run to save."""
    at_steps(monkeypatch, [7], lambda model: model.head.weight.data[0].fill_(torch.nan))
    at_steps(monkeypatch, [7], stop_by(signal.SIGINT))
    assert tiny("--max_iters=20 --out_dir=run") == 1
    assert "the sum of the weights is nan at step 8" in capsys.readouterr().err
    assert checkpoint.load("run/last.pt").step == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--log_interval=1", r"training loss is nan at step 9\."),
        ("--log_interval=10 --eval_interval=99", r"training loss is nan at step 10\."),
        ("--log_interval=99 --eval_interval=5", r"validation loss is nan at step 10\."),
    ],
)
def test_divergence_is_found_at_the_next_log_or_evaluation(
    tiny, monkeypatch, capsys, flags, message
):
    steps = []
    if "step 9" in message:
        overflow_at(monkeypatch, [7])
    else:
        at_steps(monkeypatch, [7], lambda model: model.head.weight.data.fill_(torch.nan))
    at_steps(monkeypatch, range(20), steps.append)
    assert tiny(f"--max_iters=20 --out_dir=run {flags}") == 1
    assert len(steps) <= 11
    assert re.match(f"error: the {message}", capsys.readouterr().err.splitlines()[-1])
    if "eval_interval=5" in flags:
        saved = checkpoint.load("run/last.pt")
        assert saved.step == 5
        assert all(weight.isfinite().all() for weight in saved.model.values())


# On a full disk, TensorBoard's threads fail, too.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("room", [0, 10_000], ids=["no room", "no room for a checkpoint"])
def test_full_disk_ends_run_but_keeps_saved_files(tiny, capsys, room):
    resource = pytest.importorskip("resource")
    assert tiny("--max_iters=4 --out_dir=run") == 0
    before = {path.name: path.read_bytes() for path in Path("run").glob("*.pt")}
    resume = ["--resume", "run", "--max_iters", "40"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))  # a larger file is an error
    try:
        assert train.main(resume) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert re.search(DISK_ERROR, capsys.readouterr().err)
    for name in ("best.pt", "last.pt"):
        assert Path("run", name).read_bytes() == before[name]
    assert train.main(resume) == 0


def flip(content: bytes, bit: int) -> bytes:
    """Return the bytes with one bit flipped."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_damaged_checkpoint_is_refused_by_name(trained_run, capsys):
    shutil.copytree(trained_run, "run")
    content = Path("run/last.pt").read_bytes()
    for bit in np.random.default_rng(0).integers(8 * len(content), size=30):
        Path("run/last.pt").write_bytes(flip(content, int(bit)))
        assert train.main(["--resume", "run"]) == 2
        assert "error: run/last.pt is damaged, or not a checkpoint" in capsys.readouterr().err
    assert sample.main(["run", "--max_new_tokens", "3"]) == 0


def run_quietly(main, argv: list[str]) -> None:
    """Run a command. It must end with status 0, or with an error in one line."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as stderr,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.StringIO("hello\n"))
        status = main(argv)
    assert status in (0, 1, 2), (argv, status)
    assert "Traceback" not in stderr.getvalue()
    assert status == 0 or stderr.getvalue().splitlines()[-1].startswith("error: ")


def write(content: bytes) -> str:
    Path("x").write_bytes(content)
    return "x"


BYTES = st.binary(max_size=60)
BYTES |= st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
KEYS = st.sampled_from([field.name for field in fields(TrainConfig)])
TOML_VALUES = st.integers().map(str) | st.floats().map(str)
TOML_VALUES |= st.sampled_from(["true", "'x'", "[1]", "{a.b = 1}", "1" * 5000])
TOML = st.builds("{} = {}".format, KEYS, TOML_VALUES).map(str.encode)
FLAGS = "--data --n_layer --resume --prompt --stop --top_k --temperature --score --interactive -h"
VALUES = ["0", "-1", "1e999", "nan", "text.txt", "run", "run/best.pt", ".", "/", "\x1b[2J", "="]
TEXT = st.text(st.characters(exclude_characters="\0"), max_size=8)  # no command line has a NUL
WORDS = st.lists(TEXT | st.sampled_from(FLAGS.split() + VALUES), max_size=4)
TRAIN = [*TINY, "--block_size=2", "--max_iters=1", "--data"]
SAMPLE = ["run", "--max_new_tokens=2"]
FUZZ = {  # kind of random input: (command, function that makes its arguments, random values)
    "text": (train.main, lambda text: [*TRAIN, write(text)], BYTES),
    "preset": (train.main, lambda toml: [write(toml), *TRAIN, "text.txt"], BYTES | TOML),
    "checkpoint": (sample.main, lambda content: [write(content)], BYTES),
    "prompt": (sample.main, lambda text: [*SAMPLE, f"--prompt={text}"], st.text()),
    "training flags": (train.main, lambda words: [*words, "--data", "nothing.txt"], WORDS),
    "sampling flags": (sample.main, lambda words: [*SAMPLE, *words], WORDS),
}


def fuzz(name: str, examples: int) -> None:
    """Run a command with random input in a directory that holds text.txt and run/."""
    main, arguments, strategy = FUZZ[name]
    limits = settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
    limits(given(strategy)(lambda value: run_quietly(main, arguments(value))))()


@pytest.mark.parametrize("name", FUZZ)
def test_random_input_never_ends_with_a_traceback(text_file, trained_run, name):
    shutil.copytree(trained_run, "run")
    fuzz(name, examples=25)
