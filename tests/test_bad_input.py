"""Wrong input ends with one line that says what is wrong, exit status 2, and no file changed."""

import io
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch

import sample
import train
from tests.conftest import LINES, TINY, working_in

FILES = {
    "good.txt": LINES.encode(),
    "empty.txt": b"",
    "one.txt": b"a",
    "same.txt": b"a" * 1000,
    "short.txt": LINES[:100].encode(),
    "latin.txt": ("é" + LINES).encode("latin-1"),
    "strange.txt": "é".encode(),
    "bad.toml": b"n_layer 3",
    "unknown.toml": b"n_layr = 3",
    "folder/readme.md": b"no text here",
    "other_run/best.pt": b"",
    "text.pt": b"hello",
}
# The program and its arguments; words that the error must have. Training starts with small sizes
# and --data good.txt, sampling takes runs/it.
CASES = [
    ("train.py --data missing.txt", "missing.txt does not exist", "--data"),
    ("train.py --data empty.txt", "empty.txt is empty"),
    ("train.py --data one.txt", "one.txt has 0 training", "1 validation", "--block_size"),
    ("train.py --data same.txt", "same.txt", "'a'"),
    ("train.py --data short.txt", "90 training", "10 validation", "is 16", "--val_fraction"),
    ("train.py --data latin.txt", "latin.txt is not utf-8", "0xe9 at offset 0", "--encoding"),
    ("train.py --encoding utf-9", "encoding is 'utf-9'"),
    ("train.py --data folder", "folder is a folder without any .txt"),
    ("train.py --data /dev/null", "/dev/null is neither a file nor a folder"),
    ("train.py --n_layer", "n_layer"),
    ("train.py --n_layer -3", "n_layer is -3"),
    ("train.py --n_embd 12 --n_head 4", "n_embd is 12", "n_head is 4", "even"),
    ("train.py --batch_size 8 --gradient_accumulation_steps 3", "batch_size is 8", "multiple"),
    ("train.py --device cuda", "'cuda' is not on this machine"),
    ("train.py bad.toml", "bad.toml is not valid TOML", "line 1"),
    ("train.py unknown.toml", "'n_layr'", "n_layer"),
    ("train.py folder", "'folder' is not a preset", "--resume"),
    ("train.py --out_dir other_run", "other_run already holds a run", "--resume other_run"),
    # Before a text that may have gigabytes is read:
    ("train.py --out_dir empty.txt/x --data missing.txt", "empty.txt/x cannot be written"),
    ("train.py --resume folder", "folder/last.pt cannot be read"),
    ("train.py --resume only_best", "only_best/last.pt", "--resume only_best/best.pt"),
    ("train.py --resume cut_short.pt", "cut_short.pt is not a checkpoint"),
    ("train.py --resume runs/it --learning_rate 1", "learning_rate cannot be changed"),
    ("train.py --resume runs/it --data strange.txt", "strange.txt"),
    ("sample.py nowhere", "nowhere cannot be read"),
    ("sample.py only_last", "only_last/best.pt", "only_last/last.pt"),
    ("sample.py text.pt", "text.pt is not a checkpoint"),
    ("sample.py runs/it extra", "'extra'"),
    ("sample.py --prompt 'Où est Zoë?'", "the prompt", "'ù'", "'ë'", "'Z'"),
    ("sample.py --stop é", "stop", "'é'"),
    ("sample.py --prompt KATE --prompt_file good.txt", "prompt and prompt_file"),
    ("sample.py --prompt_file latin.txt", "latin.txt is not utf-8"),
    ("sample.py --prompt_file .", ". cannot be read"),
    ("sample.py --score missing.txt --out poem.txt", "missing.txt cannot be read"),
    ("sample.py --score empty.txt --out poem.txt", "empty.txt is empty"),
    ("sample.py --score strange.txt", "strange.txt", "'é'"),
    ("sample.py --score good.txt --prompt KATE", "prompt and score"),
    ("sample.py --max_new_tokens 0", "max_new_tokens is 0"),
    ("sample.py --top_p 0", "top_p is 0"),
    ("sample.py --temprature 1", "'temprature'", "temperature"),
    ("sample.py --out missing/poem.txt", "missing/poem.txt cannot be written"),
    ("sample.py --out poem.PT", "poem.PT is an input or a checkpoint"),
    ("sample.py model.bin --out ./model.bin", "./model.bin is an input or a checkpoint"),
    ("sample.py model.bin --attention model.bin", "model.bin is an input or a checkpoint"),
    ("sample.py --attention missing/page.html", "missing/page.html cannot be written"),
    ("sample.py --attention page.html --interactive", "interactive", "attention"),
    *((f"train.py --out_dir {name}", "cannot be written") for name in ("x" * 300, "loop")),
    *((f"sample.py --out {name}", "cannot be written") for name in ("x" * 300, "loop")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained_run) -> Path:
    """The files and runs that the cases name. No test changes them: `error_of` sees to that."""
    folder = tmp_path_factory.mktemp("bad_input")
    with working_in(folder):
        for name, content in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)
        Path("loop").symlink_to("loop")
        Path("locked").mkdir(mode=0)
        for run in ("runs/it", "only_best", "only_last"):
            shutil.copytree(trained_run, run)
        Path("only_best/last.pt").unlink()
        Path("only_last/best.pt").unlink()
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


def test_sampling_without_a_run_names_the_training_command(error_of, monkeypatch):
    monkeypatch.chdir("folder")
    assert "python train.py" in error_of("sample.py")


def test_standard_input_must_be_utf_8(error_of, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE\xff")))
    assert "offset 4" in error_of("sample.py --prompt_file -")
