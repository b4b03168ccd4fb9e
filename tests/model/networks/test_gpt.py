"""Tests of the textbook GPT: its equations, its dropout, its compilation."""

import math

import pytest
import torch
import torch.nn.functional as F

from configs.settings import GPTConfig
from model.networks import make_network
from tests.helpers import random_gpt, random_ids


@pytest.mark.parametrize("network", ["gpt", "quill"])
def test_network_compiles_to_one_graph_even_with_dropout(network):
    """If the compiler cannot trace an operation, it may run all of `forward` uncompiled."""
    model = random_gpt(network=network, dropout=0.5).float().train()
    with torch.autocast("cpu", torch.bfloat16):
        torch.compile(model, fullgraph=True, backend="eager")(random_ids(2, 8))


@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_those_of_the_equations(bias):
    """The test writes the equations out with only the weights, one head after the other."""
    model, ids_BT = random_gpt(network="gpt", bias=bias), random_ids(2, 12)
    weights = dict(model.named_parameters())

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x, name):
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return x * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)

    x = weights["embedding.weight"][ids_BT] + weights["position.weight"][:12]
    for block in ("blocks.0", "blocks.1", "blocks.2"):
        h = norm(x, f"{block}.norm_1")
        qkv = [linear(h, f"{block}.attention.{name}") for name in ("query", "key", "value")]
        heads = [
            F.scaled_dot_product_attention(*(y[..., d : d + 8] for y in qkv), is_causal=True)
            for d in (0, 8)
        ]
        x = x + linear(torch.cat(heads, -1), f"{block}.attention.proj")
        h = linear(norm(x, f"{block}.norm_2"), f"{block}.mlp.fc")
        x = x + linear(h * (1 + torch.erf(h / math.sqrt(2))) / 2, f"{block}.mlp.proj")
    torch.testing.assert_close(model(ids_BT), norm(x, "norm") @ weights["embedding.weight"].mT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_on_embeddings_attention_weights_and_layer_outputs(monkeypatch, dtype):
    """Dropout is active in training only."""
    model, dropped = make_network(GPTConfig("gpt", n_layer=3, dropout=0.25), 5), []

    def dropout(x, p=0.5, training=True, inplace=False):
        if training and p:
            dropped.append((p, x.ndim))
        return x

    monkeypatch.setattr(F, "dropout", dropout)
    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        model(random_ids(2, 7, V=5))
        assert dropped == [(0.25, 3), *[(0.25, 4), (0.25, 3), (0.25, 3)] * 3]
        dropped.clear()
        model.eval()(random_ids(2, 7, V=5))
    assert dropped == []
