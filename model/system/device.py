"""The machine that a command computes on: its device, dtype, processes, random numbers."""

import contextlib
import ctypes
import os
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from configs.settings import CompileConfig, DeviceConfig, TrainConfig
from model.system.errors import UserError
from model.system.graphs import compile_network, make_graph
from model.system.processes import Processes
from model.system.terminal import print_line

CPU_EVAL_CHARS = 4096  # per evaluation batch: fits the processor's cache
# What follows was chosen by a few measurements on an H100 (docs/experiments.md, 2026-11-26).
GPU_EVAL_CHARS, GPU_EVAL_LOGITS = 65_536, 2**25  # the latter are 128 MB
CPU_PARAMETERS, CPU_SAMPLES = 10_000_000, 8  # up to these, a CPU samples as fast


@dataclass(frozen=True)
class Machine:
    """What a command computes on: this process's device, a dtype, all processes."""

    device: torch.device
    dtype: torch.dtype
    processes: Processes = field(default_factory=Processes)
    fast: dict[nn.Module, nn.Module] = field(default_factory=dict)  # what `forward` calls

    def __str__(self) -> str:
        """For a person: "cpu (2 threads), bfloat16"."""
        name = str(self.device)
        if self.device.type == "cuda":
            name += f" ({torch.cuda.get_device_name(self.device)})"
        if self.device.type == "cpu":
            threads = torch.get_num_threads()
            name += f" ({threads} thread{'s' if threads > 1 else ''})"
        count = self.processes.world_size
        return f"{name}, {self.dtype_name}" + (f", {count} processes" if count > 1 else "")

    @property
    def dtype_name(self) -> str:
        """torch.float32 is "float32"."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self, cache_enabled: bool = True) -> torch.autocast:
        """Inside, matrix products run in `dtype`; weights and their gradients stay float32.

        A cache keeps weights in `dtype`.
        """
        is_lower = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype, is_lower, cache_enabled)

    def to_device(self, *batch: Tensor) -> list[Tensor]:
        """Copy tensors; a GPU copies from pinned memory while it still computes the last batch."""
        if self.device.type == "cuda":
            return [x.pin_memory().to(self.device, non_blocking=True) for x in batch]
        return [x.to(self.device) for x in batch]

    def eval_batch_chars(self, vocab_size: int) -> int:
        """How many characters an evaluation reads at once."""
        if self.device.type == "cpu":
            return CPU_EVAL_CHARS
        return min(GPU_EVAL_CHARS, GPU_EVAL_LOGITS // vocab_size)

    def synchronize(self) -> None:
        """Wait until a GPU has done all that was asked for."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def make_scaler(self) -> torch.amp.GradScaler:
        """Keeps float16 gradients in range; for other dtypes it passes everything through."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def forward(self, network: nn.Module, ids_BT: Tensor) -> Tensor:
        """ids_BT to logits_BTV in a training step: faster, if `prepare` has seen to that."""
        with self.autocast(cache_enabled=False):  # a CUDA graph would freeze what it keeps
            return self.fast.get(network, network)(ids_BT)

    def prepare(self, config: TrainConfig, *networks: nn.Module) -> None:
        """Make `forward` faster for these networks.

        --compile on compiles them. --compile auto makes CUDA graphs, which a GPU runs without
        waiting for Python, but not for several processes or micro-batches. If that fails, a line on
        standard error says so, and they are called as they are.
        """
        world_size, parts = self.processes.world_size, config.gradient_accumulation_steps
        has_graph = self.device.type == "cuda" and world_size == parts == 1
        if config.compile == "off" or (config.compile == "auto" and not has_graph):
            return
        is_compiled = config.compile == "on"
        if is_compiled and self.processes.is_main:
            print_line("compiling the network, which takes up to a minute or two", sys.stdout)
        size = max(1, config.batch_size // (world_size * parts)), config.block_size
        for network in dict.fromkeys(networks):  # the average may be the network itself
            device = next(network.parameters()).device
            ids_BT = torch.randint(network.vocab_size, size, device=device)
            buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
            try:
                expected = self.try_out(network, ids_BT)
                if is_compiled:
                    self.fast[network] = compile_network(network, self.device.type)
                else:
                    context = partial(self.autocast, cache_enabled=False)
                    self.fast[network] = make_graph(network, context, torch.zeros_like(ids_BT))
                results = self.try_out(network, ids_BT)
                for result, plain in zip(results, expected, strict=True):
                    is_close = (result - plain).abs().max() <= 1e-4 * plain.abs().max()
                    # In a graph, what Python computes is frozen, such as a counter.
                    if not is_compiled and not is_close:
                        raise RuntimeError("it computes something else")
            except Exception as error:  # of many types
                self.fast.pop(network, None)
                what = "torch.compile" if is_compiled else "a CUDA graph"
                problem = str(error).strip().partition("\n")[0][:200]
                print_line(f"warning: training without {what}: {problem}", sys.stderr)
                return
            finally:  # as if nothing had been tried
                network.zero_grad()
                for buffer, before in buffers:
                    buffer.copy_(before)

    def try_out(self, network: nn.Module, ids_BT: Tensor) -> list[Tensor]:
        """Copies of the logits of `forward`, and of the gradients of some loss."""
        network.zero_grad()
        torch.manual_seed(0)
        logits_BTV = self.forward(network, ids_BT)
        if logits_BTV.requires_grad:
            logits_BTV.float().logsumexp(-1).sum().backward()
        gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        return [logits_BTV.detach().clone(), *gradients]


def choose_device(name: str, processes: Processes) -> torch.device:
    """The device of that name; auto is cuda, or the CPU. Of several processes, each has a GPU.

    Raises UserError if this machine does not have it, or PyTorch cannot use it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    # PyTorch also takes others, such as cpu:1.
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]|:[1-9][0-9])?", name):
        raise UserError(f"device is {name!r}. Use auto, cpu, cuda, cuda:N or mps.")
    if processes.world_size > 1 and name != "cpu":
        if name != "cuda":
            raise UserError(f"device is {name}. Several processes need --device cuda or cpu.")
        name = f"cuda:{processes.local_rank}"
    device = torch.device(name)
    if device.index is not None:
        if device.index >= (count := torch.cuda.device_count()):
            hint = "Each process needs one" if processes.world_size > 1 else "Use --device cpu"
            raise UserError(f"device is {name}, but GPUs on this machine: {count}. {hint}.")
        torch.cuda.set_device(device)  # before it is used: otherwise GPU 0 is used, too
    try:
        (torch.zeros(1, device=device) + 1).cpu()  # PyTorch may have no kernels for an old GPU
    except (RuntimeError, AssertionError, ImportError) as error:
        problem = re.split(r"\n|\. ", str(error))[0].rstrip(".")  # its first sentence
        raise UserError(f"device {name} cannot be used: {problem}. Use --device cpu.") from None
    return device


def device_kind(device: torch.device) -> str:
    """What the recipe knows of a device: cpu, gpu (CUDA), or other."""
    return {"cpu": "cpu", "cuda": "gpu"}.get(device.type, "other")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products; auto is the faster one on this kind of device.

    A rule, not a measurement: one machine gives one answer, so a run repeats exactly. Raises
    UserError for float16 on other devices than CUDA.
    """
    if name == "float16" and device.type != "cuda":
        raise UserError(
            f"dtype float16 needs a CUDA device; this is {device.type}. Use bfloat16 or float32."
        )
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        is_native = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if is_native else torch.float16
    # PyTorch below 2.10 does not tell what a CPU can do.
    cpu = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    # With AVX512-BF16 alone, bfloat16 takes a quarter of float32's time on AMD, twice it on Intel.
    is_amd = str(cpu.get("cpu_name")).startswith("AMD")
    is_fast = cpu.get("amx_bf16") or (cpu.get("avx512_bf16") and is_amd)
    return torch.bfloat16 if device.type == "cpu" and is_fast else torch.float32


def training_machine(config: CompileConfig, processes: Processes) -> Machine:
    """The machine to train on, configured so that training is fast."""
    device = choose_device(config.device, processes)
    torch.set_float32_matmul_precision("high")  # on CUDA, products in float32 are in TF32
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":  # with "warn", attention's backward pass may not repeat exactly
        torch.set_deterministic_debug_mode("error")
    return Machine(device, choose_dtype(config.dtype, device), processes)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Inside, operations repeat exactly; PyTorch warns of one that does not, or on CUDA raises."""
    before = torch.get_deterministic_debug_mode()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that cuBLAS is deterministic
    # Otherwise the embedding's backward pass on a CPU adds up in a different order each time.
    # (torch.use_deterministic_algorithms does the same, and imports the compiler, which takes 1 s.)
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def sampling_machine(config: DeviceConfig, parameters: int, texts: int) -> Machine:
    """The machine to sample on, in float32 unless another dtype is asked for.

    A small network samples no faster in less precision, nor few texts on a GPU, which starts about
    200 kernels for each character.
    """
    is_small = parameters <= CPU_PARAMETERS and texts <= CPU_SAMPLES
    name = "cpu" if config.device == "auto" and is_small else config.device
    device = choose_device(name, Processes())
    return Machine(device, choose_dtype(config.dtype.replace("auto", "float32"), device))


def seed_all(*key: int) -> None:
    """Make the random numbers that torch, NumPy and Python draw next a function of `key`."""
    sequence = np.random.SeedSequence(key[0], spawn_key=key[1:])
    seed = int(sequence.generate_state(1, np.uint64)[0])
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def keep_freed_memory() -> None:
    """Tell the GNU C library to keep freed memory. Returning it to Linux costs 10 % of a step."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, its maximum
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD
