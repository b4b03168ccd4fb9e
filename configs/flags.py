"""A config is a frozen dataclass that inherits its fields from groups; each is a flag, a TOML key.

configs/settings.py says how a field is declared. Here also: the command line of train.py.
"""

import argparse
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from configs.recipe import Budget, recipe
from configs.settings import GPTConfig, TrainConfig, count_heads

TEXTS = tuple[str, ...] | None  # in TOML a list
USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT. Without a preset, the recipe (configs/recipe.py) chooses settings from
the length of the text, the kind of device, --minutes, and whether there is an --init_from. Every
other flag changes one setting and no other. A preset states what differs from the defaults."""
RESUMABLE = ("data", "max_iters", "minutes", "eval_interval", "log_interval")
RESUMABLE += ("device", "dtype", "compile", "deterministic", "gradient_accumulation_steps")
# --init_from cannot change these: the weights would not fit, or would mean something else.
FIXED = ("network", "n_layer", "n_head", "n_embd", "bias")
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


class UserError(ValueError):
    """The input is wrong: a flag, a file, a text. Shown as one line; exit status 2."""


class Command(NamedTuple):
    """The command line of train.py."""

    resume: str | None
    uses_recipe: bool  # a new run without a preset: the recipe chooses what is not given
    given: dict[str, Any]  # the keys of the preset, and the flags


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
        parsed, unknown = self.parse_known_args([self.to_boolean(word) for word in argv])
        for word in unknown:
            if not word.startswith("--"):
                raise UserError(f"unexpected argument {word!r}. See --help.")
            raise self.unknown_key(word[2:].partition("=")[0])
        return {k: tuple(v) if isinstance(v, list) else v for k, v in vars(parsed).items()}

    def unknown_key(self, name: str) -> UserError:
        """The error for an unknown key, with the nearest known one."""
        flags = [action.dest for action in self._actions if action.option_strings]
        known = [flag for flag in flags if flag not in (name, "help")]  # a preset has no resume
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {nearest[0]}?" if nearest else "See --help."
        return UserError(f"unknown key {name!r}. {OTHER_NAMES.get(name, hint)}")

    def to_boolean(self, word: str) -> str:
        """--bias=True is --bias, --bias=False is --no-bias. Other words stay."""
        name, _, value = word.partition("=")
        if not name.startswith("--") or self.keys.get(name[2:]) is not bool:
            return word
        return {"True": name, "False": f"--no-{name[2:]}"}.get(value, word)

    def parse_preset(self, path: str) -> dict[str, Any]:
        """The values of a TOML file. Each line is read as the flag that it stands for."""
        hint, words = "Name a text with --data, a run with --resume.", []
        try:
            values = tomllib.loads(Path(path).read_text("utf-8-sig"))
            for name, value in values.items():
                is_list = isinstance(value, list) and self.keys.get(name) == TEXTS
                texts = list(map(str, value)) if is_list else [str(value)]
                words += [f"--{name}={texts[0]}"] if len(texts) == 1 else [f"--{name}", *texts]
        except OSError as error:
            raise UserError(f"preset {path} cannot be read: {error.strerror}. {hint}") from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"preset {path} is not valid TOML: {error}. {hint}") from None
        if unknown := sorted(values.keys() - self.keys.keys()):
            raise self.unknown_key(unknown[0])
        return self.parse(words)


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
        several = {"nargs": "+", "action": "extend"} if kind == TEXTS else {}  # --data A --data B
        return {"type": unicode_text, "metavar": "TEXT"} | several
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


def parse_train_command(argv: list[str]) -> Command:
    """The command line of train.py. Raises UserError."""
    parser = ConfigParser(TrainConfig, USAGE, DESCRIPTION, by_recipe=recipe(Budget()))
    parser.add_argument("preset", nargs="?", metavar="PRESET.toml", help="a file of keys")
    resume_help = f"continue a run; may change {', '.join(RESUMABLE)}"
    parser.add_argument("--resume", metavar="RUN_DIR", help=resume_help)
    flags = parser.parse(argv)
    preset, resume = flags.pop("preset", None), flags.pop("resume", None)
    if resume is not None:
        if preset is not None:
            raise UserError(f"--resume takes all keys from the checkpoint. Leave out {preset!r}.")
        if fixed := sorted(flags.keys() - set(RESUMABLE)):
            raise UserError(
                f"{fixed[0]} cannot be changed in a resumed run. Only {', '.join(RESUMABLE)} can."
            )
    elif preset is not None:
        flags = parser.parse_preset(preset) | flags
    if (init_from := flags.get("init_from")) in ("scratch", "resume"):  # as nanoGPT has it
        raise UserError(
            f"init_from is {init_from!r}. Leave it out for new weights; to go on with a run: "
            "--resume RUN_DIR"
        )
    if "data" in flags:
        flags["data"] = absolute_paths(flags["data"])
    if "init_from" in flags:
        flags["init_from"] = absolute_path(flags["init_from"])
    return Command(resume, resume is None and preset is None, flags)


def absolute_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """So that a run can be resumed from another folder. Raises UserError for what is no path."""
    for path in paths:
        if not path or "://" in path:
            raise UserError(f"data is {path!r}. Name a file or folder; download an address.")
    if len(paths) > 1 and paths[-1].endswith(".toml"):
        raise UserError(
            f"--data takes every path that follows, including {paths[-1]}. Put a preset before the "
            "flags."
        )
    return tuple(path if path == "-" else absolute_path(path) for path in paths)


def absolute_path(path: str) -> str:
    """In it, ~ is the home directory, which a shell leaves in --data=~/text.txt."""
    return os.path.abspath(os.path.expanduser(path))


def merge_settings(
    command: Command, saved: dict[str, Any], chosen: dict[str, Any] | None = None
) -> TrainConfig:
    """The settings: what is given, over those of a checkpoint, over what the recipe has chosen.

    `saved` is the config of the checkpoint. For --resume all its keys count, for --init_from those
    of the network, except dropout. out_dir is left out: a run may be moved. Raises UserError if a
    key in FIXED is given differently.
    """
    given, inherited = dict(command.given), saved
    given.pop("out_dir", None)
    if command.resume is not None:
        if "-" in saved.get("data", ()) and "data" not in given:
            raise UserError(
                "the text of this run came from standard input. Name a file with the same text: "
                "--data FILE."
            )
    elif saved:
        base = make_config(TrainConfig, saved)
        base = replace(base, n_head=count_heads(base))
        if given.get("n_head") == 0:  # as in a config.toml: that of the weights
            del given["n_head"]
        for name in FIXED:
            if given.get(name, getattr(base, name)) != getattr(base, name):
                raise UserError(
                    f"{name} is {given[name]}, but {given['init_from']} has {getattr(base, name)}, "
                    f"which cannot be changed. Leave {name} out of the flags and the preset."
                )
        names = [f.name for f in fields(GPTConfig) if f.name != "dropout"]
        inherited = {name: getattr(base, name) for name in names}
    return make_config(TrainConfig, (chosen or {}) | inherited | given)
