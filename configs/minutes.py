"""The config of a run without a preset: what the recipe chooses for a text, and for --minutes."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs.recipe import MEASURED_KEYS, Budget, explain, run_flops, step_flops
from configs.schema import to_dict
from configs.training import Command, TrainConfig, load_config
from model.checkpoint import Checkpoint
from model.run.errors import UserError
from model.run.processes import Processes

FIRST_STEPS = 10  # of the first rehearsal
FEWEST_STEPS = 10  # of a run
REHEARSAL_SHARE = 1 / 25  # of the run, for the second rehearsal
# Where these are larger than the default, the first rehearsal leaves them out, so that it is short.
SIZE_KEYS = ("n_layer", "n_head", "n_embd", "batch_size", "gradient_accumulation_steps")


def choose_config(
    command: Command,
    start: dict[str, Any],
    budget: Budget,
    start_time: float,
    processes: Processes,
    rehearse: Callable[[TrainConfig], Checkpoint],
) -> tuple[TrainConfig, str]:
    """What the recipe chooses around the flags, and two lines that say why.

    Without --minutes it is a function of `budget`. With it, `rehearse` measures the machine: it
    trains a config from `start`, writes nothing, and returns the last state. First the default
    network, or a smaller one that is given, tells how large a network fits into the time. Then a
    part of the run with the network that was chosen tells how many steps fit. Raises UserError if
    hardly any do.
    """
    config = load_config(command, start, budget)
    if not (minutes := config.run.minutes):
        return config, explain(budget, to_dict(config))

    def measure(config: TrainConfig, steps: int) -> tuple[float, float, float]:
        """FLOPs per second in training, seconds of an evaluation, seconds of all the rest."""
        teacher_share = config.optim.teacher_iters / config.optim.max_iters
        teacher_iters = min(math.ceil(teacher_share * steps), steps - 1)
        optim = replace(config.optim, max_iters=steps, teacher_iters=teacher_iters)
        config = replace(config, optim=optim, run=replace(config.run, eval_interval=steps))
        rehearsal_start = time.perf_counter()
        state = rehearse(config)
        rest = time.perf_counter() - rehearsal_start - state.train_seconds - state.eval_seconds
        # All processes must choose the same: the slowest one counts.
        speed = run_flops(to_dict(config)) / processes.max(state.train_seconds)
        return speed, processes.max(state.eval_seconds), processes.max(rest)

    def time_left() -> float:
        """Seconds from now to the end."""
        return 60 * minutes - processes.max(time.perf_counter() - start_time)

    too_short = UserError(
        f"minutes is {minutes:g}, which is too little time for this text, this machine, and the "
        "flags that are given."
    )
    given, default = command.given, to_dict(TrainConfig())
    small = {key: given[key] for key in given if key not in SIZE_KEYS or given[key] <= default[key]}
    if "batch_size" in given:
        small["batch_size"] = min(given["batch_size"], default["batch_size"] * processes.world_size)
    # The first evaluation of a process takes longer than others; here it is made, and not counted.
    speed, _, _ = measure(load_config(command._replace(given=small), start, budget), FIRST_STEPS)
    config = load_config(command, start, replace(budget, flops=speed * 60 * minutes))
    step_seconds = step_flops(to_dict(config)) / speed
    run_steps = min(config.optim.max_iters, 60 * minutes / step_seconds)
    steps = max(2, round(REHEARSAL_SHARE * run_steps))
    if steps * step_seconds > time_left():
        raise too_short
    speed, evaluation, rest = measure(config, steps)
    seconds = time_left() - rest

    # What was measured stays; the rest follows from the number of steps, also how many evaluations
    # there are. So the number of steps is found by bisection.
    values = to_dict(config)
    given = given | {key: values[key] for key in MEASURED_KEYS} | {"minutes": 0.0}

    def choose(flops: float) -> tuple[TrainConfig, float]:
        """The config for a number of FLOPs, and the seconds that its run takes."""
        config = load_config(command._replace(given=given), start, replace(budget, flops=flops))
        evaluations = math.ceil(config.optim.max_iters / config.run.eval_interval)
        return config, run_flops(to_dict(config)) / speed + evaluations * evaluation

    fits, too_many = 0.0, max(0.0, speed * seconds)
    for _ in range(30):
        flops = (fits + too_many) / 2
        fits, too_many = (flops, too_many) if choose(flops)[1] <= seconds else (fits, flops)
    config, needed = choose(fits)
    if needed > seconds or config.optim.max_iters < FEWEST_STEPS:
        raise too_short
    return config, explain(replace(budget, flops=speed * seconds), to_dict(config), speed)
