"""Images of attention for TensorBoard.

Shapes: T characters (queries and keys).
"""

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps  # TensorBoard installs Pillow
from torch import Tensor

CELL = 10  # pixels of one weight
BACKGROUND = "#eeeeee"
MAP_CHARS = 32  # so that TensorBoard shows the labels in their size


def draw_weights(weights_TT: Tensor, text: str) -> np.ndarray:
    """An RGB image of what one head looks at: rows are queries, columns are keys.

    The T characters of `text` stand at both axes. White is 0, dark blue 1; the root makes small
    weights visible.
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
    """Return an image of a character. Pillow's own font has ASCII and a few other signs."""
    font = ImageFont.load_default(CELL)
    label = {"\n": "\\n", "\t": "\\t"}.get(character, character)
    image = Image.new("RGB", (width, height), BACKGROUND)
    middle = (width / 2, height / 2)
    ImageDraw.Draw(image).text(middle, label, "black", font, anchor="mm")
    return image
