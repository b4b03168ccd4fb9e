"""Tests of checkpoints: round trips, damaged files, states that do not fit the model."""

import hashlib
import io
import os
from math import inf, nan
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.amp import GradScaler

from model.checkpoint import MAGIC, Checkpoint, capture, load, restore, save
from model.errors import RunError, UserError
from model.gpt import GPT, GPTConfig
from model.optim import OptimConfig, make_optimizers

STATE = Checkpoint({"lr": 1e-3}, "\n aé中😀", model={"w": torch.ones(2, 3)}, step=7, val_loss=0.1)
OPTIMIZERS = {
    "Muon and AdamW": lambda model: make_optimizers(model, OptimConfig(), torch.float32),
    "SGD": lambda model: [torch.optim.SGD(model.named_parameters(), lr=0.1, momentum=0.9)],
    "Adafactor": lambda model: [torch.optim.Adafactor(model.named_parameters())],
}


@pytest.fixture
def path(tmp_path):
    save(STATE, tmp_path / "last.pt")
    return tmp_path / "last.pt"


def make_model(n_embd: int = 8) -> GPT:
    return GPT(GPTConfig(n_layer=2, n_head=2, n_embd=n_embd), vocab_size=5)


def train_steps(model: GPT, optimizers: list) -> None:
    """Three steps with random gradients, the same each time."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()


def trained(name: str) -> tuple[GPT, list, GradScaler, Checkpoint]:
    model, scaler, state = make_model(), GradScaler("cpu", init_scale=8.0), Checkpoint()
    optimizers = OPTIMIZERS[name](model)
    train_steps(model, optimizers)
    capture(state, model, optimizers, scaler)
    return model, optimizers, scaler, state


def test_a_checkpoint_is_unchanged_after_saving_and_loading(path):
    save(STATE, path, path.with_name("best.pt"))
    loaded = load(path.with_name("best.pt"))
    assert torch.equal(loaded.model.pop("w"), STATE.model["w"])
    assert vars(loaded) == vars(STATE) | {"model": {}}
    assert path.with_name("best.pt").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(path.parent)) == ["best.pt", "last.pt"]
    assert torch.load(path, weights_only=True)["step"] == 7  # PyTorch alone can read it too


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_from_a_restored_checkpoint_continues_exactly(path, name):
    model, optimizers, scaler, state = trained(name)
    save(state, path)
    other_model, other_scaler = make_model(), GradScaler("cpu")
    other_optimizers = OPTIMIZERS[name](other_model)
    restore(load(path), other_model, other_optimizers, other_scaler)
    assert other_scaler.state_dict() == scaler.state_dict()
    train_steps(model, optimizers)
    train_steps(other_model, other_optimizers)
    for ours, theirs in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("change", ["swapped blocks", "other shapes", "one optimizer more"])
def test_optimizer_states_of_other_parameters_are_refused(name, change):
    if change == "other shapes" and name != "Muon and AdamW":
        pytest.skip("PyTorch's own optimizers raise an error at the next step unless fused")
    *_, scaler, state = trained(name)
    model = make_model(n_embd=12 if change == "other shapes" else 8)
    if change == "swapped blocks":  # the same names and shapes in another order
        model.blocks._modules = dict(reversed(model.blocks._modules.items()))
    state.model = model.state_dict()  # it fits: only the optimizers do not
    optimizers = OPTIMIZERS[name](model) * (2 if change == "one optimizer more" else 1)
    with pytest.raises(UserError, match="does not fit the code in model/"):
        restore(state, model, optimizers, scaler)


@pytest.mark.parametrize(("where", "number"), [("weights", inf), ("optimizer state", nan)])
def test_numbers_that_are_not_finite_are_never_captured(where, number):
    model, optimizers, scaler, _ = trained("SGD")
    weight = model.head.weight
    tensor = weight if where == "weights" else optimizers[0].state[weight]["momentum_buffer"]
    tensor.data[0, 0] = number
    with pytest.raises(RunError, match="no longer finite"):
        capture(Checkpoint(), model, optimizers, scaler)


class Trap:
    """Unpickled, it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_a_malicious_pickle_is_never_executed(path):
    buffer = io.BytesIO()
    torch.save({"step": Trap()}, buffer)
    signed = buffer.getvalue() + MAGIC
    path.write_bytes(signed + hashlib.sha256(signed).digest())
    with pytest.raises(UserError, match=r"last\.pt is not a checkpoint"):
        load(path)
    assert not Path("trapped").exists()
    torch.load(path, weights_only=False)
    assert Path("trapped").exists()  # so the trap works


def test_running_out_of_memory_is_not_reported_as_damage(path, monkeypatch):
    monkeypatch.setattr(torch, "load", Mock(side_effect=RuntimeError("can't allocate memory")))
    with pytest.raises(RunError, match=r"out of memory\. .*last\.pt does not fit"):
        load(path)
