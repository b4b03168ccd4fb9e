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
from tests.conftest import LINES, ROOT, file_size_limit
from tests.model.inspect.test_page import page_data


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


def read_page() -> dict:
    return page_data(Path("page.html").read_text("utf-8"))


@pytest.mark.parametrize(("prompt", "dtype"), [("KATE:", "float32"), ("-am", "bfloat16")])
def test_texts_have_max_new_tokens_characters_or_end_after_stop(run_sample, prompt, dtype):
    flags = [f"--prompt={prompt}", "--max_new_tokens=60", "--temperature=2", "--num_samples=20"]
    texts = run_sample(*flags, "--dtype", dtype).split(sample.SEPARATOR)
    assert len(set(texts)) == 20
    for text in texts:
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 60
        assert set(text) <= set(LINES)
    stop = prompt[-1]  # in the prompt it does not count
    cut = run_sample(*flags, "--dtype", dtype, "--stop", stop).split(sample.SEPARATOR)
    for text, shorter in zip(texts, cut, strict=True):
        new = text.removeprefix(prompt)
        assert shorter == prompt + "".join(new.partition(stop)[:2])


def test_prompt_is_read_from_a_file_or_standard_input(run_sample, monkeypatch):
    flags = ["--max_new_tokens", "20"]
    expected = run_sample("--prompt", "KATE:\n", *flags)
    for mark in (b"", b"\xef\xbb\xbf"):
        Path("prompt.txt").write_bytes(mark + b"KATE:\n")
        assert run_sample("--prompt_file", "prompt.txt", *flags) == expected
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mark + b"KATE:\n")))
        assert run_sample("--prompt_file", "-", *flags) == expected


def test_the_newest_run_or_the_named_checkpoint_is_sampled(tiny, text_file, monkeypatch, capsys):
    text_file.write_text("abcd" * 60)  # without a newline, with which a text begins otherwise
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(train, "evaluate", lambda *args: next(losses))
    assert tiny("--max_iters=20 --eval_interval=10 --out_dir=runs/new") == 0
    text_file.unlink()
    shutil.copytree("runs/new", "runs/old")
    shutil.copy("runs/new/last.pt", "alone.pt")
    for path in Path("runs/old").glob("*.pt"):
        os.utime(path, (1, 1))
    shutil.copytree("runs/old", "runs/newer/teacher", copy_function=shutil.copy)  # never taken
    for argv, expected in (
        ([], "runs/new/best.pt, step 10,"),
        (["--which", "last"], "runs/new/last.pt, step 20,"),
        (["runs/old"], "runs/old/best.pt, step 10,"),
        (["alone.pt"], "alone.pt, step 20,"),
    ):
        capsys.readouterr()
        assert sample.main(["--max_new_tokens", "5", *argv]) == 0
        output = capsys.readouterr()
        assert output.err.startswith(expected)
        assert set(output.out) <= set("abcd")


def test_attention_page_shows_generated_or_scored_text(run_sample):
    flags = ["--attention", "page.html", "--num_samples", "2", "--max_new_tokens", "40"]
    for prompt, start in (("KATE:", ""), ("", "\n")):
        text = run_sample("--prompt", prompt, *flags).split(sample.SEPARATOR)[0]
        assert "".join(read_page()["chars"]) == start + text
    Path("scored.txt").write_text(LINES[:90])
    nats, _, bits, *words = run_sample("--score", "scored.txt", "--attention", "page.html").split()
    page = read_page()
    assert "".join(page["chars"]) == "\n" + LINES[:90]
    assert float(nats) == pytest.approx(sum(page["nll"][1:]) / 90, abs=1e-3)
    assert float(bits) == pytest.approx(float(nats) / math.log(2), abs=2e-4)
    assert words[-2:] == ["90", "characters"]


def test_unknown_characters_are_left_out_of_a_score_and_counted(run_sample, run_dir, capsys):
    Path("plain.txt").write_text(LINES[:90])
    Path("mixed.txt").write_text("я" + LINES[:40] + "щя" + LINES[40:90], "utf-8")
    plain = run_sample("--score", "plain.txt")
    assert run_sample("--score", "mixed.txt") == (
        plain.rstrip("\n") + "; 3 others are not in the vocabulary\n"
    )
    assert sample.main(["--score", "mixed.txt"]) == 0
    assert "left out of mixed.txt: characters that are" in capsys.readouterr().err


def test_standard_input_is_scored(run_sample, monkeypatch):
    Path("scored.txt").write_text(LINES[:90])
    expected = run_sample("--score", "scored.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES[:90].encode())))
    assert run_sample("--score", "-") == expected


def test_samples_stopped_at_line_end_print_one_per_line(run_sample):
    """Also those that are cut before it."""
    flags = ["--prompt=KATE", "--temperature=2", "--num_samples=30", "--max_new_tokens=12"]
    texts = run_sample(*flags, "--stop=o").split(sample.SEPARATOR)
    assert len(texts) == 30
    whole = run_sample(*flags).split(sample.SEPARATOR)
    expected = [text.partition("\n")[0] for text in whole]
    assert {"\n" in text for text in whole} == {True, False}
    written = run_sample(*flags, "--stop=\n")
    assert written.splitlines() == expected
    assert written.endswith("\n") == ("\n" in whole[-1])


def test_an_escape_sequence_at_the_end_of_stop_is_noted(tiny, text_file, capsys):
    r"""In a vocabulary with a backslash and an n, '\n' of a shell is valid, but no line end."""
    text_file.write_text(r"\nabla \neq 0 \now " * 30 + "\n")
    assert tiny("--max_iters=2 --out_dir=run") == 0
    for flags, is_noted in ((["--stop", r"\n"], True), (["--prompt", r"\nabla"], False)):
        capsys.readouterr()
        assert sample.main(["run", "--max_new_tokens=5", *flags]) == 0
        assert ("note: stop ends with" in capsys.readouterr().err) == is_noted


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_terminal_shows_each_line_end_as_one(tiny, text_file, monkeypatch, capsys, line_end):
    """And a file gets the characters as they are."""
    text_file.write_bytes(f"One line.{line_end}".encode() * 60)
    assert tiny("--max_iters=2 --out_dir=run") == 0
    pieces = [(0, c) for c in f"One line.{line_end}{line_end}Two."] + [(1, "x")]
    monkeypatch.setattr(sample, "stream", lambda *_: iter(pieces))
    for is_terminal in (True, False):
        capsys.readouterr()
        monkeypatch.setattr(sys.stdout, "isatty", lambda value=is_terminal: value)
        assert sample.main(["run"]) == 0
        shown = capsys.readouterr().out
        text = "One line.\n\nTwo." + sample.SEPARATOR + "x"
        assert shown == (text + "\n" if is_terminal else text.replace("\n\n", 2 * line_end))


def test_old_attention_page_is_kept_when_writing_fails(monkeypatch, capsys, run_dir):
    def write_page(path: str) -> int:
        return sample.main(["--max_new_tokens", "5", "--attention", path])

    assert write_page("page.html") == 0  # and it may be replaced
    assert write_page("page.html") == 0
    old = Path("page.html").read_text("utf-8") + "<!-- old -->"
    Path("page.html").write_text(old, "utf-8")
    with file_size_limit(1000):  # as on a full disk
        assert write_page("page.html") == 1
    with monkeypatch.context() as patch:
        patch.setattr(sample, "stream", Mock(side_effect=KeyboardInterrupt))
        assert write_page("page.html") == 130
    assert Path("page.html").read_text("utf-8") == old
    assert sorted(os.listdir()) == ["page.html", "runs"]
    assert write_page("page.html") == 0
    assert read_page()["chars"]


def test_interactive_continues_lines_and_ctrl_c_ends_a_text(
    run_dir, run_sample, capsys, monkeypatch
):
    stream, texts = sample.stream, iter(range(9))

    def interrupt_the_second(*args):
        yield from itertools.islice(stream(*args), 5 if next(texts) == 1 else None)
        raise KeyboardInterrupt

    lines = Mock(side_effect=["KATE:", "TOM:", "é", "TOM:", KeyboardInterrupt])
    monkeypatch.setattr("builtins.input", lines)
    with monkeypatch.context() as patch:
        patch.setattr(sample, "stream", interrupt_the_second)
        assert sample.main(["--interactive", "--max_new_tokens=40"]) == 130
    output = capsys.readouterr()
    assert "error: the prompt has" in output.err
    flags = ("--max_new_tokens=40", "--prompt")
    first = run_sample(*flags, "KATE:")
    second, last = (run_sample(*flags, "TOM:", f"--seed={1337 + turn}") for turn in (1, 3))
    assert output.out == f"{first}\n{second[:9]}\n{last}\n"
    assert second != last


def test_output_is_utf_8_whatever_terminal_and_corpus_are(tiny, text_file, monkeypatch):
    text, output = "中文小说，月光如水。Käthe😀\r\n" * 40, io.BytesIO()
    text_file.write_bytes(text.encode("utf-16"))
    Path("prompt.txt").write_bytes("月光\r\n".encode("utf-16"))
    # As on a Windows terminal; standard error escapes what its code page lacks.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "cp1252", "backslashreplace"))
    assert tiny("--max_iters=3 --encoding=utf-16 --out_dir=表/run") == 0
    assert checkpoint.load("表/run/last.pt").vocab == "".join(sorted(set(text)))
    written = output.tell()
    assert sample.main(["表/run", "--prompt_file", "prompt.txt", "--max_new_tokens", "200"]) == 0
    sampled = output.getvalue()[written:].decode("utf-8")
    assert sampled.startswith("月光\r\n")
    assert len(sampled) == 204
    assert set(sampled) == set(text)


def test_ctrl_c_or_closed_pipe_ends_sampling_without_page(run_dir):
    argv = [sys.executable, str(ROOT / "sample.py"), "--max_new_tokens=10000000"]
    argv += ["--num_samples=30", "--attention=page.html"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, **pipes) as stopped, subprocess.Popen(argv, **pipes) as piped:
        stopped.stdout.read(1)
        stopped.send_signal(signal.SIGINT)
        piped.stdout.read(1)
        piped.stdout.close()
        assert (stopped.wait(60), piped.wait(60)) == (130, 0)
        for process in (stopped, piped):  # one line, which names the checkpoint
            assert process.stderr.read().count(b"\n") == 1
    assert not Path("page.html").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_standard_output_on_a_full_disk_ends_with_one_line(run_dir, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO("/dev/full", "w")))
    assert sample.main([]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "error: [Errno 28] No space left on device"
