"""The processes of a run: what each computes, what they exchange, the signals that end them."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from model.system.errors import AbortError, UserError
from model.system.terminal import print_line

T = TypeVar("T")
STOPPING = b"\nThe run saves and stops after this step or evaluation. Ctrl-C again stops at once.\n"


class Processes:
    """The processes of one run, or just this one.

    Each computes its share of every batch. Only the main one, rank 0, reports and writes files.
    """

    def __init__(
        self, start_time: float | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """The command began at `start_time` (by time.perf_counter); by default it begins now.

        `variables` are what torchrun and others set for several processes.
        """
        self.start_time = time.perf_counter() if start_time is None else start_time
        self.rank, self.local_rank, self.world_size = 0, 0, 1
        variables = variables or {}
        if int(variables.get("WORLD_SIZE", 1)) > 1:
            self.rank, self.world_size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
            gpus = max(1, torch.cuda.device_count())
            self.local_rank = int(variables.get("LOCAL_RANK", self.rank % gpus))
        self.is_main = self.rank == 0

    def __enter__(self) -> "Processes":
        if self.world_size > 1:
            # Without an argument, PyTorch makes only the backend of the accelerator.
            backends = "gloo"
            accelerator = torch.accelerator.current_accelerator(check_available=True)
            if accelerator and dist.is_nccl_available():  # not on Windows
                backends = f"cpu:gloo,{accelerator.type}:nccl"
            if self.is_main:
                print_line(f"waiting for {self.world_size} processes", sys.stdout)
            # It waits in C++, where Python handles no signals: these end the process at once.
            with handle_signals(signal.SIG_DFL, "SIGINT", "SIGTERM"):
                dist.init_process_group(backends)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.world_size == 1:
            return
        if error is None or isinstance(error, SystemExit):
            # destroy_process_group holds the GIL while it waits for gloo's thread, which needs the
            # GIL to free its last tensor. Without this pause they can deadlock.
            time.sleep(0.2)
            dist.destroy_process_group()
            return
        # NCCL would wait for the others when its group is destroyed or freed. So keep it, and end
        # without it as soon as the error is reported.
        status = 2 if isinstance(error, UserError) else 1
        atexit.register(lambda self=self: os._exit(status))
        if "/gloo/" in str(error):  # the file of gloo where it was raised
            message = "another process of this run has ended. Its last message says why."
            raise AbortError(message) from None

    def seconds(self) -> float:
        """How long ago the command began, in this process."""
        return time.perf_counter() - self.start_time

    def batch_rows(self, batch_size: int, accumulation_steps: int) -> slice:
        """This process's rows of a batch. Raises UserError if it cannot be divided evenly."""
        parts = self.world_size * accumulation_steps
        if batch_size % parts:
            raise UserError(
                f"batch_size is {batch_size}. It must be a multiple of processes x "
                f"gradient_accumulation_steps, {self.world_size} x {accumulation_steps}."
            )
        rows = batch_size // self.world_size
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def average_gradients(self, model: nn.Module) -> None:
        """Each gradient becomes its mean over all processes; buffers become the main one's."""
        if self.world_size == 1:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        means = torch.cat([gradient.flatten() for gradient in gradients]) / self.world_size
        dist.all_reduce(means)  # all at once: a small network waits for the exchange, not the bytes
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, means.split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)

    def broadcast(self, value: T) -> T:
        """The main process's value, on each."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def sum(self, value: float) -> float:
        """The sum of all processes' values, the same on each."""
        return self._reduce([value], dist.ReduceOp.SUM)[0]

    def max(self, *values: float) -> list[float]:
        """Of each value the largest of all processes', the same on each."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp) -> list[float]:
        if self.world_size == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(reduced, operation)
        return reduced.tolist()


@contextlib.contextmanager
def handle_signals(handler: Callable | signal.Handlers, *names: str) -> Iterator[dict]:
    """Inside, these signals call `handler`. Yields the handlers before, by number.

    A signal that was ignored before, as SIGHUP is under nohup, stays ignored. Outside the main
    thread, where Python handles no signals, none is handled.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list that collects SIGINT, SIGTERM and SIGHUP. A second SIGINT acts at once.

    The first signal is answered on standard error. SIGTERM may come twice: from torchrun, and from
    what stops torchrun.
    """
    caught: list[int] = []

    def collect(number: int, frame: object) -> None:
        if not caught:
            with contextlib.suppress(OSError):  # a closed terminal
                os.write(2, STOPPING)  # print may be in the middle of a line
        caught.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[number])

    with handle_signals(collect, "SIGINT", "SIGTERM", "SIGHUP") as before:
        yield caught
