"""sample.py: what it writes, where to, from which checkpoint, and how it ends."""

import io
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import sample
import train
from model import checkpoint
from tests.conftest import LINES, ROOT
from tests.model.test_attention_page import page_data

RANDOM = ["--temperature", "2", "--max_new_tokens", "60"]  # so that no two texts are equal


@pytest.fixture
def run_dir(trained_run) -> Path:
    return Path(shutil.copytree(trained_run, "runs/it"))


@pytest.fixture
def run_sample(run_dir, capsys):
    """run_sample("--seed", "1") returns what sample.py writes to standard output."""
    capsys.readouterr()

    def run(*argv: str) -> str:
        assert sample.main([*argv]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("prompt", "dtype"), [("KATE:", "float32"), ("-am", "bfloat16")])
def test_output_is_the_prompt_and_max_new_tokens_characters(run_sample, prompt, dtype):
    text = run_sample(f"--prompt={prompt}", "--max_new_tokens", "100", "--dtype", dtype)
    assert text.startswith(prompt)
    assert len(text) == len(prompt) + 100
    assert set(text) <= set(LINES)


def test_a_vocabulary_without_a_newline_needs_no_prompt(tiny, text_file, capsys):
    text_file.write_text("abcd" * 60)
    assert tiny("--max_iters", "1") == 0
    capsys.readouterr()
    assert sample.main(["--max_new_tokens", "9"]) == 0
    assert set(capsys.readouterr().out) <= set("abcd")


def test_temperature_zero_writes_the_likeliest_text_for_every_seed(run_sample):
    first, second = (run_sample("--temperature", "0", "--seed", seed) for seed in "12")
    assert first == second == run_sample("--top_k", "1") != run_sample()


def test_every_text_starts_with_the_prompt_and_ends_after_its_first_stop(run_sample):
    flags = [*RANDOM, "--num_samples", "20", "--prompt", "TOM"]
    texts = [text.removeprefix("TOM") for text in run_sample(*flags).split(sample.SEPARATOR)]
    assert len(set(texts)) == 20
    for stop in ("e", "TOM"):  # a stop in the prompt does not count
        expected = [text[: text.index(stop)] + stop if stop in text else text for text in texts]
        cut = run_sample(*flags, "--stop", stop).split(sample.SEPARATOR)
        assert cut == ["TOM" + text for text in expected]


def test_prompt_is_read_from_a_file_or_standard_input(run_sample, monkeypatch):
    expected = run_sample("--prompt", "KATE:\n")
    for mark in (b"", b"\xef\xbb\xbf"):
        Path("prompt.txt").write_bytes(mark + b"KATE:\n")
        assert run_sample("--prompt_file", "prompt.txt") == expected
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + b"KATE:\n")))
        assert run_sample("--prompt_file", "-") == expected


def test_checkpoint_is_the_best_of_the_newest_run_or_the_named_one(tiny, monkeypatch, capsys):
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(train, "evaluate", lambda *args: next(losses))
    assert tiny("--max_iters", "20", "--eval_interval", "10", "--out_dir", "runs/new") == 0
    shutil.copytree("runs/new", "runs/old")
    for path in Path("runs/old").glob("*.pt"):
        os.utime(path, (1, 1))
    for argv, expected in (
        ([], "runs/new/best.pt, step 10,"),
        (["--which", "last"], "runs/new/last.pt, step 20,"),
        (["runs/old"], "runs/old/best.pt, step 10,"),
        (["--max_new_tokens", "5", "runs/old/last.pt"], "runs/old/last.pt, step 20,"),
    ):
        capsys.readouterr()
        assert sample.main(argv) == 0
        assert capsys.readouterr().err.startswith(expected)


def test_nothing_but_the_checkpoint_is_needed(run_dir, run_sample):
    before = run_sample()
    shutil.move(run_dir / "best.pt", "alone.pt")
    shutil.rmtree("runs")
    assert run_sample("alone.pt") == before


def test_score_is_printed_in_nats_and_bits_with_the_number_of_characters(run_sample):
    """tests/test_edits.py computes the score."""
    Path("scored.txt").write_text(LINES[-700:])
    words = run_sample("--score", "scored.txt").split()
    assert float(words[2]) == pytest.approx(float(words[0]) / math.log(2), abs=2e-4)
    assert words[-3:] == ["over", "700", "characters"]


def test_attention_page_shows_the_text_that_is_written_or_scored(run_sample):
    flags = ["--attention", "page.html", "--num_samples", "2", "--max_new_tokens", "40"]
    for prompt in ("KATE:", ""):
        text = run_sample("--prompt", prompt, *flags).split(sample.SEPARATOR)[0]
        assert (
            "".join(page_data(Path("page.html").read_text("utf-8"))["chars"]).strip()
            == text.strip()
        )
    Path("scored.txt").write_text(LINES[:90])
    run_sample("--score", "scored.txt", "--attention", "page.html")
    page = page_data(Path("page.html").read_text("utf-8"))
    assert "".join(page["chars"]) == "\n" + LINES[:90]
    words = run_sample("--score", "scored.txt").split()
    assert float(words[0]) == pytest.approx(sum(page["nll"][1:]) / 90, abs=1e-3)


def test_attention_page_is_complete_when_the_reader_of_the_text_stops(run_dir):
    argv = [sys.executable, str(ROOT / "sample.py"), "--max_new_tokens", "10000000"]
    with subprocess.Popen([*argv, "--attention", "page.html"], stdout=subprocess.PIPE) as piped:
        text = piped.stdout.read(5).decode()
        piped.stdout.close()
        assert piped.wait(60) == 0
    assert len(text) == 5
    assert page_data(Path("page.html").read_text("utf-8"))["chars"]


def test_outputs_stay_as_they_were_if_the_command_is_refused_or_interrupted(run_dir, monkeypatch):
    os.link(run_dir / "best.pt", "page.html")
    before = (run_dir / "best.pt").read_bytes()
    Path("text.txt").write_text("kept")
    Path("old.html").write_text("kept")
    assert sample.main(["--out", "text.txt", "--attention", "page.html"]) == 2  # a checkpoint
    assert sample.main(["--out", "text.txt", "--attention", "./text.txt"]) == 2
    assert sample.main(["--out", "new.txt", "--attention", "./new.txt"]) == 2
    assert sample.main(["--out", "text.txt", "--attention", "missing/page.html"]) == 2
    assert sample.main(["--out", "text.txt", "--attention", str(run_dir)]) == 2
    monkeypatch.setattr(sample, "stream", Mock(side_effect=KeyboardInterrupt))
    assert sample.main(["--attention", "old.html"]) == 130
    assert Path("text.txt").read_text() == Path("old.html").read_text() == "kept"
    assert (run_dir / "best.pt").read_bytes() == before


def test_interactive_continues_each_line(run_dir, run_sample, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("KATE:\nTOM: é\n\nKATE:\n"))
    assert sample.main(["--interactive", *RANDOM]) == 0
    captured = capsys.readouterr()
    turns = [(0, "KATE:"), (2, ""), (3, "KATE:")]
    texts = [run_sample(*RANDOM, "--prompt", p, "--seed", str(1337 + turn)) for turn, p in turns]
    assert captured.out == "".join(f"{text}\n" for text in texts)
    assert texts[0] != texts[2]
    assert "error: the prompt has characters" in captured.err


def test_ctrl_c_ends_a_text_and_at_the_prompt_the_program(run_dir, capsys, monkeypatch):
    stream = sample.stream

    def interrupted(*args):
        yield from itertools.islice(stream(*args), 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(sample, "stream", interrupted)
    prompts = Mock(side_effect=["KATE:", "TOM:", KeyboardInterrupt])
    monkeypatch.setattr("builtins.input", prompts)
    capsys.readouterr()
    assert sample.main(["--interactive"]) == 130
    out = capsys.readouterr().out
    assert (out[:5], out[10:15], out[20:]) == ("KATE:", "\nTOM:", "\n")


def test_out_is_written_in_the_encoding_of_the_corpus(tiny, text_file, capsys):
    text_file.write_bytes(("Grüße, Käthe!\r\n" * 40).encode("utf-16"))
    assert tiny("--max_iters", "1", "--encoding", "utf-16") == 0
    capsys.readouterr()
    assert sample.main(["--prompt", "Grü\r\n", "--out", "poem.txt"]) == 0
    assert not capsys.readouterr().out
    written = Path("poem.txt").read_bytes().decode("utf-16")
    assert sample.main(["--prompt", "Grü\r\n"]) == 0
    assert written == capsys.readouterr().out
    assert sample.main(["--prompt_file", "poem.txt", "--max_new_tokens", "1"]) == 0
    assert capsys.readouterr().out[:-1] == written


def test_the_code_page_of_the_terminal_does_not_matter(tiny, text_file, monkeypatch):
    text, output = "中文小说，月光如水。😀\n" * 40, io.BytesIO()
    text_file.write_text(text, "utf-8")
    # As on a Windows terminal; standard error escapes what its code page lacks.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "cp1252", "backslashreplace"))
    assert tiny("--max_iters", "3", "--out_dir", "表/run") == 0
    assert sample.main(["表/run", "--prompt", "月光", "--max_new_tokens", "20"]) == 0
    assert checkpoint.load("表/run/last.pt").vocab == "".join(sorted(set(text)))
    assert output.getvalue().decode("utf-8")[-22:].startswith("月光")


def test_ctrl_c_and_a_closed_pipe_end_all_threads(run_dir):
    argv = [sys.executable, str(ROOT / "sample.py")]
    argv += ["--max_new_tokens", "10000000", "--num_samples", "30"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as stopped, subprocess.Popen(argv, **pipes) as piped:
        stopped.stdout.read(1)
        stopped.send_signal(signal.SIGINT)
        piped.stdout.read(1)
        piped.stdout.close()
        assert (stopped.wait(60), piped.wait(60)) == (130, 0)
        for process in (stopped, piped):  # one line, which names the checkpoint
            assert process.stderr.read().count(b"\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_one_line(run_dir, capsys):
    assert sample.main(["--out", "/dev/full"]) == 1
    assert "\nerror: /dev/full cannot be written" in capsys.readouterr().err
    assert sample.main(["--attention", "/dev/full"]) == 1
    assert "\nerror: /dev/full cannot be written" in capsys.readouterr().err
