"""The laws of saving: what goes in comes out, whole or not at all."""

import copy
import errno
import hashlib
import io
import os
import random

import pytest
import torch

from model.checkpoint import MAGIC, Checkpoint, capture, load, restore, save
from model.gpt import GPT, GPTConfig
from model.optim import OptimConfig, optimizers

STATE = Checkpoint(
    config={"n_layer": 2, "learning_rate": 1e-3, "encoding": "utf-8"},
    vocab="\n aé中😀",
    model={"weight": torch.arange(6.0).view(2, 3)},
    optimizers=[{0: {"step": torch.tensor(3.0)}}],
    step=7,
    best_val_loss=1.5,
    best_iter=5,
)


@pytest.fixture
def path(tmp_path):
    save(STATE, tmp_path / "last.pt")
    return tmp_path / "last.pt"


def test_what_is_saved_is_loaded(path):
    loaded = load(path)
    assert torch.equal(loaded.model["weight"], STATE.model["weight"])
    assert loaded.optimizers[0][0]["step"] == 3
    for name in ("config", "vocab", "step", "val_loss", "best_val_loss", "best_iter", "seconds"):
        assert getattr(loaded, name) == getattr(STATE, name)
    assert os.listdir(path.parent) == ["last.pt"]


def test_two_names_hold_the_same(tmp_path):
    save(STATE, tmp_path / "a.pt", tmp_path / "b.pt")
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
    assert load(tmp_path / "b.pt").step == STATE.step


def test_pytorch_reads_it_too(path):
    assert torch.load(path, weights_only=True)["step"] == 7


def test_a_cut_anywhere_is_refused(path):
    whole = path.read_bytes()
    for length in [
        0,
        1,
        31,
        32,
        40,
        *random.Random(0).sample(range(len(whole)), 100),
        len(whole) - 1,
    ]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"last\.pt"):
            load(path)


def test_a_flipped_bit_anywhere_is_refused(path):
    whole, draw = path.read_bytes(), random.Random(0)
    for at in [0, len(whole) - 1, len(whole) - 33, *draw.sample(range(len(whole)), 300)]:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        with pytest.raises(ValueError, match="damaged"):
            load(path)


def test_the_other_checkpoint_is_named_where_one_is_damaged(path):
    path.with_name("best.pt").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"best\.pt may be whole.*--resume .*best\.pt$"):
        load(path)


class Trap:
    """Unpickled, it would make a file."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return open, (self.target, "w")


@pytest.mark.parametrize("sealed", [False, True])
def test_a_malicious_pickle_is_never_executed(tmp_path, sealed):
    buffer = io.BytesIO()
    torch.save({"step": Trap(tmp_path / "trapped")}, buffer)
    payload = buffer.getvalue() + MAGIC
    path = tmp_path / "evil.pt"
    path.write_bytes(payload + hashlib.sha256(payload).digest() if sealed else buffer.getvalue())
    with pytest.raises(ValueError, match=r"evil\.pt is no checkpoint"):
        load(path)
    assert not (tmp_path / "trapped").exists()
    torch.load(path, weights_only=False)  # the trap does work
    assert (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": "7"},
        {"step": -1, "vocab": "ab"},
        {"vocab": ""},
        {"vocab": "ab", "config": {1: 2}},
        {"vocab": "ab", "step": True},
        {"vocab": "ab", "step": 2**60},
        {"vocab": "ab", "seconds": float("nan")},
        {"vocab": "ab", "best_val_loss": 1.0},
        {"model": None},
        {"best_val_loss": "low"},
        {"surprise": 1},
    ],
)
def test_a_sealed_file_of_other_content_is_refused(tmp_path, wrong):
    buffer = io.BytesIO()
    torch.save(wrong, buffer)
    payload = buffer.getvalue() + MAGIC
    (tmp_path / "x.pt").write_bytes(payload + hashlib.sha256(payload).digest())
    with pytest.raises(ValueError, match="no checkpoint"):
        load(tmp_path / "x.pt")


def test_memory_that_is_not_there_is_no_damage(path, monkeypatch):
    def full(*args, **options):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(MemoryError, match=r"out of memory for .*last\.pt of [\d,]+ bytes"):
        load(path)


WRONG = {
    "a name less": lambda memory: memory.pop("exp_avg"),
    "another shape": lambda memory: memory.update(exp_avg=memory["exp_avg"][:1]),
    "one number in many places": lambda memory: memory.update(
        exp_avg=torch.zeros(1, 1).expand(5, 16)
    ),
    "no tensor": lambda memory: memory.update(step=3.0),
    "whole numbers": lambda memory: memory.update(exp_avg=memory["exp_avg"].long()),
}


@pytest.mark.parametrize("spoil", [None, *WRONG.values()], ids=["whole", *WRONG])
def test_an_optimiser_s_memory_that_would_fail_at_the_first_step_is_refused_before_it(spoil):
    state, scaler = Checkpoint(), torch.amp.GradScaler(enabled=False)
    model = GPT(GPTConfig(n_layer=1, n_embd=16), 5)
    capture(state, model, optimizers(model, OptimConfig(), torch.float32), scaler)
    state = copy.deepcopy(state)
    if spoil is None:
        return restore(state, model, optimizers(model, OptimConfig(), torch.float32), scaler)
    spoil(state.optimizers[1][0])
    with pytest.raises(ValueError, match="does not fit"):
        restore(state, model, optimizers(model, OptimConfig(), torch.float32), scaler)


@pytest.mark.parametrize("name", ["missing.pt", "."])
def test_what_cannot_be_read_is_named(tmp_path, name):
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path / name)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_never_saved(path, number):
    before = path.read_bytes()
    with pytest.raises(FloatingPointError, match=r"last\.pt"):
        save(Checkpoint(model={"weight": torch.tensor([1.0, number])}), path)
    with pytest.raises(FloatingPointError, match=r"last\.pt"):
        save(Checkpoint(optimizers=[{0: {"momentum": torch.tensor([1.0, number])}}]), path)
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_previous_checkpoint_whole(path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(Checkpoint(), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["last.pt"]
