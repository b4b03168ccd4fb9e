"""The recipe: the settings that follow from a text's length and the amount of computation.

It was fitted on two CPU cores to texts in four languages: 30,000 to 300,000 characters (one to five
minutes), up to 900,000 (one minute) and a million (one to fifteen minutes; docs/experiments.md,
"Which settings for which text and time?"). It was not fitted to shorter texts, longer runs, a GPU,
networks other than quill, or contexts other than 256.
"""

import math
from dataclasses import dataclass
from typing import Any

# Blocks, channels; a head has about 64 of them
SIZES = ((2, 128), (3, 144), (4, 160), (4, 192), (6, 192), (6, 256), (8, 320), (8, 384), (12, 512))
MIN_PARAMETERS = 655_360  # in the blocks of the smallest network
DEFAULT_FLOPS = 8.86e12  # of a run without --minutes
GPU_FLOPS = 1.6e14  # the same on a GPU
TEACHER_EPOCHS = 6  # a teacher helps if the text is read at least so often
MAX_EPOCHS = 24  # a larger network is better than reading the text more often
MAX_PARAMETERS_PER_CHAR = 14  # a larger network is no better
OVERFITTING_THRESHOLD = 17  # of epochs √(parameters / characters): above it, regularize
TEACHER_SHARE = 0.39  # part of the steps in which the teacher is trained


@dataclass(frozen=True)
class Budget:
    """What the recipe depends on. The defaults are those of Tiny Shakespeare."""

    flops: float = DEFAULT_FLOPS  # of all training steps, as `step_flops` counts them
    train_chars: int = 1_003_854
    eval_chars: int = 111_540
    on_gpu: bool = False
    processes: int = 1  # a batch is divided among them


def block_parameters(n_layer: int, n_embd: int) -> int:
    """Parameters in the blocks of quill."""
    return 20 * n_layer * n_embd**2


def step_flops(values: dict[str, Any]) -> float:
    """Floating-point operations of one training step, in the matrices of the blocks.

    6 for each character and parameter of quill. Another network is counted as if it were quill:
    --minutes measures its speed in the same unit.
    """
    chars = values["batch_size"] * values["block_size"]
    return 6 * block_parameters(values["n_layer"], values["n_embd"]) * chars


def run_flops(values: dict[str, Any]) -> float:
    """`step_flops` of all steps. A teacher's forward pass is another third of a step."""
    teacher_iters = values["teacher_iters"]
    taught = values["max_iters"] - teacher_iters if teacher_iters else 0
    return step_flops(values) * (values["max_iters"] + taught / 3)


def useful_flops(budget: Budget) -> float:
    """`budget.flops`, or fewer on a text so short that more of them give no lower loss."""
    parameters = max(MAX_PARAMETERS_PER_CHAR * budget.train_chars, MIN_PARAMETERS)
    return min(budget.flops, 6 * parameters * max_chars(budget))


def max_chars(budget: Budget) -> int:
    """How many characters to read at most: the text MAX_EPOCHS times, but at least 250,000."""
    return max(MAX_EPOCHS * budget.train_chars, 250_000)


def recipe(budget: Budget, given: dict[str, Any]) -> dict[str, Any]:
    """`given`, and a value of every other key that depends on the budget."""
    values = {"block_size": 256, **given}
    choose = values.setdefault  # what is given wins

    # The network grows with the computation, still more if it would read a short text too often.
    flops = useful_flops(budget)
    target = MIN_PARAMETERS * (max(flops, 1.0) / DEFAULT_FLOPS) ** 0.35
    target = max(target, flops / (6 * max_chars(budget)))

    def difference(size: tuple[int, int]) -> float:
        blocks, channels = values.get("n_layer", size[0]), values.get("n_embd", size[1])
        return abs(math.log(block_parameters(blocks, channels) / target))

    n_layer, n_embd = min(SIZES, key=difference)
    choose("n_layer", n_layer)
    unit = 2 * max(1, values.get("n_head", 0))  # a head's width must be even
    n_embd = choose("n_embd", math.ceil(n_embd / unit) * unit)
    many_steps = flops / step_flops(values | {"batch_size": 8}) > 3000
    batch_size = 64 if budget.on_gpu else 16 if many_steps else 8
    parts = values.get("gradient_accumulation_steps", 1) * budget.processes
    batch_size = choose("batch_size", math.ceil(batch_size / parts) * parts)

    # For a text that is read often: a teacher, and against overfitting dropout and a temperature.
    chars_per_step = batch_size * values["block_size"]
    steps = min(budget.flops / step_flops(values), max_chars(budget) / chars_per_step)
    # A step with a teacher's forward pass costs 4/3. So n steps, t of them without a teacher, cost
    # t + 4/3 (n - t) = `steps`, which gives n.
    if teacher_iters := values.get("teacher_iters"):
        steps = max(teacher_iters / TEACHER_SHARE, (3 * steps + teacher_iters) / 4)
    steps = values.get("max_iters", values.get("lr_decay_iters") or steps)
    epochs = steps * chars_per_step / budget.train_chars
    teachable = values.get("init_from") is None and not values.get("lr_decay_iters")
    has_teacher = "teacher_iters" not in values and teachable and epochs >= TEACHER_EPOCHS
    if has_teacher:
        steps /= 1 + (1 - TEACHER_SHARE) / 3
    max_iters = choose("max_iters", max(1, int(steps)))
    choose("teacher_iters", int(TEACHER_SHARE * max_iters) if has_teacher else 0)
    # The more parameters there are for each character, the fewer epochs lead to overfitting.
    parameters = block_parameters(values["n_layer"], n_embd)
    overfitting = epochs * math.sqrt(parameters / budget.train_chars)
    doublings = math.log2(max(1, overfitting / OVERFITTING_THRESHOLD))
    choose("train_temperature", round(max(0.8, 1 - 0.1 * doublings), 2))
    choose("dropout", round(min(0.4, 0.13 * doublings), 1))
    choose("weight_decay", 0.5 if doublings < 1.5 else 1.0)
    # Larger batches allow a higher learning rate, and so does a teacher.
    factor = 2 if values["teacher_iters"] else min(max(batch_size / 8, 1), 2)
    choose("learning_rate", 7e-3 * factor)

    # As many evaluations as take about a fifteenth of the training time, but 2 to 10.
    evaluations = round(0.2 * max_iters * chars_per_step / budget.eval_chars)
    choose("eval_interval", math.ceil(max_iters / min(max(evaluations, 2), 10)))
    return values


def explain(budget: Budget, values: dict[str, Any], speed: float = 0.0) -> str:
    """Two lines for a person: what was chosen, and why."""
    chars = values["max_iters"] * values["batch_size"] * values["block_size"]
    measured = f", {speed:.1e} a second on this machine" if speed else ""
    note = ""
    ends_early = budget.flops > useful_flops(budget) or run_flops(values) < 0.9 * budget.flops
    if ends_early and 0.7 < chars / max_chars(budget) <= 1:
        note = " (reading it more often would not help)"
    elif values["max_iters"] < 100 and run_flops(values) > budget.flops / 2:
        note = " (few steps: more with --minutes or --max_iters)"
    off = (("teacher_iters", 0), ("dropout", 0.0), ("train_temperature", 1.0))
    against = [f"{name} {values[name]}" for name, value in off if values[name] != value]
    return (
        f"recipe  {run_flops(values):.1e} floating-point operations{measured}: "
        f"{values['n_layer']} blocks of {values['n_embd']} channels\n"
        f"        the text is read {chars / budget.train_chars:.1f} times{note}: "
        f"{', '.join(against) or 'nothing'} against overfitting"
    )
