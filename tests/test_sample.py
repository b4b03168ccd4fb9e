"""Tests of sample.py: its output, its choice of a checkpoint, and how it ends."""

import io
import math
import os
import shutil
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

import sample
import train
from model.run import checkpoint
from model.trained import TrainedModel
from tests.helpers import LINES, ROOT, TINY, page_data


@pytest.fixture
def run_dir(trained_run) -> Path:
    return Path(shutil.copytree(trained_run, "runs/it"))


@pytest.fixture
def run_sample(run_dir, capsys):
    """Return a function: run_sample("--seed", "1") returns the standard output of sample.py."""
    capsys.readouterr()

    def run(*argv: str) -> str:
        assert sample.main([*argv]) == 0
        return capsys.readouterr().out

    return run


def shown_text() -> str:
    data = page_data(Path("page.html").read_text("utf-8"))
    return "".join(data["vocab"][id_] for id_ in data["text"])


@pytest.mark.parametrize(("prompt", "dtype"), [("KATE:", "float32"), ("-am", "bfloat16")])
def test_texts_have_max_new_tokens_characters_or_end_after_stop(run_sample, prompt, dtype):
    flags = [f"--prompt={prompt}", "--max_new_tokens=60", "--temperature=2", "--num_samples=20"]
    texts = run_sample(*flags, "--dtype", dtype).split(sample.SEPARATOR)
    assert len(set(texts)) == 20
    for text in texts:
        assert text.startswith(prompt)
        assert len(text) == len(prompt) + 60
        assert set(text) <= set(LINES)
    stop = prompt[-1]  # only a stop after the prompt counts
    cut = run_sample(*flags, "--dtype", dtype, "--stop", stop).split(sample.SEPARATOR)
    for text, shorter in zip(texts, cut, strict=True):
        new = text.removeprefix(prompt)
        assert shorter == prompt + "".join(new.partition(stop)[:2])


def test_the_newest_run_or_the_named_checkpoint_is_sampled(run_dir, capsys):
    for step, name in ((10, "best.pt"), (20, "last.pt")):
        saved = checkpoint.load(run_dir / name)
        saved.step = step
        checkpoint.save(saved, run_dir / name)
    shutil.copytree("runs/it", "runs/old")
    shutil.copy("runs/it/last.pt", "alone.pt")
    for path in Path("runs/old").glob("*.pt"):
        os.utime(path, (1, 1))
    for argv, expected in (
        ([], "runs/it/best.pt, step 10,"),
        (["--which", "last"], "runs/it/last.pt, step 20,"),
        (["runs/old"], "runs/old/best.pt, step 10,"),
        (["alone.pt"], "alone.pt, step 20,"),
    ):
        assert sample.main(["--max_new_tokens", "5", *argv]) == 0
        assert capsys.readouterr().err.startswith(expected)
    (run_dir / "best.pt").unlink()  # as after Ctrl-C before the second evaluation
    for which in ("best", "last"):
        assert sample.main(["--max_new_tokens", "5", "--which", which]) == 0
        assert capsys.readouterr().err.startswith("runs/it/last.pt, step 20,")


def test_attention_page_shows_generated_or_scored_text(run_sample):
    flags = ["--attention", "page.html", "--num_samples", "2", "--max_new_tokens", "40"]
    for prompt, start in (("KATE:", ""), ("", "\n")):
        text = run_sample("--prompt", prompt, *flags).split(sample.SEPARATOR)[0]
        assert shown_text() == (start + text)[:16]  # the model reads block_size characters
    Path("scored.txt").write_text(LINES[:17])  # fills one window: block_size is 16
    nats, _, bits, *words = run_sample("--score", "scored.txt", "--attention", "page.html").split()
    assert shown_text() == LINES[:16]
    assert float(bits) == pytest.approx(float(nats) / math.log(2), abs=2e-4)
    assert words[-5:] == ["16", "characters,", "at", "temperature", "1"]


def test_a_score_is_the_loss_of_an_evaluation(tiny, capsys):
    """Both are means over independent windows of block_size characters. The last is shorter."""
    flags = "--max_iters=20 --learning_rate=0.02 --warmup_iters=1 --dtype=float32"
    assert tiny(f"{flags} --out_dir=run") == 0
    saved, text = checkpoint.load("run/last.pt"), LINES[int(len(LINES) * 0.9) :]
    model = TrainedModel(Path("run/last.pt")).network
    assert (len(text) - 1) % 16 > 0
    for length in (2, 17, 18, len(text)):
        ids_N, nats = torch.tensor([saved.vocab.index(char) for char in text[:length]]), 0.0
        for start in range(0, length - 1, 16):
            window_T = ids_N[start : start + 17]
            logits_TV = model(window_T[None, :-1])[0]
            nats += F.cross_entropy(logits_TV, window_T[1:], reduction="sum").item()
        Path("scored.txt").write_text(text[:length])
        capsys.readouterr()
        assert sample.main(["run", "--which=last", "--score=scored.txt"]) == 0
        score = float(capsys.readouterr().out.split()[0])
        assert score == pytest.approx(nats / (length - 1), abs=6e-5)
    assert score == pytest.approx(saved.val_loss, abs=6e-5)


def test_a_prompt_is_read_from_a_file_or_standard_input(run_sample, monkeypatch):
    expected = run_sample("--prompt=KATE:\n", "--max_new_tokens=20")
    Path("prompt.txt").write_bytes("\ufeffKATE:\r\n".encode("utf-16-le"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE:\n")))
    for name in ("prompt.txt", "-"):
        assert run_sample(f"--prompt_file={name}", "--max_new_tokens=20") == expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_prompt_and_stop_may_have_the_other_unicode_form(form, tiny, text_file, capsys):
    text, other = unicodedata.normalize(form, "é "), {"NFC": "e\u0301", "NFD": "é"}[form]
    text_file.write_text(text * 300)
    assert tiny("--max_iters=1 --out_dir=run") == 0
    for prompt, stop in (("", other), (other, text[:-1])):
        capsys.readouterr()
        assert sample.main(["run", "--temperature=9", f"--prompt={prompt}", f"--stop={stop}"]) == 0
        assert capsys.readouterr().out.rstrip("\n").endswith(text[:-1])
    assert sample.main(["run", f"--prompt={other}", "--attention=page.html"]) == 0
    assert page_data(Path("page.html").read_text("utf-8"))["typed"] == len(text[:-1])
    capsys.readouterr()
    for content in (text * 50, f"{other} " * 50):
        Path("scored.txt").write_text(content)
        assert sample.main(["run", "--score=scored.txt"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


def test_unknown_characters_are_left_out_of_a_score_and_named(run_sample, capsys, monkeypatch):
    Path("plain.txt").write_text(LINES[:90])
    mixed = "я" + LINES[:40] + "щя" + LINES[40:90]
    Path("mixed.txt").write_text(mixed, "utf-8")
    expected = run_sample("--score", "plain.txt")
    for name in ("mixed.txt", "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(mixed.encode())))
        assert sample.main(["--score", name]) == 0
        output = capsys.readouterr()
        assert output.out == expected
        assert "the text has characters that are" in output.err


def test_samples_stopped_at_line_end_print_one_per_line(run_sample):
    flags = ["--prompt=KATE", "--temperature=2", "--num_samples=30", "--max_new_tokens=20"]
    texts = run_sample(*flags, "--stop=o").split(sample.SEPARATOR)
    assert len(texts) == 30
    whole = run_sample(*flags).split(sample.SEPARATOR)
    assert {"\n" in text for text in whole} == {True, False}
    expected = [text.partition("\n")[0] for text in whole]
    for stop in ("\n", r"\n"):  # a shell need not know how to write a line end
        assert run_sample(*flags, f"--stop={stop}") == "\n".join([*expected, ""])


def test_a_text_of_windows_is_the_same_text(text_file, capsys):
    """The line ends of Windows and Mac change no training and no score."""
    text, expected = text_file.read_text(), None
    for name, line_end in (("unix", "\n"), ("windows", "\r\n"), ("mac", "\r")):
        content = text.replace("\n", line_end).encode()
        Path(f"{name}.txt").write_bytes(content)
        flags = ["--data", f"{name}.txt", *TINY, "--max_iters=6", "--out_dir", name]
        assert train.main(flags) == 0
        one, other = (checkpoint.load(f"{run}/last.pt") for run in ("unix", name))
        assert (one.vocab, one.data_sha256, one.val_loss) == (
            other.vocab,
            other.data_sha256,
            other.val_loss,
        )
        if name != "unix":
            assert train.main(["--resume", name, "--data", "unix.txt", "--max_iters=7"]) == 0
        capsys.readouterr()
        assert sample.main(["unix", f"--score={name}.txt"]) == 0
        output = capsys.readouterr().out
        assert output == (expected := expected or output)


def test_interactive_continues_lines_and_ctrl_c_ends_a_text(run_sample, monkeypatch, capsys):
    flags = ("--max_new_tokens=40", "--prompt")
    first = run_sample(*flags, "KATE:")
    second, last = (run_sample(*flags, "TOM:", f"--seed={1337 + turn}") for turn in (1, 3))
    assert second != last

    class Screen(io.StringIO):
        def write(self, text: str) -> None:
            super().write(text)
            if self.getvalue() == f"{first}\n{second[:9]}":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdout", Screen())
    lines = Mock(side_effect=["KATE:", "TOM:", "é", "TOM:", KeyboardInterrupt])
    monkeypatch.setattr("builtins.input", lines)
    assert sample.main(["--interactive", "--max_new_tokens=40"]) == 130
    assert sys.stdout.getvalue() == f"{first}\n{second[:9]}\n{last}\n"
    assert "error: the prompt has" in capsys.readouterr().err


def test_paths_may_begin_with_the_home_folder(run_sample, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd() / "home"))
    Path("home").mkdir()
    Path("home/text.txt").write_text("KATE:")
    assert "over 4 characters" in run_sample("--score=~/text.txt", "--attention=~/page.html")
    assert Path("home/page.html").exists()


def test_output_is_utf_8_whatever_terminal_and_corpus_are(tiny, text_file, monkeypatch):
    text, output = "中文小说，月光如水。Käthe😀\r\n" * 40, io.BytesIO()
    text_file.write_bytes(text.encode("utf-16"))
    # As on Windows, the terminal has a code page.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "cp1252"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), "cp1252", "backslashreplace"))
    assert tiny("--max_iters=3 --encoding=utf-16 --out_dir=表/run") == 0
    text = text.replace("\r\n", "\n")
    assert checkpoint.load("表/run/last.pt").vocab == "".join(sorted(set(text)))
    written = output.tell()
    assert sample.main(["表/run", "--prompt", "月光\n", "--max_new_tokens", "200"]) == 0
    assert sys.stderr.encoding == "utf-8"
    sampled = output.getvalue()[written:].decode("utf-8")
    Path("scored.txt").write_text(text, "utf-8")
    assert sample.main(["表/run", "--score=scored.txt"]) == 0  # the trained text was in UTF-16
    assert sampled.startswith("月光\n")
    assert len(sampled) == 203
    assert set(sampled) == set(text)


@pytest.mark.slow
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
        for process in (stopped, piped):  # the only line names the checkpoint
            assert process.stderr.read().count(b"\n") == 1
    assert not Path("page.html").exists()
