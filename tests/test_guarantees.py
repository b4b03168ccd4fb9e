"""Long runs: nothing saved is lost, and a resumed run equals an uninterrupted one."""

import contextlib
import io
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.summary.writer.record_writer import RecordWriter

import sample
import train
from configs import TrainConfig, config_keys
from model import checkpoint
from model.logger import lock_run_dir
from tests.conftest import ROOT, TINY, curve, start_processes
from tests.test_train import STEPS, assert_same_run, assert_similar, at_steps, overflow_at


def assert_intact(run: Path) -> None:
    """The curves have one point for each step, and best.pt holds the best evaluation."""
    val = curve(run, "val")
    for points in (val, curve(run, "train")):
        steps = [step for step, _ in points]
        assert steps == sorted(set(steps))
    best = checkpoint.load(run / "best.pt")
    assert best.best_val_loss == best.val_loss == pytest.approx(min(loss for _, loss in val))
    assert best.step == best.best_iter == min(val, key=lambda point: point[1])[0]
    assert not list(run.glob("*.tmp"))


def test_a_killed_and_resumed_run_equals_an_uninterrupted_run(tiny, monkeypatch):
    """Killed inside a step and at every write: a copy is what SIGKILL would leave."""
    flags = ["--max_iters=8", "--eval_interval=4", "--log_interval=1", "--dropout=0.2"]
    flags += ["--gradient_accumulation_steps=2", "--out_dir"]
    fsync, copies = os.fsync, []

    def copy_run(_=None):
        copies.append(Path(shutil.copytree("whole", f"killed{len(copies)}")))

    def copy_run_and_sync(file):
        if any(Path("whole").glob("*.tmp")):
            copy_run()
        fsync(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", copy_run_and_sync)
        at_steps(patch, [6], copy_run)
        assert tiny(*flags, "whole") == 0
    unfinished = {path.name.split(".")[0] for run in copies for path in run.glob("*.tmp")}
    assert unfinished == {"config", "last", "best", "summary"}
    for run in copies:
        (run / "best.pt.1.tmp").touch()  # of another process
        if (run / "last.pt").exists():
            assert train.main(["--resume", str(run)]) == 0
        else:
            assert tiny(*flags, str(run)) == 0
        assert_same_run(Path("whole"), run)
        assert_intact(run)
        assert [step for step, _ in curve(run, "train")] == list(range(8))


def test_a_signal_saves_and_tells_how_to_resume(tiny, monkeypatch, capsys):
    assert tiny(*STEPS, "--out_dir", "whole") == 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        run = number.name
        with monkeypatch.context() as patch:
            at_steps(patch, [11], lambda _, number=number: os.kill(os.getpid(), number))
            assert tiny(*STEPS, "--out_dir", run) == 128 + number
        assert f"train.py --resume {run}\n" in capsys.readouterr().out
        assert checkpoint.load(f"{run}/last.pt").step == 12
        assert train.main(["--resume", run]) == 0
        assert_same_run(Path("whole"), Path(run))


def test_a_signal_during_compilation_leaves_a_resumable_run(tiny, monkeypatch):
    def compile_slowly(loss_fn, *_):
        os.kill(os.getpid(), signal.SIGTERM)
        return loss_fn

    with monkeypatch.context() as patch:
        patch.setattr(train, "maybe_compile", compile_slowly)
        assert tiny(*STEPS, "--out_dir", "run") == 128 + signal.SIGTERM
    assert checkpoint.load("run/last.pt").step == 0
    assert train.main(["--resume", "run"]) == 0


def test_all_points_are_in_the_event_files_before_a_checkpoint_is_written(tiny, monkeypatch):
    """A resumed run does not log them again."""
    write, save, points = RecordWriter.write, checkpoint.save, []

    def write_slowly(*args):
        time.sleep(0.02)
        write(*args)

    def count_points_and_save(state, *paths):
        points.append((len(curve(Path("run"), "train")), len(curve(Path("run"), "val"))))
        save(state, *paths)

    monkeypatch.setattr(RecordWriter, "write", write_slowly)
    monkeypatch.setattr(checkpoint, "save", count_points_and_save)
    flags = ("--max_iters", "6", "--eval_interval", "3", "--log_interval", "1", "--out_dir", "run")
    assert tiny(*flags) == 0
    assert points == [(3, 1), (6, 2)]


@pytest.mark.parametrize("saved", [False, True], ids=["before", "after the first checkpoint"])
def test_a_run_directory_in_use_is_refused(tiny, monkeypatch, capsys, saved):
    def train_again(_):
        assert Path("run/last.pt").exists() == saved
        statuses.append(train.main(["--resume", "run"]) if saved else tiny("--out_dir", "run"))

    statuses = []
    at_steps(monkeypatch, [5 if saved else 1], train_again)
    assert tiny("--max_iters", "8", "--eval_interval", "4", "--out_dir", "run") == 0
    assert statuses == [2]
    assert "error: run is being trained by another process" in capsys.readouterr().err
    assert train.main(["--resume", "run"]) == 0


COPY_AT_EACH_SAVE = """
import shutil, sys, train
save = train.checkpoint.save

def save_and_copy(state, *paths):
    save(state, *paths)
    shutil.copytree("whole", f"whole{state.step}", dirs_exist_ok=True)

train.checkpoint.save = save_and_copy
sys.exit(train.main())
"""


TRAIN_CODE = "import sys, train; sys.exit(train.main())"


def train_in_two(*flags: str, code: str = TRAIN_CODE) -> list[subprocess.Popen]:
    """Start a run of two processes."""
    flags = [*TINY, "--data", "text.txt", "--dtype=float32", "--log_interval=1", *flags]
    return start_processes(["-c", code, *flags], 2)


def wait_for(path: str, *processes: subprocess.Popen) -> None:
    """Wait until the file exists. The processes must run on so long."""
    while not Path(path).exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


def assert_told_that_the_other_ended(process: subprocess.Popen) -> None:
    _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert error.splitlines()[-1].startswith("error: another process of this run has ended")
    assert "Traceback" not in error


def test_a_killed_run_of_two_processes_resumes_with_one_like_a_run_that_was_not_killed(text_file):
    """Bit for bit from the same checkpoint on. The numbers of processes differ by rounding."""
    flags = ["--max_iters=40", "--warmup_iters=1", "--eval_interval=10", "--out_dir"]
    for process in train_in_two(*flags, "whole", code=COPY_AT_EACH_SAVE):
        output, error = process.communicate(timeout=60)
        assert (process.returncode, "arning" in error) == (0, False), error
        assert ("2 processes" in output) == ("run     whole" in output)  # only one prints
    main, other = train_in_two(*flags, "killed")
    wait_for("killed/last.pt", main, other)
    main.kill()
    assert_told_that_the_other_ended(other)
    killed = Path("killed")
    whole = Path(f"whole{checkpoint.load('killed/last.pt').step}")
    time.sleep(1)  # a new process takes longer to start; event files are ordered by second
    for run in (killed, whole):
        assert train.main(["--resume", str(run)]) == 0
    assert_same_run(killed, whole)
    assert_similar(killed, Path("whole"))
    assert_intact(killed)


def test_all_processes_stop_when_one_of_them_receives_a_signal(text_file):
    processes = train_in_two("--max_iters=100000", "--eval_interval=5", "--out_dir=run")
    wait_for("run/last.pt", *processes)
    processes[1].terminate()
    for process in processes:
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
    assert train.main(["--resume", "run", "--eval_interval=100", "--patience=1"]) == 0


BREAK_ONE_PROCESS = """
import os, sys, train
cross_entropy, steps = train.cross_entropy, iter(range(99))

def break_at_step_3(logits, y):
    if os.environ["RANK"] == "1" and next(steps) == 3:
        {}
    return cross_entropy(logits, y)

train.cross_entropy = break_at_step_3
sys.exit(train.main())
"""


def test_all_processes_stop_when_the_loss_of_one_is_not_finite(text_file):
    code = BREAK_ONE_PROCESS.format("logits = logits * float('nan')")
    for process in train_in_two("--max_iters=20", "--out_dir=run", code=code):
        _, error = process.communicate(timeout=30)
        assert process.returncode == 1
        assert re.search("error: the (training loss|gradient norm) became nan at step 3", error)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("KeyError('a bug')", "KeyError: 'a bug'"),
        ("train.checkpoint.RunError('no connection to a disk')", "error: no connection to a disk"),
    ],
)
def test_all_processes_stop_when_one_of_them_has_an_error(text_file, error, line):
    code = BREAK_ONE_PROCESS.format(f"raise {error}")
    main, other = train_in_two("--max_iters=20", "--out_dir=run", code=code)
    assert_told_that_the_other_ended(main)
    assert line in other.communicate(timeout=30)[1]


def test_processes_that_read_different_texts_are_refused(text_file):
    Path("other").mkdir()
    Path("other/text.txt").write_text(text_file.read_text("utf-8").replace("moon", "noon"), "utf-8")
    code = "import os, sys, train; os.chdir(['.', 'other'][int(os.environ['RANK'])]); train.main()"
    for process in train_in_two("--max_iters=3", code=code):
        assert (
            "text.txt is not the same text in all processes" in process.communicate(timeout=30)[1]
        )


def test_under_torchrun_a_process_says_that_another_has_ended(text_file):
    """Torchrun sends it SIGTERM at that moment."""
    code = BREAK_ONE_PROCESS.format("os.kill(os.getpid(), 9)")
    Path("break.py").write_text(code, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "break.py"]
    command += [*TINY, "--data=text.txt", "--max_iters=99", "--out_dir=run"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=env, capture_output=True, check=False, timeout=60)
    assert b"error: another process of this run has ended" in ended.stderr


COMPILER_FAILS_IN_ONE_PROCESS = """
import os, sys, torch, train

def fail(*_):
    raise RuntimeError("no compiler")

torch.compile = lambda loss_fn, **_: [loss_fn, fail][int(os.environ["RANK"])]
sys.exit(train.main())
"""


@pytest.mark.parametrize("code", [TRAIN_CODE, COMPILER_FAILS_IN_ONE_PROCESS], ids=["both", "one"])
def test_compiled_runs_of_two_processes_and_of_one_that_is_not_compiled_are_similar(
    code, text_file
):
    """Also if the compiler fails in one of the processes."""
    flags = ["--max_iters=8", "--warmup_iters=1", "--gradient_accumulation_steps=2"]
    processes = train_in_two(*flags, "--compile=on", "--out_dir=two", code=code)
    for rank, process in enumerate(processes):
        _, error = process.communicate(timeout=300)
        failed = rank == 1 and code != TRAIN_CODE
        assert (process.returncode, "warning" in error) == (0, failed), error
    single = [*TINY, "--data", "text.txt", "--dtype=float32", "--log_interval=1"]
    assert train.main([*single, *flags, "--out_dir", "one"]) == 0
    assert_similar(Path("one"), Path("two"))


def test_a_resumed_run_reads_the_checkpoint_after_it_has_the_lock(tiny, monkeypatch):
    """Until then another process may train on."""

    def train_on(run_dir):
        monkeypatch.setattr(train, "lock_run_dir", lock_run_dir)
        assert train.main(["--resume", "run", "--max_iters", "8"]) == 0
        return lock_run_dir(run_dir)

    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    monkeypatch.setattr(train, "lock_run_dir", train_on)
    assert train.main(["--resume", "run", "--max_iters", "9"]) == 0
    assert [step for step, _ in curve(Path("run"), "val")] == [4, 8, 9]


def test_a_second_ctrl_c_ends_at_once_without_saving(tiny, monkeypatch):
    at_steps(monkeypatch, [9], lambda _: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    assert tiny(*STEPS, "--out_dir", "run") == 128 + signal.SIGINT
    assert checkpoint.load("run/last.pt").step == 8
    assert not Path("run/summary.json").exists()


@pytest.mark.parametrize("flags", [[], ["--log_interval=99", "--eval_interval=5"]])
def test_divergence_is_found_at_the_next_log_or_evaluation(tiny, monkeypatch, capsys, flags):
    steps = []
    overflow_at(monkeypatch, [7])
    at_steps(monkeypatch, range(20), steps.append)
    assert tiny("--max_iters", "20", *flags, "--out_dir", "run") == 1
    assert len(steps) <= 11
    error = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"error: the .* became (nan|inf) at step 7 \(learning rate 0\.00", error)
    if flags:
        saved = checkpoint.load("run/last.pt")
        assert saved.step == 5
        assert all(weight.isfinite().all() for weight in saved.model.values())


def test_a_validation_loss_that_is_not_finite_ends_the_run(tiny, monkeypatch, capsys):
    monkeypatch.setattr(train, "evaluate", lambda *_: math.nan)
    assert tiny("--max_iters", "4", "--out_dir", "run") == 1
    assert "error: the validation loss became nan at step 4" in capsys.readouterr().err
    assert not Path("run/last.pt").exists()


def test_out_of_memory_names_the_sizes_to_reduce(tiny, trained_run, monkeypatch, capsys):
    def exhaust_memory(*_):
        torch.empty(1 << 60)

    monkeypatch.setattr(train, "cross_entropy", exhaust_memory)
    assert tiny("--max_iters", "2") == 1
    message = "error: out of memory. batch_size is 4, block_size 16, n_layer 2, n_embd 16. "
    assert message in capsys.readouterr().err
    monkeypatch.setattr(sample, "stream", exhaust_memory)
    assert sample.main([str(trained_run)]) == 1
    assert "error: out of memory. Use a smaller --num_samples" in capsys.readouterr().err


def assert_disk_error(stderr: str) -> None:
    error = stderr.splitlines()[-1]
    assert re.match("error: run.* cannot be written .* What was saved before is intact", error)


@pytest.mark.parametrize("step", [1, 5], ids=["before", "after the first checkpoint"])
def test_a_run_directory_that_disappears_ends_the_run(tiny, monkeypatch, capsys, step):
    at_steps(monkeypatch, [step], lambda _: Path("run").rename("moved"))
    assert tiny(*STEPS, "--eval_interval", "4", "--out_dir", "run") == 1
    assert_disk_error(capsys.readouterr().err)


def test_a_run_does_not_write_into_a_directory_that_took_the_place_of_its_own(
    tiny, monkeypatch, capsys
):
    def replace_directory(_):
        Path("run").rename("moved")
        shutil.copytree("moved", "run")

    at_steps(monkeypatch, [3], replace_directory)
    assert tiny(*STEPS, "--eval_interval", "4", "--out_dir", "run") == 1
    assert "no longer the directory of this run" in capsys.readouterr().err
    assert not Path("run/last.pt").exists()


def test_files_and_folders_of_others_are_not_removed(tiny):
    Path("mine").mkdir()
    assert tiny("--data", "missing.txt", "--out_dir", "mine") == 2
    assert tiny("--data", "missing.txt", "--out_dir", "new") == 2
    assert not Path("new").exists()
    Path("mine/notes.tmp").touch()
    assert tiny("--max_iters", "1", "--out_dir", "mine") == 0
    assert Path("mine/notes.tmp").exists()


@pytest.mark.parametrize("room", [0, 10_000], ids=["no room", "no room for a checkpoint"])
def test_a_full_disk_ends_the_run_and_leaves_what_was_saved(tiny, capsys, room):
    """A limit on the size of files stands in for a full disk."""
    resource = pytest.importorskip("resource")
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    before = {path: path.read_bytes() for path in Path("run").glob("*.*")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        assert train.main(["--resume", "run", "--max_iters", "40"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_disk_error(capsys.readouterr().err)
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed <= {"config.toml"}
    assert train.main(["--resume", "run", "--max_iters", "40"]) == 0


def flip(content: bytes, bit: int) -> bytes:
    """The bytes with one bit flipped."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_damaged_checkpoint_is_refused_and_the_other_one_named(trained_run, capsys):
    shutil.copytree(trained_run, "run")
    content = Path("run/last.pt").read_bytes()
    for bit in np.random.default_rng(0).integers(8 * len(content), size=30):
        Path("run/last.pt").write_bytes(flip(content, int(bit)))
        assert train.main(["--resume", "run"]) == 2
        assert "run/best.pt may be intact" in capsys.readouterr().err
    assert sample.main(["run", "--max_new_tokens", "3"]) == 0


def run_quietly(main, argv: list[str]) -> None:
    """Run a command that must end: with status 0, or with an error in one line."""
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


def write(name: str, content: bytes) -> str:
    Path(name).write_bytes(content)
    return name


BYTES = st.binary(max_size=60)
TEXT = st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass"))
SLOW_KEYS = {"data", "out_dir", "device", "compile", "max_iters", "n_layer", "n_embd"}
KEYS = st.sampled_from(sorted(config_keys(TrainConfig).keys() - SLOW_KEYS))
TOML_VALUES = st.integers().map(str) | st.floats().map(str)
TOML_VALUES |= st.sampled_from(["true", "'x'", "[1]", "{a.b = 1}", "1" * 5000])
TOML = st.builds(lambda key, value: f"{key} = {value}".encode(), KEYS, TOML_VALUES)
FLAGS = ["--data", "--n_layer", "--resume", "--prompt", "--stop", "--top_k", "--temperature"]
FLAGS += ["--score", "--interactive", "-h", "="]
VALUES = ["0", "-1", "1e999", "nan", "text.txt", "run", "run/best.pt", ".", "/", "\x1b[2J"]
WORDS = st.lists(st.text(max_size=8) | st.sampled_from(FLAGS + VALUES), max_size=4)

TRAIN = [*TINY, "--block_size", "2", "--max_iters", "1", "--data"]
SAMPLE = ["run", "--max_new_tokens", "2"]
FUZZ = {  # what is random: the command, its arguments, what the random value may be
    "text": (train.main, lambda text: [*TRAIN, write("x.txt", text)], BYTES | TEXT),
    "preset": (train.main, lambda toml: [write("x.toml", toml), *TRAIN, "text.txt"], BYTES | TOML),
    "checkpoint": (sample.main, lambda content: [write("x.pt", content)], BYTES),
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
    fuzz(name, examples=40)
