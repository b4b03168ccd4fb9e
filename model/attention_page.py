"""What attention looked at: the weights that a model used, and a page for the browser.

Shapes: B batch, T time (queries), S keys (as many), H heads of a layer, X heads of all layers,
D head width, V vocabulary, N numbers shown of a vector.
"""

import base64
import contextlib
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.errors import RunError
from model.gpt import GPT

TEMPLATE = Path(__file__).with_name("attention_page.html")
MAX_PAGE_CHARS = 1000
SHOWN_FEATURES = 4  # of each query, key and value
SHOWN_NEXT = 5  # most probable next characters
LEVELS = 8191  # weights are rounded to so many parts; 256 characters take about 55 KB per head


class AttentionCall(NamedTuple):
    """One call of an attention function: its arguments, and the weights that it used."""

    layer: int  # from 1
    q_BHTD: Tensor
    k_BHSD: Tensor
    v_BHSD: Tensor
    weights_BHTS: Tensor


@contextlib.contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionCall]]:
    """Inside, each call of an attention function in `model` is appended to the list.

    Attention is linear in the values, so with the identity in their place it returns its weights.
    That is right for an edited attention function, too; one that is not linear is not recorded.
    """
    calls = []

    def recorded(layer: int, attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_and_record(q: Tensor, k: Tensor, v: Tensor, *args, **options) -> Tensor:
            S = k.size(-2)
            identity_BHSS = torch.eye(S, dtype=v.dtype, device=v.device).expand(*v.shape[:2], S, S)
            weights_BHTS = attend(q, k, identity_BHSS, *args, **options)
            out_BHTD = attend(q, k, v, *args, **options)
            if torch.allclose(weights_BHTS @ v, out_BHTD, rtol=0.01, atol=0.01):
                calls.append(AttentionCall(layer, q, k, v, weights_BHTS))
            return out_BHTD

        return attend_and_record

    blocks = enumerate(model.blocks, start=1)
    layer_of = {module: layer for layer, block in blocks for module in block.modules()}
    with contextlib.ExitStack() as stack:
        for module, layer in layer_of.items():
            if hasattr(module, "attend_fn"):
                # In the instance's dictionary, it hides a function and a submodule alike.
                stack.callback(vars(module).update, dict(vars(module)))
                stack.callback(vars(module).pop, "attend_fn")
                vars(module)["attend_fn"] = recorded(layer, module.attend_fn)
        yield calls


@torch.no_grad()
def attention_page(model: GPT, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that shows what `model` computed for a text.

    It shows the first MAX_PAGE_CHARS characters, or as many as the network can read at once.
    `model` is in eval mode. Raises RunError if no attention could be recorded.
    """
    shown = ids[: min(MAX_PAGE_CHARS, model.max_length or MAX_PAGE_CHARS)]
    if len(shown) < len(ids):
        about += f"; the first {len(shown):,} of {len(ids):,} characters"
    ids_T = torch.tensor(shown, device=next(model.parameters()).device)
    with record_attention(model) as calls:
        log_probs_TV = model(ids_T[None])[0].float().log_softmax(-1)
    if not calls:
        raise RunError("no layer in model/ calls an `attend_fn` that is a weighted sum of values.")
    nll = -log_probs_TV[:-1].gather(1, ids_T[1:, None])[:, 0]
    best = log_probs_TV.exp().topk(min(SHOWN_NEXT, len(vocab)))
    weights_XTS = torch.cat([call.weights_BHTS[0].float() for call in calls]).cpu()
    unit = weights_XTS.abs().max().clamp(min=1).item() / LEVELS
    # Rounding the running sum, not each weight, keeps the sum of a row.
    sums_XTS = (weights_XTS.cumsum(-1) / unit).round()
    units_XTS = sums_XTS.diff(prepend=torch.zeros_like(sums_XTS[..., :1]))
    visible = torch.ones(weights_XTS.shape[1:]).tril().bool()
    data = {
        "about": about,
        "chars": [vocab[id_] for id_ in shown],
        "layers": [[call.layer, call.weights_BHTS.size(1)] for call in calls],
        "width": calls[0].q_BHTD.size(-1),
        "window": (weights_XTS != 0).sum(-1).max().item(),
        "nll": [None, *(round(value, 4) for value in nll.tolist())],
        "top": [
            [[vocab[id_], round(prob, 4)] for id_, prob in zip(*row, strict=True)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        "unit": unit,
        "weights": pack(units_XTS[:, visible], "<i2"),
        "vectors": None,
    }
    # The numbers of softmax(Q Kᵀ / √d + mask), unless the equation was edited.
    if len({x.shape for call in calls for x in call[1:4]}) == 1:
        scores_XTS = torch.cat([call.q_BHTD[0] @ call.k_BHSD[0].mT for call in calls]).float().cpu()
        scores_XTS = (scores_XTS / data["width"] ** 0.5).masked_fill(weights_XTS == 0, -torch.inf)
        if torch.allclose(scores_XTS.softmax(-1), weights_XTS, atol=1e-3):
            shown_X3TN = torch.cat(
                [torch.stack([x[0, ..., :SHOWN_FEATURES] for x in call[1:4]], 1) for call in calls]
            )
            data["vectors"] = pack((shown_X3TN * 100).round(), "<i2")
            data["log_sums"] = pack(scores_XTS.logsumexp(-1), "<f4")
            data["numbers"] = shown_X3TN.size(-1)
    # In a script, "<" could begin a tag that ends it.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return TEMPLATE.read_text("utf-8").replace("/*DATA*/", content)


def pack(tensor: Tensor, dtype: str) -> str:
    """The numbers of a tensor, as compressed text."""
    return base64.b64encode(zlib.compress(tensor.cpu().numpy().astype(dtype).tobytes(), 9)).decode()
