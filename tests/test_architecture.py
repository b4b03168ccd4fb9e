"""Which file may import which, and which may name devices."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CODE = [
    path.relative_to(ROOT)
    for folder in ("model", "data", "configs")
    for path in sorted((ROOT / folder).rglob("*.py"))
] + [Path("train.py"), Path("sample.py")]
MAY_IMPORT = {
    "train.py": {"configs", "model", "data"},
    "sample.py": {"configs", "model", "data"},
    "configs": {"configs", "model", "data"},
    "model": {"model"},
    "data": {"data", "model.errors"},
    "model/errors.py": set(),
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef
RUNTIME_PACKAGES = {"torch", "numpy", "tqdm", "tensorboard"}


def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"))


def imported_modules(tree: ast.Module) -> set[str]:
    """The dotted names of all imported modules; of `from a import b`, "a.b"."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", CODE, ids=str)
def test_imports_follow_the_architecture(path):
    own = MAY_IMPORT.get(path.as_posix(), MAY_IMPORT.get(path.parts[0]))
    allowed = {*own, *RUNTIME_PACKAGES, "PIL", *sys.stdlib_module_names}  # tensorboard needs PIL
    for name in imported_modules(parse(path)):
        parts = name.split(".")
        prefixes = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        assert prefixes & allowed, f"{path} must not import {name}"


@pytest.mark.parametrize("path", CODE, ids=str)
def test_only_device_py_names_devices_number_formats_and_processes(path):
    if path == Path("model/device.py"):
        return
    tree = parse(path)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body[0] = ast.Pass()  # docstrings and comments may name them
    words = set(re.findall(r"\w+", ast.unparse(tree)))
    reserved = {"cuda", "mps", "bfloat16", "float16", "nccl", "gloo"}
    assert not words & (reserved | {"RANK", "LOCAL_RANK", "WORLD_SIZE"})


def test_requirements_are_the_runtime_packages():
    lines = (ROOT / "requirements.txt").read_text().split()
    assert {re.match(r"\w+", line)[0] for line in lines} == RUNTIME_PACKAGES
    assert (ROOT / "requirements-dev.txt").read_text().startswith("-r requirements.txt\n")
