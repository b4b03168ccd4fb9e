"""Tests of the config: key types, presets, flags, their order, and what is refused."""

import datetime
import re
import tomllib
from dataclasses import field, make_dataclass
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import configs
import train
from configs import TrainConfig, config_keys, make_config, parse_train_command, to_dict, to_toml
from model import device
from model.errors import UserError

PRESETS = Path(configs.__file__).parent


def one_key_config(hint: Any, default: Any = None) -> type:
    """A config class with the single key `key`."""
    group = make_dataclass("Group", [("key", hint, default)], frozen=True)
    return make_dataclass("Config", [("group", group, field(default_factory=group))], frozen=True)


def from_command_line(*argv: str) -> TrainConfig:
    return configs.load_config(parse_train_command(list(argv)))


@pytest.mark.parametrize("kind", [int, float, bool, str, Literal["a"], Literal[1]])
@pytest.mark.parametrize("value", [True, 1, 1.0, "a", None, [], datetime.date.min])
def test_a_value_of_another_type_is_refused(kind, value):
    accepted = {int: [1], float: [1, 1.0], bool: [True], str: ["a"]}.get(kind) or get_args(kind)
    for hint, valid in ((kind, accepted), (kind | None, [*accepted, None])):
        config_class = one_key_config(hint)
        if repr(value) in map(repr, valid):
            read = make_config(config_class, {"key": value}).group.key
            assert repr(read) == ("1.0" if (kind, value) == (float, 1) else repr(value))
        else:
            with pytest.raises(UserError, match="key is "):
                make_config(config_class, {"key": value})


@pytest.mark.parametrize("interval", ["[0, 2]", "(0, 2)", "[0, 2)", "(0, 2]"])
@pytest.mark.parametrize("kind", [int, float])
def test_a_number_outside_its_interval_is_refused(kind, interval):
    config_class = one_key_config(Annotated[kind, interval])
    inside = {0: "[" in interval, 1: True, 2: "]" in interval}
    for value in (-1, 0, 1, 2, 3, -(10**400), 10**400):
        if inside.get(value, False):
            assert make_config(config_class, {"key": value}).group.key == value
        else:
            with pytest.raises(UserError, match=f"key is .* in {re.escape(interval)}"):
                make_config(config_class, {"key": value})


@pytest.mark.parametrize("value", [nan, inf, -inf, 2**63, -(2**64)])
def test_a_number_that_toml_cannot_hold_is_refused(value):
    with pytest.raises(UserError, match="key is "):
        make_config(one_key_config(type(value)), {"key": value})


def test_help_may_contain_a_percent_sign_and_parentheses():
    config_class = one_key_config(Annotated[int, "(100 %, or so)"], 1)
    make_config(config_class, {"key": 2})
    assert (
        "(100 %, or so)"
        in configs.make_parser(config_class, usage="", description="").format_help()
    )


@pytest.mark.parametrize("hint", [list[int], Path, Any, int | str, Literal[True, False]])
def test_a_key_of_an_unsupported_type_raises_typeerror(hint):
    with pytest.raises(TypeError, match="key"):
        config_keys(one_key_config(hint))


unicode_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
train_values = {
    "data": unicode_text,
    "max_iters": st.integers(1, 2**63 - 1),
    "learning_rate": st.floats(0, 1e30),
    "compile": st.sampled_from(["auto", "on", "off"]),
}


@given(st.fixed_dictionaries({}, optional=train_values))
@example({"data": '\x7f\x85\\"'})
def test_a_config_survives_toml_and_dict(values):
    config = make_config(TrainConfig, values)
    for saved in (tomllib.loads(to_toml(config)), to_dict(config)):
        assert make_config(TrainConfig, saved) == config


def test_flags_override_the_preset_and_the_preset_overrides_defaults():
    Path("p.toml").write_text("data = '/é'\nn_layer = 3\nn_embd = 96", "utf-8-sig")
    config = from_command_line("p.toml", "--n_layer", "5", "--n_head", "6")
    assert (config.model.n_layer, config.model.n_embd, config.data.data) == (5, 96, "/é")
    assert config.model.n_head == 6  # does not divide the default n_embd, but the preset's
    assert config.model.block_size == TrainConfig().model.block_size


def test_the_data_path_is_made_absolute():
    assert from_command_line("--data", "text.txt").data.data == str(Path.cwd() / "text.txt")


@pytest.mark.parametrize(("name", "preset"), [("cpu", "cpu.toml"), ("cuda", "gpu.toml")])
def test_the_default_preset_depends_on_the_device(monkeypatch, name, preset):
    monkeypatch.setattr(device, "choose_device", lambda _: torch.device(name))
    assert from_command_line() == make_config(TrainConfig, configs.read_toml(PRESETS / preset))


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.name)
def test_a_preset_holds_only_valid_values_that_differ_from_the_defaults(path):
    preset, defaults = configs.read_toml(path), to_dict(TrainConfig())
    assert make_config(TrainConfig, preset)
    assert not [key for key, value in preset.items() if defaults.get(key) == value]


def test_help_lists_every_key_with_its_interval_and_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    assert train.main(["--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, key in config_keys(TrainConfig).items():
        default = "" if key.default in (None, False, "") else f"(default {key.default})"
        words = re.escape(" ".join(f"{key.help} {key.interval} {default}".split()))
        assert re.search(rf" --{name},? \S+ {words}", output)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--n-layer=3"], "'n-layer'. Did you mean n_layer?"),
        (["-n_layer", "3"], "-n_layer"),
        (["--encoding", "base64"], "base64"),
        (["--data", "\udcff"], "valid Unicode"),
        (["--data", "a\0b"], "valid Unicode"),
    ],
)
def test_a_wrong_flag_is_refused(argv, message):
    with pytest.raises(UserError, match=re.escape(message)):
        from_command_line(*argv)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (b"[model]\nn_layer = 3", "'model'"),
        (b"x = " + b"[" * 5000, "p.toml is not valid TOML"),
        (b"\xff\xfe\x00", "p.toml is not valid TOML"),
        (b"seed = 0x" + b"f" * 5000, "seed"),
    ],
    ids=["table", "brackets", "bytes", "number"],
)
def test_a_wrong_preset_is_refused(toml, message):
    Path("p.toml").write_bytes(toml)
    with pytest.raises(UserError, match=message):
        from_command_line("p.toml")
