"""Dataclasses as configuration: from TOML and flags to a config that is checked, and back.

A config is a frozen dataclass of groups, each a frozen dataclass that stands beside what it
configures. A field is a key: `n_layer: Annotated[int, "help", "[1, inf)"] = 4` is the flag
`--n_layer`, the TOML key `n_layer`, a line of `--help`, and the interval its value must lie in.
"""

import contextlib
import difflib
import json
import os
import reprlib
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from model.ending import say


class Key(NamedTuple):
    group: str
    default: Any
    kind: type
    help: str
    interval: str = ""


def keys(config_class: type) -> dict[str, Key]:
    """Every key of a config, by name."""
    result = {}
    for group, group_class in get_type_hints(config_class).items():
        hints = get_type_hints(group_class, include_extras=True)
        for f in fields(group_class):
            result[f.name] = Key(group, f.default, *get_args(hints[f.name]))
    return result


def build(config_class: type, values: dict[str, Any]) -> Any:
    """The config with these values, the rest default. Raises ValueError that names the key and the mend."""
    known = keys(config_class)
    groups: dict[str, dict[str, Any]] = {key.group: {} for key in known.values()}
    for name, value in values.items():
        require_known(name, known)
        groups[known[name].group][name] = _checked(name, known[name], value)
    classes = get_type_hints(config_class)
    return config_class(**{group: classes[group](**given) for group, given in groups.items()})


def flat(config: Any) -> dict[str, Any]:
    """Key and value of everything that is set: `build` of it gives the config back."""
    groups = [getattr(config, group.name) for group in fields(config)]
    pairs = {f.name: getattr(group, f.name) for group in groups for f in fields(group)}
    return {name: value for name, value in pairs.items() if value is not None}


def to_toml(config: Any) -> str:
    """The config as a preset, its keys under comments that name the groups.

    (The standard library reads TOML but does not write it.)
    """
    known, lines = keys(type(config)), []
    for name, value in flat(config).items():
        if (heading := f"# {known[name].group}") not in lines:
            lines += ["", heading]
        # JSON's strings and numbers are TOML's, but TOML wants DEL escaped as well.
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f"))
    return "\n".join(lines[1:]) + "\n"


def read_toml(path: Path | str) -> dict[str, Any]:
    """A preset's keys and values. Raises ValueError if it cannot be read or is not TOML."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is no file, so no preset; a run goes on by --resume")
    try:
        return tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"preset {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"preset {path} is not TOML: {error}") from None


def read_flags(argv: list[str], config_class: type, usage: str, extra: tuple[str, ...] = ()) -> tuple[str | None, dict]:
    """`argv` as its one positional word, or none, and the values of its flags, checked.

    Flags are `--key value` or `--key=value`, and a value may begin with a dash; a bool's is `--key`
    alone; `extra` flags are text. --help prints `usage` and every key, and exits. Raises ValueError for anything else.
    """
    known = keys(config_class) | {name: Key("", None, str, "") for name in extra}
    positional, values, words = None, {}, iter(argv)
    for word in words:
        if word in ("-h", "--help"):
            say(help_text(config_class, usage), sys.stdout)
            raise SystemExit(0)
        if not word.startswith("--"):
            if word.startswith("-"):
                raise ValueError(f"unknown flag {word!r}; flags are written --key value, see --help")
            if positional is not None:
                raise ValueError(f"{word!r} is one word too many after {positional!r}; see --help")
            positional = word
            continue
        name, equals, text = word[2:].partition("=")
        require_known(name, known)
        if known[name].kind is bool and not equals:
            text = True
        elif not equals and (text := next(words, None)) is None:
            raise ValueError(f"--{name} needs a value")
        if known[name].kind in (int, float):
            with contextlib.suppress(ValueError):  # _checked names what is no number
                text = known[name].kind(text)
        values[name] = _checked(name, known[name], text)
    return positional, values


def help_text(config_class: type, usage: str) -> str:
    """What --help prints: every key, grouped, with its default and one line."""
    lines = [usage]
    for name, key in keys(config_class).items():
        if (heading := f"\n{key.group}:") not in lines:
            lines.append(heading)
        kind = "|".join(get_args(key.kind)) if get_origin(key.kind) is Literal else ""
        default = "" if key.default in (None, "") or key.default is False else f" (default {key.default})"
        lines.append(f"  --{name:<28}{' '.join(filter(None, (key.help, kind, key.interval)))}{default}")
    return "\n".join(lines)


def require_known(name: str, known: Iterable[str]) -> None:
    """Raise ValueError that names the nearest known key, if `name` is none."""
    if name not in (known := list(known)):
        raise ValueError(f"unknown key {name!r}; did you mean {difflib.get_close_matches(name, known, 1, 0)[0]}?")


def _checked(name: str, key: Key, value: Any) -> Any:
    """`value`, if it is of the key's type and inside its interval."""
    shown = reprlib.repr(value)
    if get_origin(key.kind) is Literal:
        if value not in get_args(key.kind):
            raise ValueError(f"{name} is {shown}; it must be one of {', '.join(get_args(key.kind))}")
    elif key.kind is bool:
        if not isinstance(value, bool):
            raise ValueError(f"{name} is a switch and takes no value, here {shown}")
    elif key.kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, int | key.kind):
            raise ValueError(f"{name} is {shown}; it must be a {'whole ' if key.kind is int else ''}number")
        low, high = (float(bound) for bound in key.interval[1:-1].split(","))
        above = value >= low if key.interval[0] == "[" else value > low
        high = min(high, 2**63 if key.kind is int else 2**100)  # where TOML's integers end, and products of floats
        below = value <= high if key.interval[-1] == "]" else value < high
        if not (above and below):
            end = "" if below or high < 2**63 else f", below {high:.3g}"
            raise ValueError(f"{name} is {shown}; it must lie in {key.interval}{end}")
        value = key.kind(value)
    elif not isinstance(value, str):
        raise ValueError(f"{name} is {shown}; it must be text")
    elif "\0" in value or value.encode("utf-8", "replace").decode() != value:
        raise ValueError(f"{name} is {shown}, which is not Unicode text")
    return value
