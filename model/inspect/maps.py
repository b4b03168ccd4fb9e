"""Images of attention for TensorBoard.

Shapes: T characters (queries and keys).
"""

import contextlib
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps  # TensorBoard installs Pillow
from torch import Tensor

CELL = 10  # pixels of one weight
MAP_CHARS = 32  # so that TensorBoard shows the labels in their size
# Fonts of Linux, macOS and Windows with many scripts; Pillow's own has Latin letters alone.
FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf")


def draw_weights(weights_TT: Tensor, vocab: str, ids: list[int]) -> np.ndarray:
    """An RGB image of what one head looks at: rows are queries, columns are keys.

    The characters `ids` stand at both axes. White is 0, dark blue 1; the root makes small weights
    visible.
    """
    T, font = len(ids), load_font()
    shades_TT = (weights_TT.clamp(0, 1).sqrt() * 255).byte().numpy()
    cells = ImageOps.colorize(Image.fromarray(shades_TT), "white", "#003c8c")
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
