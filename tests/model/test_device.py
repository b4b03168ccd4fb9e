"""The laws of the runtime, those of a GPU by pretending to have one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.runtime import Runtime, SystemConfig, autocast, choose_device, choose_dtype

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def machine(monkeypatch):
    """machine(cuda=2, mps=False, bf16=True): pretend to be one of that kind."""

    def pretend(
        cuda: int = 0, mps: bool = False, bf16: bool = True, cpu: tuple[str, ...] = ()
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True: bf16 or including_emulation,
        )
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
        monkeypatch.setattr(
            torch.cpu, "get_capabilities", lambda: dict.fromkeys(cpu, True), raising=False
        )

    return pretend


def test_auto_takes_the_best_device_there_is(machine):
    for there, expected in (
        ({"cuda": 1, "mps": True}, "cuda"),
        ({"mps": True}, "mps"),
        ({}, "cpu"),
    ):
        machine(**there)
        assert choose_device("auto").type == expected


@pytest.mark.parametrize(
    "name", ["cuda", "cuda:0", "mps", "gpu", "meta", "xpu", "cuda:x", "", "cpu:cpu", "vulkan"]
)
def test_a_device_that_is_not_there_is_refused(machine, name):
    machine()
    with pytest.raises(ValueError, match="device"):
        choose_device(name)


def test_a_cuda_device_is_counted(machine):
    machine(cuda=2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="cuda:2"):
        choose_device("cuda:2")


def test_auto_takes_the_fastest_native_format(machine):
    cpu, cuda, mps = torch.device("cpu"), torch.device("cuda"), torch.device("mps")
    machine(cuda=1, bf16=True, cpu=("avx512_bf16",))
    assert choose_dtype("auto", cuda) == choose_dtype("auto", cpu) == torch.bfloat16
    machine(cuda=1, bf16=False, cpu=("avx2",))
    assert choose_dtype("auto", cuda) == torch.float16
    assert choose_dtype("auto", cpu) == choose_dtype("auto", mps) == torch.float32


def test_float16_is_for_cuda_alone():
    assert choose_dtype("float16", torch.device("cuda")) == torch.float16
    with pytest.raises(ValueError, match="float16"):
        choose_dtype("float16", torch.device("cpu"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_autocast_computes_products_in_the_format(dtype):
    a = torch.ones(2, 2)
    with autocast(torch.device("cpu"), getattr(torch, dtype)):
        assert (a @ a).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("when", ["at once", "at the first call"])
def test_a_compiler_that_fails_costs_one_warning(monkeypatch, capsys, when):
    def broken(function, **options):
        def fail(*args):
            raise RuntimeError("no C++ compiler\nand a long story")

        return fail if when == "at the first call" else fail()

    monkeypatch.setattr(torch, "compile", broken)
    x = torch.ones(3, requires_grad=True)
    step = Runtime(SystemConfig(device="cpu", compile="on")).compile(lambda x: x.sum(), x)
    assert step(x) == 3
    assert capsys.readouterr().err.splitlines() == [
        "warning: torch.compile fails here, training goes on without it (no C++ compiler)"
    ]


def test_seeds_are_a_function_of_the_key():
    def draw(*key: int) -> float:
        Runtime(SystemConfig(device="cpu")).seed(*key)
        return torch.rand(()).item()

    assert draw(1, 2) == draw(1, 2)
    assert (
        len({draw(1), draw(1, 0), draw(1, 0, 0), draw(1, 2), draw(1, 3), draw(2, 2), draw(1, 2, 1)})
        == 7
    )


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_share_a_batch_without_gap_or_overlap(world):
    here, rows = Runtime(SystemConfig(device="cpu")), []
    here.world = world
    for rank in range(world):
        here.rank = rank
        rows += range(8)[here.rows(8, 2)]
    assert rows == list(range(8))
    with pytest.raises(ValueError, match="multiple"):
        here.rows(9 * world, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of GNU's C library")
def test_memory_once_fetched_is_kept():
    """Page faults, not seconds: what a step takes and frees is fetched from the system once."""
    step = "held = [torch.ones(2**18) for _ in range(64)]; del held;"
    count = "resource.getrusage(resource.RUSAGE_SELF).ru_minflt"
    faults = []
    for call in ("", "from model.runtime import keep_freed_memory; keep_freed_memory();"):
        code = f"{call}import resource, torch\n{step}before = {count}\nfor _ in range(20): {step}\nprint({count} - before)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, timeout=60
        )
        faults.append(int(done.stdout))
    assert faults[1] < faults[0] / 4


def test_a_process_whose_others_are_gone_says_so(monkeypatch):
    here = Runtime(SystemConfig(device="cpu"))
    here.world = 2
    for words, error in (("Connection closed by peer", OSError), ("a bug", RuntimeError)):

        def fail(tensor, words=words):
            raise RuntimeError(words)

        monkeypatch.setattr(torch.distributed, "all_reduce", fail)
        for reduce in (lambda: here.sum(1.0), lambda: here.average(torch.ones(2))):
            with pytest.raises(
                error, match="another process of this run" if error is OSError else words
            ):
                reduce()
