"""Tests of the images of attention."""

import numpy as np
import torch

from model.inspect.maps import CELL, draw_weights


def test_an_image_is_the_darker_the_larger_a_weight_and_names_the_characters():
    weights_TT = torch.rand(5, 5).tril()
    weights_TT[0, 0] = 1
    image = draw_weights(weights_TT, "\n\tabA", list(range(5)))
    order = weights_TT.flatten().argsort(descending=True)
    shades_TT = image[2 * CELL :: CELL, 2 * CELL :: CELL, 0].astype(int)
    assert (np.diff(shades_TT.flatten()[order]) >= 0).all()
    assert (shades_TT.min(), shades_TT.max()) == (0, 255)
    assert len({row.tobytes() for row in np.split(image[:, : 2 * CELL], 7)}) == 6  # two are empty
    assert len({column.tobytes() for column in np.split(image[: 2 * CELL], 7, axis=1)}) == 6
