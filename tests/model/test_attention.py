"""Tests of attention: the equation, the kernel, positions, the projections."""

from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from configs.settings import GPTConfig
from model.networks import gpt, quill
from model.networks.quill import rotate, rotation_angles
from tests.helpers import attend, attend_by_equation, attention_weights

NO_POSITIONS = torch.ones(6, 4).double(), torch.zeros(6, 4).double()  # angles of zero


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_qkv(T: int, S: int) -> list[torch.Tensor]:
    """Return random queries, keys and values for two texts and three heads of width 4."""
    return [randn(2, 3, length, 4, seed=i) for i, length in enumerate((T, S, S))]


def attend_in_a_loop(q_TD, k_SD, v_SD, window):
    """Compute attention position by position. The largest tensor operation is a dot product."""
    (T, D), S = q_TD.shape, len(k_SD)
    outputs = []
    for t in range(T):
        end = S - T + t + 1  # the mask hides later keys
        visible = range(max(0, end - window), end)
        exponentials = [(q_TD[t] @ k_SD[s] / D**0.5).exp() for s in visible]
        weights = [exponential / sum(exponentials) for exponential in exponentials]
        outputs.append(sum(w * v_SD[s] for w, s in zip(weights, visible, strict=True)))
    return torch.stack(outputs)


@pytest.mark.parametrize("window", [1, 3, 7, 9])
@pytest.mark.parametrize("T", [7, 3])
@pytest.mark.parametrize("attend_fn", [attend_by_equation, attend])
def test_attention_equals_a_loop_in_values_and_gradients(attend_fn, T, window):
    inputs = [x.requires_grad_() for x in random_qkv(T, 7)]
    out_TD = attend_fn(*inputs, window)[1, 2]
    expected_TD = attend_in_a_loop(*(x[1, 2] for x in inputs), window)
    torch.testing.assert_close(out_TD, expected_TD)
    gradients = [torch.autograd.grad(x.sin().sum(), inputs) for x in (out_TD, expected_TD)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("T", [20, 600])
def test_attend_is_the_equation_to_its_precision(monkeypatch, T, dtype):
    kernel = Mock(wraps=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    q, k, v = (x.to(dtype) for x in random_qkv(T, 600))
    is_half = dtype == torch.bfloat16
    with torch.autocast("cpu", dtype, enabled=is_half):
        out = attend(q, k, v, 20)
    assert kernel.called == (not (is_half and T == 20))
    exact = attend_by_equation(q.double(), k.double(), v.double(), 20)
    tolerance = 0.02 if is_half else 1e-5
    torch.testing.assert_close(out, exact.to(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("window", [99, 3])
def test_weights_sum_to_1_and_output_in_convex_hull(window):
    q, k, v = random_qkv(5, 9)
    weights, out = attention_weights(q, 5 * k, window), attend(q, 5 * k, v, window)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5).double())
    # In every direction, some value is at least as far out as any point of the convex hull.
    directions = randn(4, 500, seed=3)
    assert ((out @ directions).amax(-2) <= (v @ directions).amax(-2) + 1e-12).all()


@pytest.mark.parametrize("D", [4, 64, 256])
def test_scaling_keeps_the_variance_of_the_scores_at_1(D):
    q, k = randn(400, 1, 1, D, seed=1), randn(400, 1, 50, D, seed=2)  # the only query sees all keys
    assert (q @ k.mT).var().item() == pytest.approx(D, rel=0.1)
    scores = attention_weights(q, k).log()  # the scores, up to a constant in each row
    assert (scores - scores.mean(-1, keepdim=True)).var().item() == pytest.approx(1, rel=0.1)


def random_attention(network: ModuleType = quill) -> nn.Module:
    """Return an attention layer with three heads of width 4, in which no matrix is zero."""
    torch.manual_seed(1)
    attention = network.Attention(GPTConfig(n_embd=12, n_head=3)).double()
    nn.init.normal_(attention.proj.weight)
    return attention


@pytest.mark.parametrize("network", [gpt, quill])
def test_query_key_value_matrices_differ_and_affinity_is_asymmetric(network):
    attention, x = random_attention(network), randn(6, 12)
    q, k, v = (layer(x) for layer in (attention.query, attention.key, attention.value))
    assert not any(torch.allclose(*pair) for pair in ((q, k), (q, v), (k, v)))
    assert not torch.allclose(q @ k.mT, (q @ k.mT).mT)


@pytest.mark.parametrize("network", [gpt, quill])
def test_multi_head_attention_equals_single_heads_in_parallel(network):
    attention, x = random_attention(network), randn(2, 5, 12)
    angles = rotation_angles(0, 5, 4, like=x) if network is quill else ()
    heads = []
    for h in range(3):
        layers = (attention.query, attention.key, attention.value)
        q, k, v = (x @ layer.weight[4 * h : 4 * h + 4].mT for layer in layers)
        if network is quill:
            q, k = rotate(q, *angles), rotate(k, *angles)
        heads.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    expected = torch.cat(heads, dim=-1) @ attention.proj.weight.mT
    torch.testing.assert_close(attention(x, *angles), expected)


def test_attention_is_order_blind_only_without_positions():
    attention, x = random_attention(), randn(1, 6, 12)
    shuffled = x[:, [3, 0, 4, 1, 2, 5]]  # the last character, which sees all, stays last
    for angles, is_blind in ((NO_POSITIONS, True), (rotation_angles(0, 6, 4, like=x), False)):
        last, last_shuffled = attention(x, *angles)[:, -1], attention(shuffled, *angles)[:, -1]
        assert torch.allclose(last, last_shuffled) == is_blind


def test_shifting_the_whole_window_changes_nothing():
    attention, x = random_attention(), randn(1, 6, 12)
    here, there = (attention(x, *rotation_angles(s, 6, 4, like=x)) for s in (0, 10**6))
    torch.testing.assert_close(here, there, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("start", [0, 3, 10**9])
def test_rotary_pairs_turn_by_own_angle_at_any_position(start):
    x, positions = randn(5, 6), range(start, start + 5)
    angles = [[t * 10000 ** (-e / 3) for e in range(3)] for t in positions]
    turned = torch.complex(x[:, :3], x[:, 3:]) * torch.tensor(angles, dtype=x.dtype).mul(1j).exp()
    expected = torch.cat((turned.real, turned.imag), dim=-1)
    rotated = rotate(x.float(), *rotation_angles(start, 5, 6, like=x.float()))
    torch.testing.assert_close(rotated.double(), expected, rtol=0, atol=1e-6)
