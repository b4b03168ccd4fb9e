"""The laws of what changes the weights."""

import pytest
import torch

from model.gpt import GPT, GPTConfig
from model.optim import Muon, OptimConfig, learning_rate, optimizers, orthogonalise, update

CONFIG = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8)
SCALER = torch.amp.GradScaler(enabled=False)


def network(gradient) -> tuple[GPT, dict[str, torch.Tensor]]:
    """A network whose weights all have the gradient `gradient` makes of them, and the weights as they were."""
    torch.manual_seed(0)
    model = GPT(CONFIG, 7)
    for weight in model.parameters():
        weight.grad = gradient(weight)
    return model, {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_every_weight_is_in_one_group_once():
    model = GPT(CONFIG, 7)
    held = [
        id(p)
        for opt in optimizers(model, OptimConfig(), torch.float32)
        for group in opt.param_groups
        for p in group["params"]
    ]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("warmup", [0, 1, 10, 200])
def test_the_rate_rises_and_falls_to_zero(warmup):
    config = OptimConfig(max_iters=100, warmup_iters=warmup, learning_rate=0.5)
    rates = [learning_rate(step, config) for step in range(100)]
    top = rates.index(max(rates))
    assert min(rates) > 0 and max(rates) <= 0.5
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[0] == pytest.approx(0.5 / (warmup + 1))
    assert rates[-1] == pytest.approx(0.5 / 100)
    assert learning_rate(100, config) == 0  # the step after the last would not move


@pytest.mark.parametrize(("length", "clip"), [(0.05, 0.1), (7.0, 0.1), (1e6, 0.1), (7.0, 0.0)])
def test_update_steps_along_the_gradient_no_longer_than_the_clip(length, clip):
    """With plain gradient descent in the optimisers' place, the step is rate times the clipped gradient."""
    count = sum(weight.numel() for weight in GPT(CONFIG, 7).parameters())
    model, before = network(lambda weight: length / count**0.5 * torch.ones_like(weight))
    norm = update(model, [torch.optim.SGD(model.parameters(), lr=1.0)], SCALER, 0.5, clip)
    moved = torch.cat(
        [(before[name] - weight).flatten() for name, weight in model.named_parameters()]
    )
    assert norm.item() == pytest.approx(length, rel=1e-3)
    assert moved.norm().item() == pytest.approx(0.5 * min(length, clip or length), rel=1e-2)
    assert (moved > 0).all()
    assert all(weight.grad is None for weight in model.parameters())


def test_both_optimisers_take_steps_of_one_size():
    """A learning rate serves both: a step's root mean square is a share of the rate, at most all of it."""
    model, before = network(torch.randn_like)
    update(model, optimizers(model, OptimConfig(), torch.float32), SCALER, 0.01, 1.0)
    for name, weight in model.named_parameters():
        assert 0.1 < (weight - before[name]).square().mean().sqrt().item() / 0.01 < 1.01, name


def test_a_float16_overflow_moves_nothing_and_halves_the_scale():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    model, start = network(lambda weight: scaler.scale(torch.ones_like(weight)))
    both = optimizers(model, OptimConfig(), torch.float32)
    update(model, both, scaler, 0.1, 1.0)  # from here on momentum alone would move the weights
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    assert not any(torch.equal(start[name], before[name]) for name in before)
    for weight in model.parameters():
        weight.grad = scaler.scale(torch.ones_like(weight))
    model.head.weight.grad[0, 0] = torch.inf
    update(model, both, scaler, 0.1, 1.0)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert scaler.get_scale() == 2.0


def test_a_rate_of_zero_moves_nothing():
    model, before = network(torch.ones_like)
    update(model, optimizers(model, OptimConfig(weight_decay=0.5), torch.float32), SCALER, 0.0, 1.0)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_weight_decay_pulls_on_the_matrices_of_the_blocks_alone():
    model, before = network(torch.zeros_like)
    for name, weight in model.named_parameters():
        before[name] = torch.nn.init.normal_(weight).detach().clone()
    update(model, optimizers(model, OptimConfig(weight_decay=0.5), torch.float32), SCALER, 0.1, 1.0)
    for name, weight in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name.startswith("blocks.") and not name.endswith("share") else 1.0
        torch.testing.assert_close(weight, factor * before[name])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.02), (torch.float16, 0.02), (torch.float32, 0.02)]
)
def test_muon_takes_pytorch_s_steps(dtype, tolerance):
    """Matrices of one shape together step as PyTorch's Muon, one by one and in bfloat16, makes them."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 16), (16, 16), (64, 16), (16, 64), (16, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    muon = Muon(ours, 0.1, 0.3, dtype)
    oracle = torch.optim.Muon(
        theirs, lr=0.1, weight_decay=0.3, adjust_lr_fn="match_rms_adamw", ns_steps=4
    )
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        muon.step()
        oracle.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(2, 8, 32), (2, 32, 8)])
def test_orthogonalising_makes_all_directions_about_equal_whatever_the_length(shape, dtype):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for scale in (1e-6, 1.0, 1e6):
        singular = torch.linalg.svdvals(orthogonalise(scale * x, dtype))
        assert singular.min() > 0.3
        assert singular.max() < 1.3
    assert orthogonalise(torch.zeros(shape), dtype).isfinite().all()


def test_muon_steps_a_stack_of_matrices_as_it_steps_each():
    generator = torch.Generator().manual_seed(0)
    stack = torch.nn.Parameter(torch.randn(3, 8, 8, generator=generator))
    singly = [torch.nn.Parameter(matrix.clone()) for matrix in stack.detach()]
    stack.grad = torch.randn(3, 8, 8, generator=generator)
    for matrix, grad in zip(singly, stack.grad, strict=True):
        matrix.grad = grad.clone()
    for weights in ([stack], singly):
        Muon(weights, 0.1, 0.3, torch.float32).step()
    torch.testing.assert_close(stack, torch.stack(singly))
