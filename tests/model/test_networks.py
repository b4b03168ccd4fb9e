"""Tests of every network in model/networks/. They test a network of your own, too.

The tests use only the interface that model/networks/__init__.py describes. To test one network:
python -m pytest -n 0 tests/model/test_networks.py -k NAME
"""

import copy
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
from model.networks import make_network
from model.optim import make_optimizers
from tests.conftest import NO_MASK
from tests.helpers import (
    CONFIG,
    NETWORKS,
    assert_same_run,
    at_steps,
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


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_do_not_reach_future_characters(network):
    model, ids_BT, embedded = random_gpt(network=network), random_ids(1, 12), []

    def keep(module: nn.Module, args: tuple, output: object) -> None:
        if args and args[0] is ids_BT and torch.is_tensor(output):
            embedded.append(output)

    for module in model.children():
        module.register_forward_hook(keep)
    logits_TV = model(ids_BT)[0]
    if not embedded:
        pytest.skip("no layer reads the ids")
    for t in range(12):
        loss = logits_TV[t].square().sum()
        for gradient_BTC in torch.autograd.grad(loss, embedded, retain_graph=True):
            reached_T = gradient_BTC[0].flatten(1).any(dim=-1)
            assert reached_T[t]
            assert not reached_T[t + 1 :].any()


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


def mistake_of(network: str, block_size: int = 12) -> str:
    return find_mistake(make_network(replace(CONFIG, network=network, block_size=block_size), 11))


@pytest.mark.parametrize("block_size", [1, 2, 3, 12, 300])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_loss_means_something(network, block_size):
    assert mistake_of(network, block_size) == ""


@pytest.mark.parametrize("network", NETWORKS)
def test_a_check_changes_neither_weights_nor_random_numbers(network):
    model = random_gpt(network=network).train()
    before, state = {k: x.clone() for k, x in model.state_dict().items()}, torch.get_rng_state()
    assert find_mistake(model) == ""
    assert model.training
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("wrong", [False, True])
def test_training_warns_of_a_network_that_looks_ahead(wrong, edit_network, tiny, capsys):
    edit_network("quill", NO_MASK["quill"] if wrong else {})
    assert tiny("--network=mine --max_iters=1") == 0
    warning = "warning: the network mine looks ahead: its logits depend on later characters"
    assert (warning in capsys.readouterr().err) == wrong


def test_a_file_without_a_class_gpt_is_named(edit_network):
    edit_network("gpt", {"class GPT(nn.Module)": "class Network(nn.Module)"})
    with pytest.raises(UserError, match=r"mine\.py has no class GPT"):
        make_network(replace(CONFIG, network="mine"), 11)


def test_an_edit_of_the_equation_alone_is_found_because_the_kernel_stays(edit_network):
    edit = {"scores_BHTS.softmax(dim=-1)": "(2 * scores_BHTS).softmax(dim=-1)"}
    edit_network("quill", edit)
    assert "trains with PyTorch's kernel, which is not its equation" in mistake_of("mine")
    edit_network("quill", edit | {"if not is_recorded() and": "if False and"})
    assert mistake_of("mine") == ""


def test_a_wrong_cache_is_not_used(edit_network, capsys):
    """The check is made once, also for copies of the network."""
    edit_network("quill", {"cache.kept[self] = padded_BTC[:, -2:]": "pass"})
    model = random_gpt(network="mine")
    assert not uses_cache(model) and not uses_cache(copy.deepcopy(model))
    assert capsys.readouterr().err.count("warning: the KV cache changes the logits") == 1
    for network in NETWORKS:
        assert uses_cache(random_gpt(network=network)) == has_cache(network)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("network", ["gpt", "quill"])
@pytest.mark.parametrize("block_size", [2, 3, 12, 300])
def test_a_network_without_a_mask_looks_ahead(network, block_size, edit_network):
    edit_network(network, NO_MASK[network])
    assert "looks ahead" in mistake_of("mine", block_size)


def test_a_network_whose_layers_begin_with_zeros_looks_ahead(edit_network):
    """At the start its layers add zeros, so its logits depend on no other character."""
    init = "nn.init.normal_(parameter, std=0.02 * (2 * self.config.n_layer) ** -0.5)"
    edit_network("gpt", NO_MASK["gpt"] | {init: "nn.init.zeros_(parameter)"})
    assert "looks ahead" in mistake_of("mine")


def test_a_network_with_a_counter_does_not_repeat(edit_network):
    line = "return self.head(norm(x_BTC))"
    count = "self.calls = getattr(self, 'calls', 0) + 1\n        "
    edit_network("quill", {line: f"{count}{line} * self.calls"})
    assert "different logits in two equal calls" in mistake_of("mine")


@pytest.mark.parametrize(
    "mix",
    [
        "nn.MultiheadAttention(64, 2)(*[x_BTC] * 3)[0]",
        "x_BTC.mean(0)",
        "x_BTC[:1]",
        "x_BTC.cumsum(0)",
    ],
)
def test_a_network_that_mixes_the_examples_of_a_batch_is_found(mix, edit_network):
    """Without batch_first, nn.MultiheadAttention takes the batch dimension for the time."""
    line = "return self.head(norm(x_BTC))"
    mix = mix.replace("64", str(CONFIG.n_embd))
    edit_network("quill", {line: f"x_BTC = x_BTC + {mix}\n        {line}"})
    assert "mixes the examples" in mistake_of("mine")


def test_a_network_that_draws_random_numbers_does_not_look_ahead(edit_network):
    edit_network("gpt", {"self.dropout(weights_BHTT)": "nn.functional.dropout(weights_BHTT, 0.3)"})
    model, ids_BT = random_gpt(network="mine"), random_ids(1, 12)
    assert not torch.equal(model(ids_BT), model(ids_BT))
    assert not mistake_of("mine")


@pytest.mark.parametrize("width", [2, 8, 64, 128])
def test_a_network_that_looks_ahead_within_windows_looks_ahead(edit_network, width):
    """Each character sees its whole window. Two windows of 128 are the two halves of the text."""
    code = f"""x_BTC = self.dropout(self.embedding(ids_BT) + self.position(positions_T))
        parts = [x.mean(1, keepdim=True).expand_as(x) for x in x_BTC.split({width}, dim=1)]
        x_BTC = x_BTC + torch.cat(parts, dim=1)"""
    line = "x_BTC = self.dropout(self.embedding(ids_BT) + self.position(positions_T))"
    edit_network("gpt", {line: code})
    assert "looks ahead" in mistake_of("mine", 256)
