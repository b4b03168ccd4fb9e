"""Tests of the C sampler: it gives the logits of the model, or it is not used."""

import shutil
import subprocess
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from model import csampler
from model.csampler import MAX_WINDOW, CSampler, load_library, make_csampler
from tests.model.test_gpt import random_gpt, random_ids

needs_compiler = pytest.mark.skipif(load_library() is None, reason="there is no C compiler")


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
    model = random_gpt(V, n_head=n_head, n_embd=n_head * D, **sizes).float()
    sampler, ids_BT = CSampler(model), random_ids(B, 70, V=V)
    with pytest.MonkeyPatch.context() as patch:
        guarded = guard_arrays(patch)
        read = sampler.start(B)
    steps = [read(ids_B1).copy() for ids_B1 in ids_BT.numpy().T[..., None]]
    assert guarded
    assert all((np.append(array[:64], array[-64:]) == 7).all() for array in guarded)
    assert make_csampler(model) is not None
    expected_BTV = model.double()(ids_BT).detach().numpy()
    atol = 1e-3 * np.abs(expected_BTV).max()
    np.testing.assert_allclose(np.stack(steps, axis=1), expected_BTV, rtol=1e-3, atol=atol)


@needs_compiler
@pytest.mark.parametrize(
    ("edit", "difference"),
    [
        (lambda b: setattr(b.mlp_1, "proj", nn.Linear(64, 16)), "blocks.1.mlp_1.proj.bias"),
        (lambda b: setattr(b.attention, "window", 9), "other logits"),
    ],
)
def test_edited_network_is_left_to_pytorch_with_one_note(capsys, edit, difference):
    model = random_gpt(block_size=8).float()
    edit(model.blocks[1])
    assert make_csampler(model) is make_csampler(model) is None
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: ")
    assert difference in note


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_pytorch_is_used_with_one_note(monkeypatch, capsys, compiler):
    model = random_gpt().float()
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(csampler, "load_library", load_library.__wrapped__)  # not cached
    assert make_csampler(model) is make_csampler(model) is None
    assert capsys.readouterr().err.count("note: no C compiler was found") == 1


@needs_compiler
def test_other_precisions_and_long_windows_are_left_to_pytorch_without_a_note(capsys):
    model = random_gpt().float()
    assert make_csampler(model) is not None
    with torch.autocast("cpu", torch.bfloat16):
        assert make_csampler(model) is None
    assert make_csampler(random_gpt(block_size=MAX_WINDOW + 1).float()) is None
    assert make_csampler(model.double()) is None
    assert capsys.readouterr().err == ""


@needs_compiler
def test_logits_of_a_text_are_the_same_to_the_last_bit_alone_beside_others_and_in_parts():
    sampler, ids_BT = CSampler(random_gpt(V=37, n_embd=40).float()), random_ids(1, 20).numpy()
    logits_BV, in_parts = sampler.start(1)(ids_BT), sampler.start(1)
    assert (sampler.start(9)(ids_BT.repeat(9, 0)) == logits_BV).all()
    for part_BT in np.split(ids_BT, [1, 5, 6], axis=1):
        part_logits_BV = in_parts(part_BT)
    assert (part_logits_BV == logits_BV).all()


@needs_compiler
@pytest.mark.parametrize(("n_layer", "block_size"), [(1, 1), (1, 4), (2, 3)])
def test_logits_after_a_long_text_equal_the_model(n_layer, block_size):
    """Far from the start, and where a long prompt is cut to the receptive field."""
    model, ids_BT = (
        random_gpt(n_layer=n_layer, block_size=block_size).float(),
        random_ids(1, 50_000),
    )
    for block in model.blocks:  # make the first character of the receptive field matter
        block.shift_attention.mix_2.data *= 10
        block.shift_mlp_1.mix_2.data *= 10
        block.shift_mlp_2.mix_2.data *= 10
    ids_BT = random_ids(1, 50_000)
    expected_BV = model(ids_BT[:, -100:])[:, -1].detach()
    cut, whole = CSampler(model).start(1), CSampler(model).start(1)
    whole(ids_BT[:, :1].numpy())  # only the first part of a text is cut
    for logits_BV in (cut(ids_BT.numpy()), whole(ids_BT[:, 1:].numpy())):
        np.testing.assert_allclose(logits_BV, expected_BV, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_library_is_compiled_once_and_again_if_edited_or_damaged_or_not_kept(monkeypatch, tmp_path):
    source, kept = tmp_path / "csampler.c", tmp_path / "__pycache__"
    run = Mock(wraps=subprocess.run)
    monkeypatch.setattr(csampler, "SOURCE", source)
    monkeypatch.setattr(subprocess, "run", run)

    def count_compilations(code: str) -> int:
        source.write_text(code)
        run.reset_mock()
        assert load_library.__wrapped__()  # not cached
        return sum("-c" in call.args[0] for call in run.call_args_list)

    assert [count_compilations("int step;") for _ in range(3)] == [1, 0, 0]
    assert count_compilations("int step, edited;") == 1
    for path in kept.iterdir():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content[:4096])  # loading it would crash the process
    assert [count_compilations("int step;") for _ in range(2)] == [1, 0]
    shutil.rmtree(kept)
    kept.touch()  # not a directory, so nothing can be kept
    assert [count_compilations("int step;") for _ in range(2)] == [1, 1]


@needs_compiler
def test_library_does_not_flush_tiny_numbers_to_zero_in_the_whole_process():
    """As one that is linked with -ffast-math would."""
    assert torch.tensor([1e-40]).mul(0.5).item() > 0
