"""The machine that a command computes on: its device, dtype, processes, random numbers."""

import contextlib
import ctypes
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from configs.errors import UserError
from configs.settings import DeviceConfig, TrainConfig
from model.system.console import print_line
from model.system.processes import Processes

# The limit of CPUs in a container. In this file, "250000 100000" means 2.5 CPUs.
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_EVAL_CHARS = 4096  # characters in an evaluation batch, which fits into the processor's cache
GPU_EVAL_CHARS, GPU_EVAL_LOGITS = 65_536, 2**25  # in an evaluation batch; the logits take 128 MB
CPU_PARAMETERS = 10_000_000  # up to this size, a CPU writes a few texts as fast as a GPU


@dataclass(frozen=True)
class Machine:
    """The device of this process, the dtype of matrix products, and all processes of a command."""

    device: torch.device
    dtype: torch.dtype
    processes: Processes = field(default_factory=Processes)

    def __str__(self) -> str:
        """Return a description such as "cpu (threads: 2), bfloat16"."""
        name, count = str(self.device), self.processes.world_size
        if self.device.type == "cuda":
            name += f" ({torch.cuda.get_device_name(self.device)})"
        if self.device.type == "cpu":
            name += f" (threads: {torch.get_num_threads()})"
        return f"{name}, {self.dtype_name}" + (f", {count} processes" if count > 1 else "")

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, for example "float32" for torch.float32."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self, cache_enabled: bool = True) -> torch.autocast:
        """Let matrix products run in `dtype` inside `with`. Weights and gradients stay float32."""
        is_lower = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype, is_lower, cache_enabled)

    def to_device(self, *batch: Tensor) -> list[Tensor]:
        """Return the tensors, copied to the device."""
        if self.device.type == "cuda":
            # From pinned memory, a GPU can copy while it still computes the previous batch.
            return [x.pin_memory().to(self.device, non_blocking=True) for x in batch]
        return [x.to(self.device) for x in batch]

    def eval_batch_chars(self, vocab_size: int) -> int:
        """Return how many characters an evaluation reads at once."""
        if self.device.type == "cpu":
            return CPU_EVAL_CHARS
        return min(GPU_EVAL_CHARS, GPU_EVAL_LOGITS // vocab_size)

    def synchronize(self) -> None:
        """Wait until a GPU has finished all operations that Python has asked for."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def uses_cuda_graph(self, config: TrainConfig) -> bool:
        """Return whether training uses a CUDA graph: one process on a GPU, a batch in one part."""
        is_single = self.processes.world_size == config.gradient_accumulation_steps == 1
        return config.compile == "auto" and self.device.type == "cuda" and is_single

    def prepare(self, config: TrainConfig, network: nn.Module) -> "Forward":
        """Return a function that computes the network's logits_BTV in training steps.

        The network may be compiled or become a CUDA graph. If that fails, a warning says so.
        """
        forward = Forward(network, self)
        if config.compile == "on":
            make_faster, what = compile_network, "torch.compile"
            if self.processes.is_main:
                print_line("compiling the network, which takes up to a minute or two", sys.stdout)
        elif self.uses_cuda_graph(config):
            make_faster, what = record_graph, "a CUDA graph"
        else:
            return forward
        parts = self.processes.world_size * config.gradient_accumulation_steps
        size = max(1, config.batch_size // parts), config.block_size
        ids_BT = torch.zeros(size, dtype=torch.int64, device=next(network.parameters()).device)
        buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
        try:
            return make_faster(forward, ids_BT)
        except Exception as error:  # it may have any type
            problem = str(error).strip().partition("\n")[0]
            print_line(f"warning: training without {what}: {problem}", sys.stderr)
            return forward
        finally:  # undo the effects of calling the network
            network.zero_grad()
            for buffer, before in buffers:
                buffer.copy_(before)


class Forward(nn.Module):
    """Computes the logits of a network in autocast, in training steps.

    It is a module because PyTorch turns only modules into CUDA graphs.
    """

    def __init__(self, network: nn.Module, machine: Machine) -> None:
        super().__init__()
        self.network, self.machine = network, machine

    def forward(self, ids_BT: Tensor) -> Tensor:
        """ids_BT to logits_BTV."""
        with self.machine.autocast(cache_enabled=False):  # a graph would freeze cached weights
            return self.network(ids_BT)


def compile_network(forward: Forward, ids_BT: Tensor) -> Forward:
    """Return `forward` with a compiled network, for batches of the shape of ids_BT."""
    is_cpu = ids_BT.device.type == "cpu"
    # The compiler needs this call. It ignores the debug mode that `training_machine` sets.
    torch.use_deterministic_algorithms(True, warn_only=ids_BT.device.type != "cuda")
    # PyTorch's own random numbers are faster than the compiler's, and a run without the compiler
    # draws the same numbers. A result of more than ten operations, for example the angles of a
    # rotation, is stored, so that it is not computed again where it is used.
    options = {"fallback_random": True, "realize_opcount_threshold": 10} if is_cpu else {}
    compiled = torch.compile(forward.network, dynamic=False, options=options)
    forward = Forward(compiled, forward.machine)
    logits_BTV = forward(ids_BT)  # PyTorch compiles the network in its first passes
    if logits_BTV.requires_grad:  # false for an average
        logits_BTV.float().logsumexp(-1).sum().backward()
    return forward


def record_graph(forward: Forward, ids_BT: Tensor) -> Forward:
    """Return `forward` as a CUDA graph: a list of operations that a GPU repeats without Python.

    The next pass overwrites the memory of the logits and of the gradients.
    """
    # PyTorch 2.11 and later would warn that gradients come from the graph's own stream (queue).
    if hasattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch"):
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    before = generator.clone_state()
    try:
        return torch.cuda.make_graphed_callables(forward, (ids_BT,), allow_unused_input=True)
    except Exception:  # for example, because the network reads a value
        generator.graphsafe_set_state(before)  # else it waits for the end of the graph
        raise


def choose_device(name: str, processes: Processes) -> torch.device:
    """Return the device of this name. "auto" means the GPU if there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if processes.world_size > 1 and name != "cpu":
        name = f"cuda:{processes.local_rank}"
    limit_threads()
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # otherwise PyTorch would use GPU 0, too
        (torch.zeros(1, device=device) + 1).cpu()  # PyTorch may have no kernels for an old GPU
    except (RuntimeError, AssertionError, ImportError) as error:
        problem = str(error).strip().partition("\n")[0].partition(". ")[0]  # the first sentence
        raise UserError(f"device is {name!r}: {problem}. Use auto, cpu, cuda or mps.") from None
    return device


def limit_threads() -> None:
    """Use at most one thread per CPU of a container. More threads are up to 90 times slower."""
    with contextlib.suppress(OSError, ValueError):  # there is no file, or it says "max 100000"
        quota, period = map(int, CPU_QUOTA.read_text().split())
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(min(torch.get_num_threads(), max(1, quota // period)))


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products. "auto" means the faster dtype on this kind of device.

    "auto" follows a rule, not a measurement, so that a run repeats exactly.
    """
    if name == "float16" and device.type != "cuda":
        raise UserError(f"dtype float16 needs a CUDA device; this is {device.type}. Use bfloat16.")
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        is_native = torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if is_native else torch.float16
    # PyTorch before 2.10 does not say what a CPU can do.
    cpu = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    # With AVX512-BF16 alone, a matrix product in bfloat16 takes a quarter of float32's time on AMD.
    # On Intel, it takes twice the time of float32.
    is_amd = str(cpu.get("cpu_name")).startswith("AMD")
    is_fast = cpu.get("amx_bf16") or (cpu.get("avx512_bf16") and is_amd)
    return torch.bfloat16 if device.type == "cpu" and is_fast else torch.float32


def training_machine(config: DeviceConfig, processes: Processes) -> Machine:
    """Return the machine to train on. Configure PyTorch to be fast and to repeat exactly."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # so that cuBLAS is deterministic
    device = choose_device(config.device, processes)
    torch.set_float32_matmul_precision("high")  # on CUDA, float32 products use TF32
    # PyTorch warns if an operation may not repeat exactly. On CUDA, let it raise an error, because
    # with "warn", the backward pass of attention may not repeat. (The function
    # torch.use_deterministic_algorithms does the same, but imports the compiler, which takes 1 s.)
    torch.set_deterministic_debug_mode("error" if device.type == "cuda" else "warn")
    torch.utils.deterministic.fill_uninitialized_memory = False
    if device.type == "cpu":
        keep_freed_memory()
    return Machine(device, choose_dtype(config.dtype, device), processes)


def keep_freed_memory() -> None:
    """Tell the GNU C library to keep freed memory. Returning it to Linux costs 10 % of a step."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, its maximum
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def sampling_machine(config: DeviceConfig, parameters: int) -> Machine:
    """Return the machine to sample on, in float32. A small network runs on the CPU by default."""
    name = config.device
    if name == "auto" and parameters <= CPU_PARAMETERS:
        name = "cpu"
    device = choose_device(name, Processes())
    return Machine(device, choose_dtype(config.dtype.replace("auto", "float32"), device))


def seed_all(*key: int) -> None:
    """Seed torch, NumPy and Python, so that their next random numbers depend only on `key`."""
    sequence = np.random.SeedSequence(key[0], spawn_key=key[1:])
    seed = int(sequence.generate_state(1, np.uint64)[0])
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
