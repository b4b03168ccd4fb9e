"""The law of native.c: it is the model, in other words."""

import subprocess

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model import native
from model.generate import SamplingConfig, generate
from model.gpt import GPT, GPTConfig
from model.native import Native

needs_a_compiler = pytest.mark.skipif(native.library() is None, reason="there is no C compiler")


def network(V: int, **size: int) -> GPT:
    """A network as if trained: no weight is zero."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**size), V).eval()
    for weight in model.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.2)
    return model


sizes = st.fixed_dictionaries(
    {
        "n_layer": st.integers(1, 3),
        "n_head": st.integers(1, 3),
        "half_width": st.sampled_from([1, 2, 7, 16, 17, 33]),
        "block_size": st.sampled_from([1, 2, 31, 32, 33, 64]),
    }
)


@pytest.fixture
def fresh():
    """`library` as it is before its first call, before the test and after."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


@needs_a_compiler
@settings(max_examples=60)
@given(sizes, st.sampled_from([2, 31, 33, 100]), st.sampled_from([1, 2, 7, 8, 9, 17]))
def test_it_gives_the_model_s_logits_at_every_position(size, V, B):
    width = size.pop("half_width") * 2 * size["n_head"]
    model, T = network(V, n_embd=width, **size), 70
    ids_BT = np.random.default_rng(0).integers(V, size=(B, T))
    read = Native(model, B)
    read.state = np.append(
        read.state, np.full(64, 7, np.float32)
    )  # behind its end nothing is written
    read.logits_BV = np.full((B + 1, V), 7, np.float32)
    read.taken = read.state.ctypes.data, read.logits_BV.ctypes.data
    logits_BTV = np.stack([read(ids_BT[:, t : t + 1])[:B].copy() for t in range(T)], 1)
    assert (read.state[-64:] == 7).all()
    assert (read.logits_BV[B:] == 7).all()
    with torch.no_grad():
        expected_BTV = model.double()(torch.from_numpy(ids_BT)).numpy()
    np.testing.assert_allclose(
        logits_BTV, expected_BTV, rtol=1e-3, atol=1e-3 * np.abs(expected_BTV).max()
    )


@needs_a_compiler
def test_far_from_the_start_it_is_as_exact_as_near_it():
    model = network(11, n_embd=32, block_size=8)
    ids_BT, near, far = (
        np.random.default_rng(0).integers(11, size=(2, 90)),
        Native(model, 2),
        Native(model, 2),
    )
    far.position = 10**9
    np.testing.assert_allclose(far(ids_BT), near(ids_BT), rtol=1e-4, atol=1e-4)


@needs_a_compiler
def test_a_text_has_the_same_logits_to_the_last_bit_wherever_it_is_read():
    model, ids_T = (
        network(37, n_embd=40, n_head=2, block_size=8),
        np.random.default_rng(0).integers(37, size=(1, 20)),
    )
    alone, beside = Native(model, 1)(ids_T), Native(model, 9)(ids_T.repeat(9, 0))
    assert (beside == alone).all()


@needs_a_compiler
def test_how_a_text_is_cut_changes_nothing():
    model, ids_BT = (
        network(11, n_embd=32, block_size=8),
        np.random.default_rng(0).integers(11, size=(3, 20)),
    )
    whole, pieces = Native(model, 3), Native(model, 3)
    for piece in np.split(ids_BT, [1, 5, 6], axis=1):
        last = pieces(piece)
    assert (whole(ids_BT) == last).all()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_machine_without_a_compiler_writes_the_same(fresh, monkeypatch, compiler):
    model, config = network(11, n_embd=32, block_size=8), SamplingConfig(max_new_tokens=50)
    before = np.stack(list(generate(model, [1], config)))
    native.library.cache_clear()
    monkeypatch.setenv("CC", compiler)
    assert not native.suits(model)
    assert (np.stack(list(generate(model, [1], config))) == before).all()


@needs_a_compiler
def test_it_is_compiled_once_and_again_where_it_is_damaged_or_cannot_be_kept(
    fresh, monkeypatch, tmp_path
):
    calls, run = [], subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda argv, **how: calls.append(argv) or run(argv, **how)
    )

    def compiled(folder: str, code: str) -> int:
        """How often it was, up to and with this time."""
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setattr(native, "SOURCE", tmp_path / folder / "native.c")
        native.SOURCE.write_text(code)
        native.library.cache_clear()
        assert native.library()
        return sum("-c" in argv for argv in calls)

    assert [compiled("a", "int step;") for _ in range(2)] == [
        1,
        2,
    ]  # there is no folder to keep it in
    (tmp_path / "a/__pycache__").mkdir()
    assert [compiled("a", "int step;") for _ in range(3)] == [3, 3, 3]
    (kept,) = (tmp_path / "a/__pycache__").iterdir()
    damaged = tmp_path / "b/__pycache__" / kept.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(kept.read_bytes()[:4096])  # which, loaded, would end the process
    assert [compiled("b", "int step;") for _ in range(2)] == [4, 4]
    assert compiled("b", "int step, other;") == 5


@needs_a_compiler
def test_numbers_near_zero_stay_what_they_are(fresh):
    """A library linked with -ffast-math would have them flushed to zero in all that follows, training too."""
    assert native.library()
    assert torch.tensor([1e-40]).mul(0.5).item() > 0


@needs_a_compiler
def test_half_precision_and_double_are_left_to_the_model():
    model = network(11, n_embd=32)
    assert native.suits(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert not native.suits(model)
    assert not native.suits(model.double())
