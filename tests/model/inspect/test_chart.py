"""Tests of the loss chart and the hint at overfitting."""

import pytest

from model.inspect.chart import loss_chart, overfitting_hint

FALLING = [(step, 4.0 - step / 100) for step in range(0, 300, 10)]
RISING = [(100, 3.2), (200, 3.0), (250, 3.1), (299, 3.5)]


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_loss_chart_places_every_point_by_step_and_loss_and_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    *lines, _, axis, _ = loss_chart(FALLING, RISING).splitlines()
    width = min(columns - 10, 64)
    assert len(axis) == 8 + width
    rows = [line.partition("│")[2] for line in lines]
    places = {x: y for y, row in enumerate(rows) for x, mark in enumerate(row) if mark == "●"}
    expected = [round(step / 299 * (width - 1)) for step, _ in RISING]
    assert sorted(places) == sorted(set(expected))
    assert places[expected[3]] < places[expected[1]]  # the larger loss stands higher
    for single_point in ((0, 2.0), (9, 0.0), (10**8, 2.0)):
        assert "●" in loss_chart([(0, 2.0)], [single_point])


@pytest.mark.parametrize(
    ("train", "val", "overfits"),
    [
        (FALLING, RISING, True),
        (FALLING, [(100, 3.2), (200, 3.0), (299, 3.001)], False),
        ([(step, 3.0 + step / 100) for step, _ in FALLING], RISING, False),  # both rise
        (FALLING, [(299, 3.0)], False),
    ],
)
def test_overfitting_is_a_rising_validation_loss_and_a_falling_training_loss(train, val, overfits):
    hint = overfitting_hint(train, val)
    assert ("from step 200 on" in hint) == bool(hint) == overfits
