"""Tests of the choice of device and dtype, of compilation, of seeds. GPUs are simulated."""

import os
import random
from unittest.mock import Mock
from unittest.mock import call as call_of

import numpy as np
import pytest
import torch
from torch import nn

from configs.errors import UserError
from configs.settings import DeviceConfig, GPTConfig, TrainConfig
from model.networks import make_network
from model.system import device
from model.system.device import (
    Machine,
    choose_device,
    choose_dtype,
    sampling_machine,
    seed_all,
    training_machine,
)
from model.system.processes import Processes

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture
def simulated(monkeypatch):
    """Pretend that every device exists. Return a list that collects the calls to devices."""
    calls, zeros = [], torch.zeros

    def make_zeros(*shape, device):
        calls.append(("kernel", str(device)))
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", make_zeros)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: calls.append(("set", str(name))))
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return calls


@pytest.mark.parametrize(
    ("quota", "variables", "threads"),
    [
        ("200000 100000\n", {}, 2),
        ("190000 100000\n", {}, 1),
        ("5000 100000\n", {}, 1),
        ("6400000 100000\n", {}, 64),
        ("max 100000\n", {}, 64),
        (None, {}, 64),
        ("200000 100000\n", {"OMP_NUM_THREADS": "5"}, 64),
    ],
)
def test_threads_are_no_more_than_the_quota_of_a_container(
    tmp_path, monkeypatch, quota, variables, threads
):
    """With more threads, training is up to 90 times slower."""
    monkeypatch.setattr(device, "CPU_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        device.CPU_QUOTA.write_text(quota)
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", set_threads := Mock())
    choose_device("cpu", Processes())
    assert all(call == call_of(threads) for call in set_threads.mock_calls)
    assert bool(set_threads.mock_calls) or threads == 64


@pytest.mark.parametrize("has_cuda", [True, False])
def test_auto_is_cuda_or_the_cpu(monkeypatch, simulated, has_cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: MPS)
    assert choose_device("auto", Processes()) == (CUDA if has_cuda else CPU)


@pytest.mark.parametrize(
    "name", ["cuda:99", "mps", "mps:9", "cuda:x", "cuda:00", "hpu", "meta", ""]
)
def test_a_device_that_does_not_exist_is_refused(name, recwarn):
    with pytest.raises(UserError, match=f"device is '{name}'.* Use auto, cpu"):
        choose_device(name, Processes())
    assert not recwarn  # PyTorch prints no warning


@pytest.mark.parametrize(
    ("cpu", "has_fast_bfloat16"),
    [
        ({"avx2": True, "cpu_name": "AMD Ryzen"}, False),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, True),
        ({"avx512_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, False),
        ({"avx512_bf16": True}, False),  # older versions of PyTorch do not name the CPU
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, True),
        ({"amx_bf16": True}, True),
    ],
)
def test_auto_is_the_faster_dtype_and_float32_for_sampling(monkeypatch, cpu, has_fast_bfloat16):
    capabilities = {"cuda": (9, 0), "cuda:1": (7, 5)}  # two different GPUs
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: capabilities[str(d)])
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu, raising=False)
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if has_fast_bfloat16 else torch.float32)
    assert choose_dtype("auto", CUDA) == torch.bfloat16
    assert choose_dtype("auto", torch.device("cuda:1")) == torch.float16
    assert choose_dtype("auto", MPS) == torch.float32
    assert sampling_machine(DeviceConfig("cpu"), 1).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrix_products_run_in_the_dtype(dtype):
    machine, ones = Machine(CPU, dtype), torch.ones(2, 2)
    with machine.autocast():
        assert (ones @ ones).dtype == dtype
        assert torch.is_autocast_enabled("cpu") == (dtype != torch.float32)
    assert choose_dtype(machine.dtype_name, CUDA) == dtype
    with pytest.raises(UserError, match="float16 needs a CUDA device"):
        choose_dtype("float16", MPS)


def test_each_process_uses_only_its_own_gpu(simulated):
    processes = Processes()
    processes.world_size = 6  # two on each of three machines

    def device_of(local_rank: int, name: str) -> str:
        processes.local_rank = local_rank
        return str(training_machine(DeviceConfig(name, "float32"), processes).device)

    assert [device_of(rank, "cuda") for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    # PyTorch makes a context on the current device, so the device is set first.
    expected = [(what, f"cuda:{rank}") for rank in (0, 1) for what in ("set", "kernel")]
    assert simulated == expected
    assert device_of(5, "cpu") == "cpu"


@pytest.mark.parametrize(
    ("parameters", "name", "expected"),
    [
        (10_000_000, "auto", "cpu"),
        (10_000_001, "auto", "cuda"),
        (1, "cuda", "cuda"),
        (10**9, "cpu", "cpu"),
    ],
)
def test_a_small_network_is_sampled_on_the_cpu(simulated, monkeypatch, parameters, name, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    machine = sampling_machine(DeviceConfig(name), parameters)
    assert machine.device.type == expected


def make_small(dropout: float = 0.0) -> nn.Module:
    """Return a small network with a vocabulary of 5 characters."""
    seed_all(1)
    return make_network(GPTConfig(n_layer=1, n_embd=8, block_size=4, dropout=dropout), 5)


IDS_BT = torch.tensor([[1, 2, 0, 4], [4, 3, 2, 1]])


def steps_of_ids(mode: str = "auto", parts: int = 1) -> TrainConfig:
    """Return the settings of training steps that read a batch in parts, each like IDS_BT."""
    rows, block_size = IDS_BT.shape
    sizes = {"batch_size": rows * parts, "block_size": block_size}
    return TrainConfig(**sizes, gradient_accumulation_steps=parts, compile=mode)


@pytest.mark.parametrize(
    ("mode", "kind", "parts", "expected"),
    [
        ("on", CPU, 1, "compiled"),
        ("on", CUDA, 2, "compiled"),
        ("auto", CUDA, 1, "graph"),
        ("auto", CUDA, 2, "plain"),  # the second part would overwrite the gradients of the first
        ("auto", CPU, 1, "plain"),
        ("off", CUDA, 1, "plain"),
    ],
)
def test_training_steps_call_the_network_as_asked_for(
    monkeypatch, capsys, mode, kind, parts, expected
):
    network, compiled, graphs = make_small(), [], []
    monkeypatch.setattr(torch, "compile", lambda module, **_: compiled.append(module) or module)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    monkeypatch.setattr(device, "record_graph", lambda f, _: graphs.append(f.network) or f)
    machine = Machine(kind, torch.float32)
    forward = machine.prepare(steps_of_ids(mode, parts), network)
    assert graphs == ([network] if expected == "graph" else [])
    assert compiled == ([network] if expected == "compiled" else [])
    output = capsys.readouterr()
    assert ("compiling" in output.out) == (expected == "compiled")
    assert not output.err
    assert torch.equal(forward(IDS_BT), network(IDS_BT))


def test_a_network_that_becomes_no_cuda_graph_is_called_as_it_is(monkeypatch, capsys):
    def fail(forward, ids_BT):
        forward(ids_BT).sum().backward()
        raise RuntimeError("it reads a value\nand a long story")

    network = make_small()
    monkeypatch.setattr(device, "record_graph", fail)
    forward = Machine(CUDA, torch.float32).prepare(steps_of_ids(), network)
    assert capsys.readouterr().err.endswith("without a CUDA graph: it reads a value\n")
    assert torch.equal(forward(IDS_BT), network(IDS_BT))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_random_numbers_are_a_function_of_the_seeds_key():
    def draw(*key: int) -> tuple[float, ...]:
        seed_all(*key)
        return torch.rand(()).item(), np.random.random(), random.random()

    assert draw(1, 2) == draw(1, 2)
    keys = [(1,), (1, 0), (1, 0, 0), (1, 2), (1, 3), (2, 2), (1, 2, 1)]
    for numbers in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(numbers)) == len(keys)
