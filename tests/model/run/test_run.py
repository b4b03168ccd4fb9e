"""What a run does between its training steps, without any: its clock, what it saves and keeps."""

import os
import signal
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from configs.flags import make_config
from configs.settings import TrainConfig
from data.corpus import open_corpus
from model.networks import make_network
from model.run.checkpoint import Learner, RunState
from model.run.run import Run, start_run
from model.system.device import Machine
from model.system.processes import Processes
from tests.conftest import LINES, curve, summary

SIZES = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 8, "batch_size": 1}


class Starter:
    """start(minutes=1.0): a run whose clock stands still, unless `now` or an evaluation moves it.

    An evaluation takes `eval_seconds`.
    """

    def __init__(self, text_file: Path) -> None:
        self.text_file, self.now, self.eval_seconds = text_file, 5.0, 0.0
        text_file.write_text(LINES[:2890], "utf-8")  # 36 windows of 8 validation characters

    def __call__(self, state: RunState | None = None, **settings) -> AbstractContextManager[Run]:
        config = make_config(TrainConfig, SIZES | {"data": (str(self.text_file),)} | settings)
        corpus = open_corpus(config)
        model = make_network(config, len(corpus.tokenizer.vocab))
        machine = Machine(torch.device("cpu"), torch.float32, Processes())
        learner = Learner(model, model, [], machine.make_scaler())

        def pass_time(module: torch.nn.Module, args: tuple) -> None:
            self.now += self.eval_seconds if len(args[0]) == 36 else 0.0

        model.register_forward_pre_hook(pass_time)
        return start_run(config, state or RunState(), learner, Path("run"), corpus, machine)

    def make_step(self, run: Run, seconds: float = 1.0) -> None:
        """What the loop does, without the training."""
        self.now += seconds
        run.state.step += 1
        run.update()
        run.save_if_due()


@pytest.fixture
def start(text_file, monkeypatch) -> Starter:
    starter = Starter(text_file)
    monkeypatch.setattr(time, "perf_counter", lambda: starter.now)
    Path("run").mkdir()
    return starter


def test_the_time_begins_with_the_first_step_and_leaves_some_for_an_evaluation(start):
    start.eval_seconds = 4.0
    with start(minutes=1.0, max_iters=1000, eval_interval=20) as run:
        run.evaluate()
        assert run.state.start_seconds == 4
        assert run.progress == 0
        start.eval_seconds = 10.0
        for second in range(1, 21):
            start.make_step(run)
            assert run.progress == pytest.approx(second / (60 - 4 - 4))
        assert run.evaluation_is_due()
        run.evaluate()
        assert run.progress == pytest.approx((20 + 10) / (60 - 4 - 10))
    start.now = 5.0
    with start(run.state, minutes=1.0, max_iters=1000, eval_interval=99) as run:
        assert run.progress == pytest.approx((20 + 10) / (60 - 4 - 10))
        while not run.evaluation_is_due():
            start.make_step(run)
        run.evaluate()
        assert run.is_over() and not run.evaluation_is_due()
        assert run.clock.seconds() == 60
        start.now += 1  # what comes after the last save is time of the run, too
        run.finish(is_new=True)
    assert summary(Path("run"))["seconds"] == 61


def test_progress_never_falls(start):
    """Although the first evaluation takes longer than the others."""
    seen = []
    with start(minutes=1.0, max_iters=1000, eval_interval=5) as run:
        while not run.is_over():
            if run.evaluation_is_due():
                start.eval_seconds = 15.0 if run.state.step == 5 else 1.0
                run.evaluate()
            seen.append(run.progress)
            start.make_step(run)
    assert seen == sorted(seen)
    assert len(seen) > 20


def test_an_evaluation_is_due_once_at_each_interval_and_at_the_end(start):
    evaluated = []
    with start(max_iters=10, eval_interval=4) as run:
        while True:
            if run.evaluation_is_due():
                run.evaluate()
                evaluated.append(run.state.step)
            assert not run.evaluation_is_due()
            if run.is_over():
                break
            start.make_step(run)
    assert evaluated == [0, 4, 8, 10]


def test_neither_saving_nor_the_time_drops_an_evaluation(start):
    """Ten of 45 seconds in two hours, with saves every ten minutes."""
    start.eval_seconds, evaluated = 45.0, []
    with start(minutes=120, max_iters=10**6, eval_interval=66) as run:
        while True:
            if run.evaluation_is_due():
                run.evaluate()
                evaluated.append(run.state.step)
            if run.is_over():
                break
            start.make_step(run, seconds=10.0)
    assert evaluated[:-1] == [66 * i for i in range(len(evaluated) - 1)]
    assert len(evaluated) >= 10


def test_a_signal_comes_before_an_evaluation_but_not_after_the_last_one(start, monkeypatch):
    """A complete run ends with status 0. One that is stopped is evaluated when it is resumed."""
    with start(max_iters=2, eval_interval=1) as run:
        os.kill(os.getpid(), signal.SIGTERM)
        start.make_step(run)
        assert run.is_over() and run.signal == signal.SIGTERM and not run.evaluation_is_due()
        run.finish(is_new=True)
    with start(run.state, max_iters=2, eval_interval=1) as run:
        assert run.evaluation_is_due() and not run.is_over()
        start.make_step(run)
        run.signals.append(signal.SIGTERM)  # while it evaluates
        run.evaluate()
        assert run.is_over() and not run.signal


def test_the_speed_is_that_of_the_steps_since_the_last_evaluation(start):
    start.eval_seconds = 7.0
    with start() as run:
        for seconds in (2.0, 4.0):
            start.make_step(run, seconds)
            start.make_step(run, seconds)
            run.evaluate()
            assert run.state.chars_per_second == 8 / seconds
        run.evaluate()  # no step has been made
        assert run.state.chars_per_second == 8 / 4.0


def test_a_run_that_goes_on_keeps_the_evaluation_of_its_step_and_none_after_it(start):
    with start() as run:
        for _ in range(2):
            start.make_step(run)
            run.evaluate()
            if run.state.step == 1:
                saved = replace(run.state)
    time.sleep(1)  # event files are ordered by the second
    with start(saved) as run:
        start.make_step(run)
        start.make_step(run)
        run.evaluate()
    assert [step for step, _ in curve(Path("run"), "val")] == [1, 3]
