"""Tests of the choice of device and dtype, of compilation, of seeds. GPUs are simulated."""

import random
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from model.system import device
from model.system.device import (
    CompileConfig,
    DeviceConfig,
    Machine,
    choose_device,
    choose_dtype,
    device_kind,
)
from model.system.errors import UserError
from model.system.processes import Processes

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.mark.parametrize("accelerator", [CUDA, MPS, None])
def test_auto_is_the_accelerator_if_there_is_one(monkeypatch, accelerator):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: accelerator)
    assert choose_device("auto") == (accelerator or CPU)
    assert (
        device_kind(choose_device("auto")) == {CUDA: "gpu", MPS: "other", None: "cpu"}[accelerator]
    )


@pytest.mark.parametrize("name", ["cuda:99", "mps:99", "meta", "cuda:x", "cpu:1", "mkldnn", ""])
def test_a_device_that_does_not_exist_is_refused(name, recwarn):
    with pytest.raises(UserError, match=f"device '{name}' is not on this machine"):
        choose_device(name)
    assert not recwarn  # of PyTorch, on standard error


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
    assert device.sampling_machine(DeviceConfig("cpu")).dtype == torch.float32


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


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_deterministic_debug_mode", lambda mode: None)
    monkeypatch.setattr(device, "choose_device", torch.device)
    processes = Processes()
    processes.world_size = 6  # on three machines

    def device_of(local_rank: int, name: str) -> str:
        processes.local_rank = local_rank
        return str(device.training_machine(CompileConfig(name, "float32"), processes).device)

    assert [device_of(rank, "cuda") for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    assert device_of(5, "cpu") == "cpu"
    with pytest.raises(UserError, match="at most 2 per machine"):
        device_of(2, "cuda")
    with pytest.raises(UserError, match="use --device cuda"):
        device_of(0, "cuda:0")


@pytest.mark.parametrize(
    ("mode", "kind", "is_compiled"),
    [("on", CPU, True), ("auto", CUDA, True), ("auto", CPU, False), ("off", CUDA, False)],
)
def test_the_compiled_network_is_used_if_wanted(monkeypatch, mode, kind, is_compiled):
    network, compiled = torch.nn.Linear(1, 1), Mock(return_value=torch.zeros(2, 3, 5))
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    used = Machine(kind, torch.float32).compile(network, mode, torch.zeros(2, 3))
    assert used is (compiled if is_compiled else network)


def test_random_numbers_are_a_function_of_the_seeds_key():
    def draw(*key: int) -> tuple[float, ...]:
        device.seed_all(*key)
        return torch.rand(()).item(), np.random.random(), random.random()

    assert draw(1, 2) == draw(1, 2)
    keys = [(1,), (1, 0), (1, 0, 0), (1, 2), (1, 3), (2, 2), (1, 2, 1)]
    for numbers in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(numbers)) == len(keys)
