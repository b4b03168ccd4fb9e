"""Tests of checkpoints: round trips, damaged files, states that do not fit the model."""

import copy
import hashlib
import io
import os
from math import inf, nan
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from configs.settings import GPTConfig, OptimConfig
from model.networks import make_network
from model.optim import make_optimizers
from model.run.checkpoint import (
    MAGIC,
    Checkpoint,
    Learner,
    RunState,
    capture,
    load,
    load_weights,
    restore,
    save,
)
from model.system.errors import AbortError, UserError


def make_run(n_embd: int = 8) -> Learner:
    """A model, our optimizers and one of PyTorch's, a scaler; one training step is done."""
    model = make_network(GPTConfig(n_layer=2, n_head=2, n_embd=n_embd), vocab_size=5)
    optimizers = make_optimizers(model, OptimConfig(), torch.float32)
    optimizers.append(torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    return Learner(model, model, optimizers, GradScaler("cpu", init_scale=torch.rand(()).item()))


@pytest.fixture
def state(tmp_path) -> Checkpoint:
    """Saved as last.pt."""
    numbers = RunState(step=7, val_loss=0.1)
    state = capture(make_run(), numbers, {"lr": 1e-3}, "\n aé中😀", data_sha256="0")
    save(state, tmp_path / "last.pt")
    return state


def test_a_run_is_unchanged_after_saving_loading_and_restoring(tmp_path, state):
    save(state, tmp_path / "last.pt", tmp_path / "best.pt")
    loaded, trained = load(tmp_path / "best.pt"), make_run()
    numbers = restore(loaded, trained, resumes=True)
    assert numbers == RunState(step=7, val_loss=0.1)
    loaded = capture(trained, numbers, loaded.config, loaded.vocab, loaded.data_sha256)
    torch.testing.assert_close(loaded.model, state.model, rtol=0, atol=0)
    for ours, theirs in zip(loaded.optimizers, state.optimizers, strict=True):
        assert ours["param_groups"] == theirs["param_groups"]
        torch.testing.assert_close(ours["state"], theirs["state"], rtol=0, atol=0)
    others = {"model": None, "optimizers": None}
    assert vars(loaded) | others == vars(state) | others
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "last.pt"]
    torch.load(tmp_path / "last.pt", weights_only=True)  # PyTorch alone can read it, too


@pytest.mark.parametrize("change", ["swapped blocks", "one optimizer more"])
def test_optimizer_states_of_other_parameters_are_refused(state, change):
    model, _, optimizers, scaler = make_run()
    if change == "swapped blocks":  # the same names and shapes in another order
        model.blocks._modules = dict(reversed(model.blocks._modules.items()))
        optimizers = make_optimizers(model, OptimConfig(), torch.float32)
        state.optimizers.pop()
    if change == "one optimizer more":
        optimizers.append(optimizers[0])
    state.model = model.state_dict()  # it fits: only the optimizers do not
    with pytest.raises(UserError, match="does not fit the code in model/"):
        restore(state, Learner(model, model, optimizers, scaler), resumes=True)


@pytest.mark.parametrize("number", [inf, nan])
@pytest.mark.parametrize("where", ["weights", "average", "optimizer state"])
def test_numbers_that_are_not_finite_are_never_captured(where, number):
    model, _, optimizers, scaler = make_run()
    average = copy.deepcopy(model)
    tensors = {
        "weights": model.head.weight,
        "average": average.head.weight,
        "optimizer state": optimizers[-1].state[model.head.weight]["momentum_buffer"],
    }
    tensors[where].data[0, 0] = number
    with pytest.raises(AbortError, match="no longer finite"):
        capture(Learner(model, average, optimizers, scaler), RunState(), {}, "", "")


class Trap:
    """Unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_a_malicious_pickle_is_never_executed():
    buffer = io.BytesIO()
    torch.save({"step": Trap()}, buffer)
    signed = buffer.getvalue() + MAGIC
    Path("last.pt").write_bytes(signed + hashlib.sha256(signed).digest())
    with pytest.raises(UserError, match=r"last\.pt is not a checkpoint"):
        load("last.pt")
    assert not Path("trapped").exists()
    torch.load("last.pt", weights_only=False)
    assert Path("trapped").exists()  # so the trap works


def test_only_tables_with_a_row_for_each_character_grow():
    """Not those of positions, if there are as many of them."""

    def make(vocab_size: int, block_size: int) -> nn.Module:
        return make_network(GPTConfig("gpt", n_embd=8, block_size=block_size), vocab_size)

    saved, larger = Checkpoint(vocab="abcdefgh", model=make(8, 8).state_dict()), make(9, 8)
    load_weights(saved, larger)
    assert torch.equal(larger.embedding.weight[:8], saved.model["embedding.weight"])
    with pytest.raises(UserError, match="position.weight"):
        load_weights(saved, make(8, 9))
    saved.model["head.weight"] = torch.zeros(8, 9)  # wider than that of the network
    with pytest.raises(UserError, match="does not fit the code"):
        load_weights(saved, larger)


def test_weights_are_restored_without_a_detour_over_the_cpu():
    """A new run's state is on its device. The device meta stands in for a GPU."""
    weights = make_network(GPTConfig("quill", n_embd=8), 9).to("meta")
    other = make_network(GPTConfig("quill", n_embd=8), 9).to("meta")
    load_weights(Checkpoint(vocab="abcdefghi", model=weights.state_dict()), other)
