"""The recipe: it chooses the settings from the length of the text and the amount of computation.

The recipe reads only the text, the device, --minutes and --init_from. A preset replaces some of its
settings, and a flag replaces both. Neither changes what the recipe chooses for the others.

The rows for CPUs were fitted on two cores, in runs of one to fifteen minutes, to texts in four
languages with 30,000 to a million characters. The rows for GPUs were fitted to a million
characters, in 16 to 46 s on an H200 (docs/experiments.md). All else is an assumption.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# The floating-point operations of a run without --minutes. In SIZES, such a run has the length 1.
DEFAULT_FLOPS = {"cpu": 8.86e12, "gpu": 2.2e14}

# A row fits if the text has at least this many characters (on shorter texts, so many parameters do
# not help), and if the run has at least this length or can read the text LARGER_READINGS times with
# the network of the row. The last row that fits counts.
SIZES = {
    # characters, length, n_layer, n_embd, block_size
    "cpu": [
        (0, 0, 2, 128, 256),
        (64_500, 2.5, 3, 144, 256),
        (114_000, 12.7, 4, 160, 256),
        (175_500, 44, 4, 192, 256),
        (421_000, 533, 6, 256, 256),
    ],
    "gpu": [
        (0, 0, 2, 128, 256),
        (99_400, 0.35, 4, 192, 256),
        (175_000, 0.35, 4, 192, 512),
        (740_000, 4.5, 6, 256, 1024),
        (2_460_000, 36, 8, 384, 1024),
        (4_820_000, 140, 12, 512, 1024),
    ],
}
# A block_size above 256, which SIZES has only for GPUs, is a long context.
CHARS_PER_STEP = {"short context": 2048, "long context": 8192}
MAX_READINGS = {"short context": 24, "long context": 28}  # more readings of the text do not help
LARGER_READINGS = 19  # a larger network is better if it can read the text this often
MIN_CHARS = 250_000  # a run may always read this many characters, however short its text is

# The first column says how easily the network can learn the text by heart. It is the number of
# readings of the text times √(parameters in the blocks / characters). Between two rows, the values
# are interpolated on the logarithm of this column. Beyond the last row, they stay the same. Dropout
# is rounded to tenths, weight decay to halves.
REGULARIZATION = {
    # by heart  train_temperature, dropout, weight_decay, learning_rate
    "short context": [
        (17, (0.90, 0.000, 0.50, 0.010)),  # 225,000 characters or more, in a default run
        (48, (0.81, 0.195, 0.75, 0.010)),  # 113,000 characters
        (171, (0.70, 0.430, 1.00, 0.010)),  # 13,000 characters or fewer
    ],
    "long context": [
        (21, (0.78, 0.00, 1.0, 0.010)),  # Tiny Shakespeare in a default run
        (78, (0.74, 0.13, 1.0, 0.014)),  # Tiny Shakespeare in a minute
    ],
    # If the text is read fewer than AVERAGE_READINGS times, no overfitting has to be avoided.
    "short context, read seldom": [(1, (1.0, 0.0, 0.5, 0.007))],
    "long context, read seldom": [(1, (1.0, 0.0, 0.5, 0.010))],
    "--init_from": [  # with a learning rate of 0.007, trained weights overfit within 40 steps
        (17, (1.0, 0.0, 0.5, 0.001)),
        (34, (0.9, 0.1, 0.5, 0.001)),
        (68, (0.8, 0.1, 1.0, 0.001)),
    ],
}
AVERAGE_READINGS = 6  # an average of the weights helps if the text is read at least this often
AVERAGE_COST = 4 / 3  # the average reads each batch, too: 24 readings become 18
LONG_RUN = 6_144_000  # a CPU run that reads more characters than this gets batches twice as large
LONG_RUN_RATE = 0.014  # and this learning rate
COMPILE_SECONDS = 350  # compiling pays off in CPU runs that are longer than this


@dataclass(frozen=True)
class Budget:
    """The input of the recipe. The defaults describe Tiny Shakespeare."""

    train_chars: int = 1_003_854
    flops: float = 0.0  # operations of all steps (see `step_flops`); 0: as many as a default run
    minutes: float = 0.0  # the time limit from which `flops` was estimated; 0: no time limit
    device: str = "cpu"  # PyTorch's name of the kind of device: cpu, cuda, mps
    # With --init_from, the size of the network is already fixed:
    parameters: int = 0  # the number of parameters in its blocks; 0: the recipe chooses the network
    block_size: int = 0


def block_parameters(n_layer: int, n_embd: int) -> int:
    """Return the number of parameters in the blocks of quill."""
    return 20 * n_layer * n_embd**2


def step_flops(parameters: int, chars: int) -> float:
    """Return the operations of a training step: 6 for each character and parameter of a block."""
    return 6.0 * parameters * chars


def recipe(budget: Budget) -> dict[str, Any]:
    """Return every setting that depends on the budget, by its name."""
    device = "gpu" if budget.device == "cuda" else "cpu"
    flops = budget.flops or DEFAULT_FLOPS[device]
    n_layer, n_embd, block_size = choose_size(device, flops, budget.train_chars)
    context = "long context" if block_size > 256 else "short context"
    parameters = budget.parameters or block_parameters(n_layer, n_embd)
    block_size = budget.block_size or block_size

    # The run reads as many characters as the computation allows, but the text not too often.
    affordable_chars = max(flops, 1.0) / step_flops(parameters, 1)
    useful_chars = max(MAX_READINGS[context] * budget.train_chars, MIN_CHARS)
    chars = min(affordable_chars, useful_chars)
    settings = regularize(context, parameters, chars, budget)

    batch_chars = CHARS_PER_STEP[context]
    if context == "short context" and chars > LONG_RUN:
        batch_chars *= 2
        if not budget.parameters:
            settings["learning_rate"] = LONG_RUN_RATE
    batch_size = max(1, batch_chars // block_size)
    cost = AVERAGE_COST if settings["ema_decay"] else 1
    steps = max(1, int(chars / cost / (batch_size * block_size)))
    useful_steps = max(1, int(useful_chars / cost / (batch_size * block_size)))

    # An evaluation takes as long as training on a 27th of the text. All evaluations may take a
    # fifteenth of the training time. If eight fit into a sixth of it, there are at least eight.
    # With a long context, the sample takes longest, so there is one evaluation in 260 steps.
    most = chars / cost / min(budget.train_chars / 27, 350_000)
    evaluations = steps / 260 if context == "long context" else max(most / 15, min(most / 6, 8))
    seconds = 60 * budget.minutes * chars / affordable_chars
    is_compiled = budget.device == "cpu" and seconds > COMPILE_SECONDS
    return settings | {
        "n_layer": n_layer,
        "n_embd": n_embd,
        "block_size": block_size,
        "batch_size": batch_size,
        "max_iters": useful_steps if budget.minutes else steps,  # or the clock ends it
        "eval_interval": math.ceil(steps / min(max(round(evaluations), 2), 10)),
        "compile": "on" if is_compiled else "auto",
    }


def choose_size(device: str, flops: float, train_chars: int) -> tuple[int, int, int]:
    """Return n_layer, n_embd and block_size of the last row of SIZES that fits."""
    for min_chars, min_length, n_layer, n_embd, block_size in SIZES[device]:
        often = step_flops(block_parameters(n_layer, n_embd), LARGER_READINGS * train_chars)
        is_long_run = flops >= min(min_length * DEFAULT_FLOPS[device], often)
        if train_chars >= min_chars and is_long_run:
            size = n_layer, n_embd, block_size
    return size


def regularize(context: str, parameters: int, chars: float, budget: Budget) -> dict[str, float]:
    """Return the learning rate, and what keeps the network from learning the text by heart."""
    readings = chars / budget.train_chars
    has_average = readings >= AVERAGE_READINGS and not budget.parameters
    key = context if has_average else f"{context}, read seldom"
    rows = REGULARIZATION["--init_from" if budget.parameters else key]
    by_heart = math.log(readings * math.sqrt(parameters / budget.train_chars))
    places = np.log([place for place, _ in rows])
    columns = zip(*(values for _, values in rows), strict=True)
    temperature, dropout, decay, lr = (float(np.interp(by_heart, places, x)) for x in columns)
    return {
        "learning_rate": round(lr, 3),
        "ema_decay": 0.995 if has_average else 0.0,
        "train_temperature": round(temperature, 2),
        "dropout": round(dropout, 1),
        "weight_decay": round(2 * decay) / 2,
    }
