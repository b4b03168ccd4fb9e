"""Tests of the choice of device and dtype, of compilation, of seeds. GPUs are simulated."""

import os
import random
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from configs.settings import CompileConfig, DeviceConfig, GPTConfig, OptimConfig, TrainConfig
from model.loss import training_loss
from model.networks import make_network
from model.optim import make_average, make_optimizers, update_average
from model.system.device import (
    Machine,
    choose_device,
    choose_dtype,
    deterministic,
    device_kind,
    sampling_machine,
    seed_all,
    training_machine,
)
from model.system.errors import UserError
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


@pytest.mark.parametrize(
    ("cpu", "has_fast_bfloat16"),
    [
        ({"avx2": True, "cpu_name": "AMD Ryzen"}, False),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, True),
        ({"avx512_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, False),
        ({"avx512_bf16": True}, False),  # older versions of PyTorch give no name
        ({"avx512_bf16": True, "amx_bf16": True, "cpu_name": "Intel(R) Xeon(R)"}, True),
        ({"amx_bf16": True}, True),
    ],
)
def test_auto_is_the_faster_dtype_and_float32_for_sampling(monkeypatch, cpu, has_fast_bfloat16):
    capabilities = {"cuda": (9, 0), "cuda:1": (7, 5)}  # of two GPUs
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda d: capabilities[str(d)])
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu, raising=False)
    assert choose_dtype("auto", CPU) == (torch.bfloat16 if has_fast_bfloat16 else torch.float32)
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
def test_the_workspace_of_cublas_is_one_that_repeats_exactly(monkeypatch, workspace):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    with deterministic():
        pass
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


class Generator:
    """A GPU's: after a capture that failed, it needs a state from before."""

    works = True

    def clone_state(self) -> str:
        return "before"

    def graphsafe_set_state(self, state: str) -> None:
        self.works = state == "before"


@pytest.fixture
def graphs(monkeypatch) -> list[nn.Module]:
    """CUDA graphs on a CPU: fixed memory, and random numbers of Python that never change.

    Returns the networks of which there is one.
    """
    captured, generator = [], Generator()

    def make_graphed_callables(
        module: nn.Module, inputs: tuple[Tensor], allow_unused_input: bool = False
    ) -> nn.Module:
        captured.append(module.network)
        forward, parameters, (fixed_BT,) = module.forward, tuple(module.parameters()), inputs
        numbers = random.getstate()

        def replay() -> Tensor:
            before = random.getstate()
            random.setstate(numbers)
            with torch.enable_grad():
                logits_BTV = forward(fixed_BT)
            random.setstate(before)
            return logits_BTV

        def gradients(logits_BTV: Tensor, grad_BTV: Tensor) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(
                logits_BTV, parameters, grad_BTV, allow_unused=allow_unused_input
            )

        generator.works = False
        logits_BTV = replay()
        fixed_BTV = logits_BTV.detach().clone()
        fixed_grads = gradients(logits_BTV, fixed_BTV) if logits_BTV.requires_grad else ()
        generator.works = True

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx, ids_BT, *_):
                fixed_BT.copy_(ids_BT)
                ctx.logits_BTV = replay()
                return fixed_BTV.copy_(ctx.logits_BTV.detach()).detach()

            @staticmethod
            def backward(ctx, grad_BTV):
                for kept, new in zip(fixed_grads, gradients(ctx.logits_BTV, grad_BTV), strict=True):
                    if kept is not None:
                        kept.copy_(new)
                return None, *(kept if kept is None else kept.detach() for kept in fixed_grads)

        module.forward = lambda ids_BT: Graphed.apply(ids_BT, *parameters)
        return module

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make_graphed_callables)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    yield captured
    assert generator.works


def make_small(dropout: float = 0.0) -> nn.Module:
    """A network with 5 characters."""
    seed_all(1)
    return make_network(GPTConfig(n_layer=1, n_embd=8, block_size=4, dropout=dropout), 5)


IDS_BT = torch.tensor([[1, 2, 0, 4], [4, 3, 2, 1]])


def steps_of_ids(mode: str = "auto", parts: int = 1) -> TrainConfig:
    """The settings of training steps that read batches like IDS_BT in so many parts."""
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
    graphs, monkeypatch, capsys, mode, kind, parts, expected
):
    network, compiled = make_small(), []
    monkeypatch.setattr(torch, "compile", lambda module, **_: compiled.append(module) or module)
    machine = Machine(kind, torch.float32)
    machine.prepare(steps_of_ids(mode, parts), network)
    assert graphs == ([network] if expected == "graph" else [])
    assert compiled == ([network] if expected == "compiled" else [])
    output = capsys.readouterr()
    assert ("compiling" in output.out) == (expected == "compiled")
    assert not output.err
    assert torch.equal(machine.forward(network, IDS_BT), network(IDS_BT))


def test_training_with_cuda_graphs_equals_training_without_them(graphs, capsys):
    def trained(mode: str) -> list[Tensor]:
        machine, model = Machine(CUDA, torch.float32), make_small(dropout=0.5)
        average = make_average(model, 0.9)
        machine.prepare(steps_of_ids(mode), model, average)
        optimizers = make_optimizers(model, OptimConfig(), torch.float32)
        for step in range(4):
            seed_all(7, step)
            x_BT, y_BT = torch.randint(5, (2, 2, 4))
            logits = [machine.forward(network, x_BT) for network in (model, average)]
            training_loss(logits[0], y_BT, 0.8, logits[1]).backward()
            clip_grad_norm_(model.parameters(), 0.1)
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()
            update_average(average, model, 0.9, step)
        return [*model.parameters(), *average.parameters()]

    with_graphs, without = trained("auto"), trained("off")
    assert len(graphs) == 2
    assert not capsys.readouterr().err  # they were used
    assert all(map(torch.equal, with_graphs, without))


class DrawsANumber(nn.Module):
    """In a graph it is always the same number."""

    vocab_size = 5

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.unused = nn.Embedding(5, 5), nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros(()))

    def factor(self) -> float:
        return random.random()

    def forward(self, ids_BT: Tensor) -> Tensor:
        self.calls += 1
        return self.embedding(ids_BT) * self.factor()


class ReadsAValue(DrawsANumber):
    """While a graph is made, that raises."""

    def factor(self) -> float:
        if not torch.cuda.default_generators[0].works:
            raise RuntimeError("it reads a value\nof a GPU")
        return 1.0


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(DrawsANumber, "it computes something else"), (ReadsAValue, "it reads a value")],
)
def test_without_a_cuda_graph_training_goes_on_as_if_nothing_had_been_tried(
    graphs, capsys, kind, problem
):
    network, machine = kind(), Machine(CUDA, torch.float32)
    machine.prepare(steps_of_ids(), network)
    assert capsys.readouterr().err == f"warning: training without a CUDA graph: {problem}\n"
    assert network.calls == 0
    assert all(p.grad is None for p in network.parameters())
    for seed in range(2):
        outputs = []
        for forward in (network, lambda ids_BT: machine.forward(network, ids_BT)):
            seed_all(seed)
            outputs.append(forward(IDS_BT))
        assert torch.equal(*outputs)
    assert network.calls == 4


def test_random_numbers_are_a_function_of_the_seeds_key():
    def draw(*key: int) -> tuple[float, ...]:
        seed_all(*key)
        return torch.rand(()).item(), np.random.random(), random.random()

    assert draw(1, 2) == draw(1, 2)
    keys = [(1,), (1, 0), (1, 0, 0), (1, 2), (1, 3), (2, 2), (1, 2, 1)]
    for numbers in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(numbers)) == len(keys)
