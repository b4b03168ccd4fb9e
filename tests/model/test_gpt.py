"""Tests of the network: what each logit depends on, its layers, the cache."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from model.attention import Cache
from model.gpt import GPT, Dropout, GPTConfig

CONFIG = GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=12)
NO_POSITIONS = torch.ones(5, 4).double(), torch.zeros(5, 4).double()  # angles of zero


def random_gpt(V: int = 11, model_type: type[GPT] = GPT, **sizes: float) -> GPT:
    """A network as if trained, in which no parameter is zero. In float64."""
    torch.manual_seed(0)
    model = model_type(replace(CONFIG, **sizes), V).double().eval()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return model


def random_ids(*shape: int, V: int = 11) -> torch.Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0))


def test_logits_do_not_depend_on_future_characters():
    model, ids_BT = random_gpt(), random_ids(2, 12)
    before = model(ids_BT)
    for t in range(12):
        changed_BT = ids_BT.clone()
        changed_BT[:, t] = (changed_BT[:, t] + 1) % 11
        depends = (model(changed_BT) - before).abs().amax((0, 2)) > 1e-9
        assert depends.tolist() == [False] * t + [True] * (12 - t)


def test_gradients_do_not_reach_future_characters():
    model, embedded = random_gpt(), []
    model.embedding.register_forward_hook(lambda _, args, x_BTC: embedded.append(x_BTC))
    logits_TV = model(random_ids(1, 12))[0]
    for t in range(12):
        loss = logits_TV[t].square().sum()
        (gradient_BTC,) = torch.autograd.grad(loss, embedded, retain_graph=True)
        reached = gradient_BTC[0].any(dim=-1)
        assert reached.tolist() == [True] * (t + 1) + [False] * (11 - t)


def test_attention_mixes_positions_and_the_feed_forward_layer_does_not():
    block, x_BTC, order = random_gpt().blocks[0], torch.randn(1, 5, 16).double(), [3, 0, 4, 1, 2]
    torch.testing.assert_close(block.mlp_1(x_BTC[:, order]), block.mlp_1(x_BTC)[:, order])
    mixed_BTC = block.attention(x_BTC, *NO_POSITIONS)[:, order]
    assert not torch.allclose(block.attention(x_BTC[:, order], *NO_POSITIONS), mixed_BTC)


def test_one_character_in_two_contexts_has_one_embedding_and_two_vectors():
    """As the word "bank" in an article."""
    model, seen = random_gpt(), {}
    model.blocks[0].register_forward_pre_hook(lambda _, args: seen.update(static=args[0]))
    model.head.register_forward_pre_hook(lambda _, args: seen.update(contextual=args[0]))
    model(torch.tensor([[1, 7, 3, 2], [4, 5, 6, 7]]))
    assert torch.equal(seen["static"][0, 1], seen["static"][1, 3])
    assert not torch.allclose(seen["contextual"][0, 1], seen["contextual"][1, 3])


@pytest.mark.parametrize("block_size", [1, 2, 12, 100])
@pytest.mark.parametrize("cuts", [[1] * 40, [12] * 3, [30, 1, 1, 8], [3, 37]])
def test_cached_logits_equal_uncached_ones(cuts, block_size):
    """Also where the text is longer than block_size, and attention no longer sees all of it."""
    model, cache = random_gpt(block_size=block_size), Cache()
    ids_BT = random_ids(2, sum(cuts))
    pieces = [model(piece_BT, cache) for piece_BT in ids_BT.split(cuts, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids_BT))
    assert cache.length == sum(cuts)
    remembered = [k_BHTD.size(2) for k_BHTD, _ in cache.keys_values.values()]
    assert remembered == 3 * [min(sum(cuts), block_size - 1)]  # no more than the next query sees


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.15, 0.5, 0.9, 0.9999])
def test_dropout_drops_a_share_p_of_the_elements_independently_and_keeps_the_mean(p):
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


def test_activation_checkpointing_gives_the_same_gradients_and_stores_less():
    def run(is_on: bool) -> tuple[list[torch.Tensor], int]:
        """The gradients, and how many numbers are kept for the backward pass."""
        model = random_gpt(dropout=0.2, activation_checkpointing=is_on).train()
        sizes = []
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x: sizes.append(x.numel()) or x, lambda x: x
        ):
            loss = model(random_ids(2, 12)).square().sum()
        loss.backward()
        return [parameter.grad for parameter in model.parameters()], sum(sizes)

    (grads, stored), (same_grads, fewer_stored) = run(False), run(True)
    torch.testing.assert_close(same_grads, grads)
    assert fewer_stored < stored / 2
