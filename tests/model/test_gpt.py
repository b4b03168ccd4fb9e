"""The laws of the network."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.gpt import GPT, Block, GPTConfig, TokenShift

CONFIG = GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=12)


def network(vocab_size: int = 11, config: GPTConfig = CONFIG, seed: int = 0) -> GPT:
    """A network as if trained: no matrix is zero."""
    torch.manual_seed(seed)
    model = GPT(config, vocab_size).double().eval()
    for weight in model.parameters():
        if not weight.any():
            nn.init.normal_(weight, std=0.3)
    return model


def ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(seed))


def test_changing_a_character_changes_no_logit_before_it():
    model, ids_BT = network(), ids(2, 12)
    before = model(ids_BT)
    for t in range(12):
        changed = ids_BT.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        moved = (model(changed) - before).abs().amax((0, 2)) > 1e-9
        assert moved.tolist() == [False] * t + [True] * (12 - t)


def test_no_gradient_reaches_back_from_the_future():
    model, ids_BT, made = network(), ids(1, 12), []

    def keep(module, args, x_BTC):
        x_BTC.retain_grad()
        made.append(x_BTC)

    model.embedding.register_forward_hook(keep)
    for t in range(12):
        model(ids_BT)[0, t].square().sum().backward()
        reached = made[-1].grad[0].abs().amax(-1) > 0
        assert reached.tolist() == [True] * (t + 1) + [False] * (11 - t)


def test_every_weight_has_a_part_in_the_logits():
    model = network()
    model(ids(2, 12)).square().sum().backward()
    assert [
        name
        for name, weight in model.named_parameters()
        if weight.grad is None or not weight.grad.any()
    ] == []


def test_an_untrained_network_finds_all_characters_equally_likely():
    torch.manual_seed(0)
    logits_BTV = GPT(CONFIG, 11)(ids(2, 12))
    assert logits_BTV.shape == (2, 12, 11)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), ids(2, 12, seed=1).flatten())
    assert loss.item() == pytest.approx(math.log(11), rel=1e-6)


def test_a_new_block_is_the_identity():
    block, x = Block(CONFIG), torch.randn(2, 5, 16)
    angles = torch.rand(5, 4), torch.rand(5, 4)
    assert torch.equal(block(x, *angles), x)


def test_the_feed_forward_layer_mixes_no_positions_and_attention_does():
    block, x, order = (
        network().blocks[0],
        torch.randn(1, 5, 16, dtype=torch.float64),
        [3, 0, 4, 1, 2],
    )
    angles = torch.ones(5, 4, dtype=torch.float64), torch.zeros(5, 4, dtype=torch.float64)
    torch.testing.assert_close(block.mlp(x[:, order]), block.mlp(x)[:, order])
    mixed = block.attention(x, *angles)
    assert not torch.allclose(block.attention(x[:, order], *angles), mixed[:, order])


def test_a_shift_adds_shares_of_the_characters_before():
    shift, x = TokenShift(16).double(), torch.randn(2, 5, 16, dtype=torch.float64)
    assert torch.equal(shift(x), x)  # nothing at first
    nn.init.normal_(shift.share)
    expected = x.clone()
    for t in range(5):
        for back in range(1, min(t, TokenShift.REACH) + 1):
            expected[:, t] += shift.share[back - 1] * x[:, t - back]
    torch.testing.assert_close(shift(x), expected)


def test_the_feed_forward_layer_is_a_squared_relu_between_two_matrices():
    mlp = network().blocks[0].mlp
    x = torch.randn(16, dtype=torch.float64)
    hidden = torch.tensor([max(0.0, h.item()) ** 2 for h in mlp.fc.weight @ x], dtype=torch.float64)
    torch.testing.assert_close(mlp(x), mlp.proj.weight @ hidden)


def test_one_character_in_two_contexts_has_one_embedding_and_two_vectors():
    """As "bank" has in an article: the same going in, wherever it stands, another coming out."""
    model, seen = network(), {}
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.update(static=args[0]))
    model.head.register_forward_pre_hook(lambda _, args: seen.update(contextual=args[0]))
    model(torch.tensor([[1, 7, 3, 2], [4, 5, 6, 7]]))
    assert torch.equal(seen["static"][0, 1], seen["static"][1, 3])
    assert not torch.allclose(seen["contextual"][0, 1], seen["contextual"][1, 3])


@pytest.mark.parametrize(
    "cuts", [[1] * 12, [5, 7], [7, 1, 4], [1] * 40, [12] * 3, [30, 1, 1, 8], [3, 37]]
)
def test_cached_logits_equal_uncached_ones(cuts):
    """Also where the text is longer than block_size, and attention no longer sees all of it."""
    model, ids_BT = network(), ids(2, sum(cuts))
    cache = model.new_cache()
    pieces = [model(piece, cache) for piece in ids_BT.split(cuts, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids_BT))


@pytest.mark.parametrize("block_size", [1, 4])
def test_its_reach_is_how_far_back_a_character_matters(block_size):
    model = network(config=GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=block_size))
    ids_BT = ids(1, model.reach + 3)
    before = model(ids_BT)[0, -1]
    for t in range(ids_BT.size(1)):
        changed = ids_BT.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        assert torch.equal(model(changed)[0, -1], before) == (t < 3), t
    torch.testing.assert_close(model(ids_BT[:, -model.reach :])[0, -1], before)


def test_the_cache_is_no_state_of_the_model():
    model, before = network(), set(network().state_dict())
    model(ids(1, 5), model.new_cache())
    assert set(model.state_dict()) == before == {name for name, _ in model.named_parameters()}
    assert not list(model.buffers())


def test_dropout_is_for_training_alone():
    model, ids_BT = (
        network(config=GPTConfig(n_layer=2, n_head=2, n_embd=16, dropout=0.5)),
        ids(1, 9),
    )
    assert torch.equal(model(ids_BT), model(ids_BT))
    model.train()
    assert not torch.equal(model(ids_BT), model(ids_BT))


def test_it_can_learn_a_text_by_heart():
    torch.manual_seed(0)
    model, text = GPT(CONFIG, 11), ids(1, 13)
    adam = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        loss = F.cross_entropy(model(text[:, :-1])[0], text[0, 1:])
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert loss.item() < 0.05


@pytest.mark.parametrize("wrong", [{"n_embd": 30, "n_head": 4}, {"n_embd": 12, "n_head": 4}])
def test_sizes_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ValueError, match=r"n_head|even"):
        GPTConfig(**wrong)
