"""Tests of the recorded attention weights and of the page that shows them."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch
from torch import nn

import sample
from model.attention import attend
from model.attention_page import attention_page, record_attention
from model.errors import RunError
from model.gpt import GPT
from tests.model.test_gpt import random_gpt, random_ids
from tests.test_edits import NETWORK_EDITS, make_edit

VOCAB = "ab</script>'\"&\n\t\u202e\x1b\U0001f600é"


def page_data(page: str) -> dict:
    """What the page's script reads."""
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    return json.loads(content)


def unpack(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def page_weights(data: dict) -> list[np.ndarray]:
    """weights_HTS of each layer, as the page's script computes them."""
    T, heads = len(data["chars"]), [heads for _, heads in data["layers"]]
    rows, columns = np.tril_indices(T)
    weights_XTS = np.zeros((sum(heads), T, T))
    units = unpack(data["weights"], "<i2").reshape(sum(heads), -1)
    weights_XTS[:, rows, columns] = units * data["unit"]
    return np.split(weights_XTS, np.cumsum(heads)[:-1])


@pytest.mark.parametrize("edit", NETWORK_EDITS)
def test_recorded_weights_give_what_attention_gave_for_every_edited_network(edit, monkeypatch):
    for module, name, replacement in NETWORK_EDITS[edit]:
        make_edit(monkeypatch, module, name, replacement)
    model = sample.GPT(random_gpt(block_size=8).config, len(VOCAB)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    length = min(20, model.max_length or 20)  # longer than the window
    ids_BT = random_ids(1, length, V=len(VOCAB))
    attend, outputs = model.blocks[0].attention.attend_fn, []
    for block in model.blocks:
        block.attention.attend_fn = lambda *args, **kwargs: (
            outputs.append(attend(*args, **kwargs)) or attend(*args, **kwargs)
        )
    with record_attention(model) as calls:
        model(ids_BT)
    assert len(calls) == len(model.blocks)
    for call, out_BHTD in zip(calls, outputs[1::2], strict=True):
        weights = call.weights_BHTS
        assert torch.allclose(weights @ call.v_BHSD, out_BHTD, atol=1e-5)
        assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)
        assert (weights >= 0).all()
        assert not weights.triu(1).any()
        assert not weights.tril(-model.config.block_size).any()
    data = page_data(attention_page(model, VOCAB, ids_BT[0].tolist(), ""))
    assert (data["vectors"] is not None) == (edit != "softcap")


def test_recording_ends_with_its_block():
    model = random_gpt()
    before = [block.attention.attend_fn for block in model.blocks]
    with record_attention(model):
        pass
    assert [block.attention.attend_fn for block in model.blocks] == before


def test_page_holds_the_weights_probabilities_and_vectors_of_the_model():
    model = random_gpt(V=len(VOCAB), block_size=8).float().eval()
    ids = random_ids(1, 20, V=len(VOCAB))[0].tolist()
    data = page_data(attention_page(model, VOCAB, ids, "about"))
    with record_attention(model) as calls, torch.inference_mode():
        probs_TV = model(torch.tensor([ids]))[0].softmax(-1).numpy()
    T, L, H = len(ids), model.config.n_layer, model.config.n_head
    assert data["layers"] == [[layer, H] for layer in range(1, L + 1)]
    assert data["window"] == 8
    weights = page_weights(data)
    vectors = unpack(data["vectors"], "<i2").reshape(L, H, 3, T, data["numbers"]) / 100
    log_sums = unpack(data["log_sums"], "<f4").reshape(L, H, T)
    assert "".join(data["chars"]) == "".join(VOCAB[id_] for id_ in ids)
    for layer, call in enumerate(calls):
        rows, columns = np.tril_indices(T)
        expected = call.weights_BHTS[0].numpy()[:, rows, columns]
        np.testing.assert_allclose(weights[layer], call.weights_BHTS[0], atol=2e-4)
        np.testing.assert_allclose(weights[layer].sum(-1), 1, atol=1e-6)
        for i, x in enumerate((call.q_BHTD, call.k_BHSD, call.v_BHSD)):
            expected_numbers = x[0, ..., : data["numbers"]]
            np.testing.assert_allclose(vectors[layer, :, i], expected_numbers, atol=0.006)
        scores = call.q_BHTD[0] @ call.k_BHSD[0].mT / data["width"] ** 0.5
        visible = rows - columns < data["window"]
        shown = np.log(expected[:, visible]) + log_sums[layer][:, rows[visible]]  # as the page does
        np.testing.assert_allclose(shown, scores[:, rows[visible], columns[visible]], atol=1e-3)
    assert data["nll"][0] is None
    np.testing.assert_allclose(
        data["nll"][1:], -np.log(probs_TV[np.arange(T - 1), ids[1:]]), atol=1e-3
    )
    top = [[probability for _, probability in row] for row in data["top"]]
    np.testing.assert_allclose(top, -np.sort(-probs_TV)[:, : len(top[0])], atol=1e-4)
    for t, row in enumerate(data["top"]):
        for char, probability in row:
            assert probability == pytest.approx(probs_TV[t, VOCAB.index(char)], abs=1e-4)


def test_a_page_of_256_characters_is_below_a_megabyte_and_loads_nothing():
    model = GPT(sample.TrainConfig().model, len(VOCAB)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    page = attention_page(model, VOCAB, random_ids(1, 256, V=len(VOCAB))[0].tolist(), "")
    assert len(page.encode()) < 1_000_000
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|https?:', page)


class SubtractsFlatAttention(nn.Module):
    """Weights may be negative, and their sum is 0.5."""

    def forward(self, q, k, v, **options):
        return attend(q, k, v, **options) - 0.5 * attend(0 * q, k, v, **options)


def attend_with_one_key_head(q, k, v, **options):
    """All heads use the keys of the first."""
    return attend(q, k[:, :1], v, **options)


def test_page_shows_the_weights_of_unusual_attention_layers():
    model = random_gpt(V=5, n_layer=3, n_head=2, block_size=8).float().eval()
    first, second, third = (block.attention for block in model.blocks)
    first.attend_fn = SubtractsFlatAttention()
    second.forward = lambda x_BTC, *args: x_BTC  # no attention in this layer
    third.n_head, third.attend_fn = 4, attend_with_one_key_head
    forward, width = third.forward, model.config.n_embd // 4
    third.forward = lambda x_BTC, cos_TE, sin_TE, cache: forward(
        x_BTC, cos_TE[:, : width // 2], sin_TE[:, : width // 2], cache
    )
    ids = random_ids(1, 20, V=5)[0].tolist()
    data = page_data(attention_page(model, "abcde", ids, ""))
    assert isinstance(first._modules["attend_fn"], SubtractsFlatAttention)
    assert "attend_fn" not in vars(first)
    with record_attention(model) as calls, torch.no_grad():
        model(torch.tensor([ids]))
    assert data["layers"] == [[1, 2], [3, 4]]
    assert data["vectors"] is None
    for call, weights_HTS in zip(calls, page_weights(data), strict=True):
        np.testing.assert_allclose(weights_HTS, call.weights_BHTS[0], atol=1e-3)
    assert (page_weights(data)[0] < -0.01).any()


def test_a_network_whose_attention_cannot_be_recorded_is_refused():
    ids = [0, 1, 2]
    model = random_gpt().eval()
    for block in model.blocks:
        block.attention.attend_fn = lambda q, k, v, **options: attend(q, k, v.square(), **options)
    with pytest.raises(RunError, match="attend_fn"):
        attention_page(model, "abcde", ids, "")
    model.forward = lambda ids_BT: torch.zeros(*ids_BT.shape, 5)
    with pytest.raises(RunError, match="attend_fn"):
        attention_page(model, "abcde", ids, "")


def test_a_long_text_is_cut_at_its_end_so_that_the_losses_stay_right(monkeypatch):
    model = random_gpt(V=5, block_size=8).float().eval()
    ids = random_ids(1, 30, V=5)[0].tolist()
    whole = page_data(attention_page(model, "abcde", ids, "about"))
    monkeypatch.setattr("model.attention_page.MAX_PAGE_CHARS", 20)
    cut = page_data(attention_page(model, "abcde", ids, "about"))
    assert cut["nll"] == whole["nll"][:20]
    assert whole["about"] == "about" and "first 20 of 30" in cut["about"]
