"""Pictures of a run: images of attention for TensorBoard, a chart of the loss for the terminal.

Shapes: T characters (queries and keys).
"""

import contextlib
import math
import shutil
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps  # TensorBoard installs Pillow

from model.attention_page import record_attention
from model.gpt import GPT

CELL = 10  # pixels of one weight
MAP_CHARS = 32  # so that TensorBoard shows the labels in their size
# Fonts of Linux, macOS and Windows with many scripts; Pillow's own has Latin letters alone.
FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")


@torch.no_grad()
def attention_maps(model: GPT, vocab: str, ids: list[int]) -> dict[str, np.ndarray]:
    """An RGB image of the weights of every layer and head, by name, for the first MAP_CHARS `ids`.

    Rows are queries, columns are keys; the characters stand at both axes. `model` is in eval mode.
    """
    ids = ids[:MAP_CHARS]
    with record_attention(model) as calls:
        model(torch.tensor([ids], device=next(model.parameters()).device))
    maps = {}
    for layer, call in enumerate(calls, start=1):
        for head, weights_TS in enumerate(call.weights_BHTS[0].float().cpu().numpy(), start=1):
            maps[f"layer {layer}, head {head}"] = draw_weights(weights_TS, vocab, ids)
    return maps


def draw_weights(weights_TS: np.ndarray, vocab: str, ids: list[int]) -> np.ndarray:
    """The image of one head: white is 0, dark blue 1. The root makes small weights visible."""
    T, font = len(ids), load_font()
    shades_TS = (np.sqrt(weights_TS.clip(0, 1)) * 255).astype(np.uint8)
    cells = ImageOps.colorize(Image.fromarray(shades_TS), "white", "#003c8c")
    image = Image.new("RGB", ((T + 2) * CELL, (T + 2) * CELL), "#eeeeee")
    image.paste(cells.resize((T * CELL, T * CELL), Image.Resampling.NEAREST), (2 * CELL, 2 * CELL))
    draw = ImageDraw.Draw(image)
    for i, id_ in enumerate(ids):
        middle = (i + 2.5) * CELL
        label = vocab[id_] if vocab[id_].isprintable() else repr(vocab[id_])[1:3]  # a newline: \n
        draw.text((CELL, middle), label, "black", font, anchor="mm")
        draw.text((middle, CELL), label, "black", font, anchor="mm")
    return np.asarray(image)


@lru_cache
def load_font() -> ImageFont.FreeTypeFont:
    """The first of FONTS that this system has, or Pillow's own."""
    for name in FONTS:
        with contextlib.suppress(OSError):
            return ImageFont.truetype(name, CELL)
    return ImageFont.load_default(CELL)


def loss_chart(train: list[tuple[int, float]], val: list[tuple[int, float]]) -> str:
    """Both curves, points (step, nats per character), as text. The loss axis is logarithmic."""
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
    axis = f"{'0':<{width - len(f'{last_step:,}')}}{last_step:,}"
    return "\n".join(
        [*lines, f"       └{'─' * width}", f"        {axis}", "        · train  ● validation"]
    )


def overfitting_hint(train: list[tuple[int, float]], val: list[tuple[int, float]]) -> str:
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
