"""A digest of source code, which ties a fast path to the code that it was proven against."""

import ast
import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What changes no computation: annotations, and details that only some versions of Python keep.
IGNORED_FIELDS = {"annotation", "returns", "type_comment", "kind"}
notes: list[str] = []  # for the user: what is slower because the code was edited


def is_proven(module: str, *names: str, digest: str, note: str) -> bool:
    """Whether definitions in a module have this `source_digest`; if not, adds to `notes`."""
    if source_digest(module, *names) == digest:
        return True
    notes.append(f"note: {names[0]} in {module}, or what it uses, was edited: {note}.")
    return False


def source_digest(module: str, *names: str) -> str:
    """SHA-256 of the definitions of `names` in a module, and of all that these use in model/.

    Comments, docstrings, annotations, formatting and the version of Python do not count, nor does
    model/run/, which changes no number. Statements that may change what is defined elsewhere, such
    as `MLP.forward = other`, always count. A name is followed into another module only if the code
    says `from module import name` at its top.
    """

    @functools.cache
    def statements_of(module: str) -> list[ast.stmt]:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        is_followed = path.exists() and not module.startswith("model.run.")
        return body_of(ast.parse(path.read_text("utf-8"))) if is_followed else []

    pending = {(module, name) for name in names}
    done, parts = set(), set()
    while pending:
        module, name = pending.pop()
        done.add((module, name))
        used_names, texts = set(), []
        for statement in statements_of(module):
            bound = bound_names(statement)
            if name in bound or not bound:
                texts.append(dump(statement, used_names))
            if isinstance(statement, ast.ImportFrom) and name in bound:
                pending |= {(str(statement.module), bound[name])} - done
        pending |= {(module, used) for used in used_names} - done
        parts.add(f"{module} {name}: {texts}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def body_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> list[ast.stmt]:
    """The statements without the docstring."""
    return node.body if ast.get_docstring(node) is None else node.body[1:]


def bound_names(statement: ast.stmt) -> dict[str, str | None]:
    """The names that a statement defines; those of an import with the name in the other module.

    None of a statement that calls something, which may change what other names stand for.
    """
    is_assignment = isinstance(statement, ast.Assign | ast.AnnAssign)
    if is_assignment and any(isinstance(node, ast.Call) for node in ast.walk(statement)):
        return {}
    match statement:
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            return {}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {alias.asname or alias.name.split(".")[0]: alias.name for alias in aliases}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name: None}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name: None}
    return {}


def dump(node: object, names: set[str]) -> str:
    """A syntax tree as text; the names that it uses are added to `names`."""
    if isinstance(node, list):
        return f"[{', '.join(dump(item, names) for item in node)}]"
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!r})"
    if isinstance(node, ast.keyword) and node.arg == "digest":
        return ""  # of `is_proven`: no digest contains itself
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Name):
        names.add(node.id)
    fields = {name: value for name, value in ast.iter_fields(node) if name not in IGNORED_FIELDS}
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        fields["body"] = body_of(node)
    given = {name: value for name, value in fields.items() if value not in (None, [])}
    texts = [f"{name}={dump(value, names)}" for name, value in given.items()]
    return f"{type(node).__name__}({', '.join(texts)})"
