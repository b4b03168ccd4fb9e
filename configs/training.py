"""The config of a training run, and the command line of train.py."""

import os
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, NamedTuple

from configs.recipe import Budget, recipe
from configs.schema import ConfigParser, make_config
from data.corpus import DataConfig
from model.network import GPTConfig, count_heads
from model.optim import OptimConfig
from model.system.device import CompileConfig
from model.system.errors import UserError


@dataclass(frozen=True)
class RunConfig:
    """How long, from what, where the results go, how often to evaluate and log."""

    minutes: Annotated[
        float, "end after this time, if max_iters is not reached before (0: no limit)", "[0, 1e6]"
    ] = 0.0
    init_from: Annotated[str | None, "run or checkpoint whose weights to start with"] = None
    teacher: Annotated[bool, "train another network first, learn also from it"] = False
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>"] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, inf)"] = 1337
    eval_interval: Annotated[
        int, "steps between evaluations; with --minutes at most ten in all", "[1, inf)"
    ] = 275
    log_interval: Annotated[int, "steps between points of the training curve", "[1, inf)"] = 10


@dataclass(frozen=True)
class TrainConfig(DataConfig, GPTConfig, OptimConfig, RunConfig, CompileConfig):
    """Everything that train.py can be told."""


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


class Command(NamedTuple):
    """The command line of train.py."""

    resume: str | None
    uses_recipe: bool  # a new run without a preset: the recipe chooses what is not given
    given: dict[str, Any]  # the keys of the preset, and the flags


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
    if "data" in flags:
        flags["data"] = absolute_paths(flags["data"])
    if "init_from" in flags:
        flags["init_from"] = os.path.abspath(flags["init_from"])
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
    return tuple(path if path == "-" else os.path.abspath(path) for path in paths)


def known_values(command: Command, saved: dict[str, Any]) -> dict[str, Any]:
    """The values that do not depend on the text: those given, over those of a checkpoint's config.

    `saved` is that config: for --resume all its keys count, for --init_from those of the network,
    except dropout. Raises UserError if a key in FIXED is given differently.
    """
    given = command.given
    if command.resume is not None:
        if "-" in saved.get("data", ()) and "data" not in given:
            raise UserError(
                "the text of this run came from standard input. Name a file with the same text: "
                "--data FILE."
            )
        return saved | given
    if not saved:
        return given
    base = make_config(TrainConfig, saved)
    base = replace(base, n_head=count_heads(base))
    if given.get("n_head") == 0:  # as in a config.toml: that of the weights
        given = {key: value for key, value in given.items() if key != "n_head"}
    for name in FIXED:
        if given.get(name, getattr(base, name)) != getattr(base, name):
            raise UserError(
                f"{name} is {given[name]}, but {given['init_from']} has {getattr(base, name)}, "
                f"which cannot be changed. Leave {name} out of the flags and the preset."
            )
    inherited = [f.name for f in fields(GPTConfig) if f.name != "dropout"]
    return {name: getattr(base, name) for name in inherited} | given
