"""Tests of devices, dtypes, compilation and processes; GPUs are simulated."""

import functools
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from model.device import (
    Processes,
    autocast,
    choose_device,
    choose_dtype,
    maybe_compile,
    seed_all,
    share_work,
)
from model.errors import UserError
from tests.conftest import ROOT, start_processes

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture
def simulate(monkeypatch):
    """simulate(cuda=2, mps=False, ...): pretend to run on a machine of that kind."""

    def simulate(cuda: int = 0, mps: bool = False, bf16: bool = True, cpu_feature: str = "avx2"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: bf16 or including_emulation,
        )
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        features = {cpu_feature: True}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)

    return simulate


def test_auto_chooses_the_best_available_device(simulate):
    for machine, expected in (({"cuda": 1, "mps": True}, CUDA), ({"mps": True}, MPS), ({}, CPU)):
        simulate(**machine)
        assert choose_device("auto") == expected


@pytest.mark.parametrize("name", ["cuda:2", "mps", "meta", "cuda:x", "", "cpu:0"])
def test_a_device_that_does_not_exist_is_refused(simulate, name):
    simulate(cuda=2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match=f"device .*{name}"):
        choose_device(name)


def test_auto_chooses_the_fastest_native_dtype_and_float16_needs_cuda(simulate):
    simulate(cuda=1, bf16=True, cpu_feature="avx512_bf16")
    assert choose_dtype("auto", CUDA) == choose_dtype("auto", CPU) == torch.bfloat16
    simulate(cuda=1, bf16=False)
    assert choose_dtype("auto", CUDA) == torch.float16
    assert choose_dtype("auto", CPU) == choose_dtype("auto", MPS) == torch.float32
    assert choose_dtype("float16", CUDA) == torch.float16
    with pytest.raises(UserError, match="float16 needs a CUDA device"):
        choose_dtype("float16", CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrix_products_run_in_the_dtype_of_autocast(dtype):
    ones = torch.ones(2, 2)
    with autocast(CPU, dtype):
        assert (ones @ ones).dtype == dtype


def random_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y).sum() * torch.rand(())


def fail(*args: object) -> None:
    raise RuntimeError("no C++ compiler\nand a long story")


def fail_backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = random_loss(x, y)
    loss.register_hook(fail)
    return loss


equal_loss = functools.partial(random_loss)
BATCH = (torch.ones(3, requires_grad=True), torch.ones(3))


@pytest.mark.parametrize(
    ("compiled", "problem"),
    [
        (fail, "no C++ compiler"),
        (fail_backward, "no C++ compiler"),
        (lambda x, y: 1.5 * random_loss(x, y), "the loss is "),
        (lambda x, y: torch.nan * random_loss(x, y), "the loss is nan"),
    ],
)
def test_failed_or_wrong_compilation_costs_one_warning(monkeypatch, capsys, compiled, problem):
    monkeypatch.setattr(torch, "compile", lambda loss, **options: compiled)
    assert maybe_compile(random_loss, "on", CPU, torch.float32, BATCH) is random_loss
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: training goes on without torch.compile: {problem}")


@pytest.mark.parametrize(
    ("mode", "device", "wanted"),
    [("on", CPU, True), ("auto", CUDA, True), ("auto", CPU, False), ("off", CUDA, False)],
)
def test_a_compiled_loss_is_used_if_wanted_and_equal(monkeypatch, capsys, mode, device, wanted):
    monkeypatch.setattr(torch, "compile", lambda loss, **options: equal_loss)
    used_loss = maybe_compile(random_loss, mode, device, torch.float32, BATCH)
    assert used_loss is (equal_loss if wanted else random_loss)
    assert not capsys.readouterr().err


def test_random_numbers_are_a_function_of_the_seeds_key():
    def draw(*key: int) -> tuple[float, ...]:
        seed_all(*key)
        return torch.rand(()).item(), np.random.random(), random.random()

    assert draw(1, 2) == draw(1, 2)
    keys = [(1,), (1, 0), (1, 0, 0), (1, 2), (1, 3), (2, 2), (1, 2, 1)]
    for numbers in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(numbers)) == len(keys)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_share_a_batch_without_gap_or_overlap(monkeypatch, world_size):
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    rows = []
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        rows += range(8)[Processes().batch_rows(8, accumulation_steps=2)]
        with pytest.raises(UserError, match="multiple"):
            Processes().batch_rows(9 * world_size, accumulation_steps=2)
    assert rows == list(range(8))


def test_each_process_has_a_gpu_of_its_own(simulate, monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("WORLD_SIZE", "6")  # two machines
    simulate(cuda=2)
    for rank, local_rank in ((0, 0), (1, 1), (3, 0), (4, 1)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        assert Processes().local_device(CUDA) == torch.device("cuda", local_rank)
        assert Processes().local_device(CPU) == CPU
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="at most 2 per machine"):
        Processes().local_device(CUDA)


def outputs_of(code: str, count: int) -> list[str]:
    """What each of `count` processes of a run prints."""
    return [process.communicate(timeout=60)[0] for process in start_processes(["-c", code], count)]


def test_gradients_are_averaged_over_processes_once_for_all_parts_of_a_batch():
    code = """
import torch
from model.device import Processes

with Processes() as processes:
    layer = torch.nn.Linear(2, 1, bias=False)
    wrapped = processes.wrap(layer)
    for parts in (1, 2):
        for part in range(1, parts + 1):
            wrapped.require_backward_grad_sync = part == parts
            wrapped(torch.tensor([1.0, 2.0]) * processes.rank).sum().backward()
        print(layer.weight.grad.tolist())
        layer.zero_grad()
"""
    assert outputs_of(code, 2) == ["[[0.5, 1.0]]\n[[1.0, 2.0]]\n"] * 2


def test_processes_share_work_that_need_not_divide_evenly():
    """Each row is computed once, by one process, and all get it."""
    code = """
import torch
from model.device import Processes, share_work

with Processes() as processes:
    for count in (1, 2, 3, 7):
        seen = []
        result = share_work(lambda rows: seen.append(len(rows)) or rows + 1, torch.arange(count))
        assert result.tolist() == list(range(1, count + 1))
        print(*seen)
"""
    counts = [list(map(int, output.split())) for output in outputs_of(code, 3)]
    assert [sum(seen) for seen in zip(*counts, strict=True)] == [1, 2, 3, 7]
    assert share_work(torch.square, torch.arange(3)).tolist() == [0, 1, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of the GNU C library")
def test_freed_memory_is_kept():
    """Ten steps that each allocate and free 16,384 pages cause few page faults."""
    code = """
import resource, torch
from model.device import configure_torch

def page_faults_after(steps):
    for _ in range(steps):
        [torch.ones(2**18) for _ in range(64)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.use_deterministic_algorithms = print  # it would import the compiler, which takes a second
configure_torch(torch.device("cpu"))
faults = -page_faults_after(2) + page_faults_after(10)
assert faults < 5000, faults
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
