"""Tests of checkpoints: round trips, damaged files, states that do not fit the model."""

import hashlib
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from configs.errors import UserError
from configs.settings import GPTConfig
from model.networks import make_network
from model.run.checkpoint import MAGIC, Checkpoint, load, load_weights, save


def test_a_checkpoint_is_unchanged_after_saving_and_loading(tmp_path):
    weights = {"head.weight": torch.randn(3, 2)}
    saved = Checkpoint(step=7, val_loss=0.1, config={"lr": 1e-3}, vocab="\n aé中😀", model=weights)
    save(saved, tmp_path / "last.pt", tmp_path / "best.pt")
    loaded = load(tmp_path / "best.pt")
    torch.testing.assert_close(loaded.model, saved.model, rtol=0, atol=0)
    assert vars(loaded) | {"model": None} == vars(saved) | {"model": None}
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "last.pt"]
    torch.load(tmp_path / "last.pt", weights_only=True)  # PyTorch alone can read it, too


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("trapped",)


def test_a_malicious_pickle_is_never_executed():
    buffer = io.BytesIO()
    torch.save({"step": Trap()}, buffer)
    signed = buffer.getvalue() + MAGIC
    Path("last.pt").write_bytes(signed + hashlib.sha256(signed).digest())
    with pytest.raises(pickle.UnpicklingError):
        load("last.pt")
    assert not Path("trapped").exists()
    torch.load("last.pt", weights_only=False)
    assert Path("trapped").exists()  # so the trap works


def test_only_tables_with_a_row_for_each_character_grow():
    """A table of positions does not grow, even if it has as many rows as there are characters."""

    def make(vocab_size: int, block_size: int) -> nn.Module:
        return make_network(GPTConfig("gpt", n_embd=8, block_size=block_size), vocab_size)

    saved, larger = Checkpoint(vocab="abcdefgh", model=make(8, 8).state_dict()), make(9, 8)
    load_weights(larger, saved.model, 8)
    assert torch.equal(larger.embedding.weight[:8], saved.model["embedding.weight"])
    with pytest.raises(UserError, match="position.weight"):
        load_weights(make(8, 9), saved.model, 8)
    saved.model["head.weight"] = torch.zeros(8, 9)  # wider than the network's head
    with pytest.raises(UserError, match="does not fit the code"):
        load_weights(larger, saved.model, 8)
