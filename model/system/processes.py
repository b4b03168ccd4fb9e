"""The processes of a run: how they share a batch, exchange values and react to signals."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from configs.errors import UserError
from model.system.console import AbortError, print_line

TORCHRUN_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
STOPPING = b"\nThe run saves and stops after this step or evaluation. Ctrl-C again stops at once.\n"


class Processes:
    """All processes of one run. Each computes its share of every batch.

    Only the main process, which has rank (number) 0, prints and writes files.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        """Read `variables`, which torchrun sets. The time of the command begins now."""
        self.start_time = time.perf_counter()
        variables = variables or {}
        # A scheduler may set WORLD_SIZE alone. Then this process is the only one.
        has_all = all(variables.get(name) for name in TORCHRUN_VARIABLES)
        self.world_size, self.rank = int(variables["WORLD_SIZE"]) if has_all else 1, 0
        if self.world_size > 1:
            self.rank = int(variables["RANK"])
            self.local_rank = int(variables["LOCAL_RANK"])  # the number of its GPU
        self.is_main = self.rank == 0

    def __enter__(self) -> "Processes":
        """Wait for the other processes and connect to them."""
        if self.world_size > 1:
            # The library gloo exchanges values between CPUs, nccl between GPUs. Windows lacks nccl.
            has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
            if self.is_main:
                print_line(f"waiting for {self.world_size} processes", sys.stdout)
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Disconnect from the other processes. After an error, do not wait for them."""
        if self.world_size == 1:
            return
        if error is None or isinstance(error, UserError):
            dist.destroy_process_group()
        if isinstance(error, RuntimeError) and "gloo" in str(error):  # names a file of gloo
            message = "another process of this run has ended. Its last message says why."
            raise AbortError(message) from None

    def seconds(self) -> float:
        """Return how many seconds ago main began in this process."""
        return time.perf_counter() - self.start_time

    def batch_rows(self, batch_size: int, accumulation_steps: int) -> slice:
        """Return this process's rows of a batch. Raises UserError if no even split is possible."""
        parts = self.world_size * accumulation_steps
        if batch_size % parts:
            raise UserError(
                f"batch_size is {batch_size}. It must be a multiple of processes x "
                f"gradient_accumulation_steps, which is {self.world_size} x {accumulation_steps}."
            )
        rows = batch_size // self.world_size
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def average_gradients(self, model: nn.Module) -> None:
        """Replace each gradient by its mean over all processes. A missing gradient counts as 0.

        Buffers (tensors that are not trained) are copied from the main process.
        """
        if self.world_size == 1:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in trained]
        means = torch.cat([grad.flatten() for grad in grads]) / self.world_size
        dist.all_reduce(means)  # one exchange, because each takes time, however small it is
        sizes = [parameter.numel() for parameter in trained]
        for parameter, mean in zip(trained, means.split(sizes), strict=True):
            parameter.grad = mean.view_as(parameter)
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)

    def average(self, *values: float) -> list[float]:
        """Return the mean of each value over all processes. Every process gets the same list."""
        if self.world_size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return (sums / self.world_size).tolist()

    def from_main(self, value: Any) -> Any:
        """Return the `value` of the main process, in every process."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Yield a list to which SIGINT, SIGTERM and SIGHUP are added. They no longer end the program.

    A second SIGINT (Ctrl-C) acts at once. A second SIGTERM does not, because torchrun may send it
    again. A signal that was already ignored stays ignored, for example SIGHUP under nohup.
    """
    caught: list[int] = []
    before = {}  # the earlier handlers, by signal

    def collect(number: int, frame: object) -> None:
        if not caught:
            with contextlib.suppress(OSError):  # the terminal may be closed
                os.write(2, STOPPING)  # not print, which the signal may have interrupted
        caught.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, collect)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
