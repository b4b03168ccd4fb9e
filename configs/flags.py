"""Flags and presets. A preset is a TOML file of settings.

Each field of a config class is a flag on the command line and a key in presets. The docstring of
configs/settings.py says how to declare a field.
"""

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from configs.errors import UserError
from configs.settings import PATH, Limit

# Hints for names that people type, because the most similar name in Quill would mislead.
HINTS = {
    "lr": "Use --learning_rate.",
    "epochs": "Use --max_iters.",
    "start": "Use --prompt of sample.py.",
    "eval_iters": "An evaluation reads all of the validation text, up to a million characters.",
}


class ConfigParser(argparse.ArgumentParser):
    """Reads the values of a config from flags and presets. A wrong value raises UserError."""

    def __init__(
        self, config_class: type, usage: str, description: str, by_recipe: Collection[str] = ()
    ) -> None:
        super().__init__(
            usage=usage,
            description=description,
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34),
        )
        self.config_class = config_class
        for group_class in config_class.__bases__:
            group = self.add_argument_group(group_class.__doc__.rstrip("."))
            for field in fields(group_class):
                kind, help_text, *marks = get_args(field.type)
                notes = [mark.words for mark in marks if isinstance(mark, Limit)]
                if field.name in by_recipe:
                    notes.append("the recipe chooses")
                elif field.default not in (None, ""):
                    notes.append(f"default {field.default}")
                options = argument_options(kind, PATH in marks)
                note = f" ({'; '.join(notes)})" if notes else ""
                options["help"] = (help_text + note).replace("%", "%%")
                group.add_argument(f"--{field.name}", **options)

    def error(self, message: str) -> NoReturn:
        """Raise UserError, where argparse would print the usage and end the program."""
        raise UserError(message)

    def refuse_key(self, name: str) -> NoReturn:
        """Raise UserError because of an unknown key. The message names the key that is meant."""
        known = [action.dest for action in self._actions if action.dest != name]
        similar = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else "See --help."
        raise UserError(f"unknown key {name!r}. {HINTS.get(name, hint)}")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Return the values of all flags in `argv`, by name."""
        parsed, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("--"):
                self.refuse_key(word[2:].partition("=")[0])
            raise UserError(f"unexpected argument {word!r}. See --help.")
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}
        make_config(self.config_class, values)  # checks the values
        return values

    def parse_preset(self, path: str) -> dict[str, Any]:
        """Return the values in a TOML file, by name. Each value is checked like a flag."""
        try:
            values = tomllib.loads(Path(path).read_text("utf-8-sig"))
        except (OSError, ValueError) as error:
            hint = "Name a text with --data, a run with --resume."
            raise UserError(f"preset {path} cannot be read as TOML: {error}. {hint}") from None
        flags, keys = [], [field.name for field in fields(self.config_class)]
        for name, value in values.items():
            if name not in keys:
                self.refuse_key(name)
            if value is True or value is False:
                flags.append(f"--{name}" if value else f"--no-{name}")
            else:
                items = value if isinstance(value, list) else [value]
                flags += [f"--{name}={item}" for item in items]
        return self.parse(flags)


def absolute_path(text: str) -> str:
    """Return an absolute path, which a run finds from any folder, or "-" for standard input."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text if text == "-" else os.path.abspath(os.path.expanduser(text))


def argument_options(kind: Any, is_path: bool) -> dict[str, Any]:
    """Return the options with which argparse reads a value of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if kind in (int, float):
        return {"type": kind, "metavar": kind.__name__.upper()}
    if get_origin(kind) is Literal:
        return {"metavar": "{" + ",".join(get_args(kind)) + "}"}
    options = {"type": absolute_path, "metavar": "PATH"} if is_path else {"metavar": "TEXT"}
    if kind == tuple[str, ...] | None:  # --data A --data B means --data A B
        options |= {"nargs": "+", "action": "extend"}
    return options


def make_config(config_class: type, values: dict[str, Any]) -> Any:
    """Return a config with these values, otherwise with defaults. Unknown keys are ignored."""
    keys = {field.name for field in fields(config_class)}
    return config_class(**{key: values[key] for key in keys & values.keys()})


def to_dict(config: Any) -> dict[str, Any]:
    """Return the config as a dict without None values. `make_config` turns it into a config."""
    return {key: value for key, value in vars(config).items() if value is not None}


def to_toml(config: Any) -> str:
    """Return the text of a preset with all values. TOML can read values in the form of JSON."""
    lines = []
    for group_class in type(config).__bases__:
        lines.append(f"\n# {group_class.__doc__}")
        for field in fields(group_class):
            if (value := getattr(config, field.name)) is not None:
                lines.append(f"{field.name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines).lstrip() + "\n"
