"""How far a run is, from 0 to 1, and what follows from it: learning rate, evaluations, its end."""

import math

from configs.training import TrainConfig
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
        # An estimate: a step takes three times as long for each character. The first steps take
        # still longer, so no more than a quarter of the time.
        eval_seconds = min(eval_chars / (3 * state.chars_per_second), 15 * config.minutes)
    deadline = 60 * config.minutes - 1.3 * eval_seconds
    training_seconds = max(deadline - state.first_step_seconds, 1e-9)
    return min(1.0, max(progress, (seconds - state.first_step_seconds) / training_seconds))


def evaluations(progress: float, config: TrainConfig) -> int:
    """How many evaluations are due until this progress."""
    count = config.max_iters / config.eval_interval
    if config.minutes:  # then max_iters may be far away
        count = min(count, MAX_TIMED_EVALUATIONS)
    return math.floor(progress * count + 1e-9)


def learning_rate(step: int, progress: float, config: TrainConfig) -> float:
    """The learning rate at a step: a linear warmup, then a decay that ends with the run.

    It is linear to zero, or a cosine to min_lr (Loshchilov and Hutter 2017, "SGDR").
    """
    warmup = (step + 1) / (config.warmup_iters + 1)
    if not config.min_lr:
        return config.learning_rate * min(warmup, 1 - progress)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return min(
        config.learning_rate * warmup,
        config.min_lr + cosine * (config.learning_rate - config.min_lr),
    )
