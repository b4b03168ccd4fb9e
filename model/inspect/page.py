"""The attention page: an HTML file that holds the model, runs it, and shows what each head does."""

import base64
import copy
import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.inspect.record import logit_lens, record_attention
from model.inspect.trace import OPS, Trace

TEMPLATE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
MAX_PAGE_CHARS = 256  # that the model in the page reads at once
MAX_TEXT_CHARS = 5000  # in the page's box
HALF_FROM = 4096  # parameters of so many numbers are rounded to half precision


@torch.inference_mode(False)
@torch.no_grad()
def attention_page(model: nn.Module, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that computes what `model` does, first for a text.

    `model` is in eval mode. Raises AbortError if the page lacks one of its operations.
    """
    model = copy.deepcopy(model).cpu().float()
    for parameter in model.parameters():
        if parameter.numel() >= HALF_FROM:
            parameter.copy_(parameter.half())
    plan, constants = trace_model(model)
    parts = [pack(x) for x in constants]
    data = {
        "about": about,
        "vocab": list(vocab),
        "text": ids[-MAX_TEXT_CHARS:],
        "probe": make_probe(model, plan["ids"]["shape"][1]),
        "plan": plan,
        "formats": [(len(x), kind) for x, (kind, _) in zip(constants, parts, strict=True)],
        "constants": base64.b64encode(zlib.compress(b"".join(b for _, b in parts), 9)).decode(),
    }
    # In a script, "<" could begin a tag that ends it.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text("utf-8").replace("/*OPS*/", OPS.read_text("utf-8"))
    return page.replace("/*PAGE*/", SCRIPT.read_text("utf-8")).replace("/*DATA*/", content)


def trace_model(model: nn.Module) -> tuple[dict[str, Any], list[Tensor]]:
    """The operations of `model`, with what the page shows of them, and its constants.

    It reads two texts, one a character shorter. In both, the first dimension of a tensor that is as
    long as the text has a row for each character; of these, ops.js computes the new ones only.
    """
    T = min(model.config.block_size, model.max_length or MAX_PAGE_CHARS, MAX_PAGE_CHARS)
    (plan, constants), (shorter, _) = trace_text(model, T), trace_text(model, max(1, T - 1))
    is_same = [op[0] for op in plan["ops"]] == [op[0] for op in shorter["ops"]]
    for i, (name, out, values, is_whole) in enumerate(plan["ops"]):
        row = None
        if is_same and not is_whole:
            sizes = zip(out["shape"], shorter["ops"][i][1]["shape"], strict=True)
            changed = [(d, *size) for d, size in enumerate(sizes) if size[0] != size[1]]
            row = changed[0][0] if changed and changed[0][1:] == (T, T - 1) else None
        plan["ops"][i] = name, out, values, row
    return plan, constants


def trace_text(model: nn.Module, length: int) -> tuple[dict[str, Any], list[Tensor]]:
    """The operations for a text of so many characters."""
    ids_BT = torch.arange(length)[None] % model.vocab_size
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one operation for a whole nn.Transformer
    try:
        with record_attention(model) as recorded, Trace(ids_BT) as trace:
            lens = logit_lens(model, ids_BT)
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    # Each part of the lens was a further pass; what it computed again is not needed.
    recorded = recorded[: len(recorded) // (1 + len(lens) if len(lens) > 1 else 1)]
    plan, constants = trace.plan([lens, [list(call) for _, call in recorded]])
    return plan | {"blocks": [block for block, _ in recorded]}, constants


def make_probe(model: nn.Module, T: int) -> list[tuple[list[int], list[float | None]]]:
    """Three texts, and how surprised the model is by each of their characters but the first.

    The page computes the same, or says that it does not.
    """
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.vocab_size, (1, T), generator=generator)
    probe = []
    for x_BT in (ids_BT[:, :n] for n in (2, math.ceil(T / 3), T)):
        nats = F.cross_entropy(model(x_BT)[0, :-1], x_BT[0, 1:], reduction="none").tolist()
        probe.append((x_BT[0].tolist(), [round(x, 6) if math.isfinite(x) else None for x in nats]))
    return probe


def pack(x: Tensor) -> tuple[str, bytes]:
    """The format and the bytes of a constant: the smallest that changes nothing."""
    for kind in ("half", "float"):
        short = x.to(getattr(torch, kind))
        if torch.equal(short.to(x.dtype), x):
            return kind, short.numpy().astype({"half": "<f2", "float": "<f4"}[kind]).tobytes()
    return "double", x.double().numpy().astype("<f8").tobytes()
