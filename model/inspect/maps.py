"""Images of attention for TensorBoard."""

import numpy as np
from torch import Tensor

CELL = 8  # pixels of one weight
MAP_CHARS = 48
WHITE, BLUE = np.array([255, 255, 255]), np.array([0, 60, 140])


def draw_weights(weights_TT: Tensor) -> np.ndarray:
    """An RGB image of what one head looks at: rows are queries, columns are keys.

    White is 0, dark blue 1; the root makes small weights visible. The attention page of sample.py
    shows the characters, too.
    """
    shades_TT = weights_TT.clamp(0, 1).sqrt().numpy().repeat(CELL, 0).repeat(CELL, 1)
    return (WHITE + shades_TT[..., None] * (BLUE - WHITE)).astype(np.uint8)
