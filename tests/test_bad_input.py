"""Every input that a person can get wrong: one clear line, status 2, nothing left behind."""

import io
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

import sample
import train
from tests.conftest import LINES, TINY


def refused(capsys, main, argv: list[str]) -> str:
    """The one line on standard error with which `main` refuses."""
    capsys.readouterr()
    before = sorted(Path().rglob("*"))
    assert main(argv) == 2
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert not said.out
    assert [path for path in sorted(Path().rglob("*")) if "prepared" not in path.parts] == [
        path for path in before if "prepared" not in path.parts
    ]
    return lines[0]


def files(elsewhere: Path) -> None:
    """The texts and other files that the cases below name."""
    contents = {
        "good.txt": LINES.encode(),
        "empty.txt": b"",
        "mark.txt": b"\xef\xbb\xbf",
        "single.txt": b"a",
        "same.txt": b"a" * 1000,
        "short.txt": LINES[:100].encode(),
        "latin.txt": ("é" + LINES).encode("latin-1"),
        "strange.txt": "é".encode(),
        "late.txt": LINES.encode() + b"\xff" + LINES.encode(),
        "bad.toml": b"n_layer 3",
        "deep.toml": b"seed" + b".a" * 3000 + b" = 1",
        "folder/readme.md": b"no text here",
        "file": b"",
        "run/best.pt": b"",
    }
    for name, content in contents.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)


LATE = len(LINES)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--data", "missing.txt"], ["missing.txt does not exist; name a text by --data"]),
        (["--data", "empty.txt"], ["empty.txt is empty"]),
        (["--data", "mark.txt"], ["mark.txt is empty"]),
        (["--data", "single.txt"], ["single.txt has 0", "1 to validate", "--block_size"]),
        (["--data", "same.txt"], ["same.txt", "'a'"]),
        (
            ["--data", "short.txt"],
            ["90 characters to train", "10 to validate", "block_size (16)", "--val_fraction"],
        ),
        (["--data", "good.txt", "--block_size", "4000"], ["block_size (4000)"]),
        (["--data", "latin.txt"], ["latin.txt is not utf-8", "0xe9 at offset 0", "--encoding"]),
        (["--data", "late.txt"], [f"0xff at offset {LATE}"]),
        (["--data", "folder"], ["folder is a folder without any .txt"]),
        (["--data", "/dev/null"], ["neither a file nor a folder"]),
        (["--n_layr", "3"], ["'n_layr'", "n_layer"]),
        (["--n_layer", "three"], ["n_layer is 'three'", "whole number"]),
        (["--n_embd", "30", "--n_head", "4"], ["n_embd (30)", "n_head (4)"]),
        (["--n_embd", "12", "--n_head", "4"], ["must be even"]),
        (["--n_layer", "-3"], ["n_layer is -3"]),
        (["--block_size", "0"], ["block_size is 0"]),
        (["--learning_rate", "-1e-3"], ["learning_rate is -0.001"]),
        (["--batch_size", "8", "--gradient_accumulation_steps", "3"], ["multiple"]),
        (["--dtype", "float16"], ["float16", "cuda"]),
        (["--device", "cuda"], ["'cuda' is not on this machine"]),
        (["--device", "gpu"], ["'gpu'"]),
        (["bad.toml"], ["bad.toml is not TOML"]),
        (["missing.toml"], ["missing.toml"]),
        (["/dev/null", "--data", "empty.txt"], ["/dev/null is no file, so no preset"]),
        (["deep.toml"], ["seed is {'a'"]),
        (["3"], ["preset 3"]),
        (["--data", "good.txt", "--out_dir", "run"], ["run already holds a run", "--resume run"]),
        (["--data", "good.txt", "--out_dir", "file/x"], ["file/x cannot be written"]),
        (["--data", "good.txt", "--out_dir", "file"], ["file cannot be written"]),
    ],
    ids=" ".join,
)
def test_training_refuses(elsewhere, capsys, monkeypatch, argv, said):
    files(elsewhere)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tiny = [flag for i in range(0, len(TINY), 2) if TINY[i] not in argv for flag in TINY[i : i + 2]]
    line = refused(capsys, train.main, [*argv, *tiny])
    for words in said:
        assert words in line


def test_an_out_dir_that_will_not_do_is_named_before_anything_is_read(
    elsewhere, capsys, monkeypatch
):
    files(elsewhere)
    monkeypatch.setattr(train, "open_corpus", None)
    assert "file/x cannot be written" in refused(capsys, train.main, ["--out_dir", "file/x", *TINY])


@pytest.mark.parametrize("name", ["x" * 300, "locked/x"])
def test_a_path_that_cannot_be_is_refused(elsewhere, capsys, name):
    """A name too long for the disk, or in a folder that may not be entered (unless one is root)."""
    files(elsewhere)
    Path("locked").mkdir(mode=0)
    for argv in (["--data", name], [name], ["--resume", name]):
        assert name in refused(capsys, train.main, [*argv, *(TINY if argv[0] == "--data" else [])])
    assert name in refused(capsys, sample.main, [name])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a folder's name is Unicode")
def test_a_text_whose_path_is_no_unicode_is_named(elsewhere, capsys, monkeypatch):
    os.mkdir(b"bad\xff")
    monkeypatch.chdir(os.fsdecode(b"bad\xff"))
    files(elsewhere)
    assert "data is" in refused(capsys, train.main, ["--data", "good.txt", *TINY])


@pytest.mark.parametrize("world", [["2"], ["x"], ["0"], ["2", "first"], ["2", "2"]])
def test_half_of_torchrun_s_settings_are_named(text_file, capsys, monkeypatch, world):
    for name, value in zip(("WORLD_SIZE", "RANK"), world, strict=False):
        monkeypatch.setenv(name, value)
    assert "torchrun" in refused(capsys, train.main, ["--data", str(text_file), *TINY])


@pytest.fixture
def run(tiny):
    assert tiny("--max_iters", "2", "--out_dir", "runs/it") == 0
    return Path("runs/it")


@pytest.mark.parametrize("main", [train.main, sample.main], ids=["train", "sample"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"", "no checkpoint of Quill"),
        (b"hello", "no checkpoint of Quill"),
        (0.5, "damaged"),
        ("pickle", "no checkpoint of Quill"),
    ],
    ids=["missing", "empty", "other", "cut short", "malicious"],
)
def test_what_is_no_checkpoint_is_refused(run, capsys, main, content, said):
    path = Path("x.pt")
    if content == "pickle":
        path.write_bytes(b"cos\nsystem\n(S'touch trapped'\ntR.")
    elif isinstance(content, float):
        whole = (run / "last.pt").read_bytes()
        path.write_bytes(whole[: int(content * len(whole))])
    elif content is not None:
        path.write_bytes(content)
    line = refused(capsys, main, ["--resume", "x.pt"] if main is train.main else ["x.pt"])
    assert "x.pt" in line
    assert said in line
    assert not Path("trapped").exists()


def test_resuming_refuses_what_cannot_change_and_what_is_not_there(run, capsys):
    assert "n_layer" in refused(capsys, train.main, ["--resume", str(run), "--n_layer", "3"])
    assert "learning_rate" in refused(
        capsys, train.main, ["--resume", str(run), "--learning_rate", "1"]
    )
    assert "nowhere" in refused(capsys, train.main, ["--resume", "nowhere"])
    shutil.copy(run / "last.pt", run / "best.pt")
    (run / "last.pt").write_bytes(b"damaged")
    assert "best.pt may be whole" in refused(capsys, train.main, ["--resume", str(run)])
    (run / "last.pt").unlink()
    assert "best.pt" in refused(capsys, train.main, ["--resume", str(run)])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--prompt", "Où est Zoë?"], ["the prompt", "'ù'", "'ë'", "'Z'"]),
        (["--stop", "é"], ["the stop", "'é'"]),
        (["--prompt", "KATE", "--prompt_file", "p.txt"], ["prompt_file"]),
        (["--prompt_file", "missing.txt"], ["missing.txt"]),
        (["--prompt_file", "latin.txt"], ["latin.txt is not utf-8"]),
        (["--score", "missing.txt", "--out", "poem.txt"], ["missing.txt"]),
        (["--score", "empty.txt", "--out", "poem.txt"], ["empty.txt is empty"]),
        (["--score", "latin.txt"], ["latin.txt is not utf-8"]),
        (["--score", "strange.txt"], ["strange.txt", "'é'"]),
        (["--score", ""], ["cannot be read"]),
        (["--score", "/dev/null"], ["/dev/null cannot be read"]),
        (["--prompt_file", "."], [". cannot be read"]),
        (["--score", "good.txt", "--prompt", "KATE"], ["prompt and score"]),
        (["--interactive", "--prompt_file", "p.txt"], ["prompt_file and interactive"]),
        (["--interactive=yes"], ["interactive", "no value"]),
        (["--max_new_tokens", "0"], ["max_new_tokens"]),
        (["--num_samples", "-1"], ["num_samples"]),
        (["--temperature", "-1"], ["temperature"]),
        (["--temperature", "nan"], ["temperature"]),
        (["--top_k", "-1"], ["top_k"]),
        (["--top_p", "0"], ["top_p"]),
        (["--which", "first"], ["best, last"]),
        (["--device", "cuda:99"], ["cuda:99"]),
        (["--dtype", "float16", "--device", "cpu"], ["float16"]),
        (["--out", "missing/poem.txt"], ["missing/poem.txt"]),
        (["--out", "runs/../runs/it/best.pt"], ["is a checkpoint's name"]),
        (["--out", "poem.PT"], ["poem.PT is a checkpoint's name"]),
        (["--temprature", "1"], ["temperature"]),
        (["nowhere"], ["nowhere"]),
        (["runs"], ["runs/best.pt"]),
    ],
    ids=" ".join,
)
def test_sampling_refuses(run, capsys, elsewhere, argv, said):
    files(elsewhere)
    line = refused(capsys, sample.main, argv)
    for words in said:
        assert words in line


def test_a_checkpoint_of_whatever_name_is_not_written_over(run, capsys):
    shutil.copy(run / "best.pt", "model.bin")
    assert "is a checkpoint's name" in refused(
        capsys, sample.main, ["model.bin", "--out", "./model.bin"]
    )


def test_sampling_refuses_where_nothing_was_trained(capsys):
    assert "train.py" in refused(capsys, sample.main, [])


def test_standard_input_that_is_not_utf_8_is_refused(run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE\xff")))
    assert "offset 4" in refused(capsys, sample.main, ["--prompt_file", "-"])
