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
from data import corpus
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
    "text.pt": b"hello",
    "pickle.pt": b"cos\nsystem\n(S'touch trapped'\ntR.",
}
# The program and its arguments; words that the error must have. Training starts with small sizes
# and --data good.txt, sampling takes runs/it.
CASES = [
    ("train.py --data missing.txt", "missing.txt does not exist", "--data"),
    ("train.py --data=", "data is empty"),
    ("train.py --data empty.txt", "empty.txt is empty"),
    ("train.py --data bom.txt", "bom.txt is empty"),
    ("train.py --data one.txt", "one.txt has 0 training", "1 validation", "--block_size"),
    ("train.py --data same.txt", "same.txt", "'a'"),
    ("train.py --data short.txt", "90 training", "10 validation", "is 16", "--val_fraction"),
    ("train.py --block_size 4000", "good.txt", "block_size is 4000"),
    ("train.py --data latin.txt", "latin.txt is not utf-8", "0xe9 at offset 0", "--encoding"),
    ("train.py --data late.txt", f"0xff at offset {len(LINES)}"),
    ("train.py --encoding utf-9", "encoding is 'utf-9'"),
    ("train.py --data folder", "folder is a folder without any .txt"),
    ("train.py --data /dev/null", "/dev/null is neither a file nor a folder"),
    ("train.py --n_layr 3", "'n_layr'", "n_layer"),
    ("train.py --n_lay 3", "'n_lay'", "n_layer"),
    ("train.py --n_layer", "n_layer"),
    ("train.py --n_layer three", "n_layer", "'three'"),
    ("train.py --n_layer -3", "n_layer is -3"),
    ("train.py --n_embd 12 --n_head 4", "n_embd is 12", "n_head is 4", "even"),
    ("train.py --block_size 0", "block_size is 0"),
    ("train.py --learning_rate=-1e-3", "learning_rate is -0.001"),
    ("train.py --learning_rate -1e-3", "learning_rate"),
    ("train.py --batch_size 8 --gradient_accumulation_steps 3", "batch_size is 8", "multiple"),
    ("train.py --compile maybe", "compile", "'maybe'", "on", "off"),
    ("train.py --dtype float16", "float16", "CUDA", "bfloat16"),
    ("train.py --device cuda", "'cuda' is not on this machine"),
    ("train.py --device gpu", "device is 'gpu'", "cuda"),
    ("train.py bad.toml", "bad.toml is not valid TOML", "line 1"),
    ("train.py deep.toml", "seed is {'a'"),
    ("train.py unknown.toml", "'n_layr'", "n_layer"),
    ("train.py missing.toml", "missing.toml"),
    ("train.py unknown.toml bad.toml", "'bad.toml'"),
    ("train.py folder", "'folder' is not a preset", "--resume"),
    ("train.py --out_dir other_run", "other_run already holds a run", "--resume other_run"),
    ("train.py --out_dir empty.txt", "empty.txt cannot be written"),
    ("train.py --out_dir empty.txt/x", "empty.txt/x cannot be written"),
    ("train.py --resume", "resume"),
    ("train.py --resume nowhere", "nowhere cannot be read"),
    ("train.py --resume folder", "folder/last.pt cannot be read"),
    ("train.py --resume only_best", "only_best/last.pt", "--resume only_best/best.pt"),
    ("train.py --resume damaged", "damaged/last.pt", "--resume damaged/best.pt"),
    ("train.py --resume empty.txt", "empty.txt is not a checkpoint"),
    ("train.py --resume text.pt", "text.pt is not a checkpoint"),
    ("train.py --resume cut_short.pt", "cut_short.pt is not a checkpoint"),
    ("train.py --resume pickle.pt", "pickle.pt is not a checkpoint"),
    ("train.py --resume runs/it --n_layer 3", "n_layer cannot be changed"),
    ("train.py --resume runs/it --learning_rate 1", "learning_rate cannot be changed"),
    ("train.py --resume runs/it --data strange.txt", "strange.txt"),
    ("train.py --resume runs/it unknown.toml", "'unknown.toml'"),
    ("sample.py nowhere", "nowhere cannot be read"),
    ("sample.py runs", "runs/best.pt cannot be read"),
    ("sample.py only_last", "only_last/best.pt", "only_last/last.pt"),
    ("sample.py empty.txt", "empty.txt is not a checkpoint"),
    ("sample.py text.pt", "text.pt is not a checkpoint"),
    ("sample.py cut_short.pt", "cut_short.pt is not a checkpoint"),
    ("sample.py pickle.pt", "pickle.pt is not a checkpoint"),
    ("sample.py runs/it extra", "'extra'"),
    ("sample.py --prompt 'Où est Zoë?'", "the prompt", "'ù'", "'ë'", "'Z'"),
    ("sample.py --prompt -am", "prompt"),
    ("sample.py --stop é", "stop", "'é'"),
    ("sample.py --prompt KATE --prompt_file good.txt", "prompt and prompt_file"),
    ("sample.py --prompt_file missing.txt", "missing.txt cannot be read"),
    ("sample.py --prompt_file latin.txt", "latin.txt is not utf-8"),
    ("sample.py --prompt_file .", ". cannot be read"),
    ("sample.py --score missing.txt --out poem.txt", "missing.txt cannot be read"),
    ("sample.py --score empty.txt --out poem.txt", "empty.txt is empty"),
    ("sample.py --score latin.txt", "latin.txt is not utf-8"),
    ("sample.py --score strange.txt", "strange.txt", "'é'"),
    ("sample.py --score=", "cannot be read"),
    ("sample.py --score /dev/null", "/dev/null cannot be read"),
    ("sample.py --score good.txt --prompt KATE", "prompt and score"),
    ("sample.py --interactive --prompt_file good.txt", "prompt_file and interactive"),
    ("sample.py --interactive=yes", "interactive", "'yes'"),
    ("sample.py --max_new_tokens 0", "max_new_tokens is 0"),
    ("sample.py --num_samples -1", "num_samples is -1"),
    ("sample.py --temperature -1", "temperature is -1"),
    ("sample.py --temperature nan", "temperature is nan"),
    ("sample.py --top_k -1", "top_k is -1"),
    ("sample.py --top_p 0", "top_p is 0"),
    ("sample.py --which first", "which", "'first'", "best", "last"),
    ("sample.py --device cuda:99", "cuda:99"),
    ("sample.py --dtype float16 --device cpu", "float16"),
    ("sample.py --temprature 1", "'temprature'", "temperature"),
    ("sample.py --out missing/poem.txt", "missing/poem.txt cannot be written"),
    ("sample.py --out runs/../runs/it/best.pt", "the name of a checkpoint"),
    ("sample.py --out poem.PT", "poem.PT, the name of a checkpoint"),
    ("sample.py model.bin --out ./model.bin", "./model.bin, the name of a checkpoint"),
    ("sample.py --out loop", "loop"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files and runs that the cases name. No test changes them: `error_of` sees to that."""
    folder = tmp_path_factory.mktemp("bad_input")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(corpus, "PREPARED", folder / "prepared")
        for name, content in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)
        Path("loop").symlink_to("loop")
        Path("locked").mkdir(mode=0)
        argv = ["--data", "good.txt", "--max_iters", "2", "--out_dir", "runs/it"]
        assert train.main([*TINY, *argv]) == 0
        for run in ("only_best", "only_last", "damaged"):
            shutil.copytree("runs/it", run)
        Path("only_best/last.pt").unlink()
        Path("only_last/best.pt").unlink()
        Path("damaged/last.pt").write_bytes(b"damaged")
        shutil.copy("runs/it/best.pt", "model.bin")
        whole = Path("model.bin").read_bytes()
        Path("cut_short.pt").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture
def error_of(elsewhere, folder, monkeypatch, capsys):
    """error_of("train.py --n_layer 0") returns the one line with which the program refuses."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def contents() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    def run(command: str) -> str:
        program, *argv = shlex.split(command)
        if program == "train.py" and "--resume" not in argv:
            argv = ["--data", "good.txt", *TINY, *argv]
        capsys.readouterr()
        before = contents()
        assert {"train.py": train.main, "sample.py": sample.main}[program](argv) == 2
        captured = capsys.readouterr()
        (line,) = captured.err.splitlines()
        assert line.startswith("error: ")
        assert not captured.out
        assert contents() == before
        return line

    return run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_wrong_input_is_refused_in_one_line(error_of, case):
    command, *words = case
    line = error_of(command)
    for word in words:
        assert word in line


@pytest.mark.parametrize("name", ["x" * 300, "locked", "locked/x", "loop"])
@pytest.mark.parametrize(
    "program",
    ["train.py", "train.py --data", "train.py --resume", "sample.py", "sample.py --prompt_file"],
)
def test_a_path_that_cannot_be_opened_is_named(error_of, program, name):
    assert name in error_of(f"{program} {name}")  # root may enter `locked`, which is empty


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all names are Unicode")
def test_a_working_directory_that_is_not_unicode_is_named(error_of, elsewhere, monkeypatch):
    name = os.fsdecode(os.fsencode(elsewhere) + b"/bad\xff")
    os.mkdir(name)
    monkeypatch.chdir(name)
    assert "data is" in error_of("train.py")


def test_out_dir_is_checked_before_the_text_is_read(error_of, monkeypatch):
    monkeypatch.setattr(train, "open_corpus", None)
    assert "empty.txt/x" in error_of("train.py --out_dir empty.txt/x")


def test_sampling_without_a_run_names_the_training_command(error_of, monkeypatch):
    monkeypatch.chdir("folder")
    assert "python train.py" in error_of("sample.py")


def test_standard_input_must_be_utf_8(error_of, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE\xff")))
    assert "offset 4" in error_of("sample.py --prompt_file -")
