"""All that train.py can be told: defaults, then a preset, then flags, or with --resume a checkpoint's keys."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from configs.schema import build, read_flags, read_toml
from data.corpus import DataConfig
from model import checkpoint
from model.checkpoint import Checkpoint
from model.gpt import GPTConfig
from model.optim import OptimConfig
from model.runtime import SystemConfig, preset_for

USAGE = """\
python train.py [PRESET.toml] [--key value ...]     train; without a preset, configs/cpu.toml or gpu.toml
python train.py --resume RUN_DIR [--key value ...]  go on with a run that was stopped, or past its end"""
RESUMABLE = ("data", "max_iters", "eval_interval", "log_interval", "patience", "device", "dtype", "compile")


@dataclass(frozen=True)
class RunConfig:
    """Where the results go, and how often to look."""

    out_dir: Annotated[str | None, "the run's folder; left out: a new one under runs/, named by the time"] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, inf)"] = 1337
    eval_interval: Annotated[int, "steps between evaluations", "[1, inf)"] = 250
    log_interval: Annotated[int, "steps between points of the training curve", "[1, inf)"] = 10
    patience: Annotated[int, "evaluations without a new best before stopping (0: never)", "[0, inf)"] = 0


@dataclass(frozen=True)
class TrainConfig:
    """All that train.py can be told."""

    data: DataConfig = field(default_factory=DataConfig)
    model: GPTConfig = field(default_factory=GPTConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)
    system: SystemConfig = field(default_factory=SystemConfig)


class Command(NamedTuple):
    """What train.py was asked: with --resume, `saved` and its folder; `given` are the keys named by flags."""

    config: TrainConfig
    saved: Checkpoint | None
    run_dir: Path | None
    given: dict[str, Any]


def read_command(argv: list[str]) -> Command:
    """train.py's command line. Raises ValueError for all that can be known to be wrong from it alone."""
    preset, given = read_flags(argv, TrainConfig, USAGE, extra=("resume",))
    resume = given.pop("resume", None)
    path = saved = None
    if resume is None:
        values = read_toml(preset or Path(__file__).with_name(preset_for(given.get("device", "auto"))))
    elif preset is not None:
        raise ValueError(f"--resume takes every key from the checkpoint: leave out {preset!r}")
    else:
        if fixed := [name for name in given if name not in RESUMABLE]:
            raise ValueError(f"{fixed[0]} cannot change in a run that is resumed; only {', '.join(RESUMABLE)} can")
        path = checkpoint.find(resume, "last")
        saved = checkpoint.load(path)
        values = saved.config
    values = values | given
    if isinstance(values.get("data"), str) and values["data"]:  # absolute: a run may be resumed from another folder
        values["data"] = os.path.abspath(values["data"])
    return Command(build(TrainConfig, values), saved, path and path.parent, given)
