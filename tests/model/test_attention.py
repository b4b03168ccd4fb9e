"""The laws of attention, for the equation and for the kernel that stands in for it."""

import math

import pytest
import torch
from torch import nn

from model.attention import (
    Attention,
    Cache,
    attend,
    attention_weights,
    fused_attend,
    norm,
    rotate,
    rotation,
)

both = pytest.mark.parametrize("attend_", [attend, fused_attend])


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def in_a_loop(q, k, v, causal: bool, scale: float | None = None, *, window: int | None = None):
    """The weighted sum, position by position, with no tensor operation larger than a dot product."""
    T, S, D = len(q), len(k), q.size(1)
    out = torch.zeros(T, v.size(1), dtype=torch.float64)
    for t in range(T):
        visible = S - T + t + 1 if causal else S
        seen = range(max(0, visible - (window or S)), visible)
        scores = [float(q[t] @ k[s]) * (scale or 1 / math.sqrt(D)) for s in seen]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        for s, exponential in zip(seen, exponentials, strict=True):
            out[t] += exponential / sum(exponentials) * v[s]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize(("T", "S"), [(7, 7), (3, 7), (1, 7), (1, 1)])
@both
def test_equals_a_loop_over_positions(attend_, T, S, scale, causal):
    q, k, v = draw(T, 4, seed=1), draw(S, 4, seed=2), draw(S, 4, seed=3)
    out = attend_(q[None, None], k[None, None], v[None, None], causal, scale)[0, 0]
    torch.testing.assert_close(out, in_a_loop(q, k, v, causal, scale))


@pytest.mark.parametrize("window", [1, 3, 6, 7, 100])
@pytest.mark.parametrize(("T", "S"), [(7, 7), (3, 7), (1, 7), (1, 1)])
@both
def test_a_window_is_a_loop_over_the_latest_positions(attend_, T, S, window):
    q, k, v = draw(T, 4, seed=1), draw(S, 4, seed=2), draw(S, 4, seed=3)
    out = attend_(q[None, None], k[None, None], v[None, None], True, window=window)[0, 0]
    torch.testing.assert_close(out, in_a_loop(q, k, v, True, window=window))


@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 2)])
@pytest.mark.parametrize(("T", "S"), [(8, 8), (3, 8), (1, 8)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_kernel_equals_the_equation_in_values_and_gradients(dtype, T, S, causal, window):
    results = []
    for attend_ in (attend, fused_attend):
        q, k, v = (
            draw(2, 3, n, 4, seed=n + i).to(dtype).requires_grad_() for i, n in enumerate((T, S, S))
        )
        out = attend_(q, k, v, causal, window=window)
        (out * draw(*out.shape, seed=9).to(dtype)).sum().backward()
        results.append((out, q.grad, k.grad, v.grad))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("quicker", [0, 512 * 512], ids=["kernel", "equation"])
def test_half_precision_is_the_equation_to_that_precision(monkeypatch, quicker):
    monkeypatch.setattr("model.attention.EQUATION_IS_QUICKER", quicker)
    q, k, v = (draw(2, 3, 32, 8, seed=i).bfloat16() for i in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out = fused_attend(q.float(), k.float(), v, causal=True, window=20)
    assert out.dtype == torch.bfloat16
    exact = attend(q.double(), k.double(), v.double(), True, window=20)
    torch.testing.assert_close(out.double(), exact, rtol=0.02, atol=0.02)


def test_hand_worked_example():
    x = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.float64)
    q = x @ torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.float64)
    k = x @ torch.tensor([[0, 1, 1], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    v = x @ torch.tensor([[1, 2, 1], [0, 1, 0], [1, 1, 0]], dtype=torch.float64)
    weights = attention_weights(q, k, scale=1.0)
    torch.testing.assert_close(weights[1].tolist(), [0.4223188, 0.1553624, 0.4223188])
    expected = torch.tensor([1.68927519, 3.11159399, 0.8446376], dtype=torch.float64)
    torch.testing.assert_close(attend(q, k, v, scale=1.0)[1], expected)
    torch.testing.assert_close(
        fused_attend(q[None, None], k[None, None], v[None, None], scale=1.0)[0, 0, 1], expected
    )


def test_borrower_and_lenders():
    """With log-affinities as scores, softmax is the plain normalisation: 0.8 and 0.2, and 110 coins."""
    q, k = (
        torch.ones(1, 1, dtype=torch.float64),
        torch.tensor([1000 / 500, 250 / 500], dtype=torch.float64),
    )
    offers = torch.tensor([[100.0], [150.0]], dtype=torch.float64)
    torch.testing.assert_close(attend(q, k.log()[:, None], offers, scale=1.0).item(), 110.0)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_a_distribution(causal):
    weights = attention_weights(draw(2, 3, 5, 4), draw(2, 3, 9, 4, seed=1), causal)
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))


@both
def test_output_lies_in_the_convex_hull_of_the_values(attend_):
    q, k, v = draw(1, 1, 6, 4), 5 * draw(1, 1, 6, 4, seed=1), draw(1, 1, 6, 4, seed=2)
    directions = draw(
        4, 500, seed=3
    )  # a point is in the hull if no direction tells it from the hull's points
    assert ((attend_(q, k, v) @ directions).amax(-2) <= (v @ directions).amax(-2) + 1e-12).all()


@both
def test_equal_keys_average_what_is_visible(attend_):
    k, v = draw(1, 1, 1, 4).expand(1, 1, 6, 4), draw(1, 1, 6, 4, seed=1)
    out = attend_(draw(1, 1, 6, 4, seed=2), k, v, causal=True)
    averages = v.cumsum(2) / torch.arange(1, 7, dtype=torch.float64)[:, None]
    torch.testing.assert_close(out, averages)


@both
def test_one_key_far_along_the_query_is_a_lookup(attend_):
    q, k, v = draw(1, 1, 1, 4), draw(1, 1, 6, 4, seed=1), draw(1, 1, 6, 4, seed=2)
    k[0, 0, 3] = 1000 * q[0, 0, 0]
    torch.testing.assert_close(attend_(q, k, v)[0, 0, 0], v[0, 0, 3])


def test_scaling_keeps_the_scores_variance_at_one():
    for D in (4, 64, 256):
        q, k = draw(400, D, seed=1), draw(400, D, seed=2)
        raw = q @ k.mT
        assert raw.var().item() == pytest.approx(D, rel=0.1)
        # softmax turns a row's scores into log-weights but for a constant: what attend uses has variance 1
        scores = attention_weights(q, k).log()
        assert (scores - scores.mean(-1, keepdim=True)).var().item() == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("T", "S"), [(6, 6), (3, 6)])
@both
def test_no_query_sees_a_later_key(attend_, T, S):
    q, k, v = draw(1, 1, T, 4), draw(1, 1, S, 4, seed=1), draw(1, 1, S, 4, seed=2)
    before = attend_(q, k, v, causal=True)
    for s in range(S):
        k2, v2 = k.clone(), v.clone()
        k2[..., s, :] += 1
        v2[..., s, :] += 1
        changed = (attend_(q, k2, v2, causal=True) - before).abs().amax((0, 1, 3)) > 1e-9
        assert changed.tolist() == [S - T + t >= s for t in range(T)]


def module(n_embd: int = 12, n_head: int = 3, window: int = 100) -> Attention:
    torch.manual_seed(1)
    attention = Attention(n_embd, n_head, window).double()
    nn.init.normal_(attention.proj.weight)
    return attention


def still(T: int, D: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles of zero: no positions."""
    return torch.ones(T, D // 2, dtype=torch.float64), torch.zeros(T, D // 2, dtype=torch.float64)


def test_query_key_and_value_are_three_matrices(monkeypatch):
    attention = module()
    matrices = attention.qkv_3CC
    assert all(not torch.equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])
    seen = {}
    monkeypatch.setattr(
        "model.attention.fused_attend", lambda q, k, v, **_: seen.update(q=q, k=k) or v
    )
    attention(draw(1, 5, 12), *still(5, 4))
    scores = seen["q"] @ seen["k"].mT
    assert not torch.allclose(scores, scores.mT)  # what i sees in j is not what j sees in i


def test_heads_are_single_heads_in_parallel():
    attention, x = module(12, 3), draw(2, 5, 12)
    cos, sin = rotation(0, 5, 4, like=x)
    outputs = []
    for h in range(3):
        rows = slice(4 * h, 4 * h + 4)
        q, k, v = (x @ matrix[rows].mT for matrix in attention.qkv_3CC)
        outputs.append(attend(rotate(norm(q), cos, sin), rotate(norm(k), cos, sin), v, causal=True))
    torch.testing.assert_close(
        attention(x, cos, sin), torch.cat(outputs, -1) @ attention.proj.weight.mT
    )


def test_without_positions_blind_to_order_with_them_not():
    attention, x = module(), draw(1, 6, 12)
    shuffled = x[:, [3, 0, 4, 1, 2, 5]]  # the last character, which sees all, stays last
    last = attention(x, *still(6, 4))[:, -1]
    torch.testing.assert_close(attention(shuffled, *still(6, 4))[:, -1], last)
    angles = rotation(0, 6, 4, like=x)
    assert not torch.allclose(attention(shuffled, *angles)[:, -1], attention(x, *angles)[:, -1])


@pytest.mark.parametrize("shift", [1, 1000, 10**6])
def test_a_shift_of_the_window_changes_nothing(shift):
    attention, x = module(), draw(1, 6, 12)
    here, there = (
        attention(x, *rotation(0, 6, 4, like=x)),
        attention(x, *rotation(shift, 6, 4, like=x)),
    )
    torch.testing.assert_close(here, there, rtol=1e-7, atol=1e-7)


def test_rotation_keeps_lengths():
    x = draw(1, 1, 9, 8)
    torch.testing.assert_close(rotate(x, *rotation(7, 9, 8, like=x)).norm(dim=-1), x.norm(dim=-1))


def test_rotation_turns_each_pair_by_its_own_angle_a_character():
    x, (cos, sin) = draw(5, 6), rotation(2, 5, 6, like=draw(1))
    pairs = torch.complex(x[:, :3], x[:, 3:])
    turns = torch.tensor(
        [[t * 10000 ** (-e / 3) for e in range(3)] for t in range(2, 7)], dtype=torch.float64
    )
    turned = pairs * torch.polar(torch.ones_like(turns), turns)
    torch.testing.assert_close(rotate(x, cos, sin), torch.cat((turned.real, turned.imag), -1))


def test_norm_gives_every_vector_mean_0_and_variance_1():
    x = 7 * draw(3, 9, 8) + 2
    normed = norm(x)
    torch.testing.assert_close(normed.mean(-1), torch.zeros(3, 9, dtype=torch.float64))
    torch.testing.assert_close(
        normed.var(-1, correction=0), torch.ones(3, 9, dtype=torch.float64), rtol=1e-4, atol=0
    )
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(
        torch.cosine_similarity(centred, normed, dim=-1), torch.ones(3, 9, dtype=torch.float64)
    )


@pytest.mark.parametrize("start", [10**4, 10**6, 10**9])
def test_far_from_the_start_angles_are_as_exact_as_near_it(start):
    here = rotation(start, 5, 8, like=draw(1).float())
    torch.testing.assert_close(
        here, tuple(x.float() for x in rotation(start, 5, 8, like=draw(1))), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("window", [1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("cuts", [[1] * 7, [3, 4], [4, 1, 1, 1], [7], [1, 6]])
def test_a_cache_changes_nothing(cuts, window):
    attention, x = module(window=window), draw(2, 7, 12)
    whole = attention(x, *rotation(0, 7, 4, like=x))
    cache, pieces = Cache(), []
    for piece in x.split(cuts, dim=1):
        pieces.append(attention(piece, *rotation(cache.length, piece.size(1), 4, like=x), cache))
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
    assert cache.length == 7
