"""The teacher: a network that the same command trains first, with another seed.

The run itself then learns from the text and from the teacher's predictions (Hinton et al. 2015,
"Distilling the knowledge in a neural network").
"""

import shutil
from pathlib import Path

from torch import nn

from configs.recipe import TEACHER_SHARE, TEACHER_STEPS
from configs.schema import to_dict
from configs.training import RESUMABLE, Command, TrainConfig
from model import checkpoint
from model.network import make_network
from model.system.device import Machine


def teacher_command(
    config: TrainConfig, run_dir: Path, machine: Machine, seconds: float
) -> Command:
    """What trains `run_dir`/teacher, or goes on with it, if the run began `seconds` ago."""
    folder, values = run_dir / "teacher", to_dict(config)
    if (folder / "last.pt").exists():
        same = set(RESUMABLE) - {"max_iters", "minutes", "eval_interval", "log_interval"}
        return Command(str(folder), False, {key: values[key] for key in same & values.keys()})
    if machine.processes.is_main:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before its step 0
    values |= {"teacher": False, "out_dir": str(folder)}
    values["seed"] += 10**6  # not the seed of somebody's next run
    values["max_iters"] = max(1, round(TEACHER_STEPS * config.max_iters))
    if config.minutes:
        left = max(60 * config.minutes - seconds, 0.0)
        values["minutes"] = (seconds + TEACHER_SHARE * left) / 60
    if config.init_from is not None:
        values["init_from"] = str(run_dir / "last.pt")
    return Command(None, False, values)


def load_teacher(config: TrainConfig, run_dir: Path, machine: Machine) -> nn.Module:
    """The best network of `run_dir`/teacher, which is not trained any more."""
    saved = checkpoint.load(run_dir / "teacher" / "best.pt")
    teacher = make_network(config, len(saved.vocab)).to(machine.device)
    checkpoint.restore(saved, teacher)
    return teacher.eval().requires_grad_(False)
