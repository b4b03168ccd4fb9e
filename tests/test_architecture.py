"""Tests that each file imports only the modules that the architecture allows."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [
    path.relative_to(ROOT).as_posix()
    for folder in ("model", "data", "configs")
    for path in sorted((ROOT / folder).rglob("*.py"))
] + ["train.py", "sample.py"]
PARTS = ("networks", "attention", "check", "optim", "loss", "generate", "system")
MATHEMATICS = {f"model.{name}" for name in PARTS}
# A folder or file may import these modules of Quill. For a file, the longest key that fits counts.
MAY_IMPORT = {
    "train.py": {"configs", "data", "model.run", *MATHEMATICS},
    "sample.py": {"configs", "data", "model"},
    "configs": {"configs"},  # no folder is below it, and only data/ is between it and model/
    "data": {"configs", "data"},
    "model": {"configs", *MATHEMATICS},
    "model/attention.py": set(),
    "model/loss.py": set(),
    "model/optim.py": {"configs.errors", "configs.settings"},
    "model/trained.py": {"configs", "data", "model"},
    "model/networks": {"configs.settings", "model.attention"},
    "model/networks/__init__.py": {"configs"},
    "model/inspect": {"configs", "model.inspect", *MATHEMATICS},
    "model/run": {"configs", "data", "model.run", *MATHEMATICS},  # not model.inspect
    "model/system": {"configs.errors", "configs.settings", "model.system"},
}
RUNTIME_PACKAGES = {"torch", "numpy", "tqdm", "tensorboard"}


def parse(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def imported_modules(tree: ast.Module) -> set[str]:
    """Return the dotted names that a module imports at its top; `from a import b` gives "a.b"."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", CODE)
def test_imports_follow_the_architecture(path):
    folders = [place for place in MAY_IMPORT if path == place or path.startswith(f"{place}/")]
    own = MAY_IMPORT[max(folders, key=len)]
    allowed = {*own, *RUNTIME_PACKAGES, *sys.stdlib_module_names}
    for name in imported_modules(parse(path)):
        parts = name.split(".")
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        assert prefixes & allowed, f"{path} must not import {name}"


def test_requirements_are_the_runtime_packages():
    lines = (ROOT / "requirements.txt").read_text().split()
    assert {re.match(r"\w+", line)[0] for line in lines} == RUNTIME_PACKAGES
    assert (ROOT / "requirements-dev.txt").read_text().startswith("-r requirements.txt\n")
