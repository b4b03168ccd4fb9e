"""What a terminal shows at the end of a run: a chart of the loss, a hint at overfitting."""

import math
import shutil

import numpy as np

Points = list[tuple[int, float]]  # (step, nats per character)


def loss_chart(train: Points, val: Points) -> str:
    """Both curves as text. The loss axis is logarithmic."""
    width, height = max(10, min(64, shutil.get_terminal_size().columns - 10)), 12
    last_step = max(step for step, _ in train + val) or 1
    values = [max(value, 1e-4) for _, value in train + val]  # a loss may be exactly 0
    low, high = math.log(min(values)), math.log(max(values))
    rows = [[" "] * width for _ in range(height)]
    for mark, points in (("·", train), ("●", val)):
        for step, value in points:
            row = (high - math.log(max(value, 1e-4))) / (high - low or 1) * (height - 1)
            rows[round(row)][round(step / last_step * (width - 1))] = mark
    labels = {0: f"{max(values):.2f}", height - 1: f"{min(values):.2f}"}
    lines = [f"{labels.get(i, ''):>6} │{''.join(row).rstrip()}" for i, row in enumerate(rows)]
    axis = f"0{last_step:>{width - 1},}"
    return "\n".join(
        [*lines, f"       └{'─' * width}", f"        {axis}", "        · train  ● validation"]
    )


def overfitting_hint(train: Points, val: Points) -> str:
    """One sentence if the validation loss rises while the training loss falls, otherwise ""."""
    best_step, best = min(val, key=lambda point: point[1])
    early = [value for step, value in train if step <= best_step][-10:]
    late = [value for step, value in train if step > best_step][-10:]
    if not early or not late or val[-1][1] < best + 0.01 or np.mean(late) > np.mean(early):
        return ""
    return (
        f"The validation loss rises from step {best_step:,} on while the training loss falls: the "
        "model overfits. best.pt is from that step. A longer text, more --dropout or "
        "--weight_decay, or a smaller --max_iters helps."
    )
