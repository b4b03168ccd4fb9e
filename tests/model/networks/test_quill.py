"""Tests of Quill's network: its attention, its feed-forward layer, its dropout."""

import pytest
import torch

from configs.settings import GPTConfig
from model.networks import make_network
from model.networks.quill import Dropout, norm
from tests.helpers import random_gpt, random_ids

NO_POSITIONS = torch.ones(5, 8).double(), torch.zeros(5, 8).double()  # angles of zero


def test_attention_mixes_positions_and_the_feed_forward_layer_does_not():
    block, x_BTC, order = random_gpt().blocks[0], torch.randn(1, 5, 16).double(), [3, 0, 4, 1, 2]
    torch.testing.assert_close(block.mlp_1(x_BTC[:, order]), block.mlp_1(x_BTC)[:, order])
    other_BTC = x_BTC.clone()
    other_BTC[:, 0] += 1
    mixed_BTC, other_mixed_BTC = (block.attention(x, *NO_POSITIONS) for x in (x_BTC, other_BTC))
    assert (mixed_BTC - other_mixed_BTC).abs().amax(dim=-1).min() > 1e-6  # at each position


def test_dropout_is_on_the_output_of_each_layer():
    model, ids_BT = make_network(GPTConfig(n_layer=3, dropout=0.25), 5), random_ids(2, 7, V=5)
    assert [block.dropout.p for block in model.blocks] == [0.25] * 3
    for block in model.blocks:
        block.dropout.register_forward_hook(lambda _, args, out: 0 * out)
    without_layers_BTC = norm(model.embedding(ids_BT))
    torch.testing.assert_close(model(ids_BT), model.head(norm(without_layers_BTC)))


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.15, 0.5, 0.9, 0.9999])
def test_dropout_drops_share_p_independently_and_keeps_mean(p):
    torch.manual_seed(0)
    out_N8 = Dropout(p)(torch.ones(100_000, 8))  # a row for each random number
    dropped_N8 = (out_N8 == 0).double()
    covariance_88 = dropped_N8.mT.cov() - torch.eye(8) * p * (1 - p)
    for errors in (dropped_N8.mean(0) - p, covariance_88):
        torch.testing.assert_close(errors, torch.zeros_like(errors), atol=0.01, rtol=0)
    assert dropped_N8.any() == (p > 0)
    assert len(out_N8.unique()) <= 2
    assert out_N8.mean() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (9,), (3, 5, 7)])
def test_dropout_is_for_training_and_gradients_have_its_mask(shape, dtype):
    x = torch.rand(shape).to(dtype).requires_grad_()
    assert Dropout(0.5).eval()(x).equal(x)
    out = Dropout(0.5)(x)
    out.sum().backward()
    torch.testing.assert_close(out, x * x.grad)
