"""Tests of the images of attention."""

import numpy as np
import pytest
import torch

from model.inspect import maps
from model.inspect.maps import CELL, draw_weights


def test_image_is_darker_for_larger_weights_and_names_characters():
    weights_TT = torch.rand(5, 5).tril()
    weights_TT[0, 0] = 1
    image = draw_weights(weights_TT, "\n\tabA", list(range(5)))
    order = weights_TT.flatten().argsort(descending=True)
    shades_TT = image[2 * CELL :: CELL, 2 * CELL :: CELL, 0].astype(int)
    assert (np.diff(shades_TT.flatten()[order]) >= 0).all()
    assert (shades_TT.min(), shades_TT.max()) == (0, 255)
    assert len({row.tobytes() for row in np.split(image[:, : 2 * CELL], 7)}) == 6  # two are empty
    assert len({column.tobytes() for column in np.split(image[: 2 * CELL], 7, axis=1)}) == 6


@pytest.mark.parametrize("fonts", [maps.FONTS, ()], ids=["all fonts", "the font of Pillow"])
def test_characters_without_a_glyph_have_labels_that_differ(fonts, monkeypatch):
    monkeypatch.setattr(maps, "FONTS", fonts)
    maps.load_fonts.cache_clear()
    maps.draw_label.cache_clear()
    vocab = "月光水नमसेी\u0301\u0302😀\u200d\u3000\n\tab"
    image = draw_weights(torch.zeros(len(vocab), len(vocab)), vocab, list(range(len(vocab))))
    labels = np.split(image[2 * CELL :, : 2 * CELL], len(vocab))
    labels_of_columns = np.split(image[: 2 * CELL, 2 * CELL :], len(vocab), axis=1)
    assert len({label.tobytes() for label in labels}) == len(vocab)
    assert len({label.tobytes() for label in labels_of_columns}) == len(vocab)
    maps.load_fonts.cache_clear()
    maps.draw_label.cache_clear()
