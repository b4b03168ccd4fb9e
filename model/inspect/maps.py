"""Images of attention weights for TensorBoard.

Shapes: T characters (queries and keys).
"""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps  # TensorBoard installs Pillow
from torch import Tensor

CELL = 10  # width and height of one weight, in pixels
BACKGROUND = "#eeeeee"
MAP_CHARS = 32  # so few that TensorBoard shows the labels in full size


def draw_weights(weights_TT: Tensor, text: str) -> np.ndarray:
    """Return an RGB image of the weights of one head. Rows are queries, columns are keys.

    The T characters of `text` stand at both axes. White is a weight of 0, dark blue a weight of 1.
    The image shows the square roots, because they make small weights visible.
    """
    T = len(text)
    shades_TT = (weights_TT.clamp(0, 1).sqrt() * 255).byte().numpy()
    cells = ImageOps.colorize(Image.fromarray(shades_TT), "white", "#003c8c")
    image = Image.new("RGB", ((T + 2) * CELL, (T + 2) * CELL), BACKGROUND)
    image.paste(cells.resize((T * CELL, T * CELL), Image.Resampling.NEAREST), (2 * CELL, 2 * CELL))
    for i, character in enumerate(text, start=2):
        image.paste(draw_label(character, 2 * CELL, CELL), (0, i * CELL))
        image.paste(draw_label(character, CELL, 2 * CELL), (i * CELL, 0))
    return np.asarray(image)


@lru_cache(maxsize=10_000)
def draw_label(character: str, width: int, height: int) -> Image.Image:
    """Return an image of a character. Pillow's own font has ASCII and a few other characters."""
    font = ImageFont.load_default(CELL)
    label = {"\n": "\\n", "\t": "\\t"}.get(character, character)
    image = Image.new("RGB", (width, height), BACKGROUND)
    middle = (width / 2, height / 2)
    ImageDraw.Draw(image).text(middle, label, "black", font, anchor="mm")
    return image
