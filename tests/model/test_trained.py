"""Tests of a trained model in Python. test_docs.py runs the examples in docs/maintain.md."""

import math

import pytest

import sample
from configs.errors import UserError
from model import load


def test_a_loaded_model_writes_what_sample_writes_and_predicts_as_it_scores(trained_run, capsys):
    model, prompt = load(str(trained_run)), "The moon"
    assert sample.main([str(trained_run), f"--prompt={prompt}", "--max_new_tokens=40"]) == 0
    assert capsys.readouterr().out == model.write(prompt, 40)
    assert model.write(prompt, 40, seed=2) != model.write(prompt, 40)
    assert model.write(prompt, 40, stop="o").endswith("o")
    chances = [model.probs(prompt[:end])[prompt[end]] for end in range(1, len(prompt))]
    assert model.loss(prompt) == pytest.approx(
        -sum(map(math.log, chances)) / len(chances), rel=1e-4
    )
    probs = model.probs()
    assert sum(probs.values()) == pytest.approx(1) and probs.keys() == set(model.vocab)
    assert list(probs.values()) == sorted(probs.values(), reverse=True)


def test_unknown_characters_are_named(trained_run):
    model = load(str(trained_run), which="last")
    for call in (model.write, model.loss, model.probs):
        with pytest.raises(UserError, match="'ß'"):
            call("ß!")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("length", -5), ("num_samples", 0), ("temperature", -1), ("temperature", math.nan)],
        *[("top_k", -3), ("top_k", 1.5), ("top_p", 0)],
    ],
)
def test_a_wrong_setting_is_refused_as_a_flag_is(trained_run, name, value):
    with pytest.raises(UserError, match=f"is {value}. It must be"):
        load(str(trained_run)).write("The", **{name: value})
