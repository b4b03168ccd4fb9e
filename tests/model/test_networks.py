"""Tests of every network in model/networks/. They test a network of your own, too.

The tests use only the interface that model/networks/__init__.py describes. To test one network:
python -m pytest -n 0 tests/model/test_networks.py -k NAME
"""

import copy
import itertools
import math
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import train
from configs.errors import UserError
from configs.settings import GPTConfig, OptimConfig
from model.attention import Cache
from model.check import find_mistake, uses_cache
from model.networks import gpt, make_network, quill
from model.optim import make_optimizers
from tests.helpers import (
    CONFIG,
    NETWORKS,
    assert_same_run,
    at_steps,
    attend_without_mask,
    has_cache,
    random_gpt,
    random_ids,
)


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Compute in float64, so that rounding is far smaller than the effect of any mistake."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("cuts", [[1] * 40, [1, 3, 30, 6], [12] * 3, [30, 1, 1, 8], [2, 37, 1]])
@pytest.mark.parametrize("block_size", [1, 2, 12, 40, 100])
@pytest.mark.parametrize("network", list(filter(has_cache, NETWORKS)))
def test_cached_logits_equal_uncached_ones(network, block_size, cuts):
    """The text may be longer than block_size. Then attention sees only a part of the text."""
    model, cache = random_gpt(network=network, block_size=block_size), Cache()
    ids_BT = random_ids(2, sum(cuts))
    with torch.no_grad():
        logits = [model(part_BT, cache) for part_BT in ids_BT.split(cuts, dim=1)]
        torch.testing.assert_close(torch.cat(logits, dim=1), model(ids_BT))
    assert cache.length == ids_BT.size(1)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("network", NETWORKS)
def test_logits_do_not_depend_on_future_characters(network):
    model, ids_BT = random_gpt(network=network), random_ids(2, 12)
    before = model(ids_BT)
    for t in range(12):
        changed_BT = ids_BT.clone()
        changed_BT[:, t] = (changed_BT[:, t] + 1) % 11
        depends_T = (model(changed_BT) - before).abs().amax((0, 2)) > 1e-9
        assert not depends_T[:t].any()
        assert depends_T[t]


@pytest.mark.parametrize("network", NETWORKS)
def test_the_first_loss_is_near_that_of_a_uniform_guess(network):
    V = 65
    torch.manual_seed(0)
    model = make_network(GPTConfig(network=network), V).eval()
    ids_BT = random_ids(4, 257, V=V)
    with torch.no_grad():
        logits_BTV = model(ids_BT[:, :-1])
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(V), abs=0.2)


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_step_changes_every_parameter_that_the_loss_depends_on(network, optimizer):
    model, ids_BT = random_gpt(network=network).float().train(), random_ids(2, 13)
    optimizers = make_optimizers(model, OptimConfig(optimizer=optimizer), torch.float32)
    logits_BTV = model(ids_BT[:, :-1])
    F.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for each in optimizers:
        each.step()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.any():
            assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("network", NETWORKS)
def test_training_resumes_exactly(network, tiny, monkeypatch):
    flags = f"--network={network} --max_iters=8 --eval_interval=4 --log_interval=1 --dropout=0.2"
    with monkeypatch.context() as patch:
        at_steps(patch, [2], lambda _: os.kill(os.getpid(), signal.SIGINT))
        assert tiny(f"{flags} --out_dir=stopped") == 130
    at_steps(monkeypatch, [6], lambda _: shutil.copytree("whole", "killed"))
    assert tiny(f"{flags} --out_dir=whole") == 0
    for run in ("stopped", "killed"):
        assert train.main(["--resume", run]) == 0
        assert_same_run(Path("whole"), Path(run))


@pytest.mark.parametrize("block_size", [1, 2, 3, 12, 300])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_loss_means_something(network, block_size):
    config = replace(CONFIG, network=network, block_size=block_size)
    assert find_mistake(make_network(config, 11)) == ""


@pytest.mark.parametrize("network", NETWORKS)
def test_a_check_changes_neither_weights_nor_random_numbers(network):
    model = random_gpt(network=network).train()
    before, state = {k: x.clone() for k, x in model.state_dict().items()}, torch.get_rng_state()
    assert find_mistake(model) == ""
    assert model.training
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    assert torch.get_rng_state().equal(state)


# The tests below edit our networks: they replace a method, or change what a layer passes on.


@pytest.mark.parametrize("block_size", [2, 3, 12, 300])
@pytest.mark.parametrize("network", [gpt, quill])
def test_a_network_without_a_mask_looks_ahead(network, block_size, monkeypatch):
    """This is found even if the layers begin with zeros, which hide all other characters."""
    monkeypatch.setattr(network.Attention, "forward", attend_without_mask)
    config = replace(CONFIG, network=network.__name__.split(".")[-1], block_size=block_size)
    model = make_network(config, 11)
    assert "looks ahead" in find_mistake(model)
    for block in model.blocks:
        nn.init.zeros_(block.attention.proj.weight)
    assert "looks ahead" in find_mistake(model)


def test_training_warns_of_a_network_that_looks_ahead(monkeypatch, tiny, capsys):
    monkeypatch.setattr(quill.Attention, "forward", attend_without_mask)
    assert tiny("--max_iters=1") == 0
    warning = "warning: the network quill looks ahead: its logits depend on later characters"
    assert warning in capsys.readouterr().out


def test_a_file_without_a_class_gpt_is_named(monkeypatch):
    monkeypatch.delattr(gpt, "GPT")
    with pytest.raises(UserError, match=r"gpt\.py has no class GPT"):
        make_network(replace(CONFIG, network="gpt"), 11)


def test_a_kernel_that_is_not_the_equation_is_found(monkeypatch):
    """So it is if only the equation is edited."""
    kernel = quill.Attention.attend_by_kernel
    monkeypatch.setattr(
        quill.Attention, "attend_by_kernel", lambda self, q, k, v: kernel(self, 2 * q, k, v)
    )
    mistake = find_mistake(random_gpt())
    assert "trains with PyTorch's kernel, which is not its equation" in mistake


def test_a_wrong_cache_is_not_used(monkeypatch, capsys):
    """The check is made once, also for copies of the network."""
    for network in NETWORKS:
        assert uses_cache(random_gpt(network=network)) == has_cache(network)
    assert not capsys.readouterr().err
    shift = quill.TokenShift.forward
    monkeypatch.setattr(quill.TokenShift, "forward", lambda self, x_BTC, cache: shift(self, x_BTC))
    model = random_gpt()
    assert not uses_cache(model) and not uses_cache(copy.deepcopy(model))
    assert capsys.readouterr().err.count("warning: the KV cache changes the logits") == 1


def test_a_network_with_a_counter_does_not_repeat():
    model, calls = random_gpt(), itertools.count(1)
    model.register_forward_hook(lambda _, args, logits_BTV: logits_BTV * next(calls))
    assert "different logits in two equal calls" in find_mistake(model)


ATTENTION = nn.MultiheadAttention(CONFIG.n_embd, 2)  # batch_first would be right


@pytest.mark.parametrize(
    "mix",
    [
        lambda x_BTC: ATTENTION(x_BTC, x_BTC, x_BTC)[0],
        lambda x_BTC: x_BTC.mean(0),
        lambda x_BTC: x_BTC[:1],
        lambda x_BTC: x_BTC.cumsum(0),
    ],
)
def test_a_network_that_mixes_the_examples_of_a_batch_is_found(mix):
    model = random_gpt()
    model.head.register_forward_pre_hook(lambda _, args: args[0] + mix(args[0]))
    assert "mixes the examples" in find_mistake(model)


def test_a_network_that_draws_random_numbers_does_not_look_ahead():
    model, ids_BT = random_gpt(), random_ids(1, 12)
    model.head.register_forward_pre_hook(lambda _, args: F.dropout(args[0], 0.3))
    assert not torch.equal(model(ids_BT), model(ids_BT))
    assert not find_mistake(model)


@pytest.mark.parametrize("width", [2, 8, 64, 128])
def test_a_network_that_looks_ahead_within_windows_looks_ahead(width):
    """Each character sees its whole window. Two windows of 128 are the two halves of the text."""

    def add_means(_, args, x_BTC):
        parts = x_BTC.split(width, dim=1)
        return x_BTC + torch.cat([x.mean(1, keepdim=True).expand_as(x) for x in parts], dim=1)

    model = random_gpt(network="gpt", block_size=256)
    model.dropout.register_forward_hook(add_means)  # it follows the embeddings
    assert "looks ahead" in find_mistake(model)
