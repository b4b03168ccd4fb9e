"""Fixtures and helpers of all tests: a working directory, a small text, a tiny training run."""

import contextlib
import importlib
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

import train
from model import networks
from model.run import log as log_module

# Hide the GPUs, so that the tests do not depend on the machine. Only test_gpu.py uses GPUs.
GPUS = "CUDA_VISIBLE_DEVICES"
VISIBLE_GPUS = {GPUS: os.environ[GPUS]} if os.environ.get(GPUS) else {}
os.environ[GPUS] = ""
# In the tests, --dtype auto chooses this dtype: float32 or bfloat16.
AUTO_DTYPE = os.environ.get("TEST_AUTO_DTYPE", "float32")

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

ROOT = Path(__file__).parent.parent
LINES = "".join(
    f"{who}:\nThe {what} is {how} - and so am I.\n\n"
    for who in ("KATE", "PETER", "ANNE", "TOM")
    for what in ("moon", "king", "rose", "sea", "crown")
    for how in ("pale", "old", "far", "deep", "mine")
)
TINY = ["--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=4"]
TINY += ["--device=cpu", "--compile=off"]
# For a short text, the recipe would choose other values for these settings.
TINY += ["--ema_decay=0", "--dropout=0", "--train_temperature=1", "--learning_rate=0.007"]
TINY += ["--weight_decay=0.5", "--eval_interval=99"]
# These edits remove the mask from the attention of a network.
NO_MASK = {
    "gpt": {".masked_fill(is_later_TT, -torch.inf)": ""},
    "quill": {"self.attend(q_BHTD, k_BHSD, v_BHSD)": "(q_BHTD @ k_BHSD.mT).softmax(-1) @ v_BHSD"},
}


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Make `folder` the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        features = dict(getattr(torch.cpu, "get_capabilities", dict)())  # not in PyTorch 2.9
        features |= {"avx512_bf16": False, "amx_bf16": AUTO_DTYPE == "bfloat16"}
        patch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
        patch.setattr(log_module, "SAMPLE_CHARS", 6)  # longer samples would take most of the time
        yield folder


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the tests that take longest, so that no worker waits for them at the end."""
    items.sort(key=lambda item: not re.search("compare|compile|processes", item.nodeid))


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


@pytest.fixture
def edit_network(tmp_path, monkeypatch) -> Iterator[Callable[[str, dict[str, str]], None]]:
    """Yield a function: edit_network("quill", {old: new}) copies a network and changes the copy.

    The copy is the network `mine`, as if a user had edited it. `--network mine` trains it.
    """
    shutil.copytree(networks.FOLDER, tmp_path, dirs_exist_ok=True)  # keep the usual networks
    monkeypatch.setattr(networks, "FOLDER", tmp_path)
    monkeypatch.setattr(networks, "__path__", [str(tmp_path), *networks.__path__])

    def edit(original: str, changes: dict[str, str]) -> None:
        code = (ROOT / f"model/networks/{original}.py").read_text("utf-8")
        for old, new in changes.items():
            assert old in code
            code = code.replace(old, new)
        (tmp_path / "mine.py").write_text(code, "utf-8")
        sys.modules.pop("model.networks.mine", None)  # the user may have a file mine.py, too
        importlib.invalidate_caches()

    yield edit
    sys.modules.pop("model.networks.mine", None)


@pytest.fixture
def change_network(monkeypatch) -> Callable[[Callable[[torch.nn.Module], object]], None]:
    """Return a function: change_network(action) calls action(network) on each new network."""
    make_network = train.make_network

    def change(action: Callable[[torch.nn.Module], object]) -> None:
        def make_and_change(*args: object) -> torch.nn.Module:
            network = make_network(*args)
            action(network)
            return network

        monkeypatch.setattr(train, "make_network", make_and_change)

    return change


@pytest.fixture
def overflow_at(change_network) -> Callable[[Iterable[int]], None]:
    """Return a function: overflow_at([7]) makes a gradient infinite in step 7 of each command.

    It is the gradient of one matrix, so only one optimizer has an infinite gradient.
    """
    infinite_at: set[int] = set()

    def add_hook(network: torch.nn.Module) -> None:
        steps = itertools.count()
        matrix = next(p for p in network.blocks.parameters() if p.ndim == 2)
        matrix.register_hook(lambda grad: grad * (torch.inf if next(steps) in infinite_at else 1))

    def set_steps(steps: Iterable[int]) -> None:
        infinite_at.clear()
        infinite_at.update(steps)

    change_network(add_hook)
    return set_steps


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """Return a run directory that all tests share: copy it to change it. Its text is deleted."""
    flags = "--data=text.txt --max_iters=20 --learning_rate=0.02 --warmup_iters=1 --out_dir=run"
    with working_in(tmp_path_factory.mktemp("trained")) as folder:
        Path("text.txt").write_text(LINES, "utf-8")
        assert train.main([*TINY, *flags.split()]) == 0
        Path("text.txt").unlink()
    return folder / "run"


def curve(run_dir: Path, split: str, tag: str = "loss") -> list[tuple[int, float]]:
    """Return the points (step, value) that TensorBoard shows."""
    events = EventAccumulator(str(run_dir / split), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def forkserver() -> multiprocessing.context.ForkServerContext:
    """Return a context that starts processes quickly: it forks one that has imported PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.utils.tensorboard", "pytest"])
    return context


def torchrun_variables(count: int) -> list[dict[str, str]]:
    """Return the environment variables of each of `count` processes, as torchrun sets them."""
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = str(free_socket.getsockname()[1])
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def start_processes(arguments: list[str], count: int) -> list[subprocess.Popen]:
    """Start `count` processes of `python ARGUMENTS`. They form one run, as under torchrun."""
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in torchrun_variables(count)
    ]


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files inside `with`. A larger file is an error, as on a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
