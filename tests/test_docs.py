"""Tests of the documents: links resolve, named tests exist, examples print what they say."""

import code
import contextlib
import io
import re
import shutil
import sys
from pathlib import Path

import pytest

import sample
from tests.helpers import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_links_resolve_and_named_tests_exist(document):
    text = document.read_text("utf-8")
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)]*)\)", text):
        if target.startswith(("http:", "https:")):
            continue
        name, _, heading = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if path.suffix == ".py" and heading:
            assert f"def {heading}(" in path.read_text("utf-8"), target
        elif heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings]
            assert heading in slugs, target
        if path.suffix == ".py" and re.fullmatch(r"`\w+`", label):
            assert re.search(rf"^\s*(def|class) {label[1:-1]}\b", path.read_text(), re.M), label
    files = {path.stem: path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    for name in re.findall(r"\btest_\w+\b", text):
        assert name in files or f"def {name}(" in "".join(files.values()), name


def run_example(example: str) -> str:
    """Paste the example into Python and return the output."""
    console = code.InteractiveConsole()
    console.showtraceback = console.showsyntaxerror = raise_error
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for line in [*example.splitlines(), ""]:
            console.push(line)
    return output.getvalue()


def raise_error(*_: object, **__: object) -> None:
    raise sys.exc_info()[1]


def test_examples_print_the_numbers_beside_them():
    text = Path(ROOT, "docs/learn.md").read_text("utf-8")
    (by_hand,) = re.findall(r"```python\n(.*?)```", text, re.S)
    printed = [float(number) for number in re.findall(r"\d+\.\d*", run_example(by_hand))]
    comments = re.findall(r"# ([\d., ]+)$", by_hand, re.M)
    expected = [float(number) for line in comments for number in line.split(", ")]
    assert printed == pytest.approx(expected, abs=1e-4)
    assert len(printed) == 6


def test_the_step_in_learn_has_the_lines_of_train():
    text = Path(ROOT, "docs/learn.md").read_text("utf-8")
    (step,) = re.findall(r"```text\n(lr = .*?)```", text, re.S)
    code = iter(line.strip() for line in Path(ROOT, "train.py").read_text("utf-8").splitlines())
    for line in step.splitlines():
        assert line.partition("  #")[0].strip() in code  # after the line before


def test_examples_from_python_agree_with_the_commands(trained_run, capsys):
    text = Path(ROOT, "docs/maintain.md").read_text("utf-8")
    (of_text,) = re.findall(r"```python\n(.*?)```", text, re.S)
    shutil.copytree(trained_run, "runs/newest")
    prompt = "The sea is calm"
    flags = "--max_new_tokens=100 --temperature=0.8 --seed=1"
    sample.main([f"--prompt={prompt}", *flags.split()])
    Path("text.txt").write_text(prompt, "utf-8")
    written = capsys.readouterr().out
    sample.main(["--score=text.txt"])
    nats = float(capsys.readouterr().out.split()[0])

    printed = run_example(of_text)
    assert printed.startswith(written + "\n")
    loss, *probs = printed.removeprefix(written + "\n").splitlines()
    assert float(loss) == pytest.approx(nats, abs=1e-4)
    probs = [float(line.rsplit(maxsplit=1)[1]) for line in probs]
    assert len(probs) == 5
    assert probs == sorted(probs, reverse=True)
    assert 0 < sum(probs) <= 1
