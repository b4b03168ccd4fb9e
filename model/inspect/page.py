"""The attention page: for each character of a text, where each head looked, and how.

Shapes: T characters (queries and keys), H heads of a block, X heads of all blocks, V vocabulary,
N numbers shown of a vector, R places in the residual stream (before, between, after the blocks).
"""

import base64
import json
import math
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from model.attention import AttentionCall
from model.inspect.record import record_attention, residual_stream
from model.system.errors import AbortError
from model.system.terminal import print_line

TEMPLATE = Path(__file__).with_name("page.html")
DATA = "/*DATA*/"  # is replaced by the data
MAX_PAGE_CHARS = 1000
MAX_PAGE_WEIGHTS = 8_000_000  # a page has about 2 bytes for each
SHOWN_FEATURES = 4  # of each query, key and value
SHOWN_NEXT = 5  # most probable next characters
LEVELS = 32766  # weights are rounded to so many parts; 256 characters take about 60 KB per head


@torch.no_grad()
def attention_page(model: nn.Module, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that shows what `model` computed for a text.

    It shows the first MAX_PAGE_CHARS characters; fewer if there are many heads, or if `model`
    cannot read as many at once. `model` is in eval mode. Raises AbortError if no attention could
    be recorded.
    """
    heads = model.config.n_layer * model.config.n_head
    limit = min(MAX_PAGE_CHARS, math.isqrt(2 * MAX_PAGE_WEIGHTS // heads))
    shown = ids[: min(limit, model.max_length or limit)]
    if len(shown) < len(ids):
        cut = f"the first {len(shown):,} of {len(ids):,} characters"
        about += f"; {cut}"
        print_line(f"attention page: {cut}", sys.stderr)
    ids_T = torch.tensor(shown, device=next(model.parameters()).device)
    with record_attention(model) as recorded:
        logits_BTV = model(ids_T[None])
    if not recorded:
        raise AbortError(
            "no attention was recorded: no block calls attend or record of model/attention.py with "
            "a query and a key for each character."
        )
    calls = [call for _, call in recorded]
    nll = cross_entropy(logits_BTV[0, :-1].float(), ids_T[1:], reduction="none")
    with record_attention(model):  # the equation runs here, too: the same rounding
        stream, lens = residual_stream(model, ids_T[None])
    lens_RTV = torch.stack([x_BTV[0].float().softmax(-1) for x_BTV in lens or [logits_BTV]])
    best = lens_RTV.topk(min(SHOWN_NEXT, len(vocab)))
    weights_XTT = torch.cat([call.weights_BHTS[0].float() for call in calls]).cpu()
    unit = weights_XTT.abs().max().clamp(min=1).item() / LEVELS
    # Rounding the running sum, not each weight, keeps the sum of a row.
    sums_XTT = (weights_XTT.cumsum(-1) / unit).round()
    units_XTT = sums_XTT.diff(prepend=torch.zeros_like(sums_XTT[..., :1]))
    visible_TT = torch.ones(weights_XTT.shape[1:]).tril().bool()
    data = {
        "about": about,
        "chars": [vocab[id_] for id_ in shown],
        "blocks": [[block, call.weights_BHTS.size(1)] for block, call in recorded],
        "width": calls[0].q_BHTD.size(-1),
        "windows": [farthest(call.weights_BHTS) for call in calls],
        "nll": [None, *(round(value, 4) for value in nll.tolist())],
        "top": [
            [
                [[vocab[id_], round(prob, 4)] for id_, prob in zip(*row, strict=True)]
                for row in zip(ids_TN.tolist(), probs_TN.tolist(), strict=True)
            ]
            for ids_TN, probs_TN in zip(best.indices, best.values, strict=True)
        ],
        "came": lens_RTV[:, torch.arange(len(shown) - 1), ids_T[1:]].tolist(),
        "twins": stream and twins(ids_T, torch.stack([x_BTC[0].float() for x_BTC in stream])),
        "unit": unit,
        "weights": pack(units_XTT[:, visible_TT], "<i2"),
        "vectors": None,
    }
    shapes = {x.shape for call in calls for x in (call.q_BHTD, call.k_BHSD, call.v_BHSD)}
    if len(shapes) == 1 and all(map(is_textbook, calls)):
        scores_XTT = torch.cat([call.q_BHTD[0] @ call.k_BHSD[0].mT for call in calls]).float().cpu()
        scores_XTT = (scores_XTT / data["width"] ** 0.5).masked_fill(weights_XTT == 0, -torch.inf)
        vectors_X3TN = torch.cat(
            [torch.stack([x[0, ..., :SHOWN_FEATURES] for x in call[:3]], 1) for call in calls]
        )
        data["vectors"] = pack((vectors_X3TN * 100).round().clamp(-32768, 32767), "<i2")
        data["log_sums"] = pack(scores_XTT.logsumexp(-1), "<f4")
        data["numbers"] = vectors_X3TN.size(-1)
    # In a script, "<" could begin a tag that ends it.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return TEMPLATE.read_text("utf-8").replace(DATA, content)


def twins(ids_T: Tensor, stream_RTC: Tensor) -> list[list[list[float]]]:
    """For each character, where else it stands: [position, similarity at each of R places].

    Of these, the two whose vectors after the last block are the most and least similar (cosine).
    """
    found = []
    for t, id_ in enumerate(ids_T.tolist()):
        places_N = (ids_T == id_).nonzero()[:, 0]
        places_N = places_N[places_N != t]
        similarity_RN = cosine_similarity(stream_RTC[:, places_N], stream_RTC[:, t, None], dim=-1)
        order_N = similarity_RN[-1].argsort(descending=True)
        ends = dict.fromkeys([*order_N[:1].tolist(), *order_N[-1:].tolist()])
        rows = similarity_RN.mT.tolist()
        found.append([[places_N[n].item(), *(round(x, 2) for x in rows[n])] for n in ends])
    return found


def farthest(weights_BHTS: Tensor) -> int:
    """How far back, in characters and its own included, a query has weights that are not 0."""
    queries_N, keys_N = weights_BHTS.flatten(0, 1).any(dim=0).nonzero(as_tuple=True)
    return max((queries_N - keys_N).tolist(), default=0) + 1


def is_textbook(call: AttentionCall) -> bool:
    """Whether the weights are softmax(Q Kᵀ / √d + mask)."""
    scores_BHTS = call.q_BHTD @ call.k_BHSD.mT / call.q_BHTD.size(-1) ** 0.5
    expected_BHTS = scores_BHTS.masked_fill(call.weights_BHTS == 0, -torch.inf).softmax(-1)
    return torch.allclose(call.weights_BHTS, expected_BHTS, atol=1e-3)


def pack(tensor: Tensor, dtype: str) -> str:
    """The numbers of a tensor, as compressed text."""
    return base64.b64encode(zlib.compress(tensor.cpu().numpy().astype(dtype).tobytes(), 9)).decode()
