"""The documents: links lead somewhere, tests that they name exist, examples print what they say."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_that_has_what_it_names(document):
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)]*)\)", document.read_text("utf-8")):
        if target.startswith(("http:", "https:")):
            continue
        name, _, heading = target.partition("#")
        path = document.parent / name if name else document
        assert path.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
            assert heading in slugs, target
        if path.suffix == ".py" and re.fullmatch(r"`\w+`", label):
            name = label.strip("`")
            assert re.search(rf"^\s*(def|class) {name}\b", path.read_text(), re.M), label


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document):
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"\btest_\w+\b(?!\.py)", document.read_text("utf-8")):
        assert f"def {name}(" in tests or (list((ROOT / "tests").rglob(f"{name}.py"))), name


def run_example(example: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(example, {})
    return output.getvalue()


def test_examples_print_the_numbers_beside_them(trained_run):
    examples = re.findall(r"```python\n(.*?)```", Path(ROOT, "docs/attention.md").read_text(), re.S)
    assert len(examples) == 3
    for example in examples[:2]:
        printed = [float(number) for number in re.findall(r"\d+\.\d*", run_example(example))]
        comments = re.findall(r"print.*#(?:.*=)? ?(.*)", example)
        expected = [float(number) for line in comments for number in line.split(",")]
        assert printed == pytest.approx(expected, abs=1e-4)

    shutil.copytree(trained_run, "runs/newest")
    rows = re.findall(r"\[([\d., ]+)\]", run_example(examples[2]))
    assert len(rows) == 2 * len("I am")  # of two heads
    for row in rows:
        assert sum(map(float, row.split(","))) == pytest.approx(1, abs=1e-3)
