"""What is promised to those who leave it running: nothing saved is lost, nothing is resumed otherwise than it was.

tests/benchmarks/soak.py calls what is here with larger numbers.
"""

import contextlib
import hashlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
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

LONG = ["--max_iters", "400", "--eval_interval", "3", "--log_interval", "1", "--dropout", "0.1"]


def start(*argv: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def kill_and_resume(run: Path, begin: list[str], kills: int, rng: random.Random) -> tuple[int, int]:
    """Train, killed again and again, until done; returns how often it was killed, and how often inside a save."""
    killed = inside = 0
    while True:
        saved = (run / "last.pt").exists() or (run / "best.pt").exists()
        with start("--resume", str(run)) if saved else start(*begin, "--out_dir", str(run)) as process:
            if killed < kills:
                process.stdout.readline()  # imported, and about to begin
                time.sleep(rng.uniform(0, 0.8))
                process.kill()
            said = process.communicate()[1]
        if process.returncode == 0:
            return killed, inside
        assert process.returncode == -signal.SIGKILL, said
        killed += 1
        inside += bool(list(run.glob("*.tmp")))


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
    killed, _ = kill_and_resume(Path("killed"), begin, 10, random.Random(0))
    assert killed == 10
    assert_same_run(Path("whole"), Path("killed"))
    for name in ("whole", "killed"):
        assert_whole(Path(name))


def test_what_a_kill_leaves_behind_is_removed(tiny, text_file, monkeypatch):
    assert tiny("--max_iters", "4", "--out_dir", "run") == 0
    leftover, prepared = Path("run/best.pt.tmp"), Path("prepared")
    leftover.write_bytes(b"half a checkpoint")
    for name, age in (("old.123", 7200), ("young.124", 0), ("old.npy", 7200)):
        (prepared / name).write_bytes(b"half a text")
        os.utime(prepared / name, (time.time() - age,) * 2)
    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", lambda *args: 99.0)  # no new best: nothing is written over it
        assert train.main(["--resume", "run", "--max_iters", "6"]) == 0
    assert not leftover.exists()
    text_file.write_text(LINES + "more")
    assert tiny("--max_iters", "1") == 0
    names = {path.name for path in prepared.iterdir()}
    assert {"young.124", "old.npy"} <= names
    assert "old.123" not in names


def test_a_second_training_in_the_same_folder_is_refused(tiny, text_file, monkeypatch):
    said = []
    for argv in (["--resume", "run", "--max_iters", "9"], ["--out_dir", "run", *TINY, "--data", str(text_file)]):
        with monkeypatch.context() as patch:
            at_step(patch, 1 if "--out_dir" in argv else 5, lambda: said.append(start(*argv).communicate()[1]))  # noqa: B023
            assert tiny("--max_iters", "8", "--eval_interval", "4", "--out_dir", "run") == 0
        if "--resume" in argv:
            assert train.main(["--resume", "run", "--max_iters", "9"]) == 0
        shutil.rmtree("run")
    assert all(line == "error: run is in training by another process; wait for it\n" for line in said), said


def test_two_that_looked_before_either_was_there_do_not_overwrite_each_other(tiny, monkeypatch, capsys):
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
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with pytest.raises(ValueError, match="another process"), hold(tmp_path):
            pass
        process.kill()
        process.wait()
        with hold(tmp_path):
            pass


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_divergence_is_named_at_its_very_step(tiny, monkeypatch, capsys, what):
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
    assert tiny("--max_iters", "20", "--eval_interval", "30", "--out_dir", "run", "--dtype", "float32") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"the {'training loss became nan' if what == 'loss' else 'gradient'}" in error
    assert "at step 7, at learning rate 0.00" in error
    assert "in float32;" in error
    assert not Path("run/last.pt").exists()


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

    monkeypatch.setattr(train, "loss_of", full)
    assert tiny("--max_iters", "2") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: out of memory")
    assert "batch_size 4" in error
    assert "block_size 16" in error


def test_a_folder_that_vanishes_is_one_line_and_status_1(text_file):
    with start("--data", str(text_file), *TINY, *LONG, "--max_iters", "100000", "--out_dir", "run") as process:
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
    command = [sys.executable, "-c", limited + "sys.exit(train.main())", "--resume", "run", "--max_iters", "40"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "what was saved before is whole" in done.stderr.splitlines()[-1]
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


FLAGS = ["data", "n_layer", "n_head", "resume", "prompt", "stop", "top_k", "temperature", "score", "interactive"]
VALUES = ["=", "0", "1", "-1", "1e999", "nan", "text.txt", "run", "run/best.pt", ".", "/", "\x1b[2J", "-h"]
words = st.text(max_size=8) | st.sampled_from([*(f"--{flag}" for flag in FLAGS), *VALUES])


def quiet(main, argv: list[str]) -> int:
    """The exit status; a traceback or another status is a failure."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as said,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", io.StringIO("hello\n"))
        status = main(argv)
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


def sealed(changed: dict) -> bytes:
    """A checkpoint whose digest is right, with some of its content changed."""
    buffer = io.BytesIO()
    torch.save(vars(checkpoint.load("run/best.pt")) | changed, buffer)
    content = buffer.getvalue() + checkpoint.MAGIC
    return content + hashlib.sha256(content).digest()


def try_sealed(changed: dict) -> None:
    config = changed.pop("keys", {})
    if config:
        changed["config"] = checkpoint.load("run/best.pt").config | config
    try_checkpoint(sealed(changed))


def try_prompt(text: str) -> None:
    quiet(sample.main, ["run", "--max_new_tokens", "2", f"--prompt={text}"])


def try_flags(argv: list[str]) -> None:
    quiet(train.main, [*argv, "--data", "nothing.txt"])
    quiet(sample.main, ["run", "--max_new_tokens", "2", *argv])


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
nested = st.recursive(plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner))
keys_ = sorted(set(keys(TrainConfig)) - {"data", "out_dir", "device", "compile", "max_iters", "n_layer", "n_embd"})
FUZZ = {
    try_corpus: st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    try_preset: st.binary(max_size=40)
    | st.builds(
        lambda key, value: f"{key} = {value}".encode(),
        st.sampled_from(keys_),
        st.integers().map(str)
        | st.floats().map(str)
        | st.sampled_from(["true", "'x'", "[1]", "{a.b = 1}", "1" * 5000]),
    ),
    try_checkpoint: st.binary(max_size=80),
    try_sealed: st.dictionaries(st.sampled_from([f.name for f in fields(checkpoint.Checkpoint)] + ["x"]), nested)
    | st.fixed_dictionaries({"keys": st.dictionaries(st.sampled_from([*keys_, "n_layer", "x"]), nested)}),
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
