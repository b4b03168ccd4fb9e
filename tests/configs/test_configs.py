"""The laws of the config: what is written is read, what is wrong is named."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import configs
import train
from configs import RunConfig, TrainConfig, read_command
from configs.schema import build, flat, keys, read_flags, read_toml, to_toml
from model import runtime

PRESETS = sorted(Path(configs.__file__).parent.glob("*.toml"))
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
positive = st.floats(0, 1e300)
values = st.fixed_dictionaries(
    {},
    optional={
        "data": text,
        "out_dir": text,
        "max_iters": st.integers(1, 2**63 - 1),
        "seed": st.integers(0, 2**63 - 1),
        "learning_rate": st.floats(0, 1e18),
        "weight_decay": st.floats(0, 1e-300),
        "dropout": st.floats(0, 1, exclude_max=True),
        "compile": st.sampled_from(["auto", "on", "off"]),
    },
)


@given(values)
@example({"data": "\x7f"})
def test_a_config_written_is_the_config_read(given_values):
    config = build(TrainConfig, given_values)
    assert build(TrainConfig, tomllib.loads(to_toml(config))) == config
    assert build(TrainConfig, flat(config)) == config


@given(
    st.sampled_from(["learning_rate", "max_iters", "data"]),
    st.one_of(st.integers(1, 10**6), positive, text),
)
def test_both_ways_to_write_a_flag_are_one(key, value):
    results = []
    for argv in ([f"--{key}", str(value)], [f"--{key}={value}"]):
        try:
            results.append(read_command([str(PRESETS[0]), *argv]))
        except ValueError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_defaults_then_preset_then_flags(tmp_path):
    (tmp_path / "p.toml").write_text("n_layer = 3\nn_head = 4\nlearning_rate = 1\n")
    config = read_command([str(tmp_path / "p.toml"), "--n_head", "8"]).config
    assert (config.model.n_layer, config.model.n_head, config.optim.learning_rate) == (3, 8, 1.0)
    assert config.model.n_embd == TrainConfig().model.n_embd
    # Flags are judged together with the preset, not with the defaults: 6 heads do not divide 128.
    (tmp_path / "p.toml").write_text("n_embd = 96\n")
    assert read_command([str(tmp_path / "p.toml"), "--n_head", "6"]).config.model.n_head == 6


@pytest.mark.parametrize(("device", "preset"), [("cpu", "cpu.toml"), ("cuda", "gpu.toml")])
def test_the_device_decides_the_preset_where_none_is_named(monkeypatch, device, preset):
    monkeypatch.setattr(runtime, "choose_device", lambda name: torch.device(device))
    assert read_command([]).config == build(
        TrainConfig, read_toml(Path(configs.__file__).with_name(preset))
    )


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.name)
def test_a_preset_states_only_what_differs(path):
    preset, defaults = read_toml(path), flat(TrainConfig())
    assert build(TrainConfig, preset)
    assert not [key for key, value in preset.items() if defaults.get(key) == value]


def test_a_value_may_begin_with_a_dash():
    class_ = dataclasses.make_dataclass("C", [("run", RunConfig)], frozen=True)
    assert read_flags(["--out_dir", "-x", "--seed=3"], class_, "")[1] == {
        "out_dir": "-x",
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--n_layr", "3"], "n_layer"),
        (["--n-layer", "3"], "n_layer"),
        (["--n_lay", "3"], "n_layer"),
        (["-n_layer", "3"], "--key value"),
        (["--n_layer"], "needs a value"),
        (["--n_layer", "3.5"], "whole number"),
        (["--n_layer", "0"], "[1, 1000"),
        (["--n_layer", "-2"], "[1, 1000"),
        (["--n_layer", str(10**400)], "[1, 1000"),
        (["--learning_rate", "-1e-3"], "[0, inf)"),
        (["--learning_rate", "nan"], "[0, inf)"),
        (["--learning_rate", "inf"], "[0, inf)"),
        (["--learning_rate", "fast"], "a number"),
        (["--dropout", "1"], "[0, 1)"),
        (["--val_fraction", "0"], "(0, 1)"),
        (["--compile", "maybe"], "auto, on, off"),
        (["--n_embd", "30", "--n_head", "4"], "n_embd"),
        (["--encoding", "klingon"], "klingon"),
        (["--encoding", "base64"], "base64"),
        (["--data", ""], "data is empty"),
        (["--data", "\udcff"], "not Unicode"),
        (["--data", "a\0b"], "not Unicode"),
        (["a.toml", "b.toml"], "b.toml"),
        (["missing.toml"], "missing.toml"),
        (["."], "--resume"),
        (["--resume", "missing"], "missing"),
        (["a.toml", "--resume", "missing"], "a.toml"),
        (["--resume", "missing", "--n_layer", "3"], "n_layer"),
    ],
)
def test_what_is_wrong_is_named(argv, said):
    with pytest.raises(ValueError, match=".") as error:
        read_command(argv)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("n_layr = 3", "n_layer"),
        ("[model]\nn_layer = 3", "model"),
        ("n_layer = 'three'", "whole number"),
        ("n_layer = true", "whole number"),
        ("n_layer = 3.0", "whole number"),
        ("learning_rate = '1'", "number"),
        ("compile = true", "auto, on, off"),
        ("data = 3", "text"),
        ("n_layer 3", "TOML"),
        ("x = " + "[" * 5000, "TOML"),
        (f"learning_rate = {10**400}", "[0, inf)"),
        (f"seed = {2**63}", "[0, inf), below 9.22e+18"),
        ("learning_rate = 1e40", "[0, inf), below 1.27e+30"),
    ],
)
def test_what_is_wrong_in_a_preset_is_named(tmp_path, toml, said):
    (tmp_path / "p.toml").write_text(toml)
    with pytest.raises(ValueError, match=".") as error:
        read_command([str(tmp_path / "p.toml")])
    assert said in str(error.value)


def test_a_preset_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "p.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not TOML"):
        read_command([str(tmp_path / "p.toml")])


@given(st.lists(st.text(max_size=12), max_size=5))
def test_no_command_line_is_worse_than_an_error(argv):
    try:
        read_command(argv)
    except ValueError as error:
        assert str(error)
    except SystemExit as done:
        assert done.code == 0


def test_help_lists_every_key_with_its_default(capsys):
    assert train.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, key in keys(TrainConfig).items():
        line = next(line for line in lines if line.startswith(f"  --{name} "))
        assert key.help in line
        assert key.default in (None, "") or f"(default {key.default})" in line


def test_a_relative_path_is_resumed_from_anywhere(elsewhere):
    assert read_command(["--data", "text.txt"]).config.data.data == str(elsewhere / "text.txt")


def test_a_rate_may_be_so_high_that_it_diverges():
    assert build(TrainConfig, {"learning_rate": 1e30}).optim.learning_rate == 1e30
