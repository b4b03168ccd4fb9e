"""Tests of the attention page: its data are what the model computed."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
import torch

from model.inspect import page
from model.inspect.page import attention_page, twins
from model.inspect.record import record_attention, residual_stream
from model.system.errors import AbortError
from tests.model.test_networks import random_gpt, random_ids

VOCAB = "ab</script>'\"&\n\t\u202e\x1b\U0001f600é"


def page_data(html: str) -> dict:
    """What the page's script reads."""
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(content)


def unpack(text: str, dtype: str, *shape: int) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


IMPORT = "from model.attention import Cache, attend"
ATTEND = "attend(q_BHTD, k_BHSD, v_BHSD, window)"
WEIGHTS = """
        T, S = q_BHTD.size(2), k_BHSD.size(2)
        distance_TS = torch.arange(S - T, S)[:, None] - torch.arange(S)
        visible_TS = (distance_TS >= 0) & (distance_TS < self.config.block_size)
        scores_BHTS = q_BHTD @ k_BHSD.mT
        weights_BHTS = {}
        record(q_BHTD, k_BHSD, v_BHSD, weights_BHTS)
        out_BHTD = weights_BHTS @ v_BHSD"""


def own_equation(weights: str) -> dict[str, str]:
    """A change of quill: the weights are this expression of scores_BHTS and visible_TS."""
    return {f"out_BHTD = {ATTEND}": WEIGHTS.format(weights), IMPORT: f"{IMPORT}, record"}


def own_softmax(scores: str) -> dict[str, str]:
    """A change of quill: the softmax is that of this expression of scores_BHTS."""
    return own_equation(f"({scores}).masked_fill(~visible_TS, -torch.inf).softmax(-1)")


EDITS = {
    "quill": {},
    "the same, written out": own_softmax("scores_BHTS / 8**0.5"),
    "another scale": own_softmax("scores_BHTS / 2"),
    "a bias": own_softmax("scores_BHTS / 8**0.5 + torch.linspace(0, 3, S)"),
    "negative weights": own_equation("-scores_BHTS.abs() * visible_TS"),
}


@torch.no_grad()
@pytest.mark.parametrize("edit", EDITS)
def test_page_holds_weights_losses_and_vectors_of_textbook_equation(edit, edit_network):
    edit_network("quill", EDITS[edit])
    model = random_gpt(V=len(VOCAB), network="mine", block_size=8).float()
    model.blocks[1].attention.forward = lambda x_BTC, *args: x_BTC  # it looks at nothing
    ids = random_ids(1, 20, V=len(VOCAB))[0].tolist()
    html = attention_page(model, VOCAB, ids, "</script>")
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|https?:', html)  # loads nothing
    data = page_data(html)
    with record_attention(model) as calls:
        probs_TV = model(torch.tensor([ids]))[0].softmax(-1).numpy()
    assert data["about"] == "</script>"
    assert data["chars"] == [VOCAB[id_] for id_ in ids]
    assert (data["blocks"], data["windows"]) == ([[1, 2], [3, 2]], [8, 8])

    rows, columns = np.tril_indices(20)
    weights_XTT = np.concatenate([call.weights_BHTS[0] for _, call in calls])
    shown = data["unit"] * unpack(data["weights"], "<i2", 4, len(rows))
    np.testing.assert_allclose(shown, weights_XTT[:, rows, columns], atol=1e-3)

    next_probs = probs_TV[range(19), ids[1:]]
    assert data["nll"][0] is None
    np.testing.assert_allclose(data["nll"][1:], -np.log(next_probs), atol=1e-3)
    for top, probs_V in zip(data["top"][-1], probs_TV, strict=True):
        likeliest = np.argsort(-probs_V)[:5]
        assert dict(top) == {VOCAB[i]: pytest.approx(probs_V[i], abs=1e-4) for i in likeliest}

    with record_attention(model):
        stream, lens = residual_stream(model, torch.tensor([ids]))
    lens_RTV = torch.stack(lens)[:, 0].softmax(-1)
    np.testing.assert_allclose(data["came"], lens_RTV[:, range(19), ids[1:]], rtol=1e-4)
    np.testing.assert_allclose(data["came"][-1], next_probs, rtol=1e-4)
    assert data["twins"] == twins(torch.tensor(ids), torch.stack(stream)[:, 0])

    assert (data["vectors"] is not None) == (edit in ("quill", "the same, written out"))
    if data["vectors"] is not None:
        vectors = unpack(data["vectors"], "<i2", 2, 2, 3, 20, data["numbers"]) / 100
        log_sums = torch.tensor(unpack(data["log_sums"], "<f4", 2, 2, 20, 1))
        for i, (_, (q, k, v, weights)) in enumerate(calls):
            expected = torch.stack((q[0], k[0], v[0]), dim=1)[..., : data["numbers"]]
            np.testing.assert_allclose(vectors[i], expected, atol=0.006)
            shown = (q[0] @ k[0].mT / data["width"] ** 0.5 - log_sums[i]).exp()
            np.testing.assert_allclose(shown * (weights[0] > 0), weights[0], atol=1e-3)


def test_page_twins_are_most_and_least_similar_same_characters():
    ids = [0, 1, 0, 2, 0, 0]
    stream_RTC = torch.zeros(2, 6, 2)
    stream_RTC[0, :, 0] = 1  # all embeddings are alike
    angles = torch.tensor([0.0, 0, 60, 0, 90, 30]).deg2rad()  # after the last block
    stream_RTC[1] = 7 * torch.stack((angles.cos(), angles.sin()), dim=1)
    found = twins(torch.tensor(ids), stream_RTC)
    assert found[0] == [[5, 1.0, 0.87], [4, 1.0, 0.0]]
    assert found[4] == [[2, 1.0, 0.87], [0, 1.0, 0.0]]
    assert found[1] == found[3] == []
    assert twins(torch.tensor([3, 3]), stream_RTC[:, :2])[1] == [[0, 1.0, 1.0]]  # only one other


def test_a_network_whose_attention_cannot_be_recorded_is_refused():
    model = random_gpt()
    model.forward = lambda ids_BT: torch.zeros(*ids_BT.shape, 5)
    with pytest.raises(AbortError, match="calls attend"):
        attention_page(model, "abcde", [0, 1, 2], "")


def test_long_text_is_truncated_at_end_and_keeps_losses(monkeypatch, capsys):
    """Also if there are many heads, or if the network cannot read more at once."""
    model, ids = random_gpt(V=5, block_size=8).float(), random_ids(1, 30, V=5)[0].tolist()
    whole = page_data(attention_page(model, "abcde", ids, "about"))
    assert whole["about"] == "about"
    assert capsys.readouterr().err == ""

    def assert_cut(length: int) -> None:
        cut = page_data(attention_page(model, "abcde", ids, "about"))
        assert cut["nll"] == whole["nll"][:length]
        assert cut["about"] == f"about; the first {length} of 30 characters"
        assert capsys.readouterr().err == (f"attention page: the first {length} of 30 characters\n")

    monkeypatch.setattr(page, "MAX_PAGE_CHARS", 20)
    assert_cut(20)
    monkeypatch.setattr(page, "MAX_PAGE_WEIGHTS", 6 * 12**2 // 2)  # of six heads
    assert_cut(12)
    model.max_length = 8
    assert_cut(8)


def test_page_without_residual_stream_still_shows_predictions():
    model, ids = random_gpt(V=5).float(), random_ids(1, 12, V=5)[0].tolist()
    whole = page_data(attention_page(model, "abcde", ids, ""))
    for block in model.blocks:  # a new tensor for each block: they hand on none
        block.register_forward_pre_hook(lambda _, args: (args[0].clone(), *args[1:]))
    without = page_data(attention_page(model, "abcde", ids, ""))
    assert without["twins"] == []
    assert (without["top"], without["came"]) == (whole["top"][-1:], whole["came"][-1:])
