"""Tests of the images of attention and of the loss chart."""

import numpy as np
import pytest
import torch

from model.pictures import (
    CELL,
    attention_maps,
    draw_weights,
    load_font,
    loss_chart,
    overfitting_hint,
)
from tests.model.test_gpt import random_gpt, random_ids

FALLING = [(step, 4.0 - step / 100) for step in range(0, 300, 10)]
RISING = [(100, 3.2), (200, 3.0), (250, 3.1), (299, 3.5)]


def test_each_head_has_an_image_that_is_white_where_the_mask_hides_and_darkest_at_the_largest():
    model = random_gpt(V=5).float().eval()
    ids = random_ids(1, 12, V=5)[0].tolist()
    maps = attention_maps(model, "ab\n\u202e\U0001f600", ids)
    n_layer, n_head = model.config.n_layer, model.config.n_head
    assert len(maps) == n_layer * n_head
    for image in maps.values():
        cells = image[2 * CELL :: CELL, 2 * CELL :: CELL, 0].astype(int)
        assert cells.shape == (12, 12)
        assert (cells[np.triu_indices(12, 1)] == 255).all()
        assert cells[0, 0] == cells.min() < 5  # the first character sees only itself


def test_labels_at_both_axes_differ_between_characters():
    other_scripts = "é\u044f\u05d0" if isinstance(load_font().path, str) else ""
    vocab = "\n\tabA:" + other_scripts
    T = len(vocab)
    image = draw_weights(np.zeros((T, T)), vocab, list(range(T)))
    label = slice(0, 2 * CELL)
    cells = [slice((i + 2) * CELL, (i + 3) * CELL) for i in range(T)]
    assert len({image[cell, label].tobytes() for cell in cells}) == T
    assert len({image[label, cell].tobytes() for cell in cells}) == T


def test_loss_chart_places_every_point_by_step_and_loss():
    lines = loss_chart(FALLING, RISING).splitlines()
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    assert len(rows) == 12
    assert rows[0].startswith("·") and rows[-1].rstrip().endswith("·")
    places = {x: y for y, row in enumerate(rows) for x, mark in enumerate(row) if mark == "●"}
    expected = [round(step / 299 * 63) for step, _ in RISING]
    assert sorted(places) == expected
    assert places[expected[3]] < places[expected[1]]  # the larger loss stands higher
    assert lines[0].startswith("  4.00") and "299" in lines[-2]


def test_loss_chart_of_a_single_point_or_a_constant_loss_does_not_fail():
    assert "●" in loss_chart([(0, 2.0)], [(0, 2.0)])
    assert "●" in loss_chart([(0, 2.0), (9, 2.0)], [(9, 2.0)])
    assert "●" in loss_chart([(0, 2.0), (9, 0.0)], [(9, 0.0)])


@pytest.mark.parametrize("columns", ["20", "40", "80", "200"])
def test_loss_chart_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    widths = [len(line) for line in loss_chart(FALLING, RISING).splitlines()[:-1]]
    assert max(widths) <= int(columns)
    assert int(columns) < 80 or max(widths) == 72


@pytest.mark.parametrize(
    ("train", "val", "overfits"),
    [
        (FALLING, RISING, True),
        (FALLING, [(100, 3.2), (200, 3.0), (299, 2.9)], False),
        (FALLING, [(100, 3.2), (200, 3.0), (299, 3.001)], False),
        ([(step, 3.0 + step / 100) for step, _ in FALLING], RISING, False),  # both rise
        (FALLING, [(299, 3.0)], False),
    ],
)
def test_overfitting_is_a_rising_validation_loss_and_a_falling_training_loss(train, val, overfits):
    hint = overfitting_hint(train, val)
    assert ("from step 200 on" in hint) == overfits
    assert bool(hint) == overfits


def test_images_do_not_change_what_the_model_computes_or_draws():
    model, ids = random_gpt(V=5).eval(), random_ids(1, 12, V=5)
    before, state = model(ids), torch.get_rng_state()
    attention_maps(model, "abcde", ids[0].tolist())
    assert torch.equal(model(ids), before)
    assert torch.equal(torch.get_rng_state(), state)
