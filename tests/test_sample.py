"""The laws of sampling: text and nothing else, the same for a seed, from a checkpoint alone."""

import io
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sample
import train
from configs.schema import build
from data import corpus
from model import checkpoint
from sample import SampleConfig
from tests.conftest import LINES, TINY

ROOT = Path(__file__).parent.parent
VOCAB = "".join(sorted(set(LINES)))


@pytest.fixture
def run(tiny):
    assert tiny("--max_iters", "20", "--eval_interval", "10", "--out_dir", "runs/it") == 0
    return Path("runs/it")


@pytest.fixture
def say(run, capsys):
    """say("--seed", "1") gives what is written to standard output."""
    capsys.readouterr()

    def speak(*argv: str) -> str:
        assert sample.main([*argv]) == 0
        return capsys.readouterr().out

    return speak


def test_the_text_alone_is_written_the_prompt_first(say):
    text = say("--prompt", "KATE:", "--max_new_tokens", "30")
    assert text.startswith("KATE:")
    assert len(text) == 35
    assert set(text) <= set(VOCAB)


@pytest.mark.parametrize("argv", [["--prompt", "-am"], ["--prompt=-am"]])
def test_a_prompt_may_begin_with_a_dash(say, argv):
    assert say(*argv, "--max_new_tokens", "1").startswith("-am")


def test_with_no_prompt_it_writes_all_the_same(say):
    assert len(say("--max_new_tokens", "30")) == 30


def test_without_a_newline_in_the_vocabulary_it_begins_with_what_there_is(tiny, text_file, capsys):
    text_file.write_text("abcd" * 60)
    assert tiny("--max_iters", "1") == 0
    capsys.readouterr()
    assert sample.main(["--max_new_tokens", "9"]) == 0
    assert set(capsys.readouterr().out) <= set("abcd")


def test_a_seed_is_a_text(say):
    flags = ["--temperature", "1.5", "--max_new_tokens", "50"]
    assert say(*flags, "--seed", "1") == say(*flags, "--seed", "1") != say(*flags, "--seed", "2")


def test_several_samples_are_parted_by_a_line_of_dashes(say):
    flags = ["--prompt", "TOM:", "--max_new_tokens", "20", "--temperature", "2"]
    texts = say(*flags, "--num_samples", "3").split(sample.SEPARATOR)
    assert [len(text) for text in texts] == [24] * 3
    assert len(set(texts)) == 3
    assert texts[0] == say(*flags)


def test_how_many_are_written_changes_none_of_them(say):
    """Eight are written at a time, others in other threads."""
    flags = ["--prompt", "TOM:", "--max_new_tokens", "20", "--temperature", "2"]
    texts = [
        say(*flags, "--num_samples", str(count)).split(sample.SEPARATOR) for count in (1, 8, 9, 30)
    ]
    for fewer in texts:
        assert fewer == texts[-1][: len(fewer)]
    assert len(set(texts[-1])) == len(texts[-1]) == 30


def test_each_text_ends_at_its_own_stop(say):
    flags = ["--max_new_tokens", "60", "--temperature", "2", "--num_samples", "20"]
    whole, cut = (say(*flags, *stop).split(sample.SEPARATOR) for stop in ([], ["--stop", "e"]))
    assert [text.partition("e")[0] for text in whole] == [text.removesuffix("e") for text in cut]
    assert len({len(text) for text in cut}) > 3


def test_it_imports_nothing_that_only_training_needs():
    code = "import sys, sample; print([name for name in ('tensorboard', 'torch._dynamo') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


@pytest.mark.parametrize("how", ["a reader that has had enough", "Ctrl-C"])
def test_what_ends_it_ends_all_threads(run, how):
    command = [
        sys.executable,
        str(ROOT / "sample.py"),
        "--max_new_tokens",
        "10000000",
        "--num_samples",
        "30",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(1)
        if how == "Ctrl-C":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(60) == (130 if how == "Ctrl-C" else 0)
        assert process.stderr.read().count(b"\n") == 1  # the line that names the checkpoint


def test_a_text_ends_once_it_has_written_stop(say):
    whole = say("--max_new_tokens", "200", "--temperature", "1")
    stop = whole[20:23]
    assert (
        say("--max_new_tokens", "200", "--temperature", "1", "--stop", stop)
        == whole[: whole.index(stop) + 3]
    )
    # What stands in the prompt does not count.
    assert len(say("--prompt", stop, "--stop", stop, "--max_new_tokens", "200")) > len(stop)


def test_which_checkpoint(tiny, monkeypatch, capsys):
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(train, "evaluate", lambda *args: next(losses))
    assert tiny("--max_iters", "20", "--eval_interval", "10", "--out_dir", "runs/it") == 0
    for argv, step in (
        ([], 10),
        (["runs/it"], 10),
        (["--which", "last"], 20),
        (["runs/it", "--which=last"], 20),
        (["runs/it/last.pt"], 20),
    ):
        capsys.readouterr()
        assert sample.main([*argv, "--max_new_tokens", "5"]) == 0
        assert f"step {step}," in capsys.readouterr().err
    Path("runs/it/best.pt").unlink()
    assert sample.main([]) == 2
    assert "--which last" in capsys.readouterr().err


def test_the_newest_run_is_taken(run, say, capsys):
    old = Path(shutil.copytree(run, "runs/old"))
    os.utime(old / "best.pt", (1, 1))
    os.utime(old / "last.pt", (1, 1))
    sample.main(["--max_new_tokens", "1"])
    assert "runs/it" in capsys.readouterr().err


def test_it_needs_nothing_but_the_checkpoint(run, say, text_file):
    before = say("--max_new_tokens", "20")
    shutil.move(run / "best.pt", "alone.pt")
    shutil.rmtree("runs")
    shutil.rmtree(corpus.PREPARED)
    text_file.unlink()
    assert say("alone.pt", "--max_new_tokens", "20") == before


def test_a_prompt_from_a_file_or_from_standard_input(say, monkeypatch):
    Path("prompt.txt").write_bytes(b"KATE:\n")
    from_file = say("--prompt_file", "prompt.txt", "--max_new_tokens", "10")
    assert from_file.startswith("KATE:\n")
    assert len(from_file) == 16
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE:\n")))
    assert say("--prompt_file", "-", "--max_new_tokens", "10") == from_file


def test_score_is_the_loss_of_the_text(run, say, text_file):
    saved = checkpoint.load(run / "best.pt")
    split = LINES[int(len(LINES) * 0.9) :]
    Path("split.txt").write_text(split)
    line = say("--score", "split.txt")
    nats, bits = float(line.split()[0]), float(line.split()[2])
    assert bits == pytest.approx(nats / math.log(2), abs=1e-4)
    assert f"over {len(split)} characters" in line
    assert nats == pytest.approx(
        saved.best_val_loss, abs=0.01
    )  # bfloat16, and windows that begin knowing nothing
    whole = say("--score", str(text_file))
    assert whole == say("--score", str(text_file), "--seed", "3")
    assert float(whole.split()[0]) != nats


def test_interactive_continues_one_prompt_after_another(run, say, capsys, monkeypatch):
    flags = ["--max_new_tokens", "20", "--temperature", "2"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("KATE:\nTOM: é\n\nKATE:\n"))
    assert sample.main(["--interactive", *flags]) == 0
    said = capsys.readouterr()
    turns = [(0, ["--prompt", "KATE:"]), (2, []), (3, ["--prompt", "KATE:"])]
    first, third, fourth = (
        say(*flags, *prompt, "--seed", str(1337 + turn)) for turn, prompt in turns
    )
    assert said.out == f"{first}\n{third}\n{fourth}\n"
    assert first != fourth
    assert "error: the prompt has characters the model never saw" in said.err


def test_ctrl_c_ends_a_text_and_then_the_session(run, capsys, monkeypatch):
    prompts, stream = iter(["KATE:", "TOM:"]), sample.stream

    def interrupted(*args):
        yield from itertools.islice(stream(*args), 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "stream", interrupted)
    capsys.readouterr()
    monkeypatch.setattr("builtins.input", lambda mark: next(prompts, None) or ctrl_c())
    assert sample.main(["--interactive"]) == 130
    said = capsys.readouterr().out
    assert said.startswith("KATE:")
    assert "TOM:" in said
    assert len(said) == len("KATE:") + len("TOM:") + 2 * 5 + 2


def ctrl_c() -> str:
    raise KeyboardInterrupt


def test_out_is_in_the_corpus_s_encoding(tiny, text_file, capsys):
    text = "Grüße, Käthe!\r\n" * 40
    text_file.write_bytes(text.encode("utf-16"))
    assert tiny("--max_iters", "1", "--encoding", "utf-16") == 0
    capsys.readouterr()
    assert sample.main(["--out", "poem.txt", "--max_new_tokens", "50", "--prompt", "Grü"]) == 0
    assert not capsys.readouterr().out
    written = Path("poem.txt").read_bytes().decode("utf-16")
    assert sample.main(["--max_new_tokens", "50", "--prompt", "Grü"]) == 0
    assert written == capsys.readouterr().out
    assert sample.main(["--prompt_file", "poem.txt", "--max_new_tokens", "1"]) == 0
    assert capsys.readouterr().out[:-1] == written


def test_temperature_zero_is_the_likeliest_whatever_the_seed(say):
    flags = ["--temperature", "0", "--max_new_tokens", "40"]
    assert (
        say(*flags, "--seed", "1")
        == say(*flags, "--seed", "2")
        == say("--top_k", "1", "--max_new_tokens", "40")
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_past_block_size_it_goes_on(say, dtype):
    assert len(say("--max_new_tokens", "100", "--dtype", dtype)) == 100


def test_a_code_page_without_the_characters_changes_nothing(elsewhere):
    """Training and sampling where Python was told to print in Windows' code page."""
    text = "中文小说，月光如水。😀\n" * 40
    Path("text.txt").write_text(text, "utf-8")
    (elsewhere / "表").mkdir()
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}

    def command(*argv: str) -> bytes:
        done = subprocess.run(
            [sys.executable, *argv], env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command(
        str(ROOT / "train.py"),
        "--data",
        "text.txt",
        "--max_iters",
        "3",
        "--out_dir",
        "表/run",
        *TINY,
    )
    assert checkpoint.load("表/run/last.pt").vocab == "".join(sorted(set(text)))
    out = command(
        str(ROOT / "sample.py"), "表/run", "--prompt", "月光", "--max_new_tokens", "20"
    ).decode("utf-8")
    assert out.startswith("月光")
    assert len(out) == 22


def test_a_reader_that_has_had_enough_ends_it_quietly(run):
    command = f"{sys.executable} {ROOT / 'sample.py'} --max_new_tokens 3000 | head -c 20"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False
    )
    assert done.returncode == 0
    assert len(done.stdout) == 20
    assert done.stderr.count(b"\n") == 1  # the line that names the checkpoint


def test_help_is_quiet_too():
    command = f"{sys.executable} {ROOT / 'sample.py'} --help | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_named_with_the_mend(run, capsys):
    assert sample.main(["--out", "/dev/full"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: /dev/full cannot be written")
    assert "--out" in line


def test_a_closed_bound_may_be_reached():
    assert build(SampleConfig, {"top_p": 1.0}).sampling.top_p == 1.0
