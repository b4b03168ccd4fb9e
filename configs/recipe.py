"""The recipe: the settings that follow from a text's length and the amount of computation.

No flag is an input, except --minutes, --device, --init_from and those that choose the text: a flag
replaces one setting and leaves the others as they are. (With --minutes, the speed is measured in
the run's dtype.)

It was fitted on two CPU cores to texts in four languages: 30,000 to 300,000 characters (one to five
minutes), up to 900,000 (one minute) and a million (one to fifteen minutes; docs/experiments.md,
"Which settings for which text and time?"). It was not fitted to shorter texts, longer runs,
networks other than quill, or contexts other than 256. On a GPU, it was fitted to a million
characters and one size; 18 times the computation of the default run is an assumption.
"""

import math
from dataclasses import dataclass
from typing import Any

# Blocks, channels; a head has about 64 of them
SIZES = ((2, 128), (3, 144), (4, 160), (4, 192), (6, 192), (6, 256), (8, 320), (8, 384), (12, 512))
BLOCK_SIZE = 256
MIN_PARAMETERS = 655_360  # in the blocks of the smallest network
DEFAULT_FLOPS = 8.86e12  # of a run without --minutes
GPU_FLOPS = 1.6e14  # the same on a GPU
AVERAGE_EPOCHS = 6  # an average of the weights helps if the text is read at least so often
MAX_EPOCHS = 24  # a larger network is better than reading the text more often
MAX_PARAMETERS_PER_CHAR = 14  # a larger network is no better
OVERFITTING_THRESHOLD = 17  # of epochs √(parameters / characters): above it, regularize
AVERAGE_COST = 4 / 3  # of a step in which the average reads the batch, too
COMPILE_SECONDS = 350  # on a CPU, compiling four blocks pays off in runs of at least this length


@dataclass(frozen=True)
class Budget:
    """What the recipe depends on. The defaults are those of Tiny Shakespeare."""

    train_chars: int = 1_003_854
    flops: float = DEFAULT_FLOPS  # of all training steps, as `step_flops` counts them
    minutes: float = 0.0  # of which `flops` is an estimate; 0: no time limit
    device: str = "cpu"  # its kind, see `device_kind`
    # With --init_from, the size of its network is given:
    parameters: int = 0  # in its blocks; 0: the recipe chooses the network
    block_size: int = BLOCK_SIZE


def default_flops(device: str) -> float:
    """Of a run without --minutes on a device of this kind."""
    return GPU_FLOPS if device == "gpu" else DEFAULT_FLOPS


def block_parameters(n_layer: int, n_embd: int) -> int:
    """Parameters in the blocks of quill."""
    return 20 * n_layer * n_embd**2


def step_flops(parameters: int, chars: int) -> float:
    """Floating-point operations of a training step that reads so many characters.

    6 for each character and parameter in the blocks. Those of attention are not counted.
    """
    return 6.0 * parameters * chars


def recipe(budget: Budget) -> dict[str, Any]:
    """The value of every key that depends on the budget."""
    # The network grows with the computation, still more if it would read a short text too often.
    # More computation than that is of no use to a short text.
    max_chars = max(MAX_EPOCHS * budget.train_chars, 250_000)
    max_parameters = max(MAX_PARAMETERS_PER_CHAR * budget.train_chars, MIN_PARAMETERS)
    has_weights = budget.parameters > 0
    if has_weights:
        max_parameters = budget.parameters
    available_flops = max(budget.flops, 1.0)
    flops = min(available_flops, 6 * max_parameters * max_chars)
    target = MIN_PARAMETERS * (flops / DEFAULT_FLOPS) ** 0.35
    target = max(target, flops / (6 * max_chars))
    is_gpu = budget.device == "gpu"
    sizes = [size for size in SIZES if not is_gpu or size[1] % 64 == 0]  # suits its matrix units
    n_layer, n_embd = min(sizes, key=lambda size: abs(math.log(block_parameters(*size) / target)))
    parameters = budget.parameters or block_parameters(n_layer, n_embd)

    # As many characters in a batch, whatever the context
    many_steps = flops / step_flops(parameters, 8 * BLOCK_SIZE) > 3000
    examples = 64 if is_gpu else 16 if many_steps else 8
    batch_size = max(1, examples * BLOCK_SIZE // budget.block_size)
    chars_per_step = batch_size * budget.block_size
    max_steps = max_chars / chars_per_step
    affordable_steps = available_flops / step_flops(parameters, chars_per_step)
    steps = min(affordable_steps, max_steps)
    epochs = steps * chars_per_step / budget.train_chars

    # A text that is read often gets an average, with which a step takes longer.
    has_average = epochs >= AVERAGE_EPOCHS and not has_weights
    share = 1 / AVERAGE_COST if has_average else 1.0
    iters = max(1, int(share * steps))
    max_iters = max(1, int(share * max_steps)) if budget.minutes else iters  # the clock ends it
    # Larger batches allow a higher learning rate, and so does an average.
    learning_rate = 7e-3 * min(examples / 8, 2)
    if has_average:
        learning_rate = max(1e-2, learning_rate)
    if has_weights:
        learning_rate = 1e-3  # with 7e-3, trained weights overfit a short text within 40 steps
    # The more parameters there are for each character, the fewer epochs lead to overfitting.
    overfitting = epochs * math.sqrt(parameters / budget.train_chars)
    doublings = math.log2(max(1, overfitting / OVERFITTING_THRESHOLD))
    temperature, weight_decay = max(0.8, 1 - 0.1 * doublings), 0.5 if doublings < 1.5 else 1.0
    if has_average:
        # Learning from its average leaves a network too sure of new text, though less than without
        # (docs/attention.md, "What does the training temperature do?"). Fewer, larger batches
        # overfit sooner.
        temperature = max(0.7, (0.8 if is_gpu else 0.9) - 0.06 * doublings)
        weight_decay = 1.0 if is_gpu else weight_decay
    # As many evaluations as take about a fifteenth of the training time, but 2 to 10. (The default
    # val_fraction is assumed.) On a GPU, each takes as long as 130 steps, mostly for its sample.
    eval_chars = min(budget.train_chars / 9, 2**20)
    eval_steps = 130 if is_gpu else eval_chars / (3 * chars_per_step)  # that take as long as one
    evaluations = share * steps / (eval_steps if is_gpu else 15 * eval_steps)
    fewest = 2
    if budget.minutes:  # five, so three at half the speed, unless one takes a tenth of the time
        fewest = 5 if eval_steps <= 0.1 * share * steps else 1
    evaluations = min(max(round(evaluations), fewest), 10)
    eval_interval = math.ceil(iters / evaluations)
    if budget.minutes:
        eval_interval = max(1, iters // evaluations) if evaluations > 1 else max_iters
    run_seconds = 60 * budget.minutes * steps / affordable_steps
    is_compiled = budget.device == "cpu" and run_seconds > COMPILE_SECONDS * max(1, n_layer / 4)
    return {
        "block_size": budget.block_size,
        "n_layer": n_layer,
        "n_embd": n_embd,
        "batch_size": batch_size,
        "max_iters": max_iters,
        "eval_interval": eval_interval,
        "learning_rate": learning_rate,
        "ema_decay": 0.995 if has_average else 0.0,
        "train_temperature": round(temperature, 2),
        # More dropout would disturb weights that were trained without.
        "dropout": round(min(0.1 if has_weights else 0.4, 0.13 * doublings), 1),
        "weight_decay": weight_decay,
        "compile": "on" if is_compiled else "auto",
    }
