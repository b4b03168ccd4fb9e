"""Chooses the config of a run without a preset, from the text, the machine and --minutes."""

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from configs.recipe import DEFAULT_FLOPS, GPU_FLOPS, Budget, explain, run_flops
from configs.schema import to_dict
from configs.training import Command, TrainConfig, load_config
from data.corpus import EVAL_BATCH_CHARS, Corpus
from model.checkpoint import Checkpoint
from model.system.device import choose_device, is_cuda
from model.system.errors import UserError, print_line
from model.system.processes import Processes

FIRST_STEPS = 10  # of the first trial run
TRIAL_SHARE = 1 / 25  # of the run, for the trial run that tells how many steps fit
MAX_TRIAL_SECONDS = 300  # of its steps; it shows nothing and saves nothing
COMPILE_SECONDS = 350  # on a CPU, compiling four blocks pays off in runs of at least this length
# The first trial run ignores these flags where they are above the default, so that it is short.
SIZE_KEYS = ("n_layer", "n_head", "n_embd", "block_size", "batch_size")
SIZE_KEYS += ("gradient_accumulation_steps",)
# What the speed of a step depends on. The run keeps the values that were measured.
MEASURED_KEYS = (*SIZE_KEYS, "dropout")

RunTrial = Callable[[TrainConfig, Corpus], Checkpoint]  # trains, and returns the last state


def measure(
    run_trial: RunTrial, config: TrainConfig, corpus: Corpus, steps: int, processes: Processes
) -> tuple[float, float, float]:
    """Train for `steps` steps. Returns FLOPs per second, seconds per evaluation, all other seconds.

    A trial run does not save, so these do not contain the time of saving. The slowest process
    counts, so that all processes choose the same.
    """
    teacher_share = config.optim.teacher_iters / config.optim.max_iters
    teacher_iters = min(math.ceil(teacher_share * steps), steps - 1)
    optim = replace(config.optim, max_iters=steps, teacher_iters=teacher_iters)
    config = replace(config, optim=optim, run=replace(config.run, eval_interval=steps))
    start_time = time.perf_counter()
    state = run_trial(config, corpus)
    seconds = processes.max(time.perf_counter() - start_time)
    train_seconds, eval_seconds = map(processes.max, (state.train_seconds, state.eval_seconds))
    flops = run_flops(to_dict(config)) * state.timed_steps / steps
    speed = flops / train_seconds
    return speed, eval_seconds, seconds - train_seconds - eval_seconds


def choose_config(
    command: Command,
    start_config: dict[str, Any],
    corpus: Corpus,
    processes: Processes,
    start_time: float,
    run_trial: RunTrial,
) -> TrainConfig:
    """The flags, what the recipe chooses around them, and defaults; prints the choice, and why.

    `start_config` is that of the checkpoint that the run begins with, or empty. Without --minutes,
    the choice is a function of the text's length, the kind of device, and the number of processes.
    Raises UserError if the minutes are too few for a run.
    """
    config = load_config(command, start_config)
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
        command_given = command._replace(given=given)
        return load_config(command_given, start_config, replace(budget, flops=flops))

    def time_left() -> float:
        return 60 * minutes - processes.max(time.perf_counter() - start_time)

    if minutes:
        too_short = UserError(
            f"minutes is {minutes:g}, which is too little time for this text and these flags on "
            "this machine. Use more --minutes (if the run is compiled, --compile off may do)."
        )
        if processes.is_main:
            print_line("recipe  measuring the speed of this machine", sys.stderr)
        # A few steps of the default network, or of a smaller one that is given, tell how large a
        # network fits, without compilation. The first evaluation of a process takes longer than
        # others; it is made here, on a few characters.
        default, steps = to_dict(TrainConfig()), FIRST_STEPS
        small = {k: v for k, v in given.items() if k not in SIZE_KEYS or v <= default[k]}
        if start_config:  # its network, which may be large, is trained as it will be
            small, steps = dict(given), 1
        small["compile"] = "off"
        short_corpus = corpus.with_val_chars(2 * EVAL_BATCH_CHARS)
        config = load(small, budget.flops)
        for _ in range(2 if on_gpu else 1):  # a GPU loads its kernels in its first steps
            speed, _, _ = measure(run_trial, config, short_corpus, steps, processes)
        config = load(given, speed * 60 * minutes)
        device = choose_device(config.system.device)
        is_auto = given.get("compile", "auto") == "auto"
        run_seconds = run_flops(to_dict(config)) / speed
        compile_seconds = COMPILE_SECONDS * max(1, config.model.n_layer / 4)
        if is_auto and device.type == "cpu" and run_seconds > compile_seconds:
            given["compile"] = "on"
            config = load(given, speed * 60 * minutes)

        # Two timed steps of the network that was chosen tell how long a step takes. The first step
        # of a network that is compiled is not timed; with a teacher there are two networks. (A
        # process compiles them only once.) Then a part of the run tells how many steps fit.
        values = to_dict(config)
        step_flops = run_flops(values) / values["max_iters"]
        fewest = 4 if on_gpu or config.system.compile in ("on", "True") else 2
        if fewest * step_flops / speed > time_left():
            raise too_short
        speed, _, _ = measure(run_trial, config, short_corpus, fewest, processes)
        trial_seconds = min(TRIAL_SHARE * 60 * minutes, MAX_TRIAL_SECONDS)
        trial_steps = min(TRIAL_SHARE * values["max_iters"], trial_seconds * speed / step_flops)
        steps = max(fewest, round(trial_steps))
        if steps * step_flops / speed > time_left():
            raise too_short
        speed, evaluation_seconds, rest = measure(run_trial, config, corpus, steps, processes)
        given |= {key: values[key] for key in MEASURED_KEYS}
        if not config.optim.teacher_iters:
            given["teacher_iters"] = 0  # its steps would be slower than those that were measured
        seconds = max(0.0, time_left() - rest)
        flops = speed * seconds
        for _ in range(200):  # evaluations take time, too; a shorter run may have fewer of them
            config = load(given, flops)
            evaluations = math.ceil(config.optim.max_iters / config.run.eval_interval)
            run_seconds = run_flops(to_dict(config)) / speed + evaluations * evaluation_seconds
            if run_seconds <= seconds:
                break
            flops *= min(seconds / run_seconds, 0.995)
        if run_seconds > seconds:
            raise too_short
        budget = replace(budget, flops=speed * seconds)
    else:
        config = load(given, budget.flops)
    if processes.is_main:
        print_line(explain(budget, to_dict(config), speed), sys.stdout)
    return config
