"""A config is a frozen dataclass that inherits its fields from groups; each is a flag, a TOML key.

    class TrainConfig(DataConfig, GPTConfig, OptimConfig, RunConfig, CompileConfig): ...

So each file declares its own settings, and whoever has a config writes `config.n_layer`. A field
also makes a line of --help:

    n_layer: Annotated[int, "number of blocks", "[1, 1000]"] = 2

The type is int, float, bool, str, `str | None`, `tuple[str, ...] | None` or a Literal of strings. A
number may have the interval of its valid values.
"""

import argparse
import difflib
import json
import tomllib
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from model.system.errors import UserError

TEXTS = tuple[str, ...] | None  # in TOML a list


class ConfigParser(argparse.ArgumentParser):
    """Reads the values of a config from flags and presets. Raises UserError.

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
        self.keys: dict[str, type] = {}
        for group_class in config_class.__bases__:
            group = self.add_argument_group(title(group_class))
            hints = get_type_hints(group_class, include_extras=True)
            for f in fields(group_class):
                kind, help_text, *interval = get_args(hints[f.name])
                default = "" if f.default in (None, "") else f"(default {f.default})"
                if f.name in by_recipe:
                    default = f"(by the recipe; {f.default} with a preset)"
                words = " ".join(filter(None, [help_text, *interval, default]))
                options = {"help": words.replace("%", "%%")} | argument_type(kind, *interval)
                group.add_argument(f"--{f.name}", **options)
                self.keys[f.name] = kind

    def error(self, message: str) -> None:
        hint = "Write --key=value if the value begins with -." if "expected" in message else ""
        raise UserError(f"{message}. {hint or 'See --help.'}")

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """The values that are given, by name."""
        parsed, unknown = self.parse_known_args(argv)
        for word in unknown:
            if not word.startswith("--"):
                raise UserError(f"unexpected argument {word!r}. See --help.")
            raise self.unknown_key(word[2:].partition("=")[0])
        return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}

    def unknown_key(self, name: str) -> UserError:
        """The error for an unknown key, with the nearest known one."""
        flags = [action.dest for action in self._actions if action.option_strings]
        known = [flag for flag in flags if flag not in (name, "help")]  # a preset has no resume
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        return UserError(f"unknown key {name!r}. Did you mean {nearest}?")

    def parse_preset(self, path: str) -> dict[str, Any]:
        """The values of a TOML file, which are read as if they were flags."""
        hint = "Name a text with --data, a run with --resume."
        try:
            values = tomllib.loads(Path(path).read_text("utf-8-sig"))
            texts = {name: self.to_texts(name, value) for name, value in values.items()}
        except OSError as error:
            raise UserError(f"preset {path} cannot be read: {error.strerror}. {hint}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"preset {path} is not valid TOML: {error}. {hint}") from None
        return self.parse([flag for name in texts for flag in self.to_flags(name, texts[name])])

    def to_texts(self, name: str, value: Any) -> list[str]:
        """What stands for a value of a preset in a command line."""
        is_list = self.keys.get(name) == TEXTS and isinstance(value, list)
        return [str(item) for item in value] if is_list else [str(value)]

    def to_flags(self, name: str, texts: list[str]) -> list[str]:
        """The flag that stands for a line of a preset, with its value."""
        if name not in self.keys:
            raise self.unknown_key(name)
        if self.keys[name] is bool and texts[0] in ("True", "False"):
            return [f"--{name}" if texts[0] == "True" else f"--no-{name}"]
        return [f"--{name}={texts[0]}"] if len(texts) == 1 else [f"--{name}", *texts]


def title(group_class: type) -> str:
    """The name of a group in --help and in config.toml: the first line of its docstring."""
    return group_class.__doc__.splitlines()[0].rstrip(".")


def argument_type(kind: type, interval: str = "(-inf, inf)") -> dict[str, Any]:
    """What tells argparse to read a value of this type."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is Literal and {type(choice) for choice in get_args(kind)} == {str}:
        return {"choices": get_args(kind)}
    if kind in (int, float):
        return {"type": number_type(kind, interval), "metavar": kind.__name__.upper()}
    if kind in (str, str | None, TEXTS):
        return {"type": unicode_text, "metavar": "TEXT"} | ({"nargs": "+"} if kind == TEXTS else {})
    raise TypeError(f"a setting has an unsupported type: {kind}")


def number_type(kind: type, interval: str) -> Callable[[str], int | float]:
    """A function that reads a number of an interval such as "[0, 1)"."""
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    high = min(high, 2**63) if kind is int else high

    def read(text: str) -> int | float:
        value = kind(text)
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if not above or not below:
            shown = interval.replace("inf", "2**63") if kind is int else interval
            raise argparse.ArgumentTypeError(f"{text} is not in {shown}")
        return value

    read.__name__ = kind.__name__  # in argparse's own messages
    return read


def unicode_text(text: str) -> str:
    """`text`, if a file can hold it."""
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid Unicode text")
    return text


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
