"""The config of a training run, and the command line of train.py."""

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from configs.recipe import Budget, recipe
from configs.schema import ConfigParser, make_config
from data.corpus import DataConfig
from model.network import GPTConfig, count_heads, require_consistent
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
    teacher: Annotated[
        str, "learn also from the predictions of: none, own (trained before) or the path of a run"
    ] = "none"
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>"] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, inf)"] = 1337
    eval_interval: Annotated[
        int, "steps between evaluations; with --minutes at most ten in all", "[1, inf)"
    ] = 275
    log_interval: Annotated[int, "steps between points of the training curve", "[1, inf)"] = 10
    patience: Annotated[int, "evaluations without a new best, then stop (0: never)", "[0, inf)"] = 0

    def __post_init__(self) -> None:
        if self.out_dir is not None and (not self.out_dir or str(Path(self.out_dir))[0] == "-"):
            raise UserError(f"out_dir is {self.out_dir!r}. Name a directory without a - in front.")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that train.py can be told."""

    corpus: DataConfig = field(default_factory=DataConfig)
    model: GPTConfig = field(default_factory=GPTConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)
    system: CompileConfig = field(default_factory=CompileConfig)

    def __post_init__(self) -> None:
        require_consistent(self.model)
        if self.optim.min_lr and not self.optim.lr_decay_iters:
            raise UserError(f"min_lr is {self.optim.min_lr}. It needs --lr_decay_iters.")
        if self.run.minutes and self.optim.lr_decay_iters:
            raise UserError(
                f"minutes is {self.run.minutes:g} and lr_decay_iters {self.optim.lr_decay_iters}. "
                "By the clock only the linear decay can end: a new run needs --lr_decay_iters 0 "
                "--min_lr 0."
            )


USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT. Without a preset, the recipe (configs/recipe.py) chooses settings from
the length of the text, the kind of device, --minutes, and whether there is an --init_from. Every
other flag changes one setting and no other. A preset states what differs from the defaults."""
RESUMABLE = ("data", "max_iters", "minutes", "eval_interval", "log_interval", "patience")
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
    return Command(resume, resume is None and preset is None, flags)


def known_values(command: Command, other: dict[str, Any]) -> dict[str, Any]:
    """The values that do not depend on the text: those given, over those of a checkpoint's config.

    `other` is that config: for --resume all its keys count, for --init_from those of the network,
    except dropout. Raises UserError if a key in FIXED is given differently.
    """
    given = dict(command.given)
    if other and command.resume is None:
        model_config = make_config(TrainConfig, other).model
        other = {f.name: getattr(model_config, f.name) for f in fields(GPTConfig)}
        other["n_head"] = count_heads(model_config)
        if given.get("n_head") == 0:  # as in a config.toml
            given["n_head"] = count_heads(replace(model_config, n_head=0))
        del other["dropout"]
        for name in FIXED:
            if given.get(name, other[name]) != other[name]:
                raise UserError(
                    f"{name} is {given[name]}, but {given['init_from']} has {other[name]}, which "
                    f"cannot be changed. Leave {name} out of the flags and the preset."
                )
    # Absolute paths, so that a run can be resumed from another folder
    paths = {"init_from", "teacher"} & given.keys()
    if given.get("teacher") in ("none", "own"):
        paths.remove("teacher")
    given |= {name: os.path.abspath(given[name]) for name in paths}
    if "data" in given:
        paths = given["data"]
        given["data"] = tuple(path if path == "-" else os.path.abspath(path) for path in paths)
    elif command.resume and "-" in (make_config(TrainConfig, other).corpus.data or ()):
        raise UserError(
            "the text of this run came from standard input. Name a file with the same text: --data "
            "FILE."
        )
    return other | given
