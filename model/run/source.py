"""A digest of source code, which ties a fast path to the code that it was proven against."""

import ast
import functools
import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What changes no computation: annotations, and details that only some versions of Python keep.
IGNORED_FIELDS = {"annotation", "returns", "type_comment", "kind"}
IMPORT = ""  # in the place of a name: what runs when a module is imported
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
    model/run/, which holds no mathematics. A name is followed into another module if the code says
    `from module import name` at its top. What runs when these modules are imported always counts,
    such as `MLP.forward = other` or a decorator.
    """

    @functools.cache
    def statements_of(module: str) -> list[ast.stmt]:
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        is_followed = path.exists() and not module.startswith("model.run.")
        return body_of(ast.parse(path.read_text("utf-8"))) if is_followed else []

    pending = {("model.__init__", IMPORT), *((module, name) for name in (IMPORT, *names))}
    done, parts = set(), set()
    while pending:
        module, name = pending.pop()
        done.add((module, name))
        used_names, texts = set(), []
        for statement in statements_of(module):
            bound = bound_names(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom) and name in bound:
                texts.append(bound[name])
                source_module, _, source_name = bound[name].rpartition(".")
                pending.add((source_module, source_name))
            elif name in bound:
                texts.append(dump(statement, used_names))
            elif name == IMPORT:
                texts += [dump(effect, used_names) for effect in import_effects(statement)]
                pending |= {(imported, IMPORT) for imported in imported_modules(statement)}
        pending |= {(module, used) for used in used_names}
        pending -= done
        parts.add(f"{module} {name}: {texts}")
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def body_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> list[ast.stmt]:
    """The statements without the docstring."""
    return node.body if ast.get_docstring(node) is None else node.body[1:]


def bound_names(statement: ast.stmt) -> dict[str, str]:
    """The names that a statement defines; those of an import with what they stand for."""
    match statement:
        case ast.Import(names=aliases):
            return {alias.asname or alias.name.split(".")[0]: alias.name for alias in aliases}
        case ast.ImportFrom(names=aliases, module=module):
            return {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name: ""}
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return {name: ""}
    return {}


def imported_modules(statement: ast.stmt) -> set[str]:
    """The modules that a statement imports."""
    match statement:
        case ast.Import(names=aliases):
            return {alias.name for alias in aliases}
        case ast.ImportFrom(names=aliases, module=module):
            return {str(module), *(f"{module}.{alias.name}" for alias in aliases)}
    return set()


def import_effects(statement: ast.stmt) -> list[ast.AST]:
    """What a statement does when its module is imported, beyond defining names."""
    match statement:
        case ast.FunctionDef():
            defaults = [*statement.args.defaults, *statement.args.kw_defaults]
            return [*statement.decorator_list, *filter(runs_code, defaults)]
        case ast.ClassDef():
            inner = [effect for part in body_of(statement) for effect in import_effects(part)]
            return [*statement.decorator_list, *inner]
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            return [statement]
        case ast.Import() | ast.ImportFrom() | ast.Pass():
            return []
    return [statement] if runs_code(statement) or not bound_names(statement) else []


def runs_code(node: ast.AST | None) -> bool:
    """Whether an expression may do more than give a value."""
    inner = ast.walk(node) if node is not None else ()
    return any(isinstance(part, ast.Call | ast.NamedExpr) for part in inner)


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
