"""Shared by the tests: an empty working directory, a small text, a tiny training run."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

import train
from data import prepared

# Tiny networks keep one thread busy; a second one would only wait for it.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start

# No time limit per example: the machine may be busy.
hypothesis.settings.register_profile("quill", deadline=None)
hypothesis.settings.load_profile("quill")

# TensorBoard reads event files in the order of their names: second, process, counter. Several runs
# of one process in one second would be misordered when the counter goes from 9 to 10.
event_file_writer._global_uid = event_file_writer.AtomicCounter(10**9)

ROOT = Path(__file__).parent.parent
LINES = "".join(
    f"{who}:\nThe {what} is {how} - and so am I.\n\n"
    for who in ("KATE", "PETER", "ANNE", "TOM")
    for what in ("moon", "king", "rose", "sea", "crown")
    for how in ("pale", "old", "far", "deep", "mine")
)
TINY = [
    *("--n_layer", "2", "--n_head", "2", "--n_embd", "16", "--block_size", "16"),
    *("--batch_size", "4", "--device", "cpu", "--compile", "off"),
]


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Make `folder` the working directory and keep prepared texts there, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(prepared, "PREPARED", folder / "prepared")
        patch.setattr(prepared, "SETTLED_SECONDS", -1)  # texts of tests are new
        yield folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory) -> Iterator[Path]:
    """The test's own working directory."""
    with working_in(tmp_path_factory.mktemp("here")) as folder:
        yield folder


@pytest.fixture
def text_file(elsewhere) -> Path:
    path = elsewhere / "text.txt"
    path.write_text(LINES, "utf-8")
    return path


@pytest.fixture
def tiny(text_file):
    """Train a tiny network: tiny("--max_iters", "20") returns the exit status."""
    return lambda *flags: train.main(["--data", str(text_file), *TINY, *flags])


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """A run directory, trained once for all tests; its text is gone. Copy it to change it."""
    flags = ["--max_iters", "20", "--learning_rate", "0.02", "--warmup_iters", "1"]
    with working_in(tmp_path_factory.mktemp("trained")) as folder:
        Path("text.txt").write_text(LINES, "utf-8")
        assert train.main(["--data", "text.txt", *TINY, *flags, "--out_dir", "run"]) == 0
        Path("text.txt").unlink()
        shutil.rmtree(prepared.PREPARED)
    return folder / "run"


def curve(run_dir: Path, split: str, tag: str = "loss") -> list[tuple[int, float]]:
    """The points (step, value) that TensorBoard shows."""
    events = EventAccumulator(str(run_dir / split), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


def start_processes(arguments: list[str], count: int) -> list[subprocess.Popen]:
    """`python ARGUMENTS` as one run of `count` processes, as torchrun starts them."""
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = str(free_socket.getsockname()[1])
    env = os.environ | {"PYTHONPATH": str(ROOT), "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=env | {"WORLD_SIZE": str(count), "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
