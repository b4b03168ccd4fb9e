"""The typed config: the defaults of dataclasses, then a TOML preset, then command-line flags.

A config is a frozen dataclass of groups; each group is a frozen dataclass that stands beside what
it configures. One line of a group makes a flag, a TOML key and a line of --help:

    n_layer: Annotated[int, "number of blocks", "[1, 1000]"] = 2

The type is int, float, bool, str, Literal[...], or one of these `| None`. The last string is the
interval of valid numbers; it may be left out, and so may the help.
"""

import argparse
import difflib
import json
import os
import re
import reprlib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from data.corpus import DataConfig
from model.device import SystemConfig, default_preset
from model.errors import UserError
from model.gpt import GPTConfig
from model.optim import OptimConfig


@dataclass(frozen=True)
class RunConfig:
    """Where the results go, and how often to evaluate and log."""

    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>"] = None
    init_from: Annotated[
        str | None, "start with the weights of this run or checkpoint; the text may be another"
    ] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, inf)"] = 1337
    eval_interval: Annotated[int, "steps between evaluations", "[1, inf)"] = 250
    log_interval: Annotated[int, "steps between points of the training curve", "[1, inf)"] = 10
    patience: Annotated[
        int, "stop after this many evaluations without a new best (0: never)", "[0, inf)"
    ] = 0


@dataclass(frozen=True)
class TrainConfig:
    """Everything that train.py can be told."""

    data: DataConfig = field(default_factory=DataConfig)
    model: GPTConfig = field(default_factory=GPTConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)
    system: SystemConfig = field(default_factory=SystemConfig)


USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = "Train a character-level GPT. A preset states what differs from the defaults below."
RESUMABLE = ("data", "max_iters", "eval_interval", "log_interval", "patience")
RESUMABLE += ("device", "dtype", "compile", "gradient_accumulation_steps")
SIZES = ("n_layer", "n_head", "n_embd")  # with others, weights do not fit or mean something else


class Command(NamedTuple):
    """The command line of train.py."""

    preset: str | None
    resume: str | None
    flags: dict[str, Any]


def parse_train_command(argv: list[str]) -> Command:
    """The command line of train.py. Raises UserError."""
    parser = make_parser(TrainConfig, USAGE, DESCRIPTION)
    preset_help = "a file of keys; default: configs/gpu.toml on CUDA, else configs/cpu.toml"
    parser.add_argument("preset", nargs="?", metavar="PRESET.toml", help=preset_help)
    resume_help = f"continue a run; may change {', '.join(RESUMABLE)}"
    parser.add_argument("--resume", metavar="RUN_DIR", help=resume_help)
    flags = parse_flags(parser, argv, [*config_keys(TrainConfig), "resume"])
    preset, resume = flags.pop("preset", None), flags.pop("resume", None)
    if resume is not None:
        if preset is not None:
            raise UserError(f"--resume takes all keys from the checkpoint. Leave out {preset!r}.")
        if fixed := sorted(flags.keys() - set(RESUMABLE)):
            raise UserError(
                f"{fixed[0]} cannot be changed in a resumed run. Only {', '.join(RESUMABLE)} can."
            )
    return Command(preset, resume, flags)


def given_keys(command: Command) -> dict[str, Any]:
    """The keys of the preset that is named, and the flags. Raises UserError."""
    return (read_toml(command.preset) if command.preset is not None else {}) | command.flags


def init_from(command: Command) -> str | None:
    """The run whose weights a new run is to start with. Raises UserError."""
    key = config_keys(TrainConfig)["init_from"]
    return check_value("init_from", key, given_keys(command).get("init_from"))


def load_config(
    command: Command, saved: dict[str, Any] | None = None, base: dict[str, Any] | None = None
) -> TrainConfig:
    """The config of a run: the keys of a preset, then the flags.

    With `saved`, the keys of the checkpoint of the same run, then the flags. With `base`, those of
    a checkpoint whose weights it starts with: the network's keys are from there unless they are
    given, and those in SIZES must be the same. Raises UserError.
    """
    given = given_keys(command)
    values = dict(saved or {})
    if saved is None and command.preset is None:
        device = command.flags.get("device", "auto")
        values = read_toml(Path(__file__).with_name(default_preset(device)))
    if base is not None:
        for name in SIZES:
            if given.get(name, base[name]) != base[name]:
                raise UserError(
                    f"{name} is {given[name]}, but {given['init_from']} has {base[name]}. "
                    f"Leave out {name}."
                )
        keys = config_keys(TrainConfig).items()
        values |= {name: base[name] for name, key in keys if key.group == "model" and name in base}
    values |= given
    for name in ("data", "init_from"):
        if isinstance(values.get(name), str) and values[name]:
            values[name] = os.path.abspath(values[name])  # to resume from another folder
    return make_config(TrainConfig, values)


KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


class Key(NamedTuple):
    """One key of a config, as its dataclass field declares it."""

    group: str
    type: Any  # one of KINDS, or Literal
    optional: bool
    default: Any
    help: str
    interval: str  # of a number


def config_keys(config_class: type) -> dict[str, Key]:
    """All keys of a config, by name."""
    keys = {}
    for group, group_class in get_type_hints(config_class).items():
        hints = get_type_hints(group_class, include_extras=True)
        for f in fields(group_class):
            hint = hints[f.name]
            kind, *texts = get_args(hint) if get_origin(hint) is Annotated else [hint]
            types = [option for option in get_args(kind) if option is not NoneType]
            optional = NoneType in get_args(kind)
            if optional and len(types) == 1:
                kind = types[0]
            is_choice = get_origin(kind) is Literal and bool not in map(type, get_args(kind))
            if f.name in keys or (kind not in KINDS and not is_choice):
                raise TypeError(f"{f.name} is declared twice or has an unsupported type: {kind}")
            interval = "(-inf, inf)" if kind in (int, float) else ""
            if interval and texts and re.fullmatch(r"[\[(]\S+, \S+[\])]", texts[-1]):
                interval = texts.pop()
            keys[f.name] = Key(group, kind, optional, f.default, " ".join(texts), interval)
    return keys


def make_config(config_class: type, values: dict[str, Any]) -> Any:
    """The config with these values, all others default. Raises UserError for an invalid one."""
    keys = config_keys(config_class)
    groups: dict[str, dict[str, Any]] = {group.name: {} for group in fields(config_class)}
    for name, value in values.items():
        if name not in keys:
            raise unknown_key(name, keys)
        groups[keys[name].group][name] = check_value(name, keys[name], value)
    classes = get_type_hints(config_class)
    return config_class(**{group: classes[group](**given) for group, given in groups.items()})


def check_value(name: str, key: Key, value: Any) -> Any:
    """`value`, if it is valid for the key. Raises UserError."""
    if value is None and key.optional:
        return None
    too_large = isinstance(value, int) and abs(value) >= 2**63  # for TOML
    shown = f"{name} is {'too large' if too_large else reprlib.repr(value)}."
    if choices := get_args(key.type):
        if value not in choices or type(value) is not type(choices[0]):
            raise UserError(f"{shown} It must be one of {', '.join(map(str, choices))}.")
        return value
    accepted = (int, float) if key.type is float else key.type
    if not isinstance(value, accepted) or (isinstance(value, bool) and key.type is not bool):
        raise UserError(f"{shown} It must be {KINDS[key.type]}.")
    if key.type is str and ("\0" in value or value.encode(errors="replace").decode() != value):
        raise UserError(f"{shown} It must be valid Unicode text.")
    if key.type in (int, float):
        low, high = (float(bound) for bound in key.interval[1:-1].split(","))
        above = value >= low if key.interval[0] == "[" else value > low
        below = value <= high if key.interval[-1] == "]" else value < high
        if not above or not below or too_large:
            raise UserError(f"{shown} It must be in {key.interval}.")
    return key.type(value)


def unknown_key(name: str, known: Iterable[str]) -> UserError:
    """The error for an unknown key, with the nearest known one."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
    return UserError(f"unknown key {name!r}. Did you mean {nearest[0]}?")


def to_dict(config: Any) -> dict[str, Any]:
    """Every key that has a value. `make_config` turns it back into the config."""
    groups = [getattr(config, group.name) for group in fields(config)]
    values = {f.name: getattr(group, f.name) for group in groups for f in fields(group)}
    return {name: value for name, value in values.items() if value is not None}


def to_toml(config: Any) -> str:
    """The config as a preset, with a comment above each group.

    Python reads TOML but does not write it.
    """
    keys = config_keys(type(config))
    lines = []
    for name, value in to_dict(config).items():
        heading = f"# {keys[name].group}"
        if heading not in lines:
            lines += ["", heading]
        # JSON strings and numbers are valid TOML, except that TOML requires DEL to be escaped.
        lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f"))
    return "\n".join(lines[1:]) + "\n"


def read_toml(path: Path | str) -> dict[str, Any]:
    """The keys and values of a preset. Raises UserError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise UserError(f"{str(path)!r} is not a preset file. To continue a run use --resume.")
    try:
        return tomllib.loads(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"preset {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        hint = "Name a text with --data, a run with --resume."
        raise UserError(f"preset {path} is not valid TOML: {error}. {hint}") from None


class ArgumentParser(argparse.ArgumentParser):
    """Reports errors as UserError."""

    def error(self, message: str) -> None:
        hint = "Write --key=value if the value begins with -." if "expected" in message else ""
        raise UserError(f"{message}. {hint or 'See --help.'}")


def make_parser(config_class: type, usage: str, description: str) -> ArgumentParser:
    """A parser with one flag for every key. Its result holds only the flags that are given."""
    parser = ArgumentParser(
        usage=usage,
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34),
    )
    groups: dict[str, Any] = {}
    for name, key in config_keys(config_class).items():
        if key.group not in groups:
            groups[key.group] = parser.add_argument_group(key.group)
        default = "" if key.default in (None, "") else f"(default {key.default})"
        help_text = " ".join(filter(None, (key.help, key.interval, default)))
        options: dict[str, Any] = {"help": help_text.replace("%", "%%")}
        if key.type is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(key.type) is Literal:
            options["choices"] = get_args(key.type)
            options["type"] = type(options["choices"][0])
        else:
            options["type"] = key.type
            options["metavar"] = key.type.__name__.upper()
        groups[key.group].add_argument(f"--{name}", **options)
    return parser


def parse_flags(parser: ArgumentParser, argv: list[str], known: Iterable[str]) -> dict[str, Any]:
    """The arguments that are given, by name. Raises UserError with the nearest known flag."""
    parsed, unknown = parser.parse_known_args(argv)
    for word in unknown:
        if not word.startswith("--"):
            raise UserError(f"unexpected argument {word!r}. See --help.")
        raise unknown_key(word[2:].partition("=")[0], known)
    return vars(parsed)
