"""Wrong input ends with one line that says what is wrong, exit status 2, and no file changed."""

import io
import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch

import sample
import train
from tests.conftest import LINES, TINY

FILES = {
    "good.txt": LINES.encode(),
    "empty.txt": b"",
    "bom.txt": b"\xef\xbb\xbf",
    "one.txt": b"a",
    "same.txt": b"a" * 1000,
    "short.txt": LINES[:100].encode(),
    "latin.txt": ("é" + LINES).encode("latin-1"),
    "strange.txt": "é".encode(),
    "late.txt": LINES.encode() + b"\xff" + LINES.encode(),
    "bad.toml": b"n_layer 3",
    "deep.toml": b"seed" + b".a" * 3000 + b" = 1",
    "unknown.toml": b"n_layr = 3",
    "folder/readme.md": b"no text here",
    "other_run/best.pt": b"",
}


@pytest.fixture(autouse=True)
def files(elsewhere) -> None:
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    Path("loop").symlink_to("loop")
    Path("locked").mkdir(mode=0)


@pytest.fixture
def run_dir(tiny) -> Path:
    assert tiny("--max_iters", "2", "--out_dir", "runs/it") == 0
    return Path("runs/it")


@pytest.fixture
def error_of(capsys):
    """error_of(main, argv) returns the line with which main(argv) refuses its input."""

    def contents() -> dict[Path, bytes | None]:
        paths = [path for path in Path().rglob("*") if "prepared" not in path.parts]
        return {path: path.read_bytes() if os.path.isfile(path) else None for path in paths}

    def call(main, argv: list[str]) -> str:
        capsys.readouterr()
        before = contents()
        assert main(argv) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith("error: ")
        assert not captured.out
        assert contents() == before
        return line

    return call


TRAIN_ERRORS = [
    ("--data missing.txt", ["missing.txt does not exist", "--data"]),
    ("--data=", ["data is empty"]),
    ("--data empty.txt", ["empty.txt is empty"]),
    ("--data bom.txt", ["bom.txt is empty"]),
    ("--data one.txt", ["one.txt has 0 training", "1 validation", "--block_size"]),
    ("--data same.txt", ["same.txt", "'a'"]),
    ("--data short.txt", ["90 training", "10 validation", "is 16", "--val_fraction"]),
    ("--data good.txt --block_size 4000", ["good.txt", "block_size is 4000"]),
    ("--data latin.txt", ["latin.txt is not utf-8", "0xe9 at offset 0", "--encoding"]),
    ("--data late.txt", [f"0xff at offset {len(LINES)}"]),
    ("--data good.txt --encoding utf-9", ["encoding is 'utf-9'"]),
    ("--data folder", ["folder without any .txt"]),
    ("--data /dev/null", ["/dev/null is neither a file nor a folder"]),
    ("--data loop", ["loop"]),
    ("--n_layr 3", ["'n_layr'", "n_layer"]),
    ("--n_layr=3", ["'n_layr'", "n_layer"]),
    ("--n_lay 3", ["'n_lay'", "n_layer"]),
    ("--n_layer", ["n_layer"]),
    ("--n_layer three", ["n_layer", "'three'"]),
    ("--n_layer 3.5", ["n_layer", "'3.5'"]),
    ("--n_layer -3", ["n_layer is -3"]),
    ("--n_embd 30 --n_head 4", ["n_embd is 30", "n_head is 4"]),
    ("--n_embd 12 --n_head 4", ["n_embd is 12", "n_head is 4", "even"]),
    ("--block_size 0", ["block_size is 0"]),
    ("--learning_rate=-1e-3", ["learning_rate is -0.001"]),
    ("--learning_rate -1e-3", ["learning_rate"]),
    ("--learning_rate nan", ["learning_rate is nan"]),
    ("--batch_size 8 --gradient_accumulation_steps 3", ["batch_size is 8", "multiple", "3"]),
    ("--compile maybe", ["compile", "'maybe'", "on", "off"]),
    ("--dtype float16", ["float16", "CUDA", "bfloat16"]),
    ("--device cuda", ["'cuda' is not on this machine"]),
    ("--device gpu", ["device is 'gpu'", "cuda"]),
    ("bad.toml", ["bad.toml is not valid TOML", "line 1"]),
    ("deep.toml", ["seed is {'a'"]),
    ("unknown.toml", ["'n_layr'", "n_layer"]),
    ("missing.toml", ["missing.toml"]),
    ("good.toml bad.toml", ["bad.toml"]),
    ("3", ["preset 3"]),
    ("folder", ["folder is not a preset", "--resume"]),
    ("--out_dir other_run", ["other_run already holds a run", "--resume other_run"]),
    ("--out_dir empty.txt", ["empty.txt cannot be written"]),
    ("--out_dir empty.txt/x", ["empty.txt/x cannot be written"]),
]


@pytest.mark.parametrize(("flags", "words"), TRAIN_ERRORS, ids=lambda value: str(value)[:50])
def test_training_refuses_wrong_input(error_of, monkeypatch, flags, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = error_of(train.main, ["--data", "good.txt", *TINY, *shlex.split(flags)])
    for word in words:
        assert word in line


def test_out_dir_is_checked_before_the_text_is_read(error_of, monkeypatch):
    monkeypatch.setattr(train, "open_corpus", None)
    assert "empty.txt/x" in error_of(train.main, ["--out_dir", "empty.txt/x", *TINY])


@pytest.mark.parametrize("name", ["x" * 300, "locked", "locked/x", "loop"])
def test_a_path_that_cannot_be_opened_is_named(run_dir, error_of, name):
    """Locked for every user but root."""
    for main, argv in (
        (train.main, ["--data", name, *TINY]),
        (train.main, [name]),
        (train.main, ["--resume", name]),
        (sample.main, [name]),
        (sample.main, ["runs/it", "--prompt_file", name]),
        (sample.main, ["runs/it", "--score", name]),
    ):
        assert name in error_of(main, argv)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a folder's name is Unicode")
def test_a_path_that_is_not_unicode_is_named(error_of, monkeypatch):
    os.mkdir(b"bad\xff")
    shutil.copy("good.txt", b"bad\xff")
    monkeypatch.chdir(os.fsdecode(b"bad\xff"))
    assert "data is" in error_of(train.main, ["--data", "good.txt", *TINY])


@pytest.mark.parametrize(
    "settings",
    [{}, {"RANK": "first"}, {"RANK": "2"}, {"RANK": "0"}, {"WORLD_SIZE": "x"}, {"WORLD_SIZE": "0"}],
)
def test_incomplete_settings_of_torchrun_are_named(error_of, monkeypatch, settings):
    for name, value in ({"WORLD_SIZE": "2"} | settings).items():
        monkeypatch.setenv(name, value)
    assert "torchrun" in error_of(train.main, ["--data", "good.txt", *TINY])


@pytest.mark.parametrize("content", ["missing", "empty", "text", "cut short", "malicious"])
def test_a_file_that_is_no_checkpoint_is_refused(run_dir, error_of, content):
    whole = (run_dir / "last.pt").read_bytes()
    contents = {
        "empty": b"",
        "text": b"hello",
        "cut short": whole[: len(whole) // 2],
        "malicious": b"cos\nsystem\n(S'touch trapped'\ntR.",
    }
    if content in contents:
        Path("x.pt").write_bytes(contents[content])
    words = "checkpoint x.pt cannot be read" if content == "missing" else "x.pt is not a checkpoint"
    assert words in error_of(train.main, ["--resume", "x.pt"])
    assert words in error_of(sample.main, ["x.pt"])  # error_of finds no file `trapped`


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("runs/it --n_layer 3", ["n_layer cannot be changed"]),
        ("runs/it --learning_rate 1", ["learning_rate cannot be changed"]),
        ("runs/it --n_layr 3", ["'n_layr'", "n_layer"]),
        ("runs/it --data latin.txt", ["latin.txt is not utf-8"]),
        ("runs/it --data strange.txt", ["strange.txt"]),
        ("runs/it good.toml", ["good.toml"]),
        ("folder", ["folder/last.pt"]),
        ("nowhere", ["nowhere"]),
        ("", ["resume"]),
    ],
)
def test_resuming_refuses_wrong_input(run_dir, error_of, flags, words):
    line = error_of(train.main, ["--resume", *shlex.split(flags)])
    for word in words:
        assert word in line


def test_the_other_checkpoint_of_a_run_is_named(run_dir, error_of):
    for content in (b"damaged", None):
        (run_dir / "last.pt").unlink()
        if content:
            (run_dir / "last.pt").write_bytes(content)
        assert f"--resume {run_dir}/best.pt" in error_of(train.main, ["--resume", str(run_dir)])


SAMPLE_ERRORS = [
    ("--prompt 'Où est Zoë?'", ["the prompt", "'ù'", "'ë'", "'Z'"]),
    ("--prompt -am", ["prompt"]),
    ("--stop é", ["stop", "'é'"]),
    ("--prompt KATE --prompt_file good.txt", ["prompt and prompt_file"]),
    ("--prompt_file missing.txt", ["missing.txt cannot be read"]),
    ("--prompt_file latin.txt", ["latin.txt is not utf-8"]),
    ("--prompt_file .", [". cannot be read"]),
    ("--score missing.txt --out poem.txt", ["missing.txt cannot be read"]),
    ("--score empty.txt --out poem.txt", ["empty.txt is empty"]),
    ("--score latin.txt", ["latin.txt is not utf-8"]),
    ("--score strange.txt", ["strange.txt", "'é'"]),
    ("--score=", ["cannot be read"]),
    ("--score /dev/null", ["/dev/null cannot be read"]),
    ("--score good.txt --prompt KATE", ["prompt and score"]),
    ("--interactive --prompt_file good.txt", ["prompt_file and interactive"]),
    ("--interactive=yes", ["interactive", "'yes'"]),
    ("--max_new_tokens 0", ["max_new_tokens is 0"]),
    ("--num_samples -1", ["num_samples is -1"]),
    ("--temperature -1", ["temperature is -1"]),
    ("--temperature nan", ["temperature is nan"]),
    ("--top_k -1", ["top_k is -1"]),
    ("--top_p 0", ["top_p is 0"]),
    ("--which first", ["which", "'first'", "best", "last"]),
    ("--device cuda:99", ["cuda:99"]),
    ("--dtype float16 --device cpu", ["float16"]),
    ("--out missing/poem.txt", ["missing/poem.txt cannot be written"]),
    ("--out loop", ["loop"]),
    ("--out runs/../runs/it/best.pt", ["the name of a checkpoint"]),
    ("--out poem.PT", ["poem.PT, the name of a checkpoint"]),
    ("--temprature 1", ["'temprature'", "temperature"]),
    ("nowhere", ["nowhere"]),
    ("runs", ["runs/best.pt"]),
    ("runs/it nowhere", ["'nowhere'"]),
]


@pytest.mark.parametrize(("flags", "words"), SAMPLE_ERRORS, ids=lambda value: str(value)[:50])
def test_sampling_refuses_wrong_input(run_dir, error_of, flags, words):
    line = error_of(sample.main, shlex.split(flags))
    for word in words:
        assert word in line


def test_which_is_named_if_only_the_other_checkpoint_exists(run_dir, error_of):
    (run_dir / "best.pt").unlink()
    assert f"{run_dir}/last.pt" in error_of(sample.main, [])


def test_the_checkpoint_is_not_overwritten_under_any_name(run_dir, error_of):
    shutil.copy(run_dir / "best.pt", "model.bin")
    line = error_of(sample.main, ["model.bin", "--out", "./model.bin"])
    assert "the name of a checkpoint" in line


def test_sampling_without_a_run_names_the_training_command(error_of):
    assert "python train.py" in error_of(sample.main, [])


def test_standard_input_must_be_utf_8(run_dir, error_of, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE\xff")))
    assert "offset 4" in error_of(sample.main, ["--prompt_file", "-"])
