"""Tests of the recorded attention: it is what the network computed."""

import contextlib

import pytest
import torch

from model import attention
from model.attention import attend, attention_weights
from model.inspect.record import record_attention, residual_stream
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
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_what_is_recorded_belongs_to_its_block_and_head():
    model = random_gpt()
    model.blocks[0].attention.forward = lambda x_BTC, *args: x_BTC  # it looks at nothing
    model.blocks[1].attention.query.weight.data[8:] = 0  # its second head looks at all alike
    flat_TT = torch.ones(6, 6).tril() / torch.arange(1, 7)[:, None]
    with record_attention(model) as calls:
        model(random_ids(1, 6))
    assert [call.block for call in calls] == [2, 3]
    for call in calls:
        is_flat = [torch.allclose(w_TT.float(), flat_TT) for w_TT in call.weights_BHTS[0]]
        assert is_flat == [False, call.block == 2]


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


@pytest.mark.parametrize(
    ("q_shape", "k_shape"),
    [
        ((1, 2, 6, 4), (1, 2, 7, 4)),  # an attention sink
        ((1, 2, 6, 4), (1, 2, 6, 4)),  # as it should be, but for the mask
        ((1, 2, 7, 4), (1, 2, 7, 4)),  # a vector before the text
        ((2, 2, 3, 4), (2, 2, 3, 4)),  # parts of the text
        ((1, 2, 3, 4), (1, 2, 3, 4)),  # every other character
        ((1, 1, 2, 6, 4), (1, 1, 2, 6, 4)),  # groups of heads
        ((1, 6, 4), (1, 6, 4)),  # one head without its dimension
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_without_a_weight_for_each_head_and_pair_of_characters_is_not_recorded(
    q_shape, k_shape, causal
):
    """Which weight belongs to which characters is not known; nor is it without the mask."""
    model, ids_BT = random_gpt(), random_ids(1, 6)

    def attend_otherwise(x_BTC, *args):
        k = torch.ones(k_shape)
        attention.fast_attend(torch.ones(q_shape), k, k, causal=causal)
        return x_BTC

    model.blocks[0].attention.forward = attend_otherwise
    with record_attention(model) as calls:
        model(ids_BT)
    is_usual = causal and q_shape == k_shape == (1, 2, 6, 4)
    assert [call.block for call in calls] == ([1, 2, 3] if is_usual else [2, 3])


# How a network may use its blocks, and whether there is a residual stream.
USES = {
    "x = block(x)": True,
    "reversed": True,
    "x = x + block(x)": False,
    "x = block(x); x += 1": False,
    "x = block(x_BTC=x)": False,
    "x, = block(x)": False,
    "x = block.forward(x)": False,
}


@pytest.mark.parametrize("use", USES)
def test_there_is_a_residual_stream_if_each_block_hands_it_to_the_next(use):
    class Block(torch.nn.Linear):
        def forward(self, x_BTC):
            out_BTC = super().forward(x_BTC)
            return (out_BTC,) if use == "x, = block(x)" else out_BTC

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            count = 1 if use == "x, = block(x)" else 3
            self.blocks = torch.nn.ModuleList(Block(4, 4) for _ in range(count))

        def forward(self, ids_BT):
            names = {"x": torch.nn.functional.one_hot(ids_BT, 4).float()}
            for block in reversed(self.blocks) if use == "reversed" else self.blocks:
                exec(use if "block" in use else "x = block(x)", names | {"block": block}, names)
            return names["x"] * 2

    model, ids_BT = Network(), random_ids(2, 5, V=4)
    stream, lens = residual_stream(model, ids_BT)
    assert len(stream) == len(lens) == (4 if USES[use] else 0)
    if stream:
        for x_BTC, logits_BTV in zip(stream, lens, strict=True):
            torch.testing.assert_close(logits_BTV, x_BTC * 2)
        torch.testing.assert_close(lens[-1], model(ids_BT))
