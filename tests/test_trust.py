"""What is promised to those who leave it running: nothing saved is lost, nothing is resumed otherwise than it was.

tests/benchmarks/soak.py calls what is here with larger numbers.
"""

import contextlib
import faulthandler
import hashlib
import io
import os
import random
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

import sample
import train
from configs import TrainConfig
from configs.schema import keys
from model import checkpoint, optim
from model.record import hold
from tests.conftest import LINES, TINY, curve
from tests.test_train import ROOT, Killed, assert_same_run, at_step, kill

LONG = ["--max_iters", "800", "--eval_interval", "3", "--log_interval", "1", "--dropout", "0.1"]


# A disk on which a save takes its time, so that kills fall inside it, however fast the one here is.
SLOW = "import os, sys, time; f = os.fsync; os.fsync = lambda file: [time.sleep(0.003), f(file)]; import train; "


def start(*argv: str, before: str = "import sys, train; ") -> subprocess.Popen:
    """train.py in a process of its own, after that code."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}sys.exit(train.main())", *argv],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_and_resume(run: Path, begin: list[str], kills: int, rng: random.Random) -> tuple[int, int]:
    """Train, killed again and again, until done; returns how often it was killed, and how often inside a save.

    It is killed at a random moment, and every other time as soon after that as it begins to save.
    """
    killed = inside = 0
    while True:
        saved, began = (run / "last.pt").exists(), time.time()
        argv = ["--resume", str(run)] if saved else [*begin, "--out_dir", str(run)]
        with start(*argv, before=SLOW) as process:
            if killed < kills:
                process.stdout.readline()  # imported, and about to begin
                time.sleep(rng.uniform(0, 0.8))
                while killed % 2 and not is_saving(run, began) and process.poll() is None:
                    pass
                process.kill()
            said = process.communicate()[1]
        if process.returncode == 0:
            return killed, inside
        assert process.returncode == -signal.SIGKILL, said
        killed += 1
        inside += is_saving(run, began)


def is_saving(run: Path, since: float) -> bool:
    """Whether part of a checkpoint is there that was not there before."""
    with contextlib.suppress(FileNotFoundError):  # it is whole by now
        return any(path.stat().st_mtime > since for path in run.glob("*.pt.tmp"))
    return False


def assert_whole(run: Path) -> None:
    """Each step is plotted once, and best.pt is the best of all evaluations."""
    val = curve(run, "val")
    for points in (val, curve(run, "train")):
        assert [step for step, _ in points] == sorted({step for step, _ in points})
    best = checkpoint.load(run / "best.pt")
    assert best.best_val_loss == best.val_loss == pytest.approx(min(loss for _, loss in val))
    assert best.step == best.best_iter == min(val, key=lambda point: point[1])[0]
    assert not list(run.glob("*.tmp"))


def test_killed_at_any_moment_and_resumed_it_is_the_same_run(text_file):
    begin = ["--data", str(text_file), *TINY, *LONG]
    assert train.main([*begin, "--out_dir", "whole"]) == 0
    killed, inside = kill_and_resume(Path("killed"), begin, 10, random.Random(0))
    assert killed == 10
    assert inside
    assert_same_run(Path("whole"), Path("killed"))
    for name in ("whole", "killed"):
        assert_whole(Path(name))


@pytest.mark.parametrize("write", range(8))
def test_killed_between_its_writes_it_is_the_same_run(tiny, monkeypatch, write):
    flags = ["--max_iters", "12", "--eval_interval", "4", "--log_interval", "1"]
    assert tiny(*flags, "--out_dir", "whole") == 0
    write_whole, count = checkpoint.write_whole, iter(range(10**6))

    def killed_at(path, content):
        if next(count) == write:
            raise Killed
        write_whole(path, content)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint, "write_whole", killed_at)
        tiny(*flags, "--out_dir", "run")
    resumed = Path("run/last.pt").exists()
    assert (train.main(["--resume", "run"]) if resumed else tiny(*flags, "--out_dir", "run")) == 0
    assert_same_run(Path("whole"), Path("run"))
    assert_whole(Path("run"))


@pytest.mark.parametrize("ahead", [0, 1, 3600])
def test_resumed_on_a_clock_that_is_behind_it_shows_each_step_once(tiny, monkeypatch, ahead):
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            at_step(patch, 9, kill)
            if Path("run").exists():
                train.main(["--resume", "run"])
            else:
                tiny(
                    "--max_iters",
                    "30",
                    "--eval_interval",
                    "4",
                    "--log_interval",
                    "1",
                    "--out_dir",
                    "run",
                )
        for path in list(Path("run").glob("*/events.*")):
            *first, second, rest = path.name.split(".", 4)
            path.rename(path.with_name(".".join([*first, f"{int(second) + ahead:010}", rest])))
    assert train.main(["--resume", "run"]) == 0
    assert [step for step, _ in curve(Path("run"), "train")] == list(range(30))
    assert_whole(Path("run"))


def test_what_a_kill_leaves_behind_is_removed(tiny, text_file, monkeypatch):
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    leftover, prepared = Path("run/best.pt.tmp"), Path("prepared")
    leftover.write_bytes(b"half a checkpoint")
    for name, age in (
        ("old.npy.123.tmp", 7200),
        ("young.npy.124.tmp", 0),
        ("old.npy", 7200),
        ("my.tmp", 7200),
    ):
        (prepared / name).write_bytes(b"half a text")
        os.utime(prepared / name, (time.time() - age,) * 2)
    with monkeypatch.context() as patch:
        patch.setattr(
            train, "evaluate", lambda *args: 99.0
        )  # no new best: nothing is written over it
        assert train.main(["--resume", "run", "--max_iters", "6"]) == 0
    assert not leftover.exists()
    text_file.write_text(LINES + "more")
    assert tiny("--max_iters", "1") == 0
    names = {path.name for path in prepared.iterdir()}
    assert {"young.npy.124.tmp", "old.npy", "my.tmp"} <= names
    assert "old.npy.123.tmp" not in names


def test_a_second_training_in_the_same_folder_is_refused(tiny, text_file, monkeypatch):
    said = []
    for argv in (
        ["--resume", "run", "--max_iters", "9"],
        ["--out_dir", "run", *TINY, "--data", str(text_file)],
    ):
        with monkeypatch.context() as patch:
            at_step(
                patch,
                1 if "--out_dir" in argv else 5,
                lambda: said.append(start(*argv).communicate()[1]),
            )  # noqa: B023
            assert tiny("--max_iters", "8", "--eval_interval", "4", "--out_dir", "run") == 0
        if "--resume" in argv:
            assert train.main(["--resume", "run", "--max_iters", "9"]) == 0
        shutil.rmtree("run")
    assert all(
        line == "error: run is in training by another process; wait for it\n" for line in said
    ), said


def test_two_that_looked_before_either_was_there_do_not_overwrite_each_other(
    tiny, monkeypatch, capsys
):
    """The second to hold the folder looks again."""
    require_free, calls = train.require_free, []

    def looked(out_dir):
        calls.append(out_dir)
        if len(calls) > 1:
            require_free(out_dir)

    assert tiny("--max_iters", "3", "--out_dir", "run") == 0
    before = Path("run/last.pt").read_bytes()
    monkeypatch.setattr(train, "require_free", looked)
    assert tiny("--max_iters", "3", "--out_dir", "run") == 2
    assert Path("run/last.pt").read_bytes() == before


def test_a_run_that_ended_before_anything_was_saved_can_be_begun_again(tiny, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Killed):
        at_step(patch, 2, kill)
        tiny("--max_iters", "3", "--out_dir", "run")
    assert tiny("--max_iters", "3", "--out_dir", "run") == 0


def test_a_run_resumed_begins_where_the_one_that_held_it_ended(tiny, monkeypatch):
    """Not where it was when the command began to wait for the folder."""
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    early = Path("run/last.pt").read_bytes()
    assert train.main(["--resume", "run", "--max_iters", "8"]) == 0
    late = Path("run/last.pt").read_bytes()
    Path("run/last.pt").write_bytes(early)
    hold = train.hold

    def hold_late(run_dir):
        Path("run/last.pt").write_bytes(late)  # as the other process did last
        return hold(run_dir)

    monkeypatch.setattr(train, "hold", hold_late)
    assert train.main(["--resume", "run", "--max_iters", "9"]) == 0
    assert [step for step, _ in curve(Path("run"), "val")] == [4, 8, 9]


def test_a_killed_process_leaves_no_lock(tmp_path):
    code = "import pathlib, sys, model.record as r\nwith r.hold(pathlib.Path(sys.argv[1])): print('held'); input()"
    command = [sys.executable, "-uc", code, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        with pytest.raises(ValueError, match="another process"), hold(tmp_path):
            pass
        process.kill()
        process.wait()
        with hold(tmp_path):
            pass


def test_a_second_ctrl_c_ends_at_once_and_what_was_saved_is_whole(tiny, monkeypatch):
    at_step(monkeypatch, 9, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    assert (
        tiny("--max_iters", "20", "--eval_interval", "4", "--out_dir", "run") == 128 + signal.SIGINT
    )
    assert checkpoint.load("run/last.pt").step == 8
    assert not Path("run/summary.json").exists()


def test_a_run_without_its_best_can_be_stopped_before_it_evaluates_again(tiny, monkeypatch):
    for step, begin in (
        (5, lambda: tiny("--max_iters", "24", "--eval_interval", "4", "--out_dir", "run")),
        (0, lambda: train.main(["--resume", "run"])),
    ):
        with monkeypatch.context() as patch:
            at_step(patch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
            assert begin() == 128 + signal.SIGTERM
        Path("run/best.pt").unlink(missing_ok=True)
    assert train.main(["--resume", "run"]) == 0
    assert checkpoint.load("run/best.pt").best_iter


@pytest.mark.parametrize("name", ["seconds", "train_seconds"])
def test_ages_of_training_end_nothing(tiny, name):
    assert tiny("--max_iters", "2", "--out_dir", "run") == 0
    Path("run/last.pt").write_bytes(seal(vars(checkpoint.load("run/last.pt")) | {name: 2.0**52}))
    assert train.main(["--resume", "run", "--max_iters", "20"]) == 0


def test_seconds_are_those_of_a_clock_that_is_never_set_back(tiny, monkeypatch):
    now, calls = time.time, iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: now() - 1000 * next(calls))
    assert tiny("--max_iters", "3", "--out_dir", "run") == 0
    assert train.main(["--resume", "run", "--max_iters", "4"]) == 0
    assert 0 < checkpoint.load("run/last.pt").seconds < 500


def test_a_power_cut_loses_no_point_before_the_checkpoint(tiny, monkeypatch):
    """The curves are flushed to the disk itself, and before it."""
    fsync, synced = os.fsync, []
    monkeypatch.setattr(
        os, "fsync", lambda file: [fsync(file), synced.append(os.fstat(file).st_ino)]
    )
    assert tiny("--max_iters", "3", "--out_dir", "run") == 0
    names = {path.stat().st_ino: path.parent.name for path in Path("run").glob("*/events.*")}
    names |= {Path("run", name).stat().st_ino: name for name in ("last.pt", "best.pt")}
    order = [names[file] for file in synced if file in names]
    assert sorted(order[:2]) == ["train", "val"]
    assert order[2:] == ["last.pt", "best.pt"]


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize(
    "looks", [("--log_interval", "10"), ("--eval_interval", "10", "--log_interval", "20")]
)
def test_divergence_is_named_at_its_very_step(tiny, monkeypatch, capsys, what, looks):
    update, loss_of, calls = optim.update, train.loss_of, iter(range(10**6))

    def broken_update(model, *args):
        if next(calls) == 7:
            next(model.parameters()).grad[0, 0] = torch.inf
        return update(model, *args)

    def broken_loss(*args):
        return loss_of(*args) * (float("nan") if next(calls) == 7 else 1)

    if what == "loss":
        monkeypatch.setattr(train, "loss_of", broken_loss)
    else:
        monkeypatch.setattr(optim, "update", broken_update)
    assert tiny("--max_iters", "20", *looks, "--out_dir", "run", "--dtype", "float32") == 1
    assert next(calls) <= 11  # looked at where it was due
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"the {'training loss became nan' if what == 'loss' else 'gradient'}" in error
    assert "at step 7, at learning rate 0.00" in error
    assert "in float32;" in error
    assert not Path("run/last.pt").exists()


def test_a_validation_loss_that_is_no_number_is_named_with_the_last_rate(tiny, monkeypatch, capsys):
    monkeypatch.setattr(train, "evaluate", lambda *args: float("nan"))
    assert (
        tiny(
            "--max_iters",
            "4",
            "--out_dir",
            "run",
            "--warmup_iters",
            "0",
            "--learning_rate",
            "0.004",
        )
        == 1
    )
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the validation loss became nan at step 4, at learning rate 0.001" in error
    assert not Path("run/last.pt").exists()


def test_one_of_several_processes_that_fails_ends_the_others_with_a_line(text_file):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    Path("run").mkdir()
    with hold(Path("run")):
        command = [
            *torchrun,
            str(ROOT / "train.py"),
            "--data",
            str(text_file),
            *TINY,
            "--out_dir",
            "run",
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert "error: run is in training by another process; wait for it" in done.stderr
    assert "]: Traceback" not in done.stderr  # but torchrun has one of its own


def test_float16_may_skip_nineteen_steps_in_a_row_but_not_twenty():
    plan, one, no_number = optim.OptimConfig(), torch.tensor(1.0), torch.tensor(torch.inf)
    watch = optim.Watch(plan, torch.float16, torch.amp.GradScaler("cpu"))
    for step in range(39):
        watch.note(step, one, one if step == 19 else no_number)
        watch.look()
    watch.note(39, one, no_number)
    with pytest.raises(FloatingPointError, match="step 39"):
        watch.look()


def test_out_of_memory_tells_the_sizes(tiny, monkeypatch, capsys):
    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(train, "loss_of", full)
        assert tiny("--max_iters", "2") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: out of memory")
    assert "batch_size 4" in error
    assert "block_size 16" in error
    assert tiny("--max_iters", "2", "--out_dir", "run") == 0
    monkeypatch.setattr(sample, "stream", full)
    assert sample.main(["run", "--num_samples", "7"]) == 1
    assert (
        "error: out of memory for num_samples 7 of run/best.pt; halve it" in capsys.readouterr().err
    )


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of Linux")
def test_both_commands_set_the_limit_of_memory(tiny):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        for command in (
            lambda: tiny("--max_iters", "1", "--out_dir", "run"),
            lambda: sample.main(["run", "--device", "cpu"]),
        ):
            resource.setrlimit(resource.RLIMIT_DATA, (before[1], before[1]))
            assert command() == 0
            limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
            assert 0 < limit <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory has no such limit")
def test_memory_that_is_not_there_is_told_and_no_reason_to_be_killed(text_file):
    """A limit of 3 GB stands in for the machine's own, which `keep_within_memory` sets."""
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (3 << 30,) * 2); import train; "
    with start(
        "--data", str(text_file), "--device", "cpu", "--n_embd", "20000", before=limited
    ) as process:
        said = process.communicate()[1]
    assert process.returncode == 1
    assert (
        "error: out of memory for batch_size 8 x block_size 256, n_layer 4, n_embd 20000;" in said
    )


def test_a_folder_that_vanishes_is_one_line_and_status_1(text_file):
    with start(
        "--data", str(text_file), *TINY, *LONG, "--max_iters", "100000", "--out_dir", "run"
    ) as process:
        while not Path("run/last.pt").exists() and process.poll() is None:
            time.sleep(0.1)
        while Path("run").exists():  # it may be writing just now
            shutil.rmtree("run", ignore_errors=True)
        try:
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert "what was saved before is whole" in said.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of Unix")
@pytest.mark.parametrize("room", [0, 10_000], ids=["nothing", "a checkpoint"])
def test_where_a_disk_has_no_room_all_that_was_saved_stays(tiny, room):
    """A limit on the size of files stands in for the disk's."""
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    with start("--resume", "run", "--max_iters", "4") as process:  # so that the text is prepared
        assert process.wait() == 0
    before = {path.name: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    limited = f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room})); import train; "
    with start("--resume", "run", "--max_iters", "40", before=limited) as process:
        said = process.communicate()[1]
    assert process.returncode == 1
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: ")
    assert "what was saved before is whole" in said.splitlines()[-1]
    after = {name: Path("run", name).read_bytes() for name in before if name != "config.toml"}
    assert after == {name: content for name, content in before.items() if name != "config.toml"}
    assert Path("run/config.toml").stat().st_size


def flip(content: bytes, bit: int) -> bytes:
    """The bytes with one bit turned."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_is_refused_and_best_still_samples(tiny, capsys):
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    whole = Path("run/last.pt").read_bytes()
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=50):
        Path("run/last.pt").write_bytes(flip(whole, int(bit)))
        capsys.readouterr()
        assert train.main(["--resume", "run"]) == 2
        assert "run/best.pt may be whole" in capsys.readouterr().err
    assert sample.main(["run", "--max_new_tokens", "3"]) == 0


FLAGS = [
    "data",
    "n_layer",
    "n_head",
    "resume",
    "prompt",
    "stop",
    "top_k",
    "temperature",
    "score",
    "interactive",
]
VALUES = [
    "=",
    "0",
    "1",
    "-1",
    "1e999",
    "nan",
    "text.txt",
    "run",
    "run/best.pt",
    ".",
    "/",
    "\x1b[2J",
    "-h",
]
words = st.text(max_size=8) | st.sampled_from([*(f"--{flag}" for flag in FLAGS), *VALUES])


def quiet(main, argv: list[str]) -> int:
    """The exit status; a traceback, another status or an end that does not come is a failure."""
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as said,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr(sys, "stdin", io.StringIO("hello\n"))
            status = main(argv)
    finally:
        faulthandler.cancel_dump_traceback_later()
    assert status in (0, 1, 2), (argv, status)
    assert "Traceback" not in said.getvalue()
    assert status == 0 or said.getvalue().splitlines()[-1].startswith("error: ")
    return status


def try_corpus(content: bytes) -> None:
    Path("text.txt").write_bytes(content)
    quiet(train.main, ["--data", "text.txt", "--max_iters", "1", *TINY, "--block_size", "2"])


def try_preset(content: bytes) -> None:
    Path("preset.toml").write_bytes(content)
    Path("text.txt").write_text(LINES)
    quiet(train.main, ["preset.toml", "--data", "text.txt", "--max_iters", "1", *TINY])


def try_checkpoint(content: bytes) -> None:
    Path("x.pt").write_bytes(content)
    quiet(sample.main, ["x.pt", "--max_new_tokens", "2"])


def seal(content: dict) -> bytes:
    """A checkpoint of that content, its digest right."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue() + checkpoint.MAGIC
    return payload + hashlib.sha256(payload).digest()


def try_sealed(change: tuple[list[int], object]) -> None:
    """A checkpoint with one value replaced, found by these turns on the way down, sampled and resumed."""
    turns, value = change
    content = place = vars(checkpoint.load("run/last.pt"))
    for depth, turn in enumerate(turns, start=1):
        key = list(place)[turn % len(place)] if isinstance(place, dict) else turn % len(place)
        if depth == len(turns) or not isinstance(place[key], dict | list) or not place[key]:
            place[key] = value
            break
        place = place[key]
    if key in ("batch_size", "block_size", "n_embd") and isinstance(value, int) and value > 1000:
        return  # no harm, but minutes, and all memory there is
    shutil.rmtree("x", ignore_errors=True)
    Path("x").mkdir()
    Path("x/last.pt").write_bytes(seal(content))
    quiet(sample.main, ["x/last.pt", "--max_new_tokens", "2"])
    quiet(train.main, ["--resume", "x", "--max_iters", "3"])


def try_prompt(text: str) -> None:
    quiet(sample.main, ["run", "--max_new_tokens", "2", f"--prompt={text}"])


def try_flags(argv: list[str]) -> None:
    quiet(train.main, [*argv, "--data", "nothing.txt"])
    quiet(sample.main, ["run", "--max_new_tokens", "2", *argv])


tensors = [
    torch.zeros(()),
    torch.full((16,), torch.nan),
    torch.zeros(1).expand(16, 16),
    torch.ones(2, 16).int(),
]
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(tensors)
)
nested = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner)
)
keys_ = sorted(
    set(keys(TrainConfig))
    - {"data", "out_dir", "device", "compile", "max_iters", "n_layer", "n_embd"}
)
FUZZ = {
    try_corpus: st.binary(max_size=60)
    | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    try_preset: st.binary(max_size=40)
    | st.builds(
        lambda key, value: f"{key} = {value}".encode(),
        st.sampled_from(keys_),
        st.integers().map(str)
        | st.floats().map(str)
        | st.sampled_from(["true", "'x'", "[1]", "{a.b = 1}", "1" * 5000]),
    ),
    try_checkpoint: st.binary(max_size=80),
    try_sealed: st.tuples(st.lists(st.integers(0, 99), min_size=1, max_size=5), nested),
    try_prompt: st.text(max_size=20),
    try_flags: st.lists(words, max_size=4),
}


@pytest.mark.parametrize("attempt", FUZZ, ids=lambda attempt: attempt.__name__)
def test_hostile_input_ends_with_a_line_and_a_status(tiny, attempt):
    assert tiny("--max_iters", "2", "--out_dir", "run") == 0

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(FUZZ[attempt])
    def fuzz(hostile) -> None:
        attempt(hostile)

    fuzz()
