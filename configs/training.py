"""The config of a run, and the command line of train.py."""

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from configs.recipe import Budget, recipe
from configs.schema import ConfigParser, make_config, to_dict
from data.corpus import DataConfig
from model.network import GPTConfig, count_heads
from model.optim import OptimConfig
from model.system.device import CompileConfig
from model.system.errors import UserError


@dataclass(frozen=True)
class RunConfig:
    """How long, where the results go, how often to evaluate and log."""

    minutes: Annotated[float, "fit the settings to this time (0: default run)", "[0, 1e6]"] = 0.0
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>"] = None
    init_from: Annotated[str | None, "run or checkpoint whose weights to start with"] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, inf)"] = 1337
    eval_interval: Annotated[int, "steps between evaluations", "[1, inf)"] = 275
    log_interval: Annotated[int, "steps between points of the training curve", "[1, inf)"] = 10
    patience: Annotated[int, "evaluations without a new best, then stop (0: never)", "[0, inf)"] = 0

    def __post_init__(self) -> None:
        if self.out_dir is not None and (not self.out_dir or str(Path(self.out_dir))[0] == "-"):
            raise UserError(f"out_dir is {self.out_dir!r}. Name a directory without a - in front.")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that train.py can be told."""

    data: DataConfig = field(default_factory=DataConfig)
    model: GPTConfig = field(default_factory=GPTConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)
    system: CompileConfig = field(default_factory=CompileConfig)


USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT. Without a preset, size, batch, steps, learning rate, evaluations and
regularization follow from the length of the text, the device and --minutes (configs/recipe.py),
around the flags that are given. A preset states what differs from the defaults below."""
RESUMABLE = ("data", "max_iters", "eval_interval", "log_interval", "patience")
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
    parser = ConfigParser(TrainConfig, USAGE, DESCRIPTION)
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
    if flags.get("minutes"):
        other = preset or next((key for key in ("max_iters", "lr_decay_iters") if key in flags), "")
        if other:
            raise UserError(f"minutes cannot be combined with {other}. Give one of them.")
    return Command(resume, resume is None and preset is None, flags)


def load_config(
    command: Command, start_config: dict[str, Any], budget: Budget | None = None
) -> TrainConfig:
    """The config of a run. `start_config` is that of the checkpoint that it begins with, or empty.

    Raises UserError. What is not given is taken, in this order, from

    - `start_config`: for --resume all keys; for --init_from those of the network, except dropout
      (keys in FIXED must not be given differently);
    - without a preset, the recipe for `budget` (default: Tiny Shakespeare's);
    - the defaults.
    """
    given, start = command.given, start_config
    if start:
        start = to_dict(make_config(TrainConfig, start))  # with keys that are newer than it
    if start and command.resume is None:
        start["n_head"] = count_heads(make_config(TrainConfig, start).model)
        for name in FIXED:
            if given.get(name, start[name]) != start[name]:
                raise UserError(
                    f"{name} is {given[name]}, but {given['init_from']} has {start[name]}, which "
                    f"cannot be changed. Leave {name} out of the flags and the preset."
                )
        start = {f.name: start[f.name] for f in fields(GPTConfig) if f.name != "dropout"}
    values = start | given
    if command.uses_recipe:
        values = recipe(budget or Budget(), values)
    for name in ("data", "init_from"):
        if values.get(name):
            values[name] = os.path.abspath(values[name])  # to resume from another folder
    return make_config(TrainConfig, values)
