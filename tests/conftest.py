"""Fixtures of all tests: a working directory, a small text, a tiny run, several processes."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from tensorboard.summary.writer import event_file_writer

import train
from tests.helpers import LINES, TINY, working_in

# Hide the GPUs, so that the tests do not depend on the machine. Only test_gpu.py uses GPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# A tiny network keeps one thread busy. A second thread would only wait for the first.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

# Hypothesis sets no time limit for an example, because the machine may be busy.
hypothesis.settings.register_profile("quill", deadline=None)
hypothesis.settings.load_profile("quill")

# TensorBoard reads event files in the order of their names. A name has the second, the process and
# a counter. When the counter goes from 9 to 10, files of the same second would be in wrong order.
# Therefore the counter starts at a number with many digits.
event_file_writer._global_uid = event_file_writer.AtomicCounter(10**9)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes by a fixture. Begin with all slow tests.

    Else a worker could wait for them at the end.
    """
    for item in items:
        if {"forkserver", "gpu_env"} & {*item.fixturenames}:
            item.add_marker("slow")
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory) -> Iterator[Path]:
    """Give each test its own working directory and the usual signal handlers.

    Under nohup, or in the background of a shell script, a process ignores some signals.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    usual |= {signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    with working_in(tmp_path_factory.mktemp("here")) as folder:
        yield folder
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def text_file(elsewhere) -> Path:
    path = elsewhere / "text.txt"
    path.write_text(LINES, "utf-8")
    return path


@pytest.fixture
def tiny(text_file):
    """Return a function: tiny("--max_iters=20") trains a tiny network, returns the exit status."""
    data = ["--data", str(text_file)]
    return lambda flags, *more: train.main([*data, *TINY, *flags.split(), *more])


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """Return a run directory that all tests share: copy it to change it. Its text is deleted."""
    flags = "--data=text.txt --max_iters=20 --learning_rate=0.02 --warmup_iters=1 --out_dir=run"
    with working_in(tmp_path_factory.mktemp("trained")) as folder:
        Path("text.txt").write_text(LINES, "utf-8")
        assert train.main([*TINY, *flags.split()]) == 0
        Path("text.txt").unlink()
    return folder / "run"


@pytest.fixture(scope="session")
def forkserver() -> multiprocessing.context.ForkServerContext:
    """Return a context that starts processes quickly: it forks one that has imported PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.utils.tensorboard", "pytest"])
    return context
