"""Tests of the optimizers and the learning-rate schedule."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.gpt import GPT, GPTConfig
from model.optim import (
    Muon,
    OptimConfig,
    copy_parameters,
    learning_rate,
    make_optimizers,
    orthogonalize,
    update_ratio,
)


def make_model() -> GPT:
    """With new layers, one of them a stack of matrices; one block is frozen."""
    model = GPT(GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8), vocab_size=7)
    for block in model.blocks:
        block.gate = nn.Linear(16, 3)
        block.experts = nn.Parameter(torch.randn(2, 16, 4))
    model.positions = nn.Embedding(8, 16)
    model.blocks[0].requires_grad_(False)
    return model


def optimizer_step(model: GPT, config: OptimConfig, make_grad) -> dict[str, torch.Tensor]:
    """One step with gradients from `make_grad`; returns the parameters before it."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = make_grad(parameter) if parameter.requires_grad else None
    for optimizer in make_optimizers(model, config, torch.float32):
        optimizer.step()
    return before


def random_parameters(shapes: list[tuple[int, ...]]) -> list[nn.Parameter]:
    """Parameters with gradients, the same each time."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def named(parameters: list[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    return [(str(i), parameter) for i, parameter in enumerate(parameters)]


@pytest.mark.parametrize("warmup", [0, 1, 10, 200])
def test_the_learning_rate_rises_and_then_falls_to_zero(warmup):
    config = OptimConfig(max_iters=100, warmup_iters=warmup, learning_rate=0.5)
    rates = [learning_rate(step, config) for step in range(100)]
    peak = rates.index(max(rates))
    assert min(rates) > 0 and max(rates) <= 0.5
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[0] == pytest.approx(0.5 / (warmup + 1))
    assert rates[-1] == pytest.approx(0.5 / 100)
    assert learning_rate(100, config) == 0


def test_one_learning_rate_serves_both_optimizers():
    """The root mean square of a step is about the learning rate, and at most that."""
    model = make_model()
    before = optimizer_step(model, OptimConfig(learning_rate=0.01), torch.randn_like)
    for name, parameter in model.named_parameters():
        rms = (parameter - before[name]).square().mean().sqrt().item()
        assert 0.1 < rms / 0.01 < 1.01 if parameter.requires_grad else rms == 0, name


def test_weight_decay_shrinks_only_the_matrices_of_the_blocks():
    model, config = make_model(), OptimConfig(learning_rate=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    before = optimizer_step(model, config, torch.zeros_like)
    for name, now in model.named_parameters():
        is_block_matrix = name.startswith("blocks.1.") and now.ndim >= 2  # block 0 is frozen
        torch.testing.assert_close(now, (1 - 0.1 * 0.5 * is_block_matrix) * before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_muon_steps_as_the_muon_of_pytorch_does_with_rows_of_one_length(dtype):
    """PyTorch's steps one matrix at a time, in bfloat16; one matrix never has a gradient."""
    shapes = [(16, 16), (16, 16), (64, 16), (16, 64)]
    ours, theirs = random_parameters(shapes), random_parameters(shapes)
    for parameter in (ours[1], theirs[1]):
        parameter.grad = None
    muon = Muon(named(ours), lr=0.1, weight_decay=0.3, dtype=dtype)
    pytorch_muon = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0, ns_steps=4)
    for _ in range(3):
        expected = [parameter.detach().clone() for parameter in ours]
        muon.step()
        pytorch_muon.step()
        for i in (0, 2, 3):
            update = expected[i] - theirs[i].detach()  # both began this step with the same weights
            length = 0.1 * 0.2 * shapes[i][1] ** 0.5
            expected[i] = expected[i] * (1 - 0.1 * 0.3) - length * F.normalize(update)
            theirs[i].data.copy_(ours[i].data)
            theirs[i].grad = torch.randn_like(theirs[i])
            ours[i].grad = theirs[i].grad.clone()
        torch.testing.assert_close(ours, expected, rtol=0, atol=0.005)


def test_muon_steps_a_stack_of_matrices_like_each_of_them():
    """A parameter of three or more dimensions is a stack of matrices."""
    stack, matrix = random_parameters([(2, 2, 16, 4), (16, 4)])
    singles = [nn.Parameter(single.clone()) for single in (*stack.data.flatten(0, -3), matrix.data)]
    for single, grad in zip(singles, (*stack.grad.flatten(0, -3), matrix.grad), strict=True):
        single.grad = grad.clone()
    for parameters in ([stack, matrix], *([single] for single in singles)):
        Muon(named(parameters), lr=0.1, weight_decay=0.3, dtype=torch.float32).step()
    torch.testing.assert_close(torch.stack([*stack.flatten(0, -3), matrix]), torch.stack(singles))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 8, 32), (2, 32, 8)])
def test_orthogonalized_matrices_have_singular_values_near_one_at_any_scale(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for scale in (1e-6, 1.0, 1e6):
        singular_values = torch.linalg.svdvals(orthogonalize(scale * x, dtype))
        assert singular_values.min() > 0.3
        assert singular_values.max() < 1.3
    assert orthogonalize(torch.zeros(shape), dtype).isfinite().all()


def test_update_ratio_is_the_norm_of_the_change_over_the_norm_of_the_weights():
    parameters = random_parameters([(3, 4), (5,)])
    optimizer = torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=0.5)
    before = copy_parameters(optimizer)
    optimizer.step()
    weights = torch.cat([weight.flatten() for weight in before])
    gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
    expected = 0.5 * gradients.norm() / weights.norm()
    assert update_ratio(optimizer, before) == pytest.approx(expected.item())
