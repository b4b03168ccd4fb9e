"""The command line of train.py."""

import os
from typing import Any, NamedTuple

from configs.flags import ConfigParser
from configs.recipe import Budget, recipe
from configs.settings import TrainConfig
from model.system.errors import UserError

USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT. Without a preset, the recipe (configs/recipe.py) chooses settings from
the length of the text, the kind of device, --minutes, and whether there is an --init_from. Every
other flag changes one setting and no other. A preset states what differs from the defaults."""
RESUMABLE = ("data", "max_iters", "minutes", "eval_interval", "log_interval")
RESUMABLE += ("device", "dtype", "compile", "gradient_accumulation_steps")


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
        flags["init_from"] = absolute_path(flags["init_from"])
    return Command(resume, resume is None and preset is None, flags)


def absolute_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """So that a run can be resumed from another folder."""
    if "" in paths:
        raise UserError("data is ''. Name a file or folder.")
    if len(paths) > 1 and paths[-1].endswith(".toml"):
        raise UserError(
            f"--data takes every path that follows, including {paths[-1]}. Put a preset before the "
            "flags."
        )
    return tuple(path if path == "-" else absolute_path(path) for path in paths)


def absolute_path(path: str) -> str:
    """In it, ~ is the home directory, which a shell leaves in --data=~/text.txt."""
    return os.path.abspath(os.path.expanduser(path))
