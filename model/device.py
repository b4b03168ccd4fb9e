"""Device, dtype, compilation, processes: the only file that names cuda, mps, bfloat16 or RANK."""

import contextlib
import ctypes
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.errors import RunError, UserError, catch_signals, print_line


@dataclass(frozen=True)
class DeviceConfig:
    """What to compute on."""

    device: Annotated[str, "auto, cpu, cuda, cuda:N or mps"] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        "number format of matrix products; auto: the fastest for training, float32 for sampling",
    ] = "auto"


@dataclass(frozen=True)
class SystemConfig(DeviceConfig):
    """What to train on."""

    compile: Annotated[Literal["auto", "on", "off"], "torch.compile; auto: on CUDA only"] = "auto"


def choose_device(name: str) -> torch.device:
    """The device of that name; auto is the first of cuda, mps and cpu that this machine has.

    Raises UserError if the machine does not have it.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, found in available.items() if found))
    if not re.fullmatch("cpu|mps|cuda(:[1-9]?[0-9])?", name):
        raise UserError(f"device is {name!r}. It must be auto, cpu, cuda, cuda:N or mps.")
    device = torch.device(name)
    missing_gpu = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    if not available[device.type] or missing_gpu:
        raise UserError(f"device {name!r} is not on this machine. Use --device auto.")
    return device


def default_preset(device_name: str) -> str:
    """The preset in configs/ for a device."""
    return "gpu.toml" if choose_device(device_name).type == "cuda" else "cpu.toml"


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype of matrix products; auto is the fastest that the device supports natively.

    Raises UserError for float16 on other devices than CUDA.
    """
    if name == "float16" and device.type != "cuda":
        raise UserError(
            f"dtype float16 needs a CUDA device; this is {device.type}. Use bfloat16 or float32."
        )
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


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 to "float32"."""
    return str(dtype).removeprefix("torch.")


def describe(device: torch.device, dtype: torch.dtype, world_size: int) -> str:
    """Device, dtype and processes for a person: "cpu (2 threads), bfloat16"."""
    name = str(device)
    if device.type == "cuda":
        name += f" ({torch.cuda.get_device_name(device)})"
    if device.type == "cpu":
        threads = torch.get_num_threads()
        name += f" ({threads} thread{'s' if threads > 1 else ''})"
    processes = f", {world_size} processes" if world_size > 1 else ""
    return f"{name}, {dtype_name(dtype)}{processes}"


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Inside, matrix products run in `dtype`; weights and sums stay float32."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Copy a batch; a GPU copies it from pinned memory while it still computes the last one."""
    if device.type == "cuda":
        return batch.pin_memory().to(device, non_blocking=True)
    return batch.to(device)


def make_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Keeps float16 gradients in range; for other dtypes it passes everything through."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


def seed_all(*key: int) -> None:
    """Make the random numbers that torch, NumPy and Python draw next a function of `key`."""
    sequence = np.random.SeedSequence(key[0], spawn_key=key[1:])
    seed = int(sequence.generate_state(1, np.uint64)[0])
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def configure_torch(device: torch.device) -> None:
    """Process-wide settings for training: the same result each time, and fast."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs it
    # Otherwise the embedding's backward pass on a CPU adds up in a different order each time.
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("high")
    if device.type == "cpu":
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Tell the GNU C library to keep freed memory. Returning it to Linux costs 10 % of a step."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, its maximum
        libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def maybe_compile(
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    mode: str,
    device: torch.device,
    dtype: torch.dtype,
    batch: tuple[Tensor, Tensor],
) -> Callable[[Tensor, Tensor], Tensor]:
    """`loss_fn`, compiled if `mode` asks for it and the result is right.

    A compiler fails at the first call, so this makes that call, on `batch`, with its backward
    pass; the caller clears the gradients. If it fails or the compiled loss differs, one warning
    says so and `loss_fn` itself is returned.
    """
    if mode == "off" or (mode == "auto" and device.type != "cuda"):
        return loss_fn
    try:
        # On a CPU, PyTorch's own random numbers are faster than the compiler's, and equal to
        # those of a run that is not compiled.
        options = {"fallback_random": device.type == "cpu"}
        compiled = torch.compile(loss_fn, dynamic=False, options=options)
        with autocast(device, dtype):
            seed_all(0)
            loss = compiled(*batch)
            loss.backward()
            with torch.no_grad():
                seed_all(0)
                expected = loss_fn(*batch)
        if torch.allclose(loss, expected, rtol=0.1):  # dropout may differ on a GPU
            return compiled
        problem = f"the loss is {loss:.4f} compiled, {expected:.4f} not compiled"
    except Exception as error:  # the compiler raises exceptions of many types
        problem = str(error).strip().partition("\n")[0][:200]
    print_line(f"warning: training goes on without torch.compile: {problem}", sys.stderr)
    return loss_fn


class Processes:
    """The processes of a run: those that torchrun started, or just this one.

    Each computes its share of every batch. Only the main one, rank 0, prints and writes files.
    """

    def __init__(self) -> None:
        # torchrun sets all of these; some clusters set WORLD_SIZE alone.
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        self.rank, self.world_size = 0, 1
        if all(name in os.environ for name in names):
            rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
            numbers = (rank, world_size, os.environ["MASTER_PORT"])
            if not all(map(str.isdecimal, numbers)) or int(rank) >= int(world_size):
                raise UserError(
                    "RANK, WORLD_SIZE or MASTER_PORT is not valid. Use torchrun, or unset them."
                )
            self.rank, self.world_size = int(rank), int(world_size)
        self.is_main = self.rank == 0

    def __enter__(self) -> "Processes":
        if self.world_size > 1:
            dist.init_process_group()  # gloo for tensors on a CPU, NCCL for those on a GPU
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.world_size > 1:
            # destroy_process_group holds Python's lock while it waits for gloo's thread, which
            # needs that lock to free the last tensor. Without this pause both can wait forever.
            # Torchrun sends SIGTERM when a process ends; the others should still say why they end.
            with catch_signals():
                time.sleep(0.2)
                dist.destroy_process_group()
            lost = isinstance(error, RuntimeError) and not isinstance(error, RunError)
            if lost and "connection" in str(error).lower():  # gloo's message
                message = "another process of this run has ended. Its last message says why."
                raise RunError(message) from None

    def local_device(self, device: torch.device) -> torch.device:
        """The device of this process: with several processes, each has a GPU of its own.

        Raises UserError if this machine has fewer GPUs than processes, or one GPU is meant.
        """
        if self.world_size > 1 and device.type == "cuda":
            if device.index is not None:
                raise UserError(f"device is {device}. With several processes, use --device cuda.")
            local_rank = int(os.environ.get("LOCAL_RANK", self.rank))  # set by torchrun
            count = torch.cuda.device_count()
            if local_rank >= count:
                raise UserError(f"each process needs a GPU. Start at most {count} per machine.")
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        return device

    def batch_rows(self, batch_size: int, accumulation_steps: int) -> slice:
        """This process's rows of a batch. Raises UserError if it cannot be divided evenly."""
        rows, rest = divmod(batch_size, self.world_size)
        if rest or rows % accumulation_steps:
            raise UserError(
                f"batch_size is {batch_size}. It must be a multiple of processes x "
                f"gradient_accumulation_steps ({self.world_size} x {accumulation_steps})."
            )
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def wrap(self, model: nn.Module) -> nn.Module:
        """`model` for training: the backward pass averages the gradients over all processes.

        It does not while `require_backward_grad_sync` is False, as for all but the last part of a
        batch. A parameter that the loss does not depend on is an error.
        """
        if self.world_size == 1:
            return model
        # bucket_cap_mb as by default, but also for the first bucket: a small network needs one
        # exchange, not two. That makes its steps 4 % faster.
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=25)
        # Keeps it until the process group has ended: freeing it earlier can wait forever, too.
        self.kept_alive = wrapped
        return wrapped

    def average(self, tensor: Tensor) -> None:
        """Replace a tensor by its mean over all processes."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.world_size)

    def sum(self, value: float) -> float:
        """The sum of all processes' values, the same on each."""
        return self._reduce(value, dist.ReduceOp.SUM)

    def max(self, value: float) -> float:
        """The largest of all processes' values, the same on each."""
        return self._reduce(value, dist.ReduceOp.MAX)

    def _reduce(self, value: float, operation: dist.ReduceOp) -> float:
        if self.world_size == 1:
            return value
        reduced = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(reduced, operation)
        return reduced.item()

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process runs the block before the others, which then find what it wrote."""
        if not self.is_main:
            self.wait_for_all()
        yield
        if self.is_main:
            self.wait_for_all()

    def wait_for_all(self) -> None:
        """Return once all processes have called this."""
        self.sum(0)


def share_work(function: Callable[[Tensor], Tensor], x_N: Tensor) -> Tensor:
    """function(x_N), for a function that treats each of N items alone and keeps their shape.

    With several processes, each computes a part of the items and sends it to all others.
    """
    if not dist.is_initialized():
        return function(x_N)
    parts = list(x_N.tensor_split(dist.get_world_size()))
    parts[dist.get_rank()] = function(parts[dist.get_rank()])
    results = [part.contiguous() for part in parts]
    transfers = [
        dist.broadcast(result, rank, async_op=True)
        for rank, result in enumerate(results)
        if len(result)
    ]
    for transfer in transfers:
        transfer.wait()
    return torch.cat(results)
