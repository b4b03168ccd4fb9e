"""Ties a fast path to the code that it was proven against, by a digest of that code."""

import ast
import hashlib
from importlib.util import find_spec
from pathlib import Path

# The digests of the code that the fast paths were tested against. If the code of a module and its
# fast path were edited, the tests of the fast path print the new digest of the module.
PROVEN = {
    "model.attention": "d51287e2a8aa07ea9f79a4ef9ec1e4afa9de6bd273e5b26b103a602269199d0c",
    "model/fast/csampler.c": "10db1395197b24dad067a349ce907082fba8c2faf91c278e908dde4f78589a7f",
    "model.gpt": "ea7f6a5e151e43a6d43af809a55d41db80467d8a24d9d423d9263abecd766bd5",
}
notes: list[str] = []  # for the user: what is slower because the code was edited


def is_proven(*sources: str, note: str) -> bool:
    """Whether the code of all sources is what PROVEN says; if not, adds to `notes`."""
    edited = [name for name in sources if source_digest(name) != PROVEN[name]]
    if edited:
        notes.append(f"note: {' and '.join(edited)} has been edited: {note}.")
    return not edited


def source_digest(module: str) -> str:
    """SHA-256 of a module's code, or of a .c file in the repository.

    In a module, comments, docstrings and formatting do not count, nor do settings (fields whose
    type is Annotated): a network is proven for all their values.
    """
    if module.endswith(".c"):
        return hashlib.sha256(Path(__file__).parents[2].joinpath(module).read_bytes()).hexdigest()
    tree = ast.parse(Path(find_spec(module).origin).read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            is_docstring = ast.get_docstring(node) is not None
            body = node.body[1:] if is_docstring else node.body
            node.body = [statement for statement in body if not is_setting(statement)]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()


def is_setting(statement: ast.stmt) -> bool:
    """Whether it is a line such as `n_head: Annotated[int, "attention heads"] = 2`."""
    match statement:
        case ast.AnnAssign(annotation=ast.Subscript(value=ast.Name(id="Annotated"))):
            return statement.value is None or isinstance(statement.value, ast.Constant)
    return False
