"""Images of attention for TensorBoard.

Shapes: T characters (queries and keys).
"""

import contextlib
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps  # TensorBoard installs Pillow
from torch import Tensor

CELL = 10  # pixels of one weight
BACKGROUND = "#eeeeee"
MAP_CHARS = 32  # so that TensorBoard shows the labels in their size
# Fonts of Linux, macOS and Windows with many scripts, then with East Asian and Indian ones;
# Pillow's own has Latin letters alone.
FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "NotoSansCJK-Regular.ttc")
FONTS += ("wqy-zenhei.ttc", "NotoSansDevanagari-Regular.ttf", "msyh.ttc", "Nirmala.ttf")


def draw_weights(weights_TT: Tensor, vocab: str, ids: list[int]) -> np.ndarray:
    """An RGB image of what one head looks at: rows are queries, columns are keys.

    The characters `ids` stand at both axes. White is 0, dark blue 1; the root makes small weights
    visible.
    """
    T = len(ids)
    shades_TT = (weights_TT.clamp(0, 1).sqrt() * 255).byte().numpy()
    cells = ImageOps.colorize(Image.fromarray(shades_TT), "white", "#003c8c")
    image = Image.new("RGB", ((T + 2) * CELL, (T + 2) * CELL), BACKGROUND)
    image.paste(cells.resize((T * CELL, T * CELL), Image.Resampling.NEAREST), (2 * CELL, 2 * CELL))
    for i, id_ in enumerate(ids):
        start = (i + 2) * CELL
        image.paste(draw_label(vocab[id_], 2 * CELL, CELL), (0, start))
        image.paste(draw_label(vocab[id_], CELL, 2 * CELL), (start, 0))
    return np.asarray(image)


@lru_cache(maxsize=10_000)
def draw_label(character: str, width: int, height: int) -> Image.Image:
    """An image of a character; of its hexadecimal code point if no font has a glyph for it."""
    names = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    label = names.get(character, character)
    font = next((font for font in load_fonts(CELL) if has_glyph(font, label[0])), None)
    is_code = font is None or not label.isprintable()
    if is_code:
        label = f"{ord(character):x}"
        font = load_fonts(min(7, 34 // len(label)))[0]
    size = (max(width, height), min(width, height)) if is_code else (width, height)
    image = Image.new("RGB", size, BACKGROUND)
    middle = (size[0] / 2, size[1] / 2)
    ImageDraw.Draw(image).text(middle, label, "black", font, anchor="mm")
    return image if size == (width, height) else image.rotate(90, expand=True)


@lru_cache
def load_fonts(size: int) -> list[ImageFont.FreeTypeFont]:
    """Those of FONTS that this system has, then Pillow's own."""
    fonts = []
    for name in FONTS:
        with contextlib.suppress(OSError):
            # The basic layout: another adds a circle to a combining mark, even to a missing one.
            fonts.append(ImageFont.truetype(name, size, layout_engine=ImageFont.Layout.BASIC))
    return [*fonts, ImageFont.load_default(size)]


def has_glyph(font: ImageFont.FreeTypeFont, character: str) -> bool:
    """Whether `font` draws something else than what stands for characters that it lacks."""
    missing, mask = font.getmask("\U0010ffff"), font.getmask(character)
    return (mask.size, bytes(mask)) != (missing.size, bytes(missing))
