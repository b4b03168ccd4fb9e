"""Tests of the choice of device and dtype, of compilation, of seeds. GPUs are simulated."""

import os
import random
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from configs.flags import UserError
from configs.settings import CompileConfig, DeviceConfig
from model.system.device import (
    Machine,
    choose_device,
    choose_dtype,
    device_kind,
    sampling_machine,
    seed_all,
    training_machine,
)
from model.system.processes import Processes

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture
def simulated(monkeypatch):
    """Every device seems to be there. Returns what was asked of CUDA and of the devices."""
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


@pytest.mark.parametrize("has_cuda", [True, False])
def test_auto_is_cuda_or_the_cpu(monkeypatch, simulated, has_cuda):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: MPS)
    assert choose_device("auto", Processes()) == (CUDA if has_cuda else CPU)
    kinds = [device_kind(torch.device(name)) for name in ("cuda:1", "cpu", "mps")]
    assert kinds == ["gpu", "cpu", "other"]


@pytest.mark.parametrize(
    "name", ["cuda:99", "mps", "mps:9", "cuda:x", "cuda:00", "cpu:1", "meta", ""]
)
def test_a_device_that_does_not_exist_is_refused(name, recwarn):
    with pytest.raises(UserError, match=f"device (is )?'?{name}.* Use .*cpu"):
        choose_device(name, Processes())
    assert not recwarn  # of PyTorch, on standard error


def test_a_gpu_that_is_too_old_for_pytorch_is_refused(monkeypatch):
    """Its memory can be used, but no kernel."""
    problem = "CUDA error: no kernel image is available for execution on the device\nSearch for"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "zeros", lambda *_, device: Mock(__add__=Mock(side_effect=fail)))
    fail = RuntimeError(problem)
    with pytest.raises(UserError, match="no kernel image .* on the device. Use --device cpu"):
        choose_device("auto", Processes())


@pytest.mark.parametrize("feature", ["avx2", "avx512_bf16", "amx_bf16"])
def test_auto_is_the_fastest_native_dtype_and_float32_for_sampling(monkeypatch, feature):
    has_bfloat16 = feature != "avx2"
    capabilities = {"cuda": (9, 0), "cuda:1": (7, 5)}  # of two GPUs
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: capabilities[str(d)])
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {feature: True}, raising=False)
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if has_bfloat16 else torch.float32)
    assert choose_dtype("auto", CUDA) == torch.bfloat16
    assert choose_dtype("auto", torch.device("cuda:1")) == torch.float16
    assert choose_dtype("auto", MPS) == torch.float32
    assert sampling_machine(DeviceConfig("cpu"), 1, 1).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrix_products_run_in_the_dtype(dtype):
    machine, ones = Machine(CPU, dtype), torch.ones(2, 2)
    with machine.autocast():
        assert (ones @ ones).dtype == dtype
        assert torch.is_autocast_enabled("cpu") == (dtype != torch.float32)
    assert machine.make_scaler().is_enabled() == (dtype == torch.float16)
    assert choose_dtype(machine.dtype_name, CUDA) == dtype
    with pytest.raises(UserError, match="float16 needs a CUDA device"):
        choose_dtype("float16", MPS)


def test_each_process_uses_only_its_own_gpu(simulated):
    processes = Processes()
    processes.world_size = 6  # on three machines

    def device_of(local_rank: int, name: str) -> str:
        processes.local_rank = local_rank
        return str(training_machine(CompileConfig(name, "float32"), processes).device)

    assert [device_of(rank, "cuda") for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    # PyTorch makes a context on the current device, so it is set first.
    expected = [(what, f"cuda:{rank}") for rank in (0, 1) for what in ("set", "kernel")]
    assert simulated == expected
    assert device_of(5, "cpu") == "cpu"
    with pytest.raises(UserError, match="GPUs on this machine: 2. Each process needs one"):
        device_of(2, "cuda")
    for name in ("cuda:0", "mps"):
        with pytest.raises(UserError, match="processes need --device cuda or cpu"):
            device_of(0, name)


@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_the_workspace_of_cublas_is_one_that_repeats_exactly(simulated, monkeypatch, workspace):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    training_machine(CompileConfig("cuda"), Processes())
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (workspace or ":4096:8")


@pytest.mark.parametrize(
    ("parameters", "texts", "name", "expected"),
    [
        (10_000_000, 8, "auto", "cpu"),
        (10_000_001, 8, "auto", "cuda"),
        (10_000_000, 9, "auto", "cuda"),
        (1, 1, "cuda", "cuda"),
        (10**9, 99, "cpu", "cpu"),
    ],
)
def test_sampling_few_texts_of_small_network_uses_cpu(
    simulated, monkeypatch, parameters, texts, name, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    machine = sampling_machine(DeviceConfig(name), parameters, texts)
    assert machine.device.type == expected


@pytest.mark.parametrize("vocab_size", [2, 65, 5000, 10**6])
def test_an_evaluation_batch_has_a_limited_number_of_logits(vocab_size):
    on_cpu = Machine(CPU, torch.float32).eval_batch_chars(vocab_size)
    on_gpu = Machine(CUDA, torch.float32).eval_batch_chars(vocab_size)
    assert on_cpu == 4096
    assert on_gpu * vocab_size <= 2**25
    assert on_gpu == 65_536 or (on_gpu + 1) * vocab_size > 2**25


@pytest.mark.parametrize(
    ("mode", "kind", "steps", "is_compiled"),
    [
        ("on", CPU, 1, True),
        ("auto", CUDA, 5_000, True),
        ("auto", CUDA, 4_999, False),
        ("auto", CPU, 10**6, False),
        ("off", CUDA, 10**6, False),
        ("True", CPU, 1, True),  # as nanoGPT has it
        ("False", CUDA, 10**6, False),
    ],
)
def test_the_compiled_network_is_used_if_wanted(
    monkeypatch, capsys, mode, kind, steps, is_compiled
):
    network = torch.nn.Linear(1, 1)
    compiled = Mock(return_value=torch.zeros(2, 3, 5, requires_grad=True))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    used = Machine(kind, torch.float32).compile(network, mode, steps, torch.zeros(2, 3))
    assert used is (compiled if is_compiled else network)
    assert ("compiling" in capsys.readouterr().out) == is_compiled


def test_random_numbers_are_a_function_of_the_seeds_key():
    def draw(*key: int) -> tuple[float, ...]:
        seed_all(*key)
        return torch.rand(()).item(), np.random.random(), random.random()

    assert draw(1, 2) == draw(1, 2)
    keys = [(1,), (1, 0), (1, 0, 0), (1, 2), (1, 3), (2, 2), (1, 2, 1)]
    for numbers in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(numbers)) == len(keys)
