"""Tests that the recorded attention is the attention that the network computed."""

import contextlib

import pytest
import torch

from model import attention
from model.inspect.record import record_attention
from tests.helpers import attention_weights, random_gpt, random_ids


@pytest.mark.parametrize("network", ["gpt", "quill"])
def test_recorded_weights_times_values_are_what_attention_passes_on(network):
    """Recording changes no logit."""
    model, ids_BT, outputs = random_gpt(network=network), random_ids(2, 12), []
    for block in model.blocks:
        block.attention.proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    with record_attention(model) as calls:
        logits_BTV = model(ids_BT)
    assert [block for block, _ in calls] == [1, 2, 3]
    for (_, call), out_BTC in zip(calls, outputs, strict=True):
        expected = attention_weights(call.q_BHTD, call.k_BHSD)
        torch.testing.assert_close(call.weights_BHTS, expected)
        out_BHTD = call.weights_BHTS @ call.v_BHSD
        torch.testing.assert_close(out_BHTD.transpose(1, 2).flatten(2), out_BTC)
    torch.testing.assert_close(logits_BTV, model(ids_BT))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_recording_leaves_no_trace_also_after_an_error(error):
    model, ids_BT = random_gpt(), random_ids(2, 12)
    logits_BTV, random_state = model(ids_BT), torch.get_rng_state()
    with contextlib.suppress(KeyboardInterrupt), record_attention(model):
        torch.testing.assert_close(model(ids_BT), logits_BTV)
        if error is not None:
            raise error
    assert not attention.is_recorded()
    for module in model.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks
    assert torch.equal(torch.get_rng_state(), random_state)


def test_what_is_recorded_belongs_to_its_block_and_head():
    model = random_gpt()
    model.blocks[0].attention.forward = lambda x_BTC, *args: x_BTC  # it computes no attention
    model.blocks[1].attention.query.weight.data[8:] = 0  # its second head has equal weights
    flat_TT = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    with record_attention(model) as calls:
        model(random_ids(1, 6))
    assert [block for block, _ in calls] == [2, 3]
    for block, call in calls:
        is_flat = [torch.allclose(w_TT.float(), flat_TT) for w_TT in call.weights_BHTS[0]]
        assert is_flat == [False, block == 2]


@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [
        ((1, 2, 6, 4), (1, 2, 7, 4)),  # one more key, as an attention sink
        ((1, 2, 6, 4), (1, 2, 6, 4)),  # a weight for each head and each pair of characters
        ((1, 2, 3, 4), (1, 2, 3, 4)),  # only every other character
        ((1, 6, 4), (1, 6, 4)),  # one head, without a dimension for heads
    ],
)
def test_layer_without_weight_per_head_and_pair_is_unrecorded(q_shape, k_shape):
    """The recorder cannot know which characters a weight of this layer belongs to."""
    model, ids_BT = random_gpt(), random_ids(1, 6)

    def attend_otherwise(x_BTC, *args):
        k = torch.ones(k_shape)
        attention.record(q := torch.ones(q_shape), k, k, q @ k.mT)
        return x_BTC

    model.blocks[0].attention.forward = attend_otherwise
    with record_attention(model) as calls:
        model(ids_BT)
    is_usual = q_shape == k_shape == (1, 2, 6, 4)
    assert [block for block, _ in calls] == ([1, 2, 3] if is_usual else [2, 3])
