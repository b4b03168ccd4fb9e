"""Ties a fast path to the code that it was proven against, by a digest of that code."""

import ast
import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

# After an edit, tests/model/run/test_source.py prints the new digest.
PROVEN = {
    "model.attention": "966d24a2ee106a88ca541173db79b550e61a37ea9a0bab7cb20e16e245cfa3e3",
    "model/fast/csampler.c": "499fe56409ca5fe89f21f7f70a34edf6ba12ca6bdba0c73485bfda7868ab08ef",
    "model.networks.gpt": "c52d4bd30e4082ae82c45e9075acc6f8b28ac9800b9644444e4d126e7fd7d26c",
    "model.networks.quill": "b63780cccf9584924ea5b4bb0ba4472c2ed4f03dc10c02cecf694a11d69b3154",
}
notes: list[str] = []  # for the user: what is slower because the code was edited


@functools.cache
def is_proven(*sources: str, note: str) -> bool:
    """Whether the code of all sources is what PROVEN says; if not, adds to `notes`."""
    others = [name for name in sources if source_digest(name) != PROVEN.get(name)]
    if others:
        notes.append(f"note: the code of {' and '.join(others)} is not what was tested: {note}.")
    return not others


def source_digest(module: str) -> str:
    """SHA-256 of a module's code, or of a .c file in the repository.

    In a module, comments, docstrings and formatting do not count.
    """
    if module.endswith(".c"):
        return hashlib.sha256(Path(__file__).parents[2].joinpath(module).read_bytes()).hexdigest()
    tree = ast.parse(Path(find_spec(module).origin).read_bytes())
    for node in ast.walk(tree):
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if is_documented and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()
