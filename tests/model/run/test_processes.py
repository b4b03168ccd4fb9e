"""Tests of the processes of a run: their shares of the work, and what they exchange."""

import json

import pytest
import torch

from model.run.errors import UserError
from model.run.processes import Processes, share_work
from tests.conftest import start_processes


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_of_torchrun_share_a_batch_without_gap_or_overlap(monkeypatch, world_size):
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    rows = []
    for rank in range(world_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        assert Processes().batch_rows(8, accumulation_steps=2) == slice(0, 8)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "tests")
        rows += range(8)[Processes().batch_rows(8, accumulation_steps=2)]
        with pytest.raises(UserError, match="must be a multiple"):
            Processes().batch_rows(9, accumulation_steps=2)
    assert rows == list(range(8))


EXCHANGES = """
import json
import torch
from model.run.processes import Processes, share_work

with Processes() as processes:
    layer = torch.nn.Linear(2, 1, bias=False)
    wrapped = processes.wrap(layer)
    gradients, shares, results = [], [], []
    for parts in (1, 2):
        for part in range(1, parts + 1):
            wrapped.require_backward_grad_sync = part == parts
            wrapped(torch.tensor([1.0, 2.0]) * processes.rank).sum().backward()
        gradients += layer.weight.grad.tolist()
        layer.zero_grad()
    for count in (1, 2, 3):
        share = lambda rows: shares.append(len(rows)) or rows + 1
        results += share_work(share, torch.arange(count)).tolist()
    totals = processes.sum(processes.rank + 1), processes.max(processes.rank + 1)
    print(json.dumps([gradients, totals, results, shares]))
"""


def test_processes_average_gradients_add_up_and_share_work():
    """Gradients are exchanged once for all parts of a batch; each item is computed once."""
    started = start_processes(["-c", EXCHANGES], 2)
    outputs = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    for *seen, _ in outputs:
        assert seen == [[[0.5, 1.0], [1.0, 2.0]], [3, 2], [1, 1, 2, 1, 2, 3]]
    shares = [shares for *_, shares in outputs]
    assert [sum(of_count) for of_count in zip(*shares, strict=True)] == [1, 2, 3]
    assert share_work(torch.square, torch.arange(3)).tolist() == [0, 1, 4]  # in one process
