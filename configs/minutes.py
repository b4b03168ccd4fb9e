"""The config of a run without a preset: the recipe's, for a text, a machine, and --minutes."""

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
COMPILE_MINUTES = 6  # on a CPU, compiling pays in runs of at least so long
# The first rehearsal ignores these flags where they are above the default, so that it is short.
SIZE_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "batch_size")
SIZE_KEYS += ("gradient_accumulation_steps",)
# What the speed of a step depends on; a run that was measured keeps it.
MEASURED_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "dropout")

Rehearse = Callable[[TrainConfig], Checkpoint]  # trains with a config, returns the last state


def measure(
    rehearse: Rehearse,
    config: TrainConfig,
    steps: int,
    processes: Processes,
) -> tuple[float, float, float]:
    """Train a part of a run. FLOPs per second, seconds of an evaluation, seconds of all the rest.

    All processes must choose the same, so the slowest one counts.
    """
    teacher_share = config.optim.teacher_iters / config.optim.max_iters
    teacher_iters = min(math.ceil(teacher_share * steps), steps - 1)
    optim = replace(config.optim, max_iters=steps, teacher_iters=teacher_iters)
    config = replace(config, optim=optim, run=replace(config.run, eval_interval=steps))
    start_time = time.perf_counter()
    state = rehearse(config)
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

    Without --minutes it is a function of the text's length, the kind of device, and the number of
    processes. Raises UserError if hardly any steps fit into the minutes.
    """
    config = load_config(command, start)
    on_gpu = is_cuda(config.system.device)
    budget = Budget(
        flops=GPU_FLOPS if on_gpu else DEFAULT_FLOPS,
        train_chars=corpus.train_chars,
        eval_chars=corpus.eval_chars(config.model.block_size),
        on_gpu=on_gpu,
        processes=processes.world_size,
    )
    given, speed = dict(command.given), 0.0
    minutes = given.pop("minutes", 0.0)

    def load(given: dict[str, Any], flops: float) -> TrainConfig:
        return load_config(command._replace(given=given), start, replace(budget, flops=flops))

    def time_left() -> float:
        return 60 * minutes - processes.max(time.perf_counter() - start_time)

    if minutes:
        too_short = UserError(
            f"minutes is {minutes:g}, which is too little time for this text, this machine, and "
            "the flags that are given."
        )
        # A few steps of the default network, or of a smaller one that is given, tell how large a
        # network fits. The first evaluation of a process takes longer than others; it is made here.
        default = to_dict(TrainConfig())
        small = {k: given[k] for k in given if k not in SIZE_KEYS or given[k] <= default[k]}
        steps = 2 if start else FIRST_STEPS  # the network of `start` may be large
        speed, _, _ = measure(rehearse, load(small, budget.flops), steps, processes)
        if not on_gpu and minutes >= COMPILE_MINUTES:
            given.setdefault("compile", "on")
        config = load(given, speed * 60 * minutes)

        # A part of the run with the network that was chosen tells how many steps fit.
        values = to_dict(config)
        step_seconds = step_flops(values) / speed
        run_steps = min(values["max_iters"], 60 * minutes / step_seconds)
        steps = max(2, round(REHEARSAL_SHARE * run_steps))
        if steps * step_seconds > time_left():
            raise too_short
        speed, evaluation_seconds, rest = measure(rehearse, config, steps, processes)
        given |= {key: values[key] for key in MEASURED_KEYS}
        seconds = time_left() - rest
        budget = replace(budget, flops=max(0.0, speed * seconds))

        def run_seconds(share: float) -> float:
            """Of a run with this share of the computation; it may have fewer evaluations, too."""
            values = to_dict(load(given, share * budget.flops))
            evaluations = math.ceil(values["max_iters"] / values["eval_interval"])
            return run_flops(values) / speed + evaluations * evaluation_seconds

        shares = [i / 10_000 for i in range(10_001)]
        fitting = bisect(shares, seconds, key=run_seconds)  # the number of shares that fit
        config = load(given, shares[fitting - 1] * budget.flops)
        few = config.optim.max_iters < FEWEST_STEPS
        if fitting == 0 or (few and fitting < len(shares)):
            raise too_short
    else:
        config = load(given, budget.flops)
    if processes.is_main:
        print_line(explain(budget, to_dict(config), speed), sys.stdout)
    return config
