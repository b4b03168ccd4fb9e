"""The proof that csampler.c gives the logits of the network, and what happens without it."""

import functools
import subprocess
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.schema import make_config
from configs.training import TrainConfig
from model import checkpoint
from model.attention import Cache
from model.fast import csampler
from model.fast.csampler import load_library, make_c_step_fn, make_csampler, pack_weights
from model.network import make_network
from tests.conftest import LINES
from tests.model.test_networks import random_gpt, random_ids

needs_compiler = pytest.mark.skipif(load_library() is None, reason="there is no C compiler")


@needs_compiler
@torch.no_grad()
@pytest.mark.parametrize("part_length", [1, 3, 16, 48])
def test_logits_of_a_trained_network_are_the_same_in_c_and_with_a_cache(trained_run, part_length):
    """For texts of its language and random ones, of every length up to three times its window."""
    saved = checkpoint.load(trained_run / "best.pt")
    model = make_network(make_config(TrainConfig, saved.config).model, len(saved.vocab)).eval()
    checkpoint.restore(saved, model)
    ids_BT = torch.tensor([saved.vocab.index(char) for char in LINES]).unfold(0, 48, 29)
    ids_BT = torch.cat((ids_BT, random_ids(*ids_BT.shape, V=len(saved.vocab))))
    step, cache = make_c_step_fn(model, pack_weights(model), len(ids_BT)), Cache()
    expected_BTV = model.double()(ids_BT)
    parts = zip(*(x.split(part_length, dim=1) for x in (ids_BT, expected_BTV)), strict=True)
    for part_BT, expected_part_BTV in parts:
        torch.testing.assert_close(model(part_BT, cache), expected_part_BTV)
        logits_BV, expected_BV = step(part_BT.numpy()), expected_part_BTV[:, -1]
        np.testing.assert_allclose(logits_BV, expected_BV, rtol=1e-4, atol=1e-4)


@needs_compiler
@torch.no_grad()
@pytest.mark.parametrize("scale", 10.0 ** np.arange(16, 18, 0.25))
def test_logits_are_the_same_in_c_where_a_variance_overflows(scale):
    """What `norm` divides by an infinite variance is 0."""
    model, ids_BT = random_gpt(n_embd=32).float(), random_ids(3, 40)
    for block in model.blocks:
        block.mlp_1.proj.weight.mul_(scale)
    logits_BV, expected_BTV = (
        make_c_step_fn(model, pack_weights(model), 3)(ids_BT.numpy()),
        model(ids_BT),
    )
    assert expected_BTV.isfinite().all()
    np.testing.assert_allclose(logits_BV, expected_BTV[:, -1], rtol=1e-4, atol=1e-4)


def guard_arrays(patch) -> list[np.ndarray]:
    """Put 64 sevens before and after each new array; returns these arrays with their sevens."""
    guarded, zeros = [], np.zeros

    def allocate(shape, dtype=float):
        array = zeros(np.prod(shape) + 128, dtype)
        array[:64] = array[-64:] = 7
        guarded.append(array)
        return array[64:-64].reshape(shape)

    patch.setattr(np, "zeros", allocate)
    patch.setattr(np, "empty", allocate)
    return guarded


@needs_compiler
@settings(max_examples=25)
@given(
    B=st.sampled_from([1, 7, 8, 9, 17]),
    D=st.sampled_from([4, 14, 32, 34, 66]),
    V=st.sampled_from([2, 31, 33, 100]),
    n_head=st.integers(1, 3),
    n_layer=st.integers(1, 2),
    block_size=st.sampled_from([1, 2, 31, 32, 33, 64]),
)
def test_logits_equal_the_model_and_nothing_is_written_beyond_the_arrays(B, D, V, n_head, **sizes):
    """And those of a text are the same to the last bit alone and beside others."""
    model = random_gpt(V, n_head=n_head, n_embd=n_head * D, **sizes).float()
    weights, ids_BT = pack_weights(model), random_ids(B, 70, V=V)
    with pytest.MonkeyPatch.context() as patch:
        guarded = guard_arrays(patch)
        step, step_alone = (make_c_step_fn(model, weights, n) for n in (B, 1))
    logits_TBV = [step(ids_B1).copy() for ids_B1 in ids_BT.numpy().T[..., None]]
    assert all((np.append(array[:64], array[-64:]) == 7).all() for array in guarded)
    for logits_BV, id_ in zip(logits_TBV, ids_BT[-1].numpy(), strict=True):
        np.testing.assert_array_equal(step_alone(id_[None, None])[0], logits_BV[-1])
    expected_TBV = model.double()(ids_BT).detach().transpose(0, 1).numpy()
    atol = 1e-3 * np.abs(expected_TBV).max()
    np.testing.assert_allclose(logits_TBV, expected_TBV, rtol=1e-3, atol=atol)


@needs_compiler
def test_other_networks_devices_precisions_and_long_windows_are_left_to_pytorch(monkeypatch):
    model = random_gpt().float()
    assert make_csampler(model) is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert make_csampler(model) is None
    assert make_csampler(random_gpt(block_size=csampler.MAX_WINDOW + 1).float()) is None
    assert make_csampler(random_gpt().double()) is None
    assert make_csampler(random_gpt().float().to("meta")) is None  # not on a CPU
    assert make_csampler(random_gpt(network="gpt").float()) is None
    edited = random_gpt().float()
    edited.has_proven_cache = False
    assert make_csampler(edited) is None
    monkeypatch.setattr(csampler, "IS_PROVEN", False)
    assert make_csampler(model) is None


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_pytorch_is_used_with_one_note(monkeypatch, capsys, compiler):
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(csampler, "load_library", functools.cache(load_library.__wrapped__))
    assert [make_csampler(random_gpt().float()) for _ in range(2)] == [None, None]
    assert capsys.readouterr().err.count("note: the C sampler cannot be compiled") == 1


@needs_compiler
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_of_the_compiler_stands_for_cc(monkeypatch, name):
    monkeypatch.setenv("CC", name)
    assert load_library.__wrapped__() is not None


@needs_compiler
@pytest.mark.parametrize(("n_layer", "block_size"), [(1, 1), (1, 4), (2, 3)])
def test_logits_after_a_long_text_equal_the_model(n_layer, block_size):
    """Far from the start, and where a long prompt is cut to the receptive field."""
    model = random_gpt(n_layer=n_layer, block_size=block_size).float()
    ids_BT = random_ids(1, 50_000)
    expected_BV = model(ids_BT[:, -100:])[:, -1].detach()
    cut, whole = (make_c_step_fn(model, pack_weights(model), 1) for _ in range(2))
    whole(ids_BT[:, :1].numpy())  # only the first part of a text is cut
    for logits_BV in (cut(ids_BT.numpy()), whole(ids_BT[:, 1:].numpy())):
        np.testing.assert_allclose(logits_BV, expected_BV, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_library_is_compiled_once_and_again_if_edited(monkeypatch, tmp_path):
    run = Mock(wraps=subprocess.run)
    monkeypatch.setattr(csampler, "SOURCE", tmp_path / "csampler.c")
    monkeypatch.setattr(subprocess, "run", run)

    def is_compiled(code: str) -> bool:
        csampler.SOURCE.write_text(code)
        run.reset_mock()
        assert load_library.__wrapped__()  # not cached
        return any("-c" in call.args[0] for call in run.call_args_list)

    edits = ["int step;", "int step;", "int step, edited;", "int step;"]
    assert [is_compiled(code) for code in edits] == [True, False, True, False]


@needs_compiler
def test_library_does_not_flush_tiny_numbers_to_zero_in_the_whole_process():
    """As one that is linked with -ffast-math would."""
    assert torch.tensor([1e-40]).mul(0.5).item() > 0
