"""How far a run is, from 0 to 1; the learning rate, which follows from it."""

import math

from configs.settings import OptimConfig, TrainConfig


def run_progress(step: int, config: TrainConfig, seconds: float, available: float) -> float:
    """How much of a run is done: of its steps or of its time, whichever is more. At the end 1.

    `seconds` have passed since the first step, of the `available` ones that --minutes leaves for
    training. The first step is always made.
    """
    progress = step / config.max_iters
    if config.minutes and step > 0:
        progress = max(progress, seconds / available if available > 0 else 1.0)
    return min(progress, 1.0)


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
