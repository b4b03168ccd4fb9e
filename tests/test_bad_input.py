"""Tests of wrong input: one line says what is wrong, the exit status is 2, no file changes."""

import gzip
import io
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sample
import train
from tests.helpers import LINES, ROOT, TINY, working_in

FILES = {
    "good.txt": LINES.encode(),
    "empty.txt": b"",
    "same.txt": b"a" * 1000,
    "short.txt": LINES[:100].encode(),
    "latin.txt": ("é" + LINES).encode("latin-1"),
    "other.txt": LINES.replace("moon", "noom").encode(),
    "folder/readme.md": b"no text here, exactly",
    "empty_folder/.hidden.txt": b"a text",
    "preset.toml": b"",
    "text.gz": gzip.compress(LINES.encode()),
    "wide.txt": LINES.encode("utf-16-le"),
    "other_run/best.pt": b"",
}
# Each case has a command and the words that its error must have. `error_of` gives a new training
# run small sizes and --data good.txt. If a command names no run, sample.py takes runs/it.
CASES = [
    ("train.py --data missing.txt", "missing.txt cannot be found", "--data NEW"),
    ("train.py bias=True", "preset bias=True cannot be read"),
    ("train.py --data same.txt", "same.txt is empty or repeats one character"),
    ("train.py --data empty.txt", "empty.txt is empty"),
    ("train.py --data short.txt --val_fraction 0.999", "0 training"),
    ("train.py --data short.txt", "90 training", "10 validation", "is 16", "--val_fraction"),
    ("train.py --data folder", "folder has no .txt files", "--data A B"),
    ("train.py --data empty_folder", "empty_folder has no .txt files"),
    ("train.py --data good.txt preset.toml", "includes", "preset.toml", "before the flags"),
    ("train.py --data text.gz", "text.gz is not utf-8 text", "Convert a"),
    ("train.py --data text.gz --encoding latin-1", "text.gz is not latin-1 text", "NUL"),
    ("train.py --data wide.txt", "wide.txt is not utf-8 text", "NUL"),
    (
        "train.py --data latin.txt",
        "latin.txt is not utf-8 text: byte 0xe9 at offset 0",
        "--encoding NAME",
        "gb18030",
    ),
    ("train.py --device hpu --data missing.txt", "device is 'hpu'", "Use auto"),
    ("train.py --n_layer -3", "n_layer is -3. It must be from 1 to 1,000."),
    ("train.py --n_embd 12 --n_head 4", "n_embd is 12", "multiple of 8", "each of the 4 heads"),
    ("train.py --n_embd 130 --n_head 0", "n_embd is 130", "multiple of 4", "each of the 2 heads"),
    ("train.py --gradient_accumulation_steps 3", "batch_size is 4", "multiple of", "1 x 3"),
    ("train.py --bias", "the network quill has no setting bias"),
    ("train.py --data ''", "argument --data: the path is empty"),
    ("train.py --lr 1", "unknown key 'lr'. Use --learning_rate."),
    ("train.py --encoding undefined", "encoding is 'undefined'"),
    ("train.py folder", "preset folder cannot be read", "--resume"),
    ("train.py --out_dir other_run", "other_run is not empty. Name another folder"),
    ("train.py --out_dir runs/it", "runs/it is not empty", "--resume runs/it"),
    ("train.py --resum runs/it", "Did you mean resume?"),
    ("train.py --start KATE", "unknown key 'start'. Use --prompt of sample.py."),
    ("train.py --dataset=shakespeare_char", "unknown key 'dataset'. Did you mean data?"),
    ("train.py --eval_iters=20", "An evaluation reads all"),
    ("train.py --compile=False", "compile is 'False'. Choose from auto, on, off."),
    ("train.py --bias=True", "argument --bias", "--no-bias: ignored explicit argument 'True'"),
    ("train.py --zzzzzz 1", "unknown key 'zzzzzz'. See --help."),
    ("sample.py --out_dir=runs/it", "unknown key 'out_dir'"),
    ("train.py --resume folder", "folder/last.pt cannot be read"),
    ("train.py --resume runs/it/best.pt", "runs/it/best.pt/last.pt cannot be read"),
    ("train.py --resume only_best", "only_best/last.pt cannot be read"),
    ("train.py --resume damaged", "damaged/last.pt is damaged"),
    ("train.py --resume runs", "runs/last.pt cannot be read"),
    ("sample.py it", "it cannot be read"),
    ("train.py --init_from it", "it cannot be read"),
    ("train.py --resume runs/it", "text.txt cannot be found. ", "has moved, use --data NEW"),
    ("train.py --resume bad_best", "bad_best/best.pt is damaged", "To resume, delete best.pt"),
    ("sample.py bad_best", "bad_best/best.pt is damaged", "--which last"),
    ("train.py --bias True", "preset True cannot be read"),
    (f"train.py --data {'x' * 300}", "cannot be found"),
    (f"sample.py {'x' * 300}", "cannot be read: File name too long"),
    ("sample.py --score wide.txt", "wide.txt is not utf-8"),
    ("sample.py --prompt_file latin.txt", "latin.txt is not utf-8"),
    ("train.py --resume runs/it --learning_rate 1", "learning_rate cannot be changed"),
    ("train.py --resume runs/it --data other.txt", "is not the text of this run", "--init_from"),
    ("train.py --init_from runs/it --n_layer 3", "n_layer must be 2", "runs/it"),
    ("sample.py runs/it extra", "'extra'"),
    ("sample.py --prompt 'Où est Zoë?'", "the prompt", "'ù'", "'ë'", "'Z'"),
    ("sample.py --stop é", "stop", "'é'"),
    ("sample.py --score empty.txt", "the text is ''. A loss needs two characters"),
    (r"sample.py --stop '\n'", "stop", r"'\\'", r"$'\n'"),
    ("sample.py --prompt KATE --score good.txt", "one of prompt, prompt_file, interactive"),
    ("sample.py --score good.txt --interactive", "interactive, score"),
    ("sample.py --attention a.html --interactive", "one of interactive, attention"),
    ("sample.py --attention runs/it/best.pt", "runs/it/best.pt", "Name an .html file"),
    ("sample.py --attention missing/a.html", "a folder that exists"),
    ("sample.py --top_p 0", "top_p is 0.0. It must be above 0 and at most 1."),
    ("train.py --network missing", "network is 'missing'", "gpt, quill"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, trained_run) -> Path:
    """Make the files and runs that the cases name. `error_of` checks that no test changes them."""
    folder = tmp_path_factory.mktemp("bad_input")
    with working_in(folder):
        for name, content in FILES.items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(content)
        for run in ("runs/it", "only_best", "only_last", "damaged", "bad_best"):
            shutil.copytree(trained_run, run)
        Path("bad_best/best.pt").write_bytes(b"damaged")
        Path("only_best/last.pt").unlink()
        Path("damaged/last.pt").write_bytes(b"damaged")
        Path("only_last/best.pt").unlink()
    return folder


@pytest.fixture
def error_of(elsewhere, folder, monkeypatch, capsys):
    """Return a function: error_of("train.py --n_layer 0") returns the only line that is printed."""
    monkeypatch.chdir(folder)

    def contents() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    def run(command: str) -> str:
        program, *argv = shlex.split(command)
        if program == "train.py" and "--resume" not in argv:
            sizes = ["--device=cpu"] if "--init_from" in argv else TINY
            data = [] if "--data" in argv else ["--data", "good.txt"]
            argv = [*data, *sizes, *argv]
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


def test_sampling_without_a_run_names_the_training_command(error_of, monkeypatch):
    monkeypatch.chdir("folder")
    assert "python train.py" in error_of("sample.py")


def test_standard_input_must_be_utf_8(error_of, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"KATE\xff")))
    assert "offset 4" in error_of("sample.py --score -")


@pytest.mark.parametrize(
    "flags",
    [
        "--device=hpu",
        "--n_layer=0",
        "--init_from=missing",
        "--out_dir=good.txt",
        "missing.toml",
    ],
)
def test_a_wrong_flag_is_refused_before_the_text_is_read(folder, monkeypatch, capsys, flags):
    monkeypatch.chdir(folder)
    text = io.BytesIO(LINES.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text))
    before = sorted(folder.rglob("*"))
    assert train.main([flags, "--data", "-"]) in (1, 2)  # 1: an error of the system
    assert capsys.readouterr().err.startswith("error: ")
    assert text.tell() == 0
    assert sorted(folder.rglob("*")) == before


@pytest.mark.slow
def test_an_older_python_is_refused_in_one_line():
    code = "import runpy, sys; sys.version_info = (3, 10, 9); sys.version = '3.10.9 (main)'; "
    code += "runpy.run_path(sys.argv[1], run_name='__main__')"
    arguments = [sys.executable, "-c", code, str(ROOT / "train.py")]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr == "error: Quill needs Python 3.11 or newer; this is 3.10.9\n"
