"""Tests of dropout and ReLU²."""

import pytest
import torch
import torch.nn.functional as F

from model.layers import Dropout, relu_squared


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.15, 0.5, 0.9, 0.9999])
def test_dropout_drops_share_p_independently_and_keeps_mean(p):
    torch.manual_seed(0)
    out_N8 = Dropout(p)(torch.ones(100_000, 8))  # a row for each random number
    dropped_N8 = (out_N8 == 0).double()
    torch.testing.assert_close(dropped_N8.mean(0), torch.full((8,), p).double(), atol=0.01, rtol=0)
    covariance_88 = dropped_N8.mT.cov() - torch.eye(8) * p * (1 - p)
    torch.testing.assert_close(covariance_88, torch.zeros(8, 8).double(), atol=0.01, rtol=0)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_relu_squared_and_its_gradient_have_the_bits_of_pytorchs(dtype):
    torch.manual_seed(0)
    x, grad = (torch.randn(2, 50, 70) * torch.logspace(-5, 2, 70)).to(dtype)
    results = []
    for function in (relu_squared, lambda x: F.relu(x).square()):
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        out.backward(grad)
        results += [(out, leaf.grad)]
    (out, x_grad), (expected, expected_grad) = results
    assert out.equal(expected)
    assert x_grad.equal(expected_grad)
