"""Flags and presets: each field of a config class is a flag of a command, and a key in TOML.

configs/settings.py says how a field is declared.
"""

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

from configs.settings import PATH

OTHER_NAMES = {  # nanoGPT's, for which the most similar name would mislead
    "start": "It is --prompt, of sample.py.",
    "out_dir": "Name the run: python sample.py RUN_DIR.",  # it is a flag of train.py
    "eval_iters": "An evaluation reads all of the validation text.",
    "eval_only": "It is python sample.py --score FILE.",
    "lr_decay_iters": "The learning rate falls until the last step.",
    "decay_lr": "The learning rate always falls, to --min_lr.",
    "wandb_log": "The curves are for TensorBoard.",
}


class ConfigParser(argparse.ArgumentParser):
    """Reads the values of a config from flags and presets. A wrong one ends the program.

    Keys in `by_recipe` have their default only in a run with a preset.
    """

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
        self.keys = [field.name for field in fields(config_class)]
        for group_class in config_class.__bases__:
            group = self.add_argument_group(group_class.__doc__.rstrip("."))
            hints = get_type_hints(group_class, include_extras=True)
            for field in fields(group_class):
                kind, help_text, *marks = get_args(hints[field.name])
                interval = [mark for mark in marks if mark[0] in "[("]
                options, words = argument_type(kind, *interval), [help_text, *interval]
                if field.name in by_recipe:
                    words.append(f"(by the recipe; {field.default} with a preset)")
                elif field.default not in (None, ""):
                    words.append(f"(default {field.default})")
                options["help"] = " ".join(words).replace("%", "%%")
                if PATH in marks:
                    options |= {"type": absolute_path, "metavar": "PATH"}
                group.add_argument(f"--{field.name}", **options)

    def error(self, message: str) -> NoReturn:
        """End the program with one line on standard error and exit status 2."""
        self.exit(2, f"error: {' '.join(message.split())}\n")

    def refuse_key(self, name: str) -> NoReturn:
        """End the program because of an unknown key. Names a similar one."""
        known = [action.dest for action in self._actions if action.dest != name]
        similar = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else "See --help."
        self.error(f"unknown key {name!r}. {OTHER_NAMES.get(name, hint)}")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Return the values that are given, by name."""
        parsed, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("--"):
                self.refuse_key(word[2:].partition("=")[0])
            self.error(f"unexpected argument {word!r}. See --help.")
        return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}

    def parse_preset(self, path: str) -> dict[str, Any]:
        """Return the values of a TOML file. Each is read as the flag that it stands for."""
        hint = "Name a text with --data, a run with --resume."
        try:
            values = tomllib.loads(Path(path).read_text("utf-8-sig"))
        except (OSError, ValueError) as error:
            self.error(f"preset {path} cannot be read as TOML: {error}. {hint}")
        flags = []
        for name, value in values.items():
            if name not in self.keys:
                self.refuse_key(name)
            if value is True or value is False:
                flags.append(f"--{name}" if value else f"--no-{name}")
            else:
                items = value if isinstance(value, list) else [value]
                flags += [f"--{name}={item}" for item in items]
        return self.parse(flags)


def absolute_path(text: str) -> str:
    """Return a path that a run finds from another folder, too; - is standard input."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text if text == "-" else os.path.abspath(os.path.expanduser(text))


def argument_type(kind: Any, interval: str = "(-inf, inf)") -> dict[str, Any]:
    """Return what tells argparse to read a value of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if kind in (str, str | None):
        return {"metavar": "TEXT"}
    if kind == tuple[str, ...] | None:  # --data A --data B is --data A B
        return {"metavar": "TEXT", "nargs": "+", "action": "extend"}
    if kind not in (int, float):
        return {"choices": get_args(kind)}  # a Literal
    low, high = (float(bound) for bound in interval[1:-1].split(","))

    def read(text: str) -> int | float:
        value = kind(text)
        is_open_end = (value == low and interval[0] == "(") or (value == high and ")" in interval)
        if not low <= value <= high or is_open_end:
            raise argparse.ArgumentTypeError(f"{text} is not in {interval}")
        return value

    read.__name__ = kind.__name__  # which argparse names if `text` is no number
    return {"type": read, "metavar": kind.__name__.upper()}


def make_config(config_class: type, values: dict[str, Any]) -> Any:
    """Return the config with these values. Others keep their default; other keys are ignored."""
    keys = {field.name for field in fields(config_class)}
    return config_class(**{key: values[key] for key in keys & values.keys()})


def to_dict(config: Any) -> dict[str, Any]:
    """Return every key that has a value. `make_config` turns them back into the config."""
    return {key: value for key, value in vars(config).items() if value is not None}


def to_toml(config: Any) -> str:
    """Return the config as a preset. A JSON value is valid in TOML, too."""
    lines = []
    for group_class in type(config).__bases__:
        lines.append(f"\n# {group_class.__doc__}")
        for field in fields(group_class):
            if (value := getattr(config, field.name)) is not None:
                lines.append(f"{field.name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines).lstrip() + "\n"
