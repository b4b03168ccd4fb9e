"""The config of a run without a preset: what the recipe chooses for a text, and for --minutes."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs.recipe import MEASURED_KEYS, Budget, explain, run_flops
from configs.schema import to_dict
from configs.training import Command, TrainConfig, load_config
from model.checkpoint import Checkpoint
from model.run.errors import UserError
from model.run.processes import Processes

FIRST_STEPS = 10  # of the default network; also the fewest of a run
SHARE = 1 / 25  # of the run, with the network that was chosen


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
    network tells how large a network fits into the time, then a part of the run with that one tells
    how many steps fit. Raises UserError if hardly any do.
    """
    config = load_config(command, start, budget)
    if not (minutes := config.run.minutes):
        return config, explain(budget, to_dict(config))

    def measure(config: TrainConfig, steps: int) -> tuple[float, float, float]:
        """FLOPs per second in training, seconds of an evaluation, seconds of all the rest."""
        share = config.optim.teacher_iters / config.optim.max_iters
        teacher_iters = min(math.ceil(share * steps), steps - 1)
        optim = replace(config.optim, max_iters=steps, teacher_iters=teacher_iters)
        config = replace(config, optim=optim, run=replace(config.run, eval_interval=steps))
        rehearsal_start = time.perf_counter()
        state = rehearse(config)
        rest = time.perf_counter() - rehearsal_start - state.train_seconds - state.eval_seconds
        # All processes must choose the same: the slowest one counts.
        speed = run_flops(to_dict(config)) / processes.max(state.train_seconds)
        return speed, processes.max(state.eval_seconds), processes.max(rest)

    def time_left(needed: float = 0.0) -> float:
        """Seconds from now to the end, less those that are needed."""
        elapsed = processes.max(time.perf_counter() - start_time)
        if (left := 60 * minutes - elapsed - needed) <= 0:
            raise too_short
        return left

    too_short = UserError(
        f"minutes is {minutes:g}. After the machine was measured, too little time is left for "
        "training. Give more minutes, or a smaller network."
    )
    # A first evaluation takes longer than others, so each rehearsal makes one.
    speed, _, _ = measure(config, FIRST_STEPS)
    time_left()
    config = load_config(command, start, replace(budget, flops=speed * 60 * minutes))
    steps = max(2, round(SHARE * config.optim.max_iters))
    speed, evaluation, rest = measure(config, steps)
    seconds = time_left(rest)

    # What was measured stays; the rest follows from the number of steps, also how many evaluations
    # there are. So the number of steps is found by bisection.
    values = to_dict(config)
    given = command.given | {key: values[key] for key in MEASURED_KEYS} | {"minutes": 0.0}

    def choose(flops: float) -> tuple[TrainConfig, float]:
        """The config for a number of FLOPs, and the seconds that its run takes."""
        config = load_config(command._replace(given=given), start, replace(budget, flops=flops))
        evaluations = math.ceil(config.optim.max_iters / config.run.eval_interval)
        return config, run_flops(to_dict(config)) / speed + evaluations * evaluation

    fits, too_many = 0.0, speed * seconds
    for _ in range(30):
        flops = (fits + too_many) / 2
        fits, too_many = (flops, too_many) if choose(flops)[1] <= seconds else (fits, flops)
    config, needed = choose(fits)
    if needed > seconds or config.optim.max_iters < FIRST_STEPS:
        raise too_short
    return config, explain(replace(budget, flops=fits), to_dict(config), speed)
