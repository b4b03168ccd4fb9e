"""Tests of the config: types of keys, flags, presets, their order, and what is refused."""

import argparse
import contextlib
import io
import re
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import pytest
import torch
from configs.training import TrainConfig, known_values, parse_train_command
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import configs
import sample
import train
from configs import prepare, training
from configs.flags import ConfigParser, UserError, make_config, to_dict, to_toml
from configs.recipe import Budget, recipe
from configs.settings import DataConfig
from data.corpus import open_corpus
from model import checkpoint, network
from model.network import GPTConfig, require_consistent
from model.networks import quill

PRESETS = Path(configs.__file__).parent
PARSER = ConfigParser(TrainConfig, usage="", description="")
HELP = "100 % (or so)"
NEW_KEYS = {  # a type, its default, values on the command line and what they mean, wrong values
    "int": (Annotated[int, HELP], 3, {"-5": -5}, ["x", "1.5", "nan", "1e3", ""]),
    "from 1 to 9": (Annotated[int, HELP, "[1, 9]"], 3, {"1": 1, "9": 9}, ["0", "10", "9" * 400]),
    "float": (Annotated[float, HELP], 0.5, {"1": 1.0}, ["x", "nan", "inf", "-1e999", ""]),
    "between 0 and 1": (Annotated[float, HELP, "(0, 1)"], 0.5, {"1e-5": 1e-5}, ["0", "1", "nan"]),
    "bool": (Annotated[bool, HELP], False, {None: True}, ["yes"]),
    "text": (Annotated[str, HELP], "a", {"-b c": "-b c"}, ["\udcff", "a\0b"]),
    "optional text": (Annotated[str | None, HELP], None, {"None": "None"}, []),
    "texts": (Annotated[tuple[str, ...] | None, HELP], None, {"-b c": ("-b c",)}, ["a\0b"]),
    "choice": (Annotated[Literal["relu", "gelu"], HELP], "relu", {"gelu": "gelu"}, ["tanh", ""]),
}


def from_command_line(*argv: str) -> TrainConfig:
    command = parse_train_command(["--device=cpu", *argv])
    values = known_values(command, {})
    if command.uses_recipe:
        values = recipe(Budget()) | values
    config = make_config(training.TrainConfig, values)
    require_consistent(config)
    return config


def add_key(monkeypatch, hint: Any, default: object) -> None:
    """Add `new_key` to the group "model", as a new line of GPTConfig would."""
    new_key = {"__annotations__": {"new_key": hint}, "new_key": default, "__doc__": "."}
    group = dataclass(frozen=True)(type("GPTConfig", (GPTConfig,), new_key))
    bases = tuple(group if base is GPTConfig else base for base in TrainConfig.__bases__)
    edited = dataclass(frozen=True)(type("TrainConfig", bases, {"__doc__": "."}))
    monkeypatch.setattr(training, "GPTConfig", group)
    monkeypatch.setattr(quill.GPT, "settings", ("new_key",))
    for module in (training, train, sample, prepare):
        monkeypatch.setattr(module, "TrainConfig", edited)
    monkeypatch.setattr(network, "GPTConfig", group)


@pytest.mark.parametrize("kind", NEW_KEYS)
def test_new_config_key_becomes_flag_toml_key_and_help(kind, tiny, monkeypatch, capsys):
    hint, default, given, _ = NEW_KEYS[kind]
    add_key(monkeypatch, hint, default)
    assert from_command_line().new_key == default
    for run, (text, value) in enumerate(given.items()):
        flag = "--new_key" if text is None else f"--new_key={text}"
        assert tiny(f"--max_iters=1 --out_dir={run}", flag) == 0
        saved = checkpoint.load(f"{run}/last.pt").config["new_key"]
        assert (saved, type(saved)) == (value, type(value))
        assert from_command_line(f"{run}/config.toml").new_key == value
        assert train.main(["--resume", str(run), "--max_iters", "2"]) == 0
        assert sample.main([str(run), "--max_new_tokens", "1"]) == 0
    if kind == "bool":  # what a preset turned on can be turned off
        assert not from_command_line("0/config.toml", "--no-new_key").new_key

    monkeypatch.setenv("COLUMNS", "1000")
    capsys.readouterr()
    assert train.main(["--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for group in training.TrainConfig.__bases__:
        hints = get_type_hints(group, include_extras=True)
        for key in fields(group):
            words = " ".join(get_args(hints[key.name])[1:])  # the help and the interval
            if key.name in recipe(Budget()):
                words += f" (by the recipe; {key.default} with a preset)"
            elif key.default not in (None, ""):
                words += f" (default {key.default})"
            flag = rf"--{key.name},? \S+( \[TEXT \.\.\.\])?"
            assert re.search(f" {flag} {re.escape(words)}", output), key.name


@pytest.mark.parametrize(
    ("kind", "wrong"), [(kind, value) for kind, (*_, wrong) in NEW_KEYS.items() for value in wrong]
)
def test_wrong_value_of_new_key_is_refused_by_name(kind, wrong, monkeypatch):
    hint, default, *_ = NEW_KEYS[kind]
    add_key(monkeypatch, hint, default)
    with pytest.raises(UserError, match="new_key"):
        from_command_line(f"--new_key={wrong}")


@pytest.mark.parametrize(("modes", "compiles"), [(("on", "True"), 1), (("off", "False"), 0)])
def test_compile_accepts_nanogpt_booleans_and_trains_in_dtype(modes, compiles, tiny, monkeypatch):
    calls = []

    def compile(network, **_):
        return lambda x_BT: calls.append(torch.is_autocast_enabled("cpu")) or network(x_BT)

    monkeypatch.setattr(torch, "compile", compile)
    for number, mode in enumerate(modes, start=1):
        assert tiny(f"--max_iters=1 --compile={mode} --dtype=bfloat16") == 0
        assert calls == [True] * (2 * number * compiles)  # a trial, and a step


train_values = {
    "data": st.tuples(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)),
    "max_iters": st.integers(1, 2**63 - 1),
    "learning_rate": st.floats(0, 1e30),
    "compile": st.sampled_from(["auto", "on", "off"]),
}


@given(st.fixed_dictionaries({}, optional=train_values))
@example({"data": ('\x7f\x85\\"',)})
@example({"data": ("a.txt", "é b.txt", "-"), "val_split": "spread"})
def test_a_config_survives_toml_and_dict(values):
    config = make_config(TrainConfig, values)
    Path("p.toml").write_text(to_toml(config), "utf-8", newline="")
    for saved in (PARSER.parse_preset("p.toml"), to_dict(config)):
        assert make_config(TrainConfig, saved) == config


RECIPE_INPUTS = {"data", "encoding", "val_fraction", "minutes", "device", "init_from"}


def valid_values(key: str, hint: Any) -> st.SearchStrategy[str]:
    """Flags that give `key` a value that is valid in itself."""
    kind, _, *interval = get_args(hint)
    if kind is bool:
        return st.sampled_from([f"--{key}", f"--no-{key}"])
    if kind in (int, float):
        low, high = (float(bound) for bound in interval[0][1:-1].split(","))
        high = min(high, 300)
        numbers = st.integers(int(low), int(high)) if kind is int else st.floats(low, high)
        number_of = PARSER._option_string_actions[f"--{key}"].type
        return numbers.filter(lambda n: _is_valid(number_of, str(n))).map(f"--{key}={{}}".format)
    texts = {"network": ["gpt", "quill"], "out_dir": ["a", "b/c"]}
    return st.sampled_from(texts.get(key) or get_args(kind)).map(f"--{key}={{}}".format)


def _is_valid(number_of, text: str) -> bool:
    with contextlib.suppress(argparse.ArgumentTypeError):
        number_of(text)
        return True
    return False


FLAGS = {
    key: valid_values(key, hint)
    for group in TrainConfig.__bases__
    for key, hint in get_type_hints(group, include_extras=True).items()
    if key not in RECIPE_INPUTS
}


def config_of_command(flags: dict[str, str]) -> dict[str, Any] | None:
    """The config with which `python train.py FLAGS` would train, or None if it is refused."""
    configs = []

    def remember(config, *_) -> None:
        configs.append(to_dict(config))
        sys.exit(0)

    with contextlib.redirect_stderr(io.StringIO()) as stderr, pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build", remember)
        status = train.main(["--data=text.txt", "--device=cpu", *flags.values()])
    if status == 0:
        return configs[0]
    (line,) = stderr.getvalue().splitlines()
    assert (status, line[:7]) == (2, "error: ")
    return None


@given(
    flags=st.fixed_dictionaries(FLAGS), others=st.sets(st.sampled_from(sorted(FLAGS)), max_size=2)
)
@settings(suppress_health_check=list(HealthCheck), max_examples=20)
def test_a_flag_changes_only_itself(flags, others, text_file, monkeypatch):
    """Or the combination is refused. Inputs of the recipe are excepted."""
    corpus = open_corpus(DataConfig(("text.txt",)))
    monkeypatch.setattr(train, "open_corpus", lambda *_: corpus)
    given_flags = {name: flags[name] for name in others}
    before = config_of_command(given_flags)
    for key in flags.keys() - others:
        after = config_of_command(given_flags | {key: flags[key]})
        if before and after:
            assert {name for name in after if after[name] != before[name]} <= {key}


def test_flags_override_the_preset_and_the_preset_overrides_defaults():
    Path("p.toml").write_text("data = 'é'\nn_layer = 3\nn_embd = 96", "utf-8-sig")
    config = from_command_line("p.toml", "--n_layer", "5", "--n_head", "6")
    assert (config.n_layer, config.n_embd) == (5, 96)
    assert config.n_head == 6  # does not divide the default n_embd, but the preset's
    assert config.block_size == TrainConfig().block_size
    assert config.data == (str(Path.cwd() / "é"),)  # a run resumes from any folder
    assert config.max_iters == TrainConfig().max_iters  # not the recipe's


def test_n_head_0_takes_head_count_from_init_from():
    Path("p.toml").write_text("n_head = 0\ninit_from = 'run'")
    command = parse_train_command(["p.toml"])
    assert known_values(command, {"n_embd": 192, "n_head": 0})["n_head"] == 3


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.name)
def test_presets_hold_only_valid_values_differing_from_defaults(path):
    preset, defaults = PARSER.parse_preset(path), to_dict(TrainConfig())
    assert make_config(TrainConfig, preset)
    assert not [key for key, value in preset.items() if defaults.get(key) == value]


@pytest.mark.parametrize(
    ("flag", "toml", "message"),
    [
        ("--n-layer=3", "", "'n-layer'. Did you mean n_layer?"),
        ("--n_laye=3", "", "'n_laye'. Did you mean n_layer?"),
        ("-n_layer", "", "-n_layer"),
        ("--n_layer", "", "--n_layer"),
        ("--seed=1", "n_layr = 3", "'n_layr'. Did you mean n_layer?"),
        ("--seed=1", "[model]\nn_layer = 3", "'model'"),
        ("--seed=1", "help = true", "'help'"),
        ("--seed=1", "n_layer = [3]", "n_layer"),
        ("--seed=1", "n_layer 3", "p.toml is not valid TOML"),
        ("--seed=1", "x = " + "[" * 5000, "p.toml is not valid TOML"),
        ("--seed=1", "é = 3", "p.toml is not valid TOML"),
        ("--seed=1", "seed = 0x" + "f" * 5000, "p.toml is not valid TOML"),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_flag_or_preset_is_refused(flag, toml, message):
    Path("p.toml").write_text(toml, "latin-1")
    with pytest.raises(UserError, match=re.escape(message)):
        from_command_line("p.toml", flag)


@pytest.mark.parametrize("config_class", [TrainConfig, sample.SampleConfig])
def test_a_suggested_flag_exists(config_class):
    parser = ConfigParser(config_class, "", "")
    suggestion = str(parser.unknown_key("resum")).split()[-1].rstrip("?")
    assert f"--{suggestion} " in parser.format_help()


@pytest.mark.parametrize("hint", [list[int], Path, int | None, Literal[True]])
def test_config_key_of_unsupported_type_is_refused_at_startup(hint, monkeypatch):
    add_key(monkeypatch, Annotated[hint, "help"], None)
    with pytest.raises(TypeError, match="setting"):
        from_command_line()
