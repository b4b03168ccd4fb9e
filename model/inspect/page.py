"""The attention page: for each character of a text, where each head looked, and how.

Shapes: T characters (queries and keys), H heads of a block, X heads of all blocks, V vocabulary,
N numbers shown of a vector, R places in the residual stream (before, between, after the blocks).
"""

import base64
import json
import os
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from model.attention import USES_FUSED_KERNEL
from model.inspect.record import record_attention, residual_stream
from model.run.errors import RunError, UserError

TEMPLATE = Path(__file__).with_name("page.html")
DATA = "/*DATA*/"  # is replaced by the data
MAX_PAGE_CHARS = 1000
SHOWN_FEATURES = 4  # of each query, key and value
SHOWN_NEXT = 5  # most probable next characters
LEVELS = 32766  # weights are rounded to so many parts; 256 characters take about 60 KB per head


@torch.no_grad()
def attention_page(model: nn.Module, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that shows what `model` computed for a text.

    It shows the first MAX_PAGE_CHARS characters, and of a network that reads the text in one pass
    at most block_size. `model` is in eval mode. Raises RunError if no attention could be recorded.
    """
    reads_on = model.has_proven_cache and model.max_length is None
    shown = ids[: MAX_PAGE_CHARS if reads_on else min(MAX_PAGE_CHARS, model.config.block_size)]
    if len(shown) < len(ids):
        about += f"; the first {len(shown):,} of {len(ids):,} characters"
    ids_T = torch.tensor(shown, device=next(model.parameters()).device)
    with record_attention(model) as calls:
        logits_BTV = model(ids_T[None])
    if not calls:
        raise RunError(
            "no attention was recorded: no layer calls fast_attend of model/attention.py with the "
            "causal mask, a query and a key for each character, so that it calls attention_weights "
            "once."
        )
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
        "blocks": [[call.block, call.weights_BHTS.size(1)] for call in calls],
        "width": calls[0].q_BHTD.size(-1),
        "windows": [call.window or len(shown) for call in calls],
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
        "network": model.config.network if model.has_proven_cache else None,
        "unit": unit,
        "weights": pack(units_XTT[:, visible_TT], "<i2"),
        "vectors": None,
    }
    # Only an equation that was not edited is softmax(Q Kᵀ / √d + mask) V for certain.
    is_textbook = USES_FUSED_KERNEL and all(call.scale is None for call in calls)
    if is_textbook and len({x.shape for call in calls for x in call[1:4]}) == 1:
        scores_XTT = torch.cat([call.q_BHTD[0] @ call.k_BHSD[0].mT for call in calls]).float().cpu()
        scores_XTT = (scores_XTT / data["width"] ** 0.5).masked_fill(weights_XTT == 0, -torch.inf)
        vectors_X3TN = torch.cat(
            [torch.stack([x[0, ..., :SHOWN_FEATURES] for x in call[1:4]], 1) for call in calls]
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


def check_page_path(name: str) -> None:
    """Raise UserError unless it is an .html file in a folder, new or an attention page."""
    path = Path(name)
    if not name.endswith(".html") or not os.path.isdir(path.parent):
        raise UserError(f"attention is {name!r}. Name an .html file in a folder that exists.")
    try:
        is_file = not path.resolve().is_dir() and not path.is_fifo()
    except (OSError, RuntimeError):  # the name is too long, or a link to itself
        is_file = False
    if not is_file:
        raise UserError(f"{name} is not a file. Name another one.")
    if path.exists():
        start, content = TEMPLATE.read_bytes().split(b"<style>")[0], path.read_bytes()
        if not content.startswith(start) or DATA.encode() in content:
            raise UserError(f"{name} is not an attention page. Name another file.")


def pack(tensor: Tensor, dtype: str) -> str:
    """The numbers of a tensor, as compressed text."""
    return base64.b64encode(zlib.compress(tensor.cpu().numpy().astype(dtype).tobytes(), 9)).decode()
