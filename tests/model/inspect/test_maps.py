"""Tests of the images of attention."""

import numpy as np
import torch

from model.inspect.maps import CELL, draw_weights


def test_image_is_darker_for_larger_weights_and_rows_are_queries():
    weights_TT = torch.rand(5, 5).tril()
    weights_TT[0, 0] = 1
    image = draw_weights(weights_TT, "abcde")
    order = weights_TT.flatten().argsort(descending=True)
    shades_TT = image[2 * CELL :: CELL, 2 * CELL :: CELL, 0].astype(int)
    assert (np.diff(shades_TT.flatten()[order]) >= 0).all()
    assert (shades_TT.min(), shades_TT.max()) == (0, 255)


def test_labels_name_the_characters_at_both_axes():
    text = "ab\n\tnaB~"
    T, names = len(text), set(text)
    image = draw_weights(torch.zeros(T, T), text)
    rows, columns = image[2 * CELL :, : 2 * CELL], image[: 2 * CELL, 2 * CELL :]
    for labels in (np.split(rows, T), np.split(columns, T, axis=1)):
        named = {c: label.tobytes() for c, label in zip(text, labels, strict=True) if np.ptp(label)}
        assert named.keys() == names
        assert len(set(named.values())) == len(names)
        assert labels[0].tobytes() == labels[text.rindex("a")].tobytes()
