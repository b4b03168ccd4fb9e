"""Tests of all networks in PROVEN: what each logit depends on, their layers, the cache."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from model.attention import Cache
from model.network import GPTConfig, make_network
from model.run.errors import UserError
from model.run.source import PROVEN

NETWORKS = [name.removeprefix("model.networks.") for name in PROVEN if "networks" in name]
CONFIG = GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=12)


def random_gpt(V: int = 11, network: str = "quill", **settings: float) -> nn.Module:
    """A network as if trained, in which no parameter is as at the start. In float64."""
    torch.manual_seed(0)
    model = make_network(replace(CONFIG, network=network, **settings), V).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, parameter.mean().item(), std=0.3)
    return model


def random_ids(*shape: int, V: int = 11) -> torch.Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_compiler_sees_a_network_as_one_graph_also_with_dropout(network):
    """Where it cannot trace an operation, it may run all of `forward` uncompiled."""
    model = random_gpt(network=network, dropout=0.5).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(model, fullgraph=True, backend="eager")(random_ids(2, 8))


@pytest.mark.parametrize("network", NETWORKS)
def test_logits_do_not_depend_on_future_characters(network):
    model, ids_BT = random_gpt(network=network), random_ids(2, 12)
    before = model(ids_BT)
    for t in range(12):
        changed_BT = ids_BT.clone()
        changed_BT[:, t] = (changed_BT[:, t] + 1) % 11
        depends = (model(changed_BT) - before).abs().amax((0, 2)) > 1e-9
        assert depends.tolist() == [False] * t + [True] * (12 - t)


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_do_not_reach_future_characters(network):
    model, embedded = random_gpt(network=network), []
    model.embedding.register_forward_hook(lambda _, args, x_BTC: embedded.append(x_BTC))
    logits_TV = model(random_ids(1, 12))[0]
    for t in range(12):
        loss = logits_TV[t].square().sum()
        (gradient_BTC,) = torch.autograd.grad(loss, embedded, retain_graph=True)
        reached = gradient_BTC[0].any(dim=-1)
        assert reached.tolist() == [True] * (t + 1) + [False] * (11 - t)


@pytest.mark.parametrize("network", NETWORKS)
def test_one_character_in_two_contexts_has_one_embedding_and_two_vectors(network):
    """As the word "bank" in an article."""
    model, seen = random_gpt(network=network), {}
    model.embedding.register_forward_hook(lambda _, args, x_BTC: seen.update(static=x_BTC))
    model.head.register_forward_pre_hook(lambda _, args: seen.update(contextual=args[0]))
    model(torch.tensor([[1, 7, 3, 2], [4, 5, 6, 7]]))
    assert torch.equal(seen["static"][0, 1], seen["static"][1, 3])
    assert not torch.allclose(seen["contextual"][0, 1], seen["contextual"][1, 3])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("block_size", [1, 2, 12, 40, 100])
@pytest.mark.parametrize("cuts", [[1] * 40, [12] * 3, [30, 1, 1, 8], [3, 37]])
def test_cached_logits_equal_uncached_ones(cuts, block_size, network):
    """Also where the text is longer than block_size, and attention no longer sees all of it."""
    model, cache = random_gpt(network=network, block_size=block_size), Cache()
    if model.max_length is not None and sum(cuts) > model.max_length:
        pytest.skip("longer than the network can read")
    ids_BT = random_ids(2, sum(cuts))
    pieces = [model(piece_BT, cache) for piece_BT in ids_BT.split(cuts, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids_BT))
    assert cache.length == sum(cuts)
    remembered = [k_BHTD.size(2) for k_BHTD, _ in cache.keys_values.values()]
    assert remembered == 3 * [min(sum(cuts), block_size - 1)]  # no more than the next query sees


@pytest.mark.parametrize(
    ("network", "settings"),
    [("quill", {"bias": True}), ("no such file", {})],
)
def test_a_network_refuses_a_setting_that_it_does_not_have(network, settings):
    with pytest.raises(UserError, match=network):
        make_network(GPTConfig(network=network, **settings), 5)
