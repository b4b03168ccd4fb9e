"""The config of a run without a preset: what the recipe chooses for a text, and for --minutes."""

import math
import sys
import time
from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs.recipe import DEFAULT_FLOPS, GPU_FLOPS, Budget, explain, run_flops, step_flops
from configs.schema import to_dict
from configs.training import Command, TrainConfig, load_config
from data.corpus import Corpus
from model.checkpoint import Checkpoint
from model.run.device import is_cuda
from model.run.errors import UserError, print_line
from model.run.processes import Processes

FIRST_STEPS = 10  # of the first rehearsal
FEWEST_STEPS = 10  # of a run
REHEARSAL_SHARE = 1 / 25  # of the run, for the second rehearsal
COMPILE_MINUTES = 6  # on a CPU, compiling pays in longer runs
# Where these are larger than the default, the first rehearsal leaves them out, so that it is short.
SIZE_KEYS = ("n_layer", "n_head", "n_embd", "batch_size", "gradient_accumulation_steps")
# What the speed of a step depends on; a run that was measured keeps it.
MEASURED_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "dropout")


Rehearse = Callable[[TrainConfig], tuple[int, Checkpoint]]  # trains; status and last state


def measure(
    rehearse: Rehearse, config: TrainConfig, steps: int, processes: Processes
) -> tuple[float, float, float]:
    """FLOPs per second in training, seconds of an evaluation, seconds of all the rest.

    All processes must choose the same, so the slowest one counts.
    """
    teacher_share = config.optim.teacher_iters / config.optim.max_iters
    teacher_iters = min(math.ceil(teacher_share * steps), steps - 1)
    optim = replace(config.optim, max_iters=steps, teacher_iters=teacher_iters)
    config = replace(config, optim=optim, run=replace(config.run, eval_interval=steps))
    start_time = time.perf_counter()
    _, state = rehearse(config)
    rest = time.perf_counter() - start_time - state.train_seconds - state.eval_seconds
    speed = run_flops(to_dict(config)) / processes.max(state.train_seconds)
    return speed, processes.max(state.eval_seconds), processes.max(rest)


def choose_config(
    command: Command,
    start: dict[str, Any],
    corpus: Corpus,
    processes: Processes,
    start_time: float,
    rehearse: Rehearse,
) -> TrainConfig:
    """What the recipe chooses around the flags for a run from `start`; prints it, and why.

    Without --minutes it is a function of the text's length and the kind of device. With it, the
    machine is measured. First the default network, or a smaller one that is given, tells how large
    a network fits into the time. Then a part of the run with the network that was chosen tells how
    many steps fit. Raises UserError if hardly any do.
    """
    given, speed = dict(command.given), 0.0
    end_time = start_time + 60 * given.pop("minutes", 0.0)
    config = load_config(command, start, Budget())
    on_gpu = is_cuda(config.system.device)
    eval_chars = corpus.eval_chars(config.model.block_size)
    flops = GPU_FLOPS if on_gpu else DEFAULT_FLOPS
    budget = Budget(flops, corpus.train_chars, eval_chars, on_gpu, processes.world_size)

    def load(given: dict[str, Any], flops: float) -> TrainConfig:
        return load_config(command._replace(given=given), start, replace(budget, flops=flops))

    def time_left() -> float:
        return -processes.max(time.perf_counter() - end_time)

    if command.given.get("minutes"):
        too_short = UserError(
            f"minutes is {command.given['minutes']:g}, which is too little time for this text, "
            "this machine, and the flags that are given."
        )
        default = to_dict(TrainConfig())
        small = {k: given[k] for k in given if k not in SIZE_KEYS or given[k] <= default[k]}
        # The first evaluation of a process takes longer than others; it is made here.
        speed, _, _ = measure(rehearse, load(small, budget.flops), FIRST_STEPS, processes)
        if time_left() > 60 * COMPILE_MINUTES and not budget.on_gpu:
            given.setdefault("compile", "on")
        seconds = end_time - start_time
        values = to_dict(config := load(given, speed * seconds))
        step_seconds = step_flops(values) / speed
        steps = max(2, round(REHEARSAL_SHARE * min(values["max_iters"], seconds / step_seconds)))
        if steps * step_seconds > time_left():
            raise too_short
        speed, evaluation_seconds, rest = measure(rehearse, config, steps, processes)
        given |= {key: values[key] for key in MEASURED_KEYS}
        seconds = time_left() - rest
        budget = replace(budget, flops=max(0.0, speed * seconds))

        def run_seconds(share: float) -> float:
            """Of a run with this share of the computation. It also has fewer evaluations."""
            values = to_dict(load(given, share * budget.flops))
            evaluations = math.ceil(values["max_iters"] / values["eval_interval"])
            return run_flops(values) / speed + evaluations * evaluation_seconds

        shares = [i / 10_000 for i in range(10_001)]
        fitting = bisect(shares, seconds, key=run_seconds)  # so many of them
        config = load(given, shares[fitting - 1] * budget.flops)
        if not fitting or config.optim.max_iters < FEWEST_STEPS:
            raise too_short
    else:
        config = load(given, budget.flops)
    if processes.is_main:
        print_line(explain(budget, to_dict(config), speed), sys.stdout)
    return config
