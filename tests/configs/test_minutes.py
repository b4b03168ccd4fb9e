"""Tests of --minutes: the time that a simulated machine takes, what stays, what is repeated."""

import math
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import train
from configs import minutes
from configs.minutes import choose_config
from configs.recipe import Budget, max_chars, run_flops
from configs.schema import to_dict
from configs.training import TrainConfig, parse_train_command
from data.corpus import EVAL_BATCH_CHARS
from model.checkpoint import Checkpoint
from model.system.errors import UserError
from model.system.processes import Processes
from tests.test_train import assert_same_run, at_steps

VAL_CHARS = 100_000


@dataclass
class SimulatedCorpus:
    """The lengths of a corpus."""

    train_chars: int
    val_chars: int = VAL_CHARS

    def eval_chars(self, block_size: int) -> int:
        return self.val_chars

    def with_val_chars(self, count: int) -> "SimulatedCorpus":
        return SimulatedCorpus(self.train_chars, min(count, self.val_chars))


class SimulatedMachine:
    """A clock, and a training that moves it on."""

    def __init__(self, speed: float, startup: float, evaluation: float) -> None:
        self.speed, self.startup, self.evaluation = speed, startup, evaluation
        self.first_evaluation = 0.7  # seconds that the first one takes longer
        self.first_training = 0.0  # also seconds
        self.compilation = 60.0  # seconds that the first one takes
        self.now = 3.0  # seconds that the imports took

    def train(self, config, corpus) -> Checkpoint:
        steps, interval = config.optim.max_iters, config.run.eval_interval
        evaluation = self.evaluation * corpus.val_chars / VAL_CHARS
        state = Checkpoint(step=steps, timed_steps=steps)
        state.train_seconds = run_flops(to_dict(config)) / self.speed + self.first_training
        state.eval_seconds = math.ceil(steps / interval) * evaluation + self.first_evaluation
        self.first_evaluation = self.first_training = 0.0
        self.now += self.startup + state.train_seconds + state.eval_seconds
        if config.system.compile in ("on", "True"):
            self.now += self.compilation
            self.compilation = 0.0
        return state

    def choose(
        self,
        train_chars: int,
        *flags: str,
        processes: Processes | None = None,
        start: dict | None = None,
    ) -> TrainConfig:
        """What choose_config chooses on this machine."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(minutes.time, "perf_counter", lambda: self.now)
            command = parse_train_command(["--device=cpu", *flags])
            corpus = SimulatedCorpus(train_chars)
            processes = processes or Processes()
            return choose_config(command, start or {}, corpus, processes, 0.0, self.train)


@given(
    speed=st.floats(1e10, 1e15),
    startup=st.floats(0, 1),
    evaluation=st.floats(0, 0.5),
    asked=st.floats(1, 1000),
    train_chars=st.integers(10_000, 10**9),
)
def test_a_run_takes_the_minutes_that_were_asked_for(
    speed, startup, evaluation, asked, train_chars
):
    machine = SimulatedMachine(speed, startup, evaluation)
    config = machine.choose(train_chars, f"--minutes={asked}")
    machine.train(config, SimulatedCorpus(10**6))
    assert config.run.minutes == 0
    chars = config.optim.max_iters * config.optim.batch_size * config.model.block_size
    if chars > 0.8 * max_chars(Budget(train_chars=train_chars)):
        assert machine.now <= 60 * asked  # the text is too short to use all of the time
    else:
        assert machine.now == pytest.approx(60 * asked, rel=0.06)


@given(
    asked=st.floats(1e-9, 3),
    evaluation=st.floats(0, 5),
    flags=st.fixed_dictionaries(
        {},
        optional={
            "teacher_iters": st.integers(0, 10**6),
            "eval_interval": st.integers(1, 10**6),
            "batch_size": st.integers(1, 10_000),
            "n_layer": st.integers(1, 100),
            "compile": st.sampled_from(["on", "True", "off"]),
        },
    ),
)
def test_no_run_takes_longer_than_the_minutes_that_were_asked_for(asked, evaluation, flags):
    machine = SimulatedMachine(1e12, 0.5, evaluation)
    flags = [f"--{key}={value}" for key, value in flags.items()]
    try:
        config = machine.choose(100_000, f"--minutes={asked}", *flags)
    except UserError as error:
        assert "too little time" in str(error)
        trial_runs = 3.0 + 3 * (machine.startup + evaluation + 1) + 60  # and a compilation
        assert machine.now <= 60 * asked + trial_runs
    else:
        machine.train(config, SimulatedCorpus(10**6))
        assert machine.now <= 60 * asked + 1e-6


@pytest.mark.parametrize("compilation", ["off", "on"])
def test_trial_runs_evaluate_the_whole_validation_split_only_once(compilation):
    seconds = []
    for evaluation in (0.0, 100.0):
        machine = SimulatedMachine(1e12, 0.5, evaluation)
        machine.choose(10**6, "--minutes=60", f"--compile={compilation}")
        seconds.append(machine.now)
    short_evaluation = 100 * 2 * EVAL_BATCH_CHARS / VAL_CHARS  # in the other two trial runs
    assert seconds[1] - seconds[0] == pytest.approx(100 + 2 * short_evaluation)


def test_the_trial_runs_of_a_long_run_end_in_minutes():
    machine = SimulatedMachine(1e12, 0.5, 0.1)
    machine.choose(10**9, "--minutes=1000", "--compile=off")
    assert machine.now == pytest.approx(minutes.MAX_TRIAL_SECONDS, rel=0.1)


def test_a_run_whose_evaluations_take_most_of_the_time_is_not_refused():
    machine = SimulatedMachine(1e12, 0.5, 5.0)
    config = machine.choose(10**6, "--minutes=0.465")
    machine.train(config, SimulatedCorpus(10**6))
    assert config.optim.max_iters >= 90 and machine.now <= 60 * 0.465


@pytest.mark.parametrize("flags", [[], ["--compile=True"], ["--compile=auto"]])
def test_a_network_that_was_compiled_in_a_trial_run_takes_no_time_to_compile_in_the_run(flags):
    machine = SimulatedMachine(1e12, 0.5, 0.1)
    config = machine.choose(10**8, "--minutes=6", *flags)
    assert config.system.compile in ("on", "True")
    machine.train(config, SimulatedCorpus(10**6))
    assert machine.now == pytest.approx(360, rel=0.03)


def test_a_run_that_ends_early_is_not_compiled():
    machine = SimulatedMachine(1e12, 0.5, 0.1)
    assert machine.choose(30_000, "--minutes=60").system.compile == "auto"  # off, on a CPU
    assert machine.now < 60


def test_deep_networks_are_compiled_in_longer_runs_only():
    machine = SimulatedMachine(1e13, 0.5, 0.1)
    deep = ("--n_layer=100", "--n_embd=64", "--compile=auto")
    assert machine.choose(10**8, "--minutes=10", *deep).system.compile == "auto"
    assert machine.choose(10**8, "--minutes=600", *deep).system.compile == "on"


def test_a_network_for_which_the_default_one_is_too_slow_a_measure_is_not_refused():
    class SlowIfSmall(SimulatedMachine):
        def train(self, config, corpus) -> Checkpoint:
            self.speed = 1e12 if config.model.n_layer > 4 else 1e10
            return super().train(config, corpus)

    machine = SlowIfSmall(0, 0.5, 0.1)
    large = ("--n_layer=12", "--n_embd=512", "--batch_size=16", "--compile=off")
    config = machine.choose(10**8, "--minutes=20", *large)
    machine.train(config, SimulatedCorpus(10**6))
    assert machine.now == pytest.approx(1200, rel=0.03)


def test_the_choice_depends_on_the_kind_of_device_and_the_number_of_processes(monkeypatch):
    machine, three = SimulatedMachine(1e12, 0.5, 0.1), Processes()
    three.world_size = 3
    on_cpu = machine.choose(10**6)
    assert on_cpu.optim.batch_size % 3 and machine.now == 3.0  # no trial run
    assert machine.choose(10**6, processes=three).optim.batch_size % 3 == 0
    monkeypatch.setattr(minutes, "is_cuda", lambda _: True)
    on_gpu = machine.choose(10**6)
    assert on_gpu.model.n_embd > on_cpu.model.n_embd
    assert on_gpu.optim.batch_size > on_cpu.optim.batch_size


def test_a_gpu_whose_first_steps_are_slow_gets_the_same_network(monkeypatch):
    monkeypatch.setattr(minutes, "is_cuda", lambda _: True)
    sizes = []
    for first_training in (0.0, 3.0):
        machine = SimulatedMachine(1e14, 0.5, 0.1)
        machine.first_training = first_training
        sizes.append(machine.choose(10**8, "--minutes=1").model)
    assert sizes[0] == sizes[1]


def test_trial_runs_from_a_checkpoint_keep_all_flags():
    seen = []

    class Recorder(SimulatedMachine):
        def train(self, config, corpus) -> Checkpoint:
            seen.append(to_dict(config))
            return super().train(config, corpus)

    given = {"block_size": 300, "batch_size": 64, "gradient_accumulation_steps": 8}
    flags = [f"--{key}={value}" for key, value in given.items()]
    start = to_dict(TrainConfig()) | {"block_size": 4096, "n_embd": 768}
    Recorder(1e12, 0.5, 0.1).choose(10**6, "--init_from=run", "--minutes=1", *flags, start=start)
    assert len(seen) == 3
    for values in seen:
        assert values["n_embd"] == 768 and given.items() <= values.items()


def test_a_network_that_is_too_large_for_the_time_is_not_compiled():
    machine = SimulatedMachine(1e12, 0.5, 0.1)
    with pytest.raises(UserError, match="too little time"):
        machine.choose(10**8, "--minutes=6", "--n_layer=100", "--n_embd=1024", "--batch_size=512")
    assert machine.now < 30


def test_a_run_has_no_teacher_that_was_not_measured():
    """The first trial run is not compiled; the second finds time to read the text more often."""

    class FasterIfCompiled(SimulatedMachine):
        def train(self, config, corpus) -> Checkpoint:
            self.speed = 2e11 if config.system.compile == "on" else 1e11
            teachers.append(config.optim.teacher_iters > 0)
            return super().train(config, corpus)

    for train_chars in range(500_000, 5_000_000, 250_000):
        teachers = []
        config = FasterIfCompiled(1e11, 0.5, 0.1).choose(train_chars, "--minutes=10")
        assert config.optim.teacher_iters == 0 or teachers[-1]


@pytest.mark.parametrize("batch_size", [64, 128, 512])
def test_a_short_text_that_is_read_often_in_few_steps_is_no_lack_of_time(batch_size):
    config = SimulatedMachine(1e12, 0.5, 0.1).choose(
        3000, "--minutes=10", f"--batch_size={batch_size}"
    )
    assert config.optim.max_iters < 20


def test_a_run_with_minutes_is_repeated_by_its_config_and_resumed_exactly(tiny, monkeypatch):
    """On a machine that seems so slow that ten minutes are enough for a few steps only."""
    monkeypatch.setattr(train, "START_TIME", time.perf_counter())
    monkeypatch.setattr(minutes, "measure", lambda *_: (2.6e5, 0.0, 0.0))

    def copy_once(_) -> None:
        if Path("run/last.pt").exists() and not Path("killed").exists():
            shutil.copytree("run", "killed")

    at_steps(monkeypatch, range(10**6), copy_once)
    assert tiny("--minutes=10 --eval_interval=10 --dropout=0.2 --out_dir=run") == 0
    assert train.main(["run/config.toml", "--out_dir=again"]) == 0
    assert train.main(["--resume", "killed"]) == 0
    for other in ("again", "killed"):
        assert_same_run(Path("run"), Path(other))


class OneOfTwo(Processes):
    """A process beside another one, which has the values of `others` in turn."""

    def __init__(self, others: list[float]) -> None:
        super().__init__()
        self.others, self.values = iter(others), []

    def max(self, value: float) -> float:
        self.values.append(max(value, next(self.others, value)))
        return self.values[-1]


@given(
    speed=st.floats(1e11, 1e13),
    factors=st.tuples(*[st.floats(1, 3)] * 3),
    train_chars=st.integers(10_000, 10**8),
)
def test_a_process_chooses_what_a_slower_one_chooses(speed, factors, train_chars):
    slower, process = OneOfTwo([]), SimulatedMachine(speed, 0.1, 0.1)
    machine = SimulatedMachine(speed / factors[0], 0.1 * factors[1], 0.1 * factors[2])
    chosen = machine.choose(train_chars, "--minutes=2", processes=slower)
    beside = OneOfTwo(slower.values)
    assert process.choose(train_chars, "--minutes=2", processes=beside) == chosen


@pytest.mark.parametrize("step", [5, minutes.FIRST_STEPS - 1, None])
def test_a_signal_while_the_machine_is_measured_ends_the_run_and_leaves_no_folder(
    tiny, monkeypatch, step
):
    """In a step, or in the evaluation at the end."""

    def receive(*_) -> None:
        signal.raise_signal(signal.SIGTERM)

    if step is None:
        monkeypatch.setattr(train, "log_sample_and_maps", receive)
    else:
        at_steps(monkeypatch, [step], receive)
    assert tiny("--minutes=0.05 --out_dir=run") == 128 + signal.SIGTERM
    assert not Path("run").exists()
