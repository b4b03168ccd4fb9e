"""Tests of the config: types of keys, flags, presets, their precedence, refused values."""

import contextlib
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import configs
import train
from configs.errors import UserError
from configs.flags import HINTS, ConfigParser, absolute_path, make_config, to_dict, to_toml
from configs.recipe import Budget, recipe
from configs.settings import OPTIONAL, SHARE, Config, Limit, TrainConfig, between, marked
from model.generate import GenerationConfig
from model.networks import count_heads
from model.run.setup import full_config, load_start, open_text, parse_train_command
from model.system.device import training_machine
from model.system.processes import Processes
from sample import SampleConfig
from tests.helpers import LINES

PRESETS = Path(configs.__file__).parent
PARSER = ConfigParser(TrainConfig, usage="", description="")
HELP = "100 % (or so)"
NEW_KEYS = {  # kind of key: (type, default, {value on the command line: its meaning}, wrong values)
    "int": (Annotated[int, HELP], 3, {"-5": -5}, ["x", "1.5", "nan", "1e3", "", f"{2**63}"]),
    "from 1 to 9": (Annotated[int, HELP, between(1, 9)], 3, {"1": 1, "9": 9}, ["0", "10"]),
    "float": (Annotated[float, HELP], 0.5, {"1": 1.0}, ["x", "nan", "inf", "-1e999", "", "1e39"]),
    "share": (Annotated[float, HELP, SHARE], 0.5, {"1e-5": 1e-5}, ["0", "1", "nan"]),
    "bool": (Annotated[bool, HELP], False, {None: True}, ["yes"]),
    "text": (Annotated[str, HELP], "a", {"-b c": "-b c"}, []),
    "optional text": (Annotated[str | None, HELP], None, {"None": "None"}, []),
    "texts": (Annotated[tuple[str, ...] | None, HELP], None, {"-b c": ("-b c",)}, []),
    "choice": (Annotated[Literal["relu", "gelu"], HELP], "relu", {"gelu": "gelu"}, ["tanh", ""]),
}


def config_with(hint: Any, default: object) -> type:
    """Return a config class with one key, declared like the keys in configs/settings.py."""

    @dataclass(frozen=True)
    class Group(Config):
        """A title."""

        new_key: hint = default

    return dataclass(frozen=True)(type("Config", (Group,), {"__doc__": "."}))


@pytest.mark.parametrize("kind", NEW_KEYS)
def test_a_declared_key_is_a_flag_and_a_toml_key(kind):
    hint, default, given, _ = NEW_KEYS[kind]
    config_class = config_with(hint, default)
    parser = ConfigParser(config_class, "", "")
    assert make_config(config_class, parser.parse([])).new_key == default
    for text, value in given.items():
        flag = "--new_key" if text is None else f"--new_key={text}"
        config = make_config(config_class, parser.parse([flag]))
        assert (config.new_key, type(config.new_key)) == (value, type(value))
        Path("p.toml").write_text(to_toml(config))
        assert make_config(config_class, parser.parse_preset("p.toml")) == config
    if kind == "bool":  # a flag can turn off a setting that a preset turned on
        assert parser.parse(["--no-new_key"]) == {"new_key": False}


@pytest.mark.parametrize(
    ("kind", "wrong"), [(kind, value) for kind, (*_, wrong) in NEW_KEYS.items() for value in wrong]
)
def test_a_wrong_value_is_refused_by_name(kind, wrong):
    hint, default, *_ = NEW_KEYS[kind]
    with pytest.raises(UserError, match="new_key"):
        ConfigParser(config_with(hint, default), "", "").parse([f"--new_key={wrong}"])


@pytest.mark.parametrize(
    ("config_class", "values"),
    [
        (TrainConfig, {"dropout": 1.0}),
        (TrainConfig, {"learning_rate": 10**400}),
        (TrainConfig, {"max_iters": 2.0}),
        (TrainConfig, {"dtype": "float8"}),
        (GenerationConfig, {"temperature": -1.0}),
    ],
)
def test_python_is_refused_the_same_values(config_class, values):
    [name] = values
    with pytest.raises(UserError, match=f"^{name} is "):
        config_class(**values)


def test_help_shows_each_flag_with_its_limit_and_default(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "1000")
    assert train.main(["--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for key in fields(TrainConfig):
        _, help_text, *marks = get_args(key.type)
        words = "".join(f"{mark.words}; " for mark in marks if isinstance(mark, Limit))
        if key.name in recipe(Budget()):
            words += "the recipe chooses)"
        elif key.default not in (None, ""):
            words += f"default {key.default})"
        flag = rf"--{key.name},? \S+( \[PATH \.\.\.\])?"
        note = rf" \({re.escape(words)}" if words else ""
        assert re.search(f" {flag} {re.escape(help_text)}{note}", output), key.name


train_values = {
    # argparse drops a lone "--". A file of this name can be given as ./--
    "data": st.tuples(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\x7f"), min_size=1)
        .filter(lambda text: text != "--")
        .map(absolute_path)
    ),
    "max_iters": st.integers(1, 2**63 - 1),
    "learning_rate": st.floats(0, 3e38),
    "compile": st.sampled_from(["auto", "on", "off"]),
}


@given(st.fixed_dictionaries({}, optional=train_values))
@example({"data": ('/\x85\\"',)})
@example({"data": ("/a.txt", "/é b.txt", "-"), "val_split": "spread"})
def test_a_config_survives_toml_and_dict(values):
    config = make_config(TrainConfig, values)
    Path("p.toml").write_text(to_toml(config), "utf-8", newline="")
    for saved in (PARSER.parse_preset("p.toml"), to_dict(config)):
        assert make_config(TrainConfig, saved) == config


SMALL = "--device=cpu --n_layer=1 --n_head=2 --n_embd=16 --block_size=16 --batch_size=4"
SMALL += " --max_iters=1 --dtype=float32"
SPECIAL = {"network": "gpt", "dtype": "bfloat16"}  # `other_flag` takes these values
RECIPE_INPUTS = {"data", "encoding", "val_fraction", "minutes", "device", "init_from"}


def config_of_run(text_file: Path, run: str, flags: list[str]) -> dict[str, Any]:
    """Make a run without a preset. Return the settings that it trains with."""
    argv = [f"--data={text_file}", *SMALL.split(), *flags, f"--out_dir={run}"]
    assert train.main(argv) == 0
    return PARSER.parse_preset(f"{run}/config.toml")


def other_flag(name: str, value: Any) -> str:
    """Return a flag that changes a setting from `value` to another value that is valid."""
    kind, _, *marks = get_args(get_type_hints(TrainConfig, include_extras=True)[name])
    if kind is bool:
        return f"--no-{name}" if value else f"--{name}"
    if kind in (int, float):
        parser = ConfigParser(config_with(Annotated[(kind, HELP, *marks)], value), "", "")
        for other in (2 * value, value // 2 if kind is int else value / 2, value + kind(1), 0.5):
            with contextlib.suppress(UserError):  # the limit may refuse the value
                if other != value and parser.parse([f"--new_key={other}"]):
                    return f"--{name}={other}"
    return f"--{name}={SPECIAL.get(name, (get_args(kind) or ['other'])[-1])}"


def test_a_flag_changes_only_itself(text_file):
    """For each bit, one run has the flags with this bit in their number, another run the others.

    So for any two flags, there is a run that has the first flag and lacks the second.
    """
    before = config_of_run(text_file, "before", [])
    unused = {*RECIPE_INPUTS, "out_dir", *marked(TrainConfig, OPTIONAL)}
    names = [field.name for field in fields(TrainConfig) if field.name not in unused]
    for bit in range(len(names).bit_length()):
        for value in (0, 1):
            given = {name for i, name in enumerate(names) if (i >> bit) % 2 == value}
            flags = [other_flag(name, before[name]) for name in given]
            after = config_of_run(text_file, f"{bit}-{value}", flags)
            assert {name for name in after if after[name] != before[name]} == given


def from_command_line(*argv: str) -> TrainConfig:
    return make_config(TrainConfig, parse_train_command([*argv]))


def test_flags_override_the_preset():
    Path("p.toml").write_text("data = 'é'\nn_layer = 3\nn_embd = 96", "utf-8-sig")
    config = from_command_line("p.toml", "--n_layer", "5", "--n_head", "6")
    assert (config.n_layer, config.n_embd) == (5, 96)
    assert config.n_head == 6  # 6 divides the preset's n_embd, but not the default n_embd
    assert config.data == (str(Path.cwd() / "é"),)  # absolute, so a run resumes from any folder


def test_texts_may_be_given_one_by_one():
    config = from_command_line("--data", "a", "b", "--data=c")
    assert [Path(path).name for path in config.data] == ["a", "b", "c"]


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.name)
def test_presets_are_valid_and_name_every_key_of_the_recipe(path):
    preset = PARSER.parse_preset(path)
    count_heads(make_config(TrainConfig, preset))
    assert recipe(Budget()).keys() <= preset.keys()


def test_a_preset_replaces_only_the_settings_that_it_names(text_file):
    """A flag with the same value has the same effect."""
    text_file.write_text(LINES * 8)  # a short text, for which the recipe differs from the defaults
    Path("p.toml").write_text("seed = 1\nn_embd = 64")
    chosen = []
    for first in (["p.toml"], ["--seed=1", "--n_embd=64"]):
        given = parse_train_command([*first, f"--data={text_file}", "--device=cpu"])
        saved, known = load_start(given, Path("unused"))
        draft = make_config(TrainConfig, known)
        corpus = open_text(draft, saved, Processes())
        machine = training_machine(draft, Processes())
        chosen.append(full_config(draft, known, saved, corpus, machine))
    assert chosen[0] == chosen[1]
    assert chosen[0].n_embd == 64
    assert chosen[0].dropout > 0


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
        ("--seed=1", "n_layer 3", "p.toml cannot be read as TOML"),
        ("--seed=1", "é = 3", "p.toml cannot be read as TOML"),
        ("--seed=1", "n_layer = 0", "n_layer is 0. It must be from 1 to 1,000."),
        ("--seed=1", "n_layer = 2.0", "argument --n_layer: invalid int value: '2.0'"),
        ("--seed=1", "n_layer = true", "argument --n_layer: expected one argument"),
        ("--seed=1", "bias = 1", "argument --bias"),
        ("--epochs=1", "", "unknown key 'epochs'. Use --max_iters."),
    ],
    ids=lambda text: text[:20],
)
def test_a_wrong_flag_or_preset_is_refused(flag, toml, message):
    Path("p.toml").write_text(toml, "latin-1")
    with pytest.raises(UserError, match=re.escape(message)):
        from_command_line("p.toml", flag)


def test_every_hint_names_flags_that_exist():
    known = {field.name for field in (*fields(TrainConfig), *fields(SampleConfig))}
    named = set(re.findall(r"--(\w+)", " ".join(HINTS.values())))
    assert named <= known
    assert not known & HINTS.keys() - {"prompt"}  # a flag of sample.py only
