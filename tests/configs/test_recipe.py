"""Tests of the recipe: it is valid for every text and time, keeps flags, and spends the budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.recipe import (
    TEACHER_SHARE,
    Budget,
    explain,
    max_chars,
    recipe,
    run_flops,
    step_flops,
    useful_flops,
)
from configs.schema import make_config, to_dict
from configs.training import TrainConfig, load_config, parse_train_command
from model.network import GPTConfig, count_heads

budgets = st.builds(
    Budget,
    flops=st.floats(0, 1e20),
    train_chars=st.integers(300, 10**12),
    eval_chars=st.integers(300, 1 << 20),
    on_gpu=st.booleans(),
    processes=st.integers(1, 16),
)
flags = st.fixed_dictionaries(
    {},
    optional={
        "n_layer": st.integers(1, 20),
        "n_head": st.integers(1, 9),
        "batch_size": st.integers(1, 512),
        "block_size": st.integers(1, 2048),
        "learning_rate": st.floats(0, 1),
        "dropout": st.floats(0, 0.99),
        "max_iters": st.integers(1000, 10**6),
        "teacher_iters": st.integers(0, 900),
    },
)


@given(budgets, flags)
def test_the_recipe_gives_a_valid_config_and_keeps_what_is_given(budget, values):
    before = dict(values)
    chosen = recipe(budget, values)
    assert values == before
    assert chosen.items() >= values.items()
    assert make_config(TrainConfig, chosen)
    assert len(explain(budget, chosen).splitlines()) == 2


@given(budgets, st.integers(0, 1000), st.integers(1, 12))
def test_the_steps_take_the_computation_there_is_or_read_the_text_often_enough(
    budget, teacher_iters, n_layer
):
    for values in ({}, {"teacher_iters": teacher_iters}, {"n_layer": n_layer}):
        chosen = recipe(budget, values)
        spent, margin = run_flops(chosen), 2 * step_flops(chosen)
        chars_per_step = chosen["batch_size"] * chosen["block_size"]
        chars, most = chosen["max_iters"] * chars_per_step, max_chars(budget)
        # Both networks of a teacher that is given get their share.
        least = chosen["max_iters"] == max(1, int(values.get("teacher_iters", 0) / TEACHER_SHARE))
        assert least or (spent <= budget.flops + margin and chars <= most)
        assert spent >= budget.flops - margin or chars > 0.75 * most - 2 * chars_per_step


@given(budget=budgets, number=st.integers(1, 20), more=st.integers(1, 20))
def test_more_blocks_that_are_given_get_no_more_channels_and_more_channels_no_more_blocks(
    budget, number, more
):
    for key, chosen, unit in (("n_layer", "n_embd", 1), ("n_embd", "n_layer", 64)):
        few, many = (recipe(budget, {key: unit * n})[chosen] for n in (number, number + more))
        assert few >= many
    for key, chosen in (("n_layer", "n_embd"), ("n_embd", "n_layer")):
        few, many = (recipe(Budget(flops=1e14), {key: n})[chosen] for n in (1, 2000))
        assert few > many


@given(st.integers(1, 600))
def test_heads_have_an_even_width_of_at_least_64_channels(half_width):
    heads = count_heads(GPTConfig(n_embd=2 * half_width))
    assert 2 * half_width % (2 * heads) == 0
    assert heads == 1 or 2 * half_width / heads >= 64


@given(st.integers(1, 20))
def test_heads_have_64_channels_where_that_divides_the_width(heads):
    assert count_heads(GPTConfig(n_embd=64 * heads)) == heads
    assert count_heads(GPTConfig(n_embd=64 * heads, n_head=1)) == 1


@given(budgets, st.integers(1, 100))
def test_batches_can_be_divided_among_processes_and_into_the_parts_that_are_given(budget, parts):
    chosen = recipe(budget, {"gradient_accumulation_steps": parts})
    assert chosen["batch_size"] % (parts * budget.processes) == 0


@given(budgets, st.integers(1, 100))
def test_a_longer_text_needs_no_more_regularization(budget, factor):
    budget = replace(budget, flops=useful_flops(budget))
    shorter = recipe(budget, {})
    longer = recipe(replace(budget, train_chars=budget.train_chars * factor), {})
    for key in ("dropout", "weight_decay"):
        assert longer[key] <= shorter[key]
    assert longer["train_temperature"] >= shorter["train_temperature"]
    assert bool(longer["teacher_iters"]) <= bool(shorter["teacher_iters"])


@given(budgets, st.integers(2, 100))
def test_no_text_is_read_far_more_often_than_useful_and_a_longer_one_uses_no_less(budget, factor):
    budget = replace(budget, train_chars=min(budget.train_chars, 10**8), flops=1e22)
    chosen = recipe(budget, {})
    chars = chosen["max_iters"] * chosen["batch_size"] * chosen["block_size"]
    assert chars <= max(max_chars(budget), chosen["batch_size"] * chosen["block_size"])
    longer = replace(budget, train_chars=budget.train_chars * factor)
    assert useful_flops(longer) >= useful_flops(budget)


def test_the_defaults_are_the_recipe_for_tiny_shakespeare():
    assert recipe(Budget(), {}).items() <= to_dict(TrainConfig()).items()


def test_a_run_that_starts_from_another_one_or_has_a_cosine_decay_has_no_teacher():
    small = Budget(train_chars=10_000)
    assert recipe(small, {})["teacher_iters"] > 0
    assert recipe(small, {"init_from": "run"})["teacher_iters"] == 0
    decayed = recipe(small, {"lr_decay_iters": 100})
    assert (decayed["teacher_iters"], decayed["max_iters"]) == (0, 100)


@given(budgets, st.integers(1, 10**5))
def test_the_explanation_says_of_a_text_that_is_read_often_why_the_run_ends_early(
    budget, max_iters
):
    for values in ({}, {"n_layer": 1}, {"max_iters": max_iters}):
        chosen = recipe(budget, values)
        chars = chosen["max_iters"] * chosen["batch_size"] * chosen["block_size"]
        is_explained = "would not help" in explain(budget, chosen)
        if is_explained:
            assert chars > 0.7 * max_chars(budget)
        if "max_iters" not in values and run_flops(chosen) < 0.5 * budget.flops:
            assert is_explained or chosen["max_iters"] <= 2


def test_a_run_that_starts_from_another_one_has_its_size_but_the_dropout_of_its_own_text():
    command, budget = parse_train_command(["--init_from=run"]), Budget(train_chars=30_000)
    dropouts = set()
    for start in ({"n_layer": 3, "dropout": 0.5}, {"n_layer": 3, "dropout": 0.0}):
        config = load_config(command, start, budget)
        assert config.model.n_layer == 3
        dropouts.add(config.model.dropout)
    assert len(dropouts) == 1


@pytest.mark.parametrize("max_iters", [1, 2, 3])
def test_a_teacher_leaves_steps_for_the_second_network(max_iters):
    chosen = recipe(Budget(train_chars=300), {"max_iters": max_iters})
    assert make_config(TrainConfig, chosen).optim.teacher_iters < max_iters
