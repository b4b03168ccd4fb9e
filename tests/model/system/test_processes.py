"""Tests of the processes of a run: their shares of the work, their exchange of values, signals."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from configs.errors import UserError
from model.system.processes import Processes, catch_signals
from tests.helpers import torchrun_variables


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_processes_share_a_batch_without_gap_or_overlap(world_size):
    rows = []
    for variables in torchrun_variables(world_size):
        processes = Processes(variables)
        rows += range(8)[processes.batch_rows(8, accumulation_steps=2)]
        message = rf"batch_size is 9\. .* multiple of .*, which is {world_size} x 2\."
        with pytest.raises(UserError, match=message):
            processes.batch_rows(9, accumulation_steps=2)
    assert rows == list(range(8))


@pytest.mark.parametrize(
    "variables",
    [  # a shell or a scheduler may set these
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "2", "RANK": ""},
        {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
    ],
)
def test_what_torchrun_has_not_started_is_one_process(variables):
    with Processes(variables) as processes:
        assert (processes.world_size, processes.is_main) == (1, True)


def exchange(variables: dict[str, str]) -> None:
    """Exchange values with the other process, and write the results to a file."""
    os.environ.update(variables)
    with Processes(os.environ) as processes:
        layer = torch.nn.Linear(2, 1, bias=False)
        layer.register_buffer("rank", torch.tensor(float(processes.rank)))
        layer(torch.tensor([1.0, 2.0]) * processes.rank).sum().backward()
        layer.first, layer.never, layer.second = (torch.nn.Parameter(x) for x in torch.ones(3))
        (layer.second if processes.rank else layer.first).backward()
        processes.average_gradients(layer)
        gradients = [*layer.weight.grad[0].tolist(), layer.rank.item()]
        gradients += [x.grad.item() for x in (layer.first, layer.never, layer.second)]
        values = processes.average(processes.rank, 1), processes.from_main(f"of {processes.rank}")
        Path(f"{processes.rank}.json").write_text(json.dumps([gradients, *values]))


def test_processes_average_gradients_and_exchange_values(forkserver):
    """Each process gets the buffers of the main process. A missing gradient counts as 0."""
    started = [forkserver.Process(target=exchange, args=(v,)) for v in torchrun_variables(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    written = [json.loads(Path(f"{rank}.json").read_text()) for rank in range(2)]
    assert written == [[[0.5, 1.0, 0.0, 0.5, 0.0, 0.5], [0.5, 1.0], "of 0"]] * 2


def test_signals_are_caught_temporarily_except_ignored_ones(capfd):
    """The first signal prints a message at once."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with catch_signals() as caught:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGTERM)
            assert "saves and stops after this step or evaluation" in capfd.readouterr().err
            os.kill(os.getpid(), signal.SIGTERM)  # torchrun passes the signal on
            os.kill(os.getpid(), signal.SIGINT)
            assert not capfd.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert caught == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGHUP, before)
