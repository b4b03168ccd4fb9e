"""The recipe: the settings that follow from a text's length and the amount of computation.

What it chooses on a CPU without --minutes, by the characters of the training text (2 blocks of 128
channels, 8 examples of 256 characters in a step; an average of 0 is none):

    characters  steps  evaluations   rate  average  temperature  dropout  weight decay
        10,000     91            9   0.01    0.995          0.7      0.4           1.0
        20,000    175           10   0.01    0.995         0.72      0.4           1.0
        50,000    439           10   0.01    0.995         0.76      0.3           1.0
       100,000    825           10   0.01    0.995         0.79      0.2           1.0
       200,000    825           10   0.01    0.995         0.88      0.0           0.5
       300,000    825           10   0.01    0.995          0.9      0.0           0.5
       400,000  1,100           10  0.007      0.0          1.0      0.0           0.5
     1,000,000  1,100            8  0.007      0.0          1.0      0.0           0.5

On a GPU, Tiny Shakespeare gets 4 blocks of 192 channels and 1,138 steps of 16 examples of 512
characters, an average, a temperature of 0.78. With --minutes, the network grows with the time.

No flag is an input, except --minutes, --device, --init_from and those that choose the text: a flag
replaces one setting and leaves the others as they are. (With --minutes, the speed is measured in
the run's dtype.)

It was fitted on two CPU cores to texts in four languages: 30,000 to 300,000 characters (one to five
minutes), up to 900,000 (one minute) and a million (one to fifteen minutes; docs/experiments.md,
"Which settings for which text and time?"). It was not fitted to shorter texts, longer runs,
networks other than quill, or other contexts. On a GPU, it was fitted to a million characters, in
16 to 46 s of an H200 (2026-11-28 there), in 4 x 192 and 6 x 256; the rest is assumed.
"""

import math
from dataclasses import dataclass
from typing import Any

# Blocks, channels; a head has about 64 of them
SIZES = ((2, 128), (3, 144), (4, 160), (4, 192), (6, 192), (6, 256), (8, 320), (8, 384), (12, 512))
BLOCK_SIZE = 256
GPU_MIN_CHARS = 150_000  # a shorter text has no use for a GPU's computation, nor a longer context
DEFAULT_FLOPS = {"cpu": 8.86e12, "other": 8.86e12, "gpu": 2.2e14}  # of a run without --minutes
MAX_EPOCHS, GPU_MAX_EPOCHS = 24, 28  # beyond that, a larger network instead
MIN_CHARS = 250_000  # but a very short text is read still more often
MAX_PER_CHAR, GPU_MAX_PER_CHAR = 14, 8  # parameters in the blocks; more do not help
AVERAGE_EPOCHS = 6  # an average of the weights helps if the text is read at least so often
AVERAGE_SHARE = 3 / 4  # then a step takes longer, so there are fewer: the average reads, too
OVERFITTING_THRESHOLD = 17  # of epochs √(parameters / characters): above it, regularize
COMPILE_SECONDS = 350  # on a CPU, compiling four blocks pays off in runs of at least this length


@dataclass(frozen=True)
class Budget:
    """What the recipe depends on. The defaults are those of Tiny Shakespeare."""

    train_chars: int = 1_003_854
    flops: float = DEFAULT_FLOPS["cpu"]  # of all training steps, as `step_flops` counts them
    minutes: float = 0.0  # of which `flops` is an estimate; 0: no time limit
    device: str = "cpu"  # its kind: cpu, gpu or other
    # With --init_from, the size of its network is given:
    parameters: int = 0  # in its blocks; 0: the recipe chooses the network
    block_size: int = 0


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
    is_gpu = budget.device == "gpu" and budget.train_chars >= GPU_MIN_CHARS
    has_weights = budget.parameters > 0

    # Network: it grows with the computation, as far as that is of use to a text of this length.
    max_epochs, max_per_char = MAX_EPOCHS, MAX_PER_CHAR
    if is_gpu:
        max_epochs, max_per_char = GPU_MAX_EPOCHS, GPU_MAX_PER_CHAR
    max_chars = max(max_epochs * budget.train_chars, MIN_CHARS)  # that the run reads
    largest = max(max_per_char * budget.train_chars, block_parameters(*SIZES[0]))
    available = max(budget.flops, 1.0)
    flops = min(available, step_flops(budget.parameters or largest, max_chars))
    n_layer, n_embd = network_size(flops, flops / step_flops(1, max_chars), budget.device)
    parameters = budget.parameters or block_parameters(n_layer, n_embd)

    # Steps: all that the computation allows, but no text is read more than MAX_EPOCHS times. On a
    # GPU a context of 512 gains 0.012, and 1,024 another 0.013 in 6 x 256; on a CPU nothing.
    has_many = flops > 3000 * step_flops(parameters, 8 * BLOCK_SIZE)
    examples = 32 if is_gpu else 16 if has_many else 8  # of 256 characters
    gpu_block_size = 1024 if n_layer >= 6 else 512
    block_size = budget.block_size or (gpu_block_size if is_gpu else BLOCK_SIZE)
    batch_size = max(1, examples * BLOCK_SIZE // block_size)  # as many characters
    chars_per_step = batch_size * block_size
    max_steps = max_chars / chars_per_step
    affordable_steps = available / step_flops(parameters, chars_per_step)
    steps = min(affordable_steps, max_steps)
    epochs = steps * chars_per_step / budget.train_chars
    seconds = 60 * budget.minutes * steps / affordable_steps
    has_average = epochs >= AVERAGE_EPOCHS and not has_weights
    if has_average:
        steps, max_steps = AVERAGE_SHARE * steps, AVERAGE_SHARE * max_steps

    # Rate: larger batches allow more, and so does an average; trained weights much less.
    overfitting = epochs * math.sqrt(parameters / budget.train_chars)
    doublings = math.log2(max(1, overfitting / OVERFITTING_THRESHOLD))
    learning_rate = max(1e-2 if has_average else 0.0, 7e-3 * min(examples / 8, 2))
    if is_gpu:  # a higher rate overfits less
        learning_rate = round(1e-2 * 1.16**doublings, 3)
    if has_weights:
        learning_rate = 1e-3  # with 7e-3 they overfit a short text within 40 steps

    # Evaluations: a fifteenth of the training time, but eight if they take less than a sixth. One
    # reads a tenth of the text (at most a million characters) without a backward pass. On a GPU the
    # sample takes longest, so there is one in 260 steps.
    affordable = steps * chars_per_step / min(budget.train_chars / 27, 350_000)
    often = steps / 260 if is_gpu else max(affordable / 15, min(affordable / 6, 8))
    evaluations = min(max(round(often), 2), 10)
    is_compiled = budget.device == "cpu" and seconds > COMPILE_SECONDS * max(1, n_layer / 4)
    return {
        "block_size": block_size,
        "n_layer": n_layer,
        "n_embd": n_embd,
        "batch_size": batch_size,
        "max_iters": max(1, int(max_steps if budget.minutes else steps)),  # or the clock ends it
        "eval_interval": math.ceil(max(1, int(steps)) / evaluations),
        "learning_rate": learning_rate,
        "ema_decay": 0.995 if has_average else 0.0,
        "compile": "on" if is_compiled else "auto",
        **regularization(doublings, has_average, has_weights, is_gpu),
    }


def network_size(flops: float, least: float, device: str) -> tuple[int, int]:
    """Blocks and channels, of SIZES: 2.2 times as many parameters for ten times the computation.

    A run of the default computation has the smallest. It has at least about `least` parameters.
    """
    target = max(block_parameters(*SIZES[0]) * (flops / DEFAULT_FLOPS["cpu"]) ** 0.35, least)
    # Multiples of 64 suit the matrix units of a GPU.
    sizes = [size for size in SIZES if device != "gpu" or size[1] % 64 == 0]
    return min(sizes, key=lambda size: abs(math.log(block_parameters(*size) / target)))


def regularization(
    doublings: float, has_average: bool, has_weights: bool, is_gpu: bool
) -> dict[str, float]:
    """More of it, the more often a text is read, and the more parameters each character has."""
    temperature, weight_decay = max(0.8, 1 - 0.1 * doublings), 0.5 if doublings < 1.5 else 1.0
    dropout = (0.06 if is_gpu else 0.13) * doublings
    if has_average:
        # Learning from its average leaves a network too sure of new text, though less than without
        # (docs/recipe.md, "The training temperature").
        temperature = 0.79 - 0.023 * doublings if is_gpu else max(0.7, 0.9 - 0.06 * doublings)
        weight_decay = 1.0 if is_gpu else weight_decay
    return {
        "train_temperature": round(temperature, 2),
        # More dropout would disturb weights that were trained without.
        "dropout": round(min(0.1 if has_weights else 0.4, dropout), 1),
        "weight_decay": weight_decay,
    }
