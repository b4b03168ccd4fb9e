"""The laws of what changes the weights."""

import pytest
import torch

from model.gpt import GPT, GPTConfig
from model.optim import OptimConfig, learning_rate, optimizers, update
from model.runtime import Runtime, SystemConfig

CONFIG = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8)


def test_every_weight_is_in_one_group_once():
    model = GPT(CONFIG, 7)
    held = [id(p) for opt in optimizers(model, OptimConfig()) for group in opt.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


@pytest.mark.parametrize("warmup", [0, 1, 10, 200])
@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
def test_the_rate_rises_stays_and_falls(warmup, decay):
    config = OptimConfig(max_iters=100, warmup_iters=warmup, decay_fraction=decay, learning_rate=0.5)
    rates = [learning_rate(step, config) for step in range(100)]
    top = rates.index(max(rates))
    assert min(rates) > 0 and max(rates) <= 0.5
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    if warmup < 10 and decay < 1:
        assert max(rates) == 0.5
    if decay:
        assert learning_rate(100, config) == 0  # the step after the last would not move


def test_update_moves_at_the_rate_given_and_clips():
    for scale in (1.0, 1e6):  # past the clip, a longer gradient takes the same step
        torch.manual_seed(0)
        model = GPT(CONFIG, 7)
        before = {name: weight.clone() for name, weight in model.named_parameters()}
        for weight in model.parameters():
            weight.grad = scale * torch.ones_like(weight)
        config, scaler = OptimConfig(), Runtime(SystemConfig(device="cpu")).scaler()
        norm = update(model, optimizers(model, config), scaler, 0.01, grad_clip=0.1)
        count = sum(weight.numel() for weight in model.parameters())
        assert norm.item() == pytest.approx(scale * count**0.5, rel=1e-4)
        assert all(weight.grad is None for weight in model.parameters())
        # Both optimisers take steps of a root mean square of some 0.2 rates, or Adam's first, of one.
        for name, weight in model.named_parameters():
            step = (weight - before[name]).square().mean().sqrt().item()
            assert 0 < step <= 0.0101, name


def test_a_rate_of_zero_moves_nothing():
    model = GPT(CONFIG, 7)
    before = [weight.clone() for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    update(model, optimizers(model, OptimConfig()), Runtime(SystemConfig(device="cpu")).scaler(), 0.0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_weight_decay_pulls_on_the_matrices_of_the_blocks_alone():
    torch.manual_seed(0)
    model = GPT(CONFIG, 7)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    scaler = Runtime(SystemConfig(device="cpu")).scaler()
    update(model, optimizers(model, OptimConfig(weight_decay=0.5)), scaler, 0.1, 1.0)
    for name, weight in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name.startswith("blocks.") else 1.0
        torch.testing.assert_close(weight, factor * before[name])


def test_parts_must_divide_the_batch():
    with pytest.raises(ValueError, match="multiple"):
        OptimConfig(batch_size=8, gradient_accumulation_steps=3)
