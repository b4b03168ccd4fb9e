"""How far a run is, from 0 to 1, and what follows from it: learning rate, evaluations, its end."""

import math

from configs.settings import OptimConfig, TrainConfig
from model.checkpoint import Checkpoint

MAX_TIMED_EVALUATIONS = 10  # of a run with --minutes


def run_progress(state: Checkpoint, config: TrainConfig, eval_chars: int, seconds: float) -> float:
    """How much of the run is done: of its steps or of its time, whichever is more.

    The time begins with the first step. It ends early enough for a last evaluation, which predicts
    `eval_chars` characters.
    """
    progress = min(1.0, state.step / config.max_iters)
    if not config.minutes or state.step == 0:  # make at least one step
        return progress
    eval_seconds = state.eval_seconds
    if not eval_seconds:
        # An estimate: training takes three times as long for each character as an evaluation. The
        # first steps take still longer, so no more than a quarter of the run's time.
        speed = state.step * state.chars_per_step / max(seconds - state.first_step_seconds, 1e-9)
        eval_seconds = min(eval_chars / (3 * speed), 60 * config.minutes / 4)
    deadline = 60 * config.minutes - 1.3 * eval_seconds
    training_seconds = max(deadline - state.first_step_seconds, 1e-9)
    return min(1.0, max(progress, (seconds - state.first_step_seconds) / training_seconds))


def evaluations(progress: float, config: TrainConfig) -> int:
    """How many evaluations are due until this progress."""
    count = config.max_iters / config.eval_interval
    if config.minutes:  # then max_iters may be far away
        count = min(count, MAX_TIMED_EVALUATIONS)
    return math.floor(progress * count + 1e-9)


def learning_rate(step: int, progress: float, config: OptimConfig) -> float:
    """The learning rate at a step: a linear warmup, then a decay that ends with the run.

    `progress`, below 1, is the part of the run that is done. Without `min_lr` the rate is the
    smaller of two straight lines: up to the peak during the warmup, and from the peak at the start
    of the run to zero at its end. With it, a cosine begins after the warmup and ends at `min_lr`
    (Loshchilov and Hutter 2017, "SGDR").
    """
    warmup = (step + 1) / (config.warmup_iters + 1)
    if not config.min_lr:
        return config.learning_rate * min(warmup, 1 - progress)
    if step < config.warmup_iters:
        return config.learning_rate * warmup
    # The warmup's part of the run, as if all steps took as long (with --minutes they may not).
    warmup_progress = progress * config.warmup_iters / max(step, 1)
    done = (progress - warmup_progress) / (1 - warmup_progress)
    cosine = (1 + math.cos(math.pi * done)) / 2
    return config.min_lr + cosine * (config.learning_rate - config.min_lr)
