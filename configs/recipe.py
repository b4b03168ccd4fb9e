"""The recipe: the settings that follow from a text's length and the amount of computation.

The network is read off SIZES, what works against overfitting off HELD_BACK. The inputs are the
text, the device, --minutes and --init_from. Every other flag replaces one setting and leaves the
others as they are. (With --minutes, the speed is measured in the run's dtype.)

The CPU's rows were fitted on two cores, in one to fifteen minutes, to texts in four languages of
30,000 to a million characters; the GPU's to a million, in 16 to 46 s of an H200
(docs/experiments.md). The rest is assumed, also for other networks and contexts.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

# Floating-point operations of a run without --minutes: its length in SIZES is 1.
DEFAULT_FLOPS = {"cpu": 8.86e12, "gpu": 2.2e14}

# A network is used if the text has at least so many characters (with fewer, it has more parameters
# than help) and the run at least this length. The last such row counts.
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
        (0, 0, 2, 128, 256),  # trained as on a CPU
        (175_000, 0.35, 4, 192, 512),
        (740_000, 4.5, 6, 256, 1024),
        (2_460_000, 36, 8, 384, 1024),
        (4_820_000, 140, 12, 512, 1024),
    ],
}
CHARS_PER_STEP = {"cpu": 2048, "gpu": 8192}
MAX_READINGS = {"cpu": 24, "gpu": 28}  # of the text; more do not help
LARGER_READINGS = 19  # rather than read the text so often, use the next larger network
MIN_CHARS = 250_000  # that a run reads, however short the text

# The first column says how easily the network can learn the text by heart: readings of the text
# times √(parameters in the blocks / characters). Between two rows, values are interpolated on its
# logarithm. Beyond the last row its values stay. Dropout is rounded to tenths, weight decay to
# halves.
HELD_BACK = {
    # by heart  train_temperature, dropout, weight_decay, learning_rate
    "cpu": [
        (17, (0.90, 0.000, 0.50, 0.010)),  # in a default run, a text of 225,000 characters or more
        (48, (0.81, 0.195, 0.75, 0.010)),  # 113,000
        (171, (0.70, 0.430, 1.00, 0.010)),  # 13,000 or fewer
    ],
    "gpu": [
        (21, (0.78, 0.00, 1.0, 0.010)),  # Tiny Shakespeare in a default run
        (78, (0.74, 0.13, 1.0, 0.014)),  # and in a minute
    ],
    # A text that is read fewer than AVERAGE_READINGS times
    "cpu, read seldom": [(17, (1.0, 0.0, 0.5, 0.007))],
    "gpu, read seldom": [(17, (1.0, 0.0, 0.5, 0.010))],
    # --init_from: with 0.007 they overfit in 40 steps, and more dropout would disturb them.
    "trained weights": [
        (17, (1.0, 0.0, 0.5, 0.001)),
        (34, (0.9, 0.1, 0.5, 0.001)),
        (68, (0.8, 0.1, 1.0, 0.001)),
    ],
}
AVERAGE_READINGS = 6  # an average of the weights helps if the text is read at least so often
AVERAGE_COST = 4 / 3  # of a step: the average reads, too
LONG_RUN = 6_144_000  # a CPU run that reads more characters has twice the batch
LONG_RUN_RATE = 0.014  # and twice the learning rate
COMPILE_SECONDS = 350  # compiling pays off in CPU runs of at least this length


@dataclass(frozen=True)
class Budget:
    """What the recipe depends on. The defaults are those of Tiny Shakespeare."""

    train_chars: int = 1_003_854
    flops: float = 0.0  # of all training steps, as `step_flops` counts them; 0: a default run's
    minutes: float = 0.0  # of which `flops` is an estimate; 0: no time limit
    device: str = "cpu"  # PyTorch's name for its kind: cpu, cuda, mps
    # With --init_from, the size of its network is given:
    parameters: int = 0  # in its blocks; 0: the recipe chooses the network
    block_size: int = 0


def block_parameters(n_layer: int, n_embd: int) -> int:
    """Return the number of parameters in the blocks of quill."""
    return 20 * n_layer * n_embd**2


def step_flops(parameters: int, chars: int) -> float:
    """Return the floating-point operations of a training step that reads so many characters.

    They are 6 for each character and parameter in the blocks. Those of attention are not counted.
    """
    return 6.0 * parameters * chars


def recipe(budget: Budget) -> dict[str, Any]:
    """Return the value of every key that depends on the budget."""
    kind = "gpu" if budget.device == "cuda" else "cpu"
    flops = budget.flops or DEFAULT_FLOPS[kind]
    for min_chars, min_length, *size in SIZES[kind]:
        often = step_flops(block_parameters(*size[:2]), LARGER_READINGS * budget.train_chars)
        is_long = flops >= min(min_length * DEFAULT_FLOPS[kind], often)
        if budget.train_chars >= min_chars and is_long:
            n_layer, n_embd, block_size = size
    kind = "gpu" if block_size > 256 else "cpu"  # a short text is trained as on a CPU
    parameters = budget.parameters or block_parameters(n_layer, n_embd)

    # The run reads as much as the computation allows, but the text not too often.
    affordable_chars = max(flops, 1.0) / step_flops(parameters, 1)
    useful_chars = max(MAX_READINGS[kind] * budget.train_chars, MIN_CHARS)
    chars = min(affordable_chars, useful_chars)
    readings = chars / budget.train_chars
    table = kind if readings >= AVERAGE_READINGS else f"{kind}, read seldom"
    if budget.parameters:
        table = "trained weights"
    has_average = table == kind
    by_heart = readings * math.sqrt(parameters / budget.train_chars)
    temperature, dropout, weight_decay, learning_rate = interpolate(HELD_BACK[table], by_heart)

    chars_per_step = CHARS_PER_STEP[kind]
    if kind == "cpu" and chars > LONG_RUN:
        chars_per_step *= 2
        learning_rate = learning_rate if budget.parameters else LONG_RUN_RATE
    block_size = budget.block_size or block_size
    batch_size = max(1, chars_per_step // block_size)
    cost = AVERAGE_COST if has_average else 1
    steps = max(1, int(chars / cost / (batch_size * block_size)))
    useful_steps = max(1, int(useful_chars / cost / (batch_size * block_size)))

    # An evaluation takes as long as training on a 27th of the text: it reads a tenth, at most a
    # million characters, without a backward pass. All take a fifteenth of the training time, but
    # eight are made if they take less than a sixth. On a GPU the sample takes longest.
    affordable = chars / cost / min(budget.train_chars / 27, 350_000)
    evaluations = steps / 260 if kind == "gpu" else max(affordable / 15, min(affordable / 6, 8))

    seconds = 60 * budget.minutes * chars / affordable_chars
    is_compiled = budget.device == "cpu" and seconds > COMPILE_SECONDS
    return {
        "block_size": block_size,
        "n_layer": n_layer,
        "n_embd": n_embd,
        "batch_size": batch_size,
        "max_iters": useful_steps if budget.minutes else steps,  # or the clock ends the run
        "eval_interval": math.ceil(steps / min(max(round(evaluations), 2), 10)),
        "learning_rate": round(learning_rate, 3),
        "ema_decay": 0.995 if has_average else 0.0,
        "train_temperature": round(temperature, 2),
        "dropout": round(dropout, 1),
        "weight_decay": round(2 * weight_decay) / 2,
        "compile": "on" if is_compiled else "auto",
    }


def interpolate(table: list[tuple[float, tuple]], position: float) -> list[float]:
    """Return the values of a table at a position, interpolated on its logarithm."""
    logarithms = np.log([row_position for row_position, _ in table])
    columns = zip(*(values for _, values in table), strict=True)
    return [float(np.interp(math.log(position), logarithms, column)) for column in columns]
