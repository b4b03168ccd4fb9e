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
from typing import Any, NoReturn, get_args, get_type_hints

from configs.settings import PATH

# Hints for flags of nanoGPT, because the most similar name in Quill would mislead.
OTHER_NAMES = {
    "start": "Use --prompt of sample.py.",
    "out_dir": "Name the run: python sample.py RUN_DIR.",  # train.py has this flag
    "eval_iters": "An evaluation reads all of the validation text, up to a million characters.",
    "eval_only": "Use python sample.py --score FILE.",
    "lr_decay_iters": "The learning rate falls until the last step.",
    "decay_lr": "The learning rate always falls, to --min_lr.",
    "wandb_log": "TensorBoard shows the curves.",
}


class ConfigParser(argparse.ArgumentParser):
    """Reads the values of a config from flags and presets. A wrong value ends the program.

    In a run without a preset, the recipe chooses the keys in `by_recipe`.
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
                    words.append(f"(the recipe chooses; {field.default} with a preset)")
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
        """End the program because of an unknown key. The message names a similar key."""
        known = [action.dest for action in self._actions if action.dest != name]
        similar = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else "See --help."
        self.error(f"unknown key {name!r}. {OTHER_NAMES.get(name, hint)}")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Return the values of all flags in `argv`, by name."""
        parsed, unknown = self.parse_known_args(argv)
        for word in unknown:
            if word.startswith("--"):
                self.refuse_key(word[2:].partition("=")[0])
            self.error(f"unexpected argument {word!r}. See --help.")
        return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}

    def parse_preset(self, path: str) -> dict[str, Any]:
        """Return the values in a TOML file, by name. Each value is checked like a flag."""
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
    """Return an absolute path, which a run finds from any folder, or "-" for standard input."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return text if text == "-" else os.path.abspath(os.path.expanduser(text))


def argument_type(kind: Any, interval: str = "(-inf, inf)") -> dict[str, Any]:
    """Return the options with which argparse reads a value of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if kind in (str, str | None):
        return {"metavar": "TEXT"}
    if kind == tuple[str, ...] | None:  # --data A --data B means --data A B
        return {"metavar": "TEXT", "nargs": "+", "action": "extend"}
    if kind not in (int, float):
        return {"choices": get_args(kind)}  # `kind` is a Literal
    low, high = (float(bound) for bound in interval[1:-1].split(","))

    def read(text: str) -> int | float:
        value = kind(text)
        is_open_end = (value == low and interval[0] == "(") or (value == high and ")" in interval)
        if not low <= value <= high or is_open_end:
            raise argparse.ArgumentTypeError(f"{text} is not in {interval}")
        return value

    read.__name__ = kind.__name__  # argparse shows this name if `text` is no number
    return {"type": read, "metavar": kind.__name__.upper()}


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
