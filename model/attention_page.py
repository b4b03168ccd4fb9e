"""What attention looked at: the weights that a model used, and a page for the browser.

Shapes: B batch, T time (queries), S keys (as many), L layers, H heads, D head width, V vocabulary,
N numbers shown of a vector.
"""

import base64
import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from model.errors import RunError
from model.gpt import GPT

TEMPLATE = Path(__file__).with_name("attention_page.html")
MAX_PAGE_CHARS = 1000
SHOWN_FEATURES = 4  # of each query, key and value
SHOWN_NEXT = 5  # most probable next characters


class AttentionCall(NamedTuple):
    """One call of an attention function: its arguments, and the weights that it used."""

    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    weights_BHTS: Tensor


@contextlib.contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionCall]]:
    """Inside, each call of an attention function in `model` is appended to the list.

    Attention is linear in the values, so with the identity in their place it returns its weights.
    That is right for an edited attention function, too.
    """
    calls = []

    def recorded(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_and_record(q: Tensor, k: Tensor, v: Tensor, *args, **options) -> Tensor:
            S = k.size(-2)
            identity_BHSS = torch.eye(S, dtype=v.dtype, device=v.device).expand(*v.shape[:2], S, S)
            weights_BHTS = attend(q, k, identity_BHSS, *args, **options)
            calls.append(AttentionCall(q, k, v, weights_BHTS))
            return attend(q, k, v, *args, **options)

        return attend_and_record

    with contextlib.ExitStack() as stack:
        for layer in model.modules():
            if hasattr(layer, "attend_fn"):
                stack.callback(setattr, layer, "attend_fn", layer.attend_fn)
                layer.attend_fn = recorded(layer.attend_fn)
        yield calls


@torch.no_grad()
def attention_page(model: GPT, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that shows what `model` computed for a text.

    It shows the last MAX_PAGE_CHARS characters, or as many as the network can read at once.
    `model` is in eval mode.
    """
    ids = ids[-min(MAX_PAGE_CHARS, model.max_length or MAX_PAGE_CHARS) :]
    ids_T = torch.tensor(ids, device=next(model.parameters()).device)
    with record_attention(model) as calls:
        log_probs_TV = model(ids_T[None])[0].float().log_softmax(-1)
    if not calls:
        raise RunError("no layer in model/ calls `attend_fn`, so there is nothing to show.")
    nll = -log_probs_TV[:-1].gather(1, ids_T[1:, None])[:, 0]
    best = log_probs_TV.exp().topk(min(SHOWN_NEXT, len(vocab)))
    weights_LHTS = torch.stack([call.weights_BHTS[0].float() for call in calls]).cpu()
    L, H, T, _ = weights_LHTS.shape
    visible = weights_LHTS[:, :, torch.ones(T, T).tril().bool()]
    data = {
        "about": about,
        "chars": [vocab[id_] for id_ in ids],
        "layers": L,
        "heads": H,
        "width": calls[0].q_BHTD.size(-1),
        "window": model.config.block_size,
        "nll": [None, *(round(value, 4) for value in nll.tolist())],
        "top": [
            [[vocab[id_], round(prob, 4)] for id_, prob in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        "weights": pack((visible * 65535).round().numpy().astype("<u2")),
        "vectors": None,
    }
    # The numbers of softmax(Q Kᵀ / √d + mask), unless the equation was edited.
    scores = [call.q_BHTD[0].float() @ call.k_BHSD[0].float().mT for call in calls]
    scores_LHTS = torch.stack(scores).cpu() / data["width"] ** 0.5
    scores_LHTS = scores_LHTS.masked_fill(weights_LHTS == 0, -torch.inf)
    if torch.allclose(scores_LHTS.softmax(-1), weights_LHTS, atol=1e-3):
        qkv = [(call.q_BHTD, call.k_BHSD, call.v_BHSD) for call in calls]
        shown_LH3TN = torch.stack(
            [torch.stack([x[0, ..., :SHOWN_FEATURES] for x in layer], dim=1) for layer in qkv]
        )
        data["vectors"] = pack(shown_LH3TN.float().cpu().numpy().astype("<f4"))
        data["log_sums"] = pack(scores_LHTS.logsumexp(-1).numpy().astype("<f4"))
        data["numbers"] = shown_LH3TN.size(-1)
    # In a script, "<" could begin a tag that ends it.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return TEMPLATE.read_text("utf-8").replace("/*DATA*/", content)


def pack(array: np.ndarray) -> str:
    """The bytes of an array, compressed, as text."""
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
