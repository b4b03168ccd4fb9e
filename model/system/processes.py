"""The processes of a run: what each computes, what they exchange, the signals that end them."""

import atexit
import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from model.system.errors import AbortError, UserError, print_line

TORCHRUN_VARIABLES = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")  # of each process
STOPPING = b"\nThe run saves and stops after this step or evaluation. Ctrl-C again stops at once.\n"


class Processes:
    """The processes of one run, or just this one.

    Each computes its share of every batch. Only the main one, rank 0, reports and writes files.
    """

    def __init__(
        self, start_time: float | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        """The command began at `start_time`, or now. torchrun sets `variables` of each process."""
        variables = variables or {}
        self.start_time = time.perf_counter() if start_time is None else start_time
        missing = [name for name in TORCHRUN_VARIABLES if not variables.get(name)]
        if missing and "WORLD_SIZE" in variables:  # a scheduler sets it, too
            print_line(f"one process: WORLD_SIZE is set, but not {missing[0]}", sys.stderr)
        self.world_size, self.rank = 1 if missing else int(variables["WORLD_SIZE"]), 0
        if self.world_size > 1:
            self.rank = int(variables["RANK"])
            gpus = max(1, torch.cuda.device_count())
            self.local_rank = int(variables.get("LOCAL_RANK", self.rank % gpus))  # its GPU's number
        self.is_main = self.rank == 0

    def __enter__(self) -> "Processes":
        """Wait for the other processes and connect with them."""
        if self.world_size > 1:
            # gloo exchanges values on CPUs, nccl on GPUs. (Windows has no nccl.)
            has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
            if self.is_main:
                print_line(f"waiting for {self.world_size} processes", sys.stdout)
            # It waits in C++, where Python handles no signals: there, Ctrl-C ends the process.
            handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
            signal.signal(signal.SIGINT, handler)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Leave the other processes. An error must not wait for them."""
        if self.world_size == 1:
            return
        if error is None or isinstance(error, (SystemExit, UserError)):
            # A pause, in which gloo's thread frees its last tensor. For that it needs Python's
            # lock, which destroy_process_group keeps while it waits for the thread.
            time.sleep(0.2)
            dist.destroy_process_group()
            return
        # After an error, nccl would wait for the others, even when Python frees it. So the process
        # ends before that, as soon as the error is reported.
        atexit.register(os._exit, 1)
        if isinstance(error, RuntimeError) and "gloo" in str(error):  # it names its source file
            message = "another process of this run has ended. Its last message says why."
            raise AbortError(message) from None

    def seconds(self) -> float:
        """How long ago the command began, in this process."""
        return time.perf_counter() - self.start_time

    def batch_rows(self, batch_size: int, accumulation_steps: int) -> slice:
        """The rows of a batch that this process computes. Raises UserError if they are uneven."""
        parts = self.world_size * accumulation_steps
        if batch_size % parts:
            raise UserError(
                f"batch_size is {batch_size}. It must be a multiple of processes x "
                f"gradient_accumulation_steps, {self.world_size} x {accumulation_steps}."
            )
        rows = batch_size // self.world_size
        return slice(self.rank * rows, (self.rank + 1) * rows)

    def average_gradients(self, model: nn.Module) -> None:
        """Replace each gradient by its mean over all processes, and buffers by the main one's.

        A gradient that some processes do not have counts as 0 there.
        """
        if self.world_size == 1:
            return
        exists = self.max(*(parameter.grad is not None for parameter in model.parameters()))
        for parameter in itertools.compress(model.parameters(), exists):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        means = torch.cat([gradient.flatten() for gradient in gradients]) / self.world_size
        dist.all_reduce(means)  # all at once: a small network waits for the exchange, not the bytes
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, mean in zip(gradients, means.split(sizes), strict=True):
            gradient.copy_(mean.view_as(gradient))
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)

    def sum(self, value: float) -> float:
        """Return the sum of a value over all processes. Every process gets it."""
        return self._reduce([value], dist.ReduceOp.SUM)[0]

    def max(self, *values: float) -> list[float]:
        """Return, for each value, its maximum over all processes. Every process gets the list."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], operation: dist.ReduceOp) -> list[float]:
        """Combine each value with those of the other processes."""
        if self.world_size == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(reduced, operation)
        return reduced.tolist()


@contextlib.contextmanager
def catch_signals() -> Iterator[list[int]]:
    """A list that collects SIGINT, SIGTERM and SIGHUP. A second SIGINT acts at once.

    The first signal is answered on standard error. A signal that was ignored before, as SIGHUP is
    under nohup, stays ignored. SIGTERM may come twice: from torchrun, and from what stops torchrun.
    """
    caught: list[int] = []
    before = {}  # handlers, by signal

    def collect(number: int, frame: object) -> None:
        if not caught:
            with contextlib.suppress(OSError):  # a closed terminal
                os.write(2, STOPPING)  # print may be in the middle of a line
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
