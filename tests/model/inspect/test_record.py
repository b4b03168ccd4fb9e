"""Tests of the recorded attention: it is what the network computed."""

import contextlib

import pytest
import torch

from model import attention
from model.attention import attend, attention_weights
from model.inspect.record import attention_by_head, record_attention, residual_stream
from tests.model.test_networks import NETWORKS, random_gpt, random_ids


def softcap_weights(q, k, *options):
    return attention_weights(2 * (q / 2).tanh(), k, *options)


@pytest.mark.parametrize("weights_fn", [attention_weights, softcap_weights])
def test_recorded_weights_times_values_are_the_output_of_attend(monkeypatch, weights_fn):
    def remembering_attend(*args, **options):
        outputs.append(attend(*args, **options))
        return outputs[-1]

    model, ids_BT, outputs = random_gpt(block_size=8), random_ids(2, 20), []
    monkeypatch.setattr(attention, "attention_weights", weights_fn)
    monkeypatch.setattr(attention, "attend", remembering_attend)
    with record_attention(model) as calls:
        model(ids_BT)
    assert [call.block for call in calls] == [1, 2, 3]
    for call, out_BHTD in zip(calls, outputs, strict=True):
        torch.testing.assert_close(call.weights_BHTS @ call.v_BHSD, out_BHTD)
        expected = weights_fn(call.q_BHTD, call.k_BHSD, True, call.scale, 8)
        torch.testing.assert_close(call.weights_BHTS, expected)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_recording_leaves_no_trace_also_after_an_error(monkeypatch, error):
    monkeypatch.setattr(attention, "USES_FUSED_KERNEL", True)
    model, ids_BT, before = random_gpt(), random_ids(2, 12), dict(vars(attention))
    logits_BTV, random_state = model(ids_BT), torch.get_rng_state()
    with contextlib.suppress(KeyboardInterrupt), record_attention(model):
        torch.testing.assert_close(model(ids_BT), logits_BTV)
        if error is not None:
            raise error
    assert vars(attention) == before
    assert not any(block._forward_pre_hooks for block in model.blocks)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_blocks_and_heads_are_numbered_from_1():
    model = random_gpt()
    model.blocks[0].attention.forward = lambda x_BTC, *args: x_BTC  # it looks at nothing
    model.blocks[1].attention.query.weight.data[8:] = 0  # its second head looks at all alike
    flat_TT = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    weights = dict(attention_by_head(model, random_ids(1, 6)[0].tolist()))
    assert list(weights) == [f"block {block}, head {head}" for block in (2, 3) for head in (1, 2)]
    for name, weights_TT in weights.items():
        assert torch.allclose(weights_TT, flat_TT) == (name == "block 2, head 2")


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 0, 0]], ids=["three blocks", "one three times"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_head_reads_the_residual_stream_as_if_later_blocks_were_left_out(network, order):
    model, ids_BT = random_gpt(network=network), random_ids(2, 12)
    blocks = [model.blocks[i] for i in order]
    model.blocks = torch.nn.ModuleList(blocks)
    stream, lens = residual_stream(model, ids_BT)
    for count in range(4):
        model.blocks = torch.nn.ModuleList(blocks[:count])
        torch.testing.assert_close(lens[count], model(ids_BT))
    assert len(stream) == 4


def test_a_layer_with_more_keys_than_characters_is_not_recorded():
    """Which key belongs to which character is not known: an attention sink, for example."""
    with record_attention(random_gpt()) as calls:
        attention.fast_attend(torch.ones(1, 1, 2, 4), *torch.ones(2, 1, 1, 3, 4), causal=True)
    assert calls == []
