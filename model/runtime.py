"""Where and how it runs: device, number format, compilation, processes.

The only file that names cuda, mps, bfloat16 or RANK, so that the rest reads as mathematics.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from model.ending import keep_within_memory, say


@dataclass(frozen=True)
class DeviceConfig:
    """What to compute on."""

    device: Annotated[str, "auto, cpu, cuda, cuda:N or mps"] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "of matrix products; auto: the fastest native one to train, float32 to sample",
    ] = "auto"


@dataclass(frozen=True)
class SystemConfig(DeviceConfig):
    """What to train on."""

    compile: Annotated[Literal["auto", "on", "off"], "torch.compile; auto: on a GPU, where it pays"] = "auto"


def choose_device(name: str) -> torch.device:
    """The device of that name; auto is the first of cuda, mps and cpu that is there.

    Raises ValueError where it is not.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in there:
        raise ValueError(f"device {name!r} is none of auto, cpu, cuda, cuda:N, mps")
    if not there[device.type] or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device {name!r} is not on this machine; --device auto takes what is")
    return device


def preset_for(device: str) -> str:
    """Which of configs/ suits the device of that name."""
    return "gpu.toml" if choose_device(device).type == "cuda" else "cpu.toml"


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The format for matrix products; auto is the fastest that this device computes natively.

    Raises ValueError for float16 anywhere but on CUDA: only there does training guard its range.
    """
    if name == "float16" and device.type != "cuda":
        raise ValueError(f"dtype float16 is for cuda alone, and this is {device.type}; take bfloat16 or float32")
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if native else torch.float16
    if device.type == "cpu":
        features = getattr(torch.cpu, "get_capabilities", dict)()
        if features.get("avx512_bf16") or features.get("amx_bf16"):
            return torch.bfloat16
    return torch.float32


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Matrix products inside run in `dtype`; weights and sums stay float32."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def keep_freed_memory() -> None:
    """Have GNU's C library keep what is freed: fetching each step's memory anew costs a tenth of its time."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, at its highest
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


class Runtime(AbstractContextManager):
    """One process's view of the machine: its device and number format, and its place among the processes.

    Under torchrun each process takes its share of every batch; otherwise there is one, of rank 0.
    """

    def __init__(self, system: SystemConfig) -> None:
        try:
            self.world = int(os.environ.get("WORLD_SIZE", "1"))
            self.rank = int(os.environ["RANK"]) if self.world != 1 else 0
            if not 0 <= self.rank < self.world:
                raise ValueError("RANK")
        except (KeyError, ValueError):
            raise ValueError("WORLD_SIZE and RANK are not as torchrun sets them; start by it, or unset both") from None
        self.device = choose_device(system.device)
        self.dtype = choose_dtype(system.dtype, self.device)
        self.compile_mode = system.compile
        if self.device.type == "cpu":
            keep_within_memory()
            keep_freed_memory()
        # Atomic adds in the embedding's backward would make each run its own; so one seed, one result.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.set_float32_matmul_precision("high")
        if self.world > 1:
            if self.device.type == "cuda":
                self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
                torch.cuda.set_device(self.device)
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def __exit__(self, *failure: object) -> None:
        """Leave the group of processes, if there is one."""
        if self.world > 1:
            # Gloo's thread takes Python's lock once more to drop the last tensor. Destroying the group
            # waits for that thread, lock in hand: without this pause both can wait for ever.
            time.sleep(0.2)
            dist.destroy_process_group()

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else ""
        where = name or f"{torch.get_num_threads()} threads"
        together = f", {self.world} processes" if self.world > 1 else ""
        return f"{self.device} ({where}), {str(self.dtype).removeprefix('torch.')}{together}"

    def rows(self, batch_size: int, parts: int) -> slice:
        """This process's windows of a step's batch. Raises ValueError if it cannot be shared out evenly."""
        share, rest = divmod(batch_size, self.world)
        if rest or share % parts:
            raise ValueError(
                f"batch_size ({batch_size}) must be a multiple of processes x gradient_accumulation_steps "
                f"({self.world} x {parts})"
            )
        return slice(self.rank * share, (self.rank + 1) * share)

    def scaler(self) -> torch.amp.GradScaler:
        """Keeps float16 gradients in range; passes everything through for the other formats."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)

    def seed(self, *key: int) -> None:
        """Make what torch draws next a function of `key` alone."""
        sequence = np.random.SeedSequence(key[0], spawn_key=key[1:])
        torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))

    def average(self, *tensors: Tensor) -> None:
        """Give every process the mean of all processes' tensors."""
        if self.world > 1:
            for tensor in tensors:
                self._add_up(tensor)
                tensor.div_(self.world)

    def compile(self, function: Callable[..., Tensor], *example: Tensor) -> Callable[..., Tensor]:
        """`function`, compiled where asked for, or as it is where that fails, with one warning.

        A compiler fails at the first call, so that call is made here, on `example`, with its
        backward pass; the caller clears the gradients.
        """
        if self.compile_mode == "off" or (self.compile_mode == "auto" and self.device.type != "cuda"):
            return function
        try:
            # A CPU's own random numbers take less time than the compiler's, and are those of a run not compiled.
            compiled = torch.compile(function, dynamic=False, options={"fallback_random": self.device.type == "cpu"})
            with autocast(self.device, self.dtype):
                compiled(*example).backward()
        except Exception as error:  # the compiler has no one type of its own for what can go wrong
            reason = str(error).strip().partition("\n")[0][:200]
            say(f"warning: torch.compile fails here, training goes on without it ({reason})", sys.stderr)
            return function
        return compiled

    def sum(self, value: float) -> float:
        """The sum of every process's value, the same on each."""
        if self.world == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        self._add_up(total)
        return total.item()

    def _add_up(self, tensor: Tensor) -> None:
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            if "onnection" not in str(error):
                raise
            raise OSError("another process of this run has ended; what it said last says why") from None
