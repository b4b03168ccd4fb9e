"""Tests of the images of attention."""

import numpy as np
import torch

from model.inspect.maps import CELL, draw_weights


def test_image_is_darker_for_larger_weights():
    weights_TT = torch.rand(5, 5).tril()
    weights_TT[0, 0] = 1
    image = draw_weights(weights_TT)
    order = weights_TT.flatten().argsort(descending=True)
    shades_TT = image[::CELL, ::CELL, 0].astype(int)
    assert (np.diff(shades_TT.flatten()[order]) >= 0).all()
    assert (shades_TT.min(), shades_TT.max()) == (0, 255)
