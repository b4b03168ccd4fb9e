"""Flags and presets: each field of a config class is a flag of a command, and a key in TOML.

configs/settings.py says how a field is declared.
"""

import argparse
import difflib
import json
import tomllib
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, get_args, get_type_hints

TEXTS = tuple[str, ...] | None  # in TOML a list
OTHER_NAMES = {  # of nanoGPT and others, which mean something else here, or nothing
    "start": "For sample.py, it is --prompt.",
    "dataset": "Name a text with --data FILE.",
    "out_dir": "Name the run: python sample.py RUN_DIR.",  # a flag of train.py
    "eval_iters": "An evaluation reads all of the validation text.",
    "always_save_checkpoint": "Each evaluation saves last.pt, the best one best.pt.",
    "wandb_log": "The curves are for TensorBoard.",
    "lr": "It is --learning_rate.",
    "patience": "best.pt keeps the best model; Ctrl-C ends a run.",
    "save_interval": "Each evaluation saves: --eval_interval. Ctrl-C saves, too.",
}


class ConfigParser(argparse.ArgumentParser):
    """Reads the values of a config from flags and presets. Wrong ones end the program: `refuse`.

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
        self.keys = {field.name for field in fields(config_class)}
        for group_class in config_class.__bases__:
            group = self.add_argument_group(title(group_class))
            hints = get_type_hints(group_class, include_extras=True)
            for f in fields(group_class):
                kind, help_text, *interval = get_args(hints[f.name])
                default = "" if f.default in (None, "") else f"(default {f.default})"
                if f.name in by_recipe:
                    default = f"(by the recipe; {f.default} with a preset)"
                words = " ".join(filter(None, [help_text, *interval, default]))
                options = argument_type(kind, *interval)
                group.add_argument(f"--{f.name}", help=words.replace("%", "%%"), **options)

    def error(self, message: str) -> NoReturn:
        """What argparse calls."""
        hint = "Write --key=value if the value begins with -." if "expected" in message else ""
        self.refuse(f"{message}. {hint or 'See --help.'}")

    def refuse(self, message: str) -> NoReturn:
        """End the program with one line on standard error and exit status 2."""
        self.exit(2, f"error: {' '.join(message.split())}\n")

    def refuse_key(self, name: str) -> NoReturn:
        """Name an unknown key, and the nearest known one."""
        known = [action.dest for action in self._actions if action.dest != name]
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {nearest[0]}?" if nearest else "See --help."
        self.refuse(f"unknown key {name!r}. {OTHER_NAMES.get(name, hint)}")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """The values that are given, by name."""
        parsed, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("--"):
                self.refuse_key(word[2:].partition("=")[0])
            self.refuse(f"unexpected argument {word!r}. See --help.")
        return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}

    def parse_preset(self, path: str) -> dict[str, Any]:
        """The values of a TOML file, each read as the flag that it stands for."""
        hint, words = "Name a text with --data, a run with --resume.", []
        try:
            values = tomllib.loads(Path(path).read_text("utf-8-sig"))
        except OSError as error:
            self.refuse(f"preset {path} cannot be read: {error.strerror}. {hint}")
        except (ValueError, RecursionError) as error:
            self.refuse(f"preset {path} is not valid TOML: {error}. {hint}")
        for name, value in values.items():
            if name not in self.keys:
                self.refuse_key(name)
            if value == []:
                self.refuse(f"{name} is []. Give a value, or leave it out.")
            if isinstance(value, bool) and f"--no-{name}" in self._option_string_actions:
                words.append(f"--{name}" if value else f"--no-{name}")
            elif isinstance(value, list):
                words += [f"--{name}={item}" for item in value]
            else:
                words.append(f"--{name}={value}")
        return self.parse(words)


def title(group_class: type) -> str:
    """The name of a group in --help and in config.toml: the first line of its docstring."""
    return group_class.__doc__.splitlines()[0].rstrip(".")


def argument_type(kind: Any, interval: str = "(-inf, inf)") -> dict[str, Any]:
    """What tells argparse to read a value of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if kind in (int, float):
        return {"type": number_type(kind, interval), "metavar": kind.__name__.upper()}
    if kind in (str, str | None):
        return {"metavar": "TEXT"}
    if kind == TEXTS:  # --data A --data B is --data A B
        return {"metavar": "TEXT", "nargs": "+", "action": "extend"}
    return {"choices": get_args(kind)}  # a Literal


def number_type(kind: type, interval: str) -> Callable[[str], int | float]:
    """A function that reads a number of an interval such as "[0, 1)"."""
    low, high = (float(bound) for bound in interval[1:-1].split(","))

    def read(text: str) -> int | float:
        value = kind(text)
        is_open_end = (value == low and interval[0] == "(") or (value == high and ")" in interval)
        if not low <= value <= high or is_open_end:
            raise argparse.ArgumentTypeError(f"{text} is not in {interval}")
        return value

    read.__name__ = kind.__name__  # in argparse's own messages
    return read


def make_config(config_class: type, values: dict[str, Any]) -> Any:
    """The config with these values, all others default. Other keys are ignored."""
    keys = {f.name for f in fields(config_class)}
    return config_class(**{key: values[key] for key in keys & values.keys()})


def to_dict(config: Any) -> dict[str, Any]:
    """Every key that has a value. `make_config` turns it back into the config."""
    return {key: value for key, value in vars(config).items() if value is not None}


def to_toml(config: Any) -> str:
    """The config as a preset. Python reads TOML but does not write it."""
    lines = []
    for group_class in type(config).__bases__:
        lines.append(f"\n# {title(group_class)}")
        for f in fields(group_class):
            if (value := getattr(config, f.name)) is not None:
                # JSON is valid TOML, except that TOML requires DEL to be escaped.
                text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
                lines.append(f"{f.name} = {text}")
    return "\n".join(lines).lstrip() + "\n"
