"""Shared by the tests: an empty working directory, a small text, a tiny training run."""

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
from model.run import run as run_module

# Tests do not depend on the machine, except test_gpu.py.
GPUS = "CUDA_VISIBLE_DEVICES"
VISIBLE_GPUS = {GPUS: os.environ[GPUS]} if os.environ.get(GPUS) else {}
os.environ[GPUS] = ""
AUTO_DTYPE = os.environ.get("TEST_AUTO_DTYPE", "float32")  # what --dtype auto finds: or bfloat16

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
TINY = ["--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=4"]
TINY += ["--device=cpu", "--compile=off"]
# The recipe chooses these for a short text.
TINY += ["--ema_decay=0", "--dropout=0", "--train_temperature=1", "--learning_rate=0.007"]
TINY += ["--weight_decay=0.5", "--eval_interval=99"]
# Of each network: a change by which its attention has no mask
NO_MASK = {
    "gpt": {".masked_fill(is_later_TT, -torch.inf)": ""},
    "quill": {
        "attend(q_BHTD, k_BHSD, v_BHSD, window)": "(q_BHTD @ k_BHSD.mT).softmax(-1) @ v_BHSD"
    },
}


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Make `folder` the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        features = dict(getattr(torch.cpu, "get_capabilities", dict)())  # not in PyTorch 2.9
        features |= {"avx512_bf16": False, "amx_bf16": AUTO_DTYPE == "bfloat16"}
        patch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
        patch.setattr(run_module, "SAMPLE_CHARS", 6)  # sampling would take most of the time
        yield folder


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory) -> Iterator[Path]:
    """The test's own working directory, and the usual signal handlers.

    Under nohup, or in the background of a shell script, some signals are ignored.
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
    """Train a tiny network: tiny("--max_iters=20 --seed=1") returns the exit status."""
    data = ["--data", str(text_file)]
    return lambda flags, *more: train.main([*data, *TINY, *flags.split(), *more])


@pytest.fixture
def edit_network(tmp_path, monkeypatch) -> Iterator[Callable[[str, dict[str, str]], None]]:
    """edit_network("quill", {old: new, ...}) makes a copy with changed lines, the network `mine`.

    A user's edit: `--network mine` trains it.
    """
    shutil.copytree(networks.FOLDER, tmp_path, dirs_exist_ok=True)  # all have their usual names
    monkeypatch.setattr(networks, "FOLDER", tmp_path)
    monkeypatch.setattr(networks, "__path__", [str(tmp_path), *networks.__path__])

    def edit(original: str, changes: dict[str, str]) -> None:
        code = (ROOT / f"model/networks/{original}.py").read_text("utf-8")
        for old, new in changes.items():
            assert old in code
            code = code.replace(old, new)
        (tmp_path / "mine.py").write_text(code, "utf-8")
        sys.modules.pop("model.networks.mine", None)  # the user may have one, too
        importlib.invalidate_caches()

    yield edit
    sys.modules.pop("model.networks.mine", None)


@pytest.fixture
def change_network(monkeypatch) -> Callable[[Callable[[torch.nn.Module], object]], None]:
    """change_network(action): action(network) is called with each new network of a training."""
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
    """overflow_at([7]): in these steps of a command a gradient is infinite.

    It is that of one matrix, so of a single optimizer.
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
    """A run directory, trained once for all tests; its text is gone. Copy it to change it."""
    flags = "--data=text.txt --max_iters=20 --learning_rate=0.02 --warmup_iters=1 --out_dir=run"
    with working_in(tmp_path_factory.mktemp("trained")) as folder:
        Path("text.txt").write_text(LINES, "utf-8")
        assert train.main([*TINY, *flags.split()]) == 0
        Path("text.txt").unlink()
    return folder / "run"


def curve(run_dir: Path, split: str, tag: str = "loss") -> list[tuple[int, float]]:
    """The points (step, value) that TensorBoard shows."""
    events = EventAccumulator(str(run_dir / split), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def forkserver() -> multiprocessing.context.ForkServerContext:
    """Starts processes quickly: each is a fork of one that has imported PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.utils.tensorboard", "pytest"])
    return context


def torchrun_variables(count: int) -> list[dict[str, str]]:
    """The environment variables that torchrun and others set in each of `count` processes."""
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = str(free_socket.getsockname()[1])
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def start_processes(arguments: list[str], count: int) -> list[subprocess.Popen]:
    """`python ARGUMENTS` as one run of `count` processes, as torchrun starts them."""
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
    """Inside, no file can become larger, which stands in for a full disk."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
