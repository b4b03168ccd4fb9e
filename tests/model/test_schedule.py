"""Tests of the schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings import OptimConfig
from model.schedule import learning_rate

CLOCKS = st.lists(st.floats(1e-3, 1), min_size=61, max_size=61)  # the time of each step


def rates_of(config: OptimConfig, seconds: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The progress before each step and at the end, and the learning rates there."""
    progress = np.cumsum([0.0, *seconds]) / sum(seconds)
    return progress, np.array([learning_rate(step, p, config) for step, p in enumerate(progress)])


@given(st.integers(0, 200), CLOCKS)
def test_without_min_lr_the_rate_is_the_smaller_of_two_lines(warmup, seconds):
    config = OptimConfig(warmup_iters=warmup, learning_rate=0.5)
    progress, rates = rates_of(config, seconds)
    rising = (np.arange(62) + 1) / (warmup + 1)
    np.testing.assert_allclose(rates, 0.5 * np.minimum(rising, 1 - progress), atol=1e-12)


@given(st.integers(0, 60))
def test_a_cosine_begins_after_the_warmup_and_ends_at_min_lr(warmup):
    config = OptimConfig(warmup_iters=warmup, learning_rate=0.5, min_lr=0.1)
    _, rates = rates_of(config, [1.0] * 61)
    done = (np.arange(warmup, 62) - warmup) / (61 - warmup)
    np.testing.assert_allclose(rates[warmup:], 0.3 + 0.2 * np.cos(np.pi * done))
    np.testing.assert_allclose(rates[:warmup], 0.5 * np.arange(1, warmup + 1) / (warmup + 1))


@given(st.integers(0, 60), CLOCKS)
def test_a_cosine_follows_a_clock_that_runs_unevenly(warmup, seconds):
    config = OptimConfig(warmup_iters=warmup, learning_rate=0.5, min_lr=0.1)
    _, rates = rates_of(config, seconds)
    assert rates[warmup] == pytest.approx(0.5)  # as the warm-up's next step would be
    assert rates[-1] == pytest.approx(0.1)
    assert (np.diff(rates[warmup:]) <= 1e-12).all()
    assert (np.diff(rates[: warmup + 1]) > 0).all()
