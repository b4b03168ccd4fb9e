"""The attention page: an HTML file that contains the model, runs it and shows what its heads do."""

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

from model.inspect.record import record_attention
from model.inspect.trace import OPS, Trace

TEMPLATE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
MAX_PAGE_CHARS = 256  # the model in the page reads at most this many characters at once
FIRST_CHARS = 120  # the page first shows this many, so that the heads fit on the same screen
HALF_FROM = 4096  # a parameter with this many numbers or more is rounded to half precision


@torch.inference_mode(False)
@torch.no_grad()
def attention_page(
    model: nn.Module, vocab: str, ids: list[int], about: str, n_typed: int | None = None
) -> str:
    """Return an HTML page that computes what `model` computes. It needs no other file.

    It first shows the beginning of the text `ids`. The model wrote it, except `n_typed` characters.
    Raises AbortError if the model, which must be in eval mode, uses an operation that is missing.
    """
    model = copy.deepcopy(model).cpu().float()
    for parameter in model.parameters():
        if parameter.numel() >= HALF_FROM:
            parameter.copy_(parameter.half())
    plan, constants = trace_model(model)
    T = plan["ids"]["shape"][1]
    parts = [pack(x) for x in constants]
    data = {
        "about": about,
        "vocab": list(vocab),
        "network": model.config.network,
        "text": ids[: min(T, FIRST_CHARS)],
        "typed": len(ids) if n_typed is None else n_typed,
        "probe": make_probe(model, T),
        "plan": plan,
        "formats": [(len(x), kind) for x, (kind, _) in zip(constants, parts, strict=True)],
        "constants": base64.b64encode(zlib.compress(b"".join(b for _, b in parts), 9)).decode(),
    }
    # Inside <script>, a "<" in the data could begin a tag that ends the script.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text("utf-8").replace("/*OPS*/", OPS.read_text("utf-8"))
    return page.replace("/*PAGE*/", SCRIPT.read_text("utf-8")).replace("/*DATA*/", content)


def trace_model(model: nn.Module) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the plan of `model` (its operations and outputs) and its constants. See `Trace.plan`.

    For each operation, the plan names the dimension that has one row for each character, so that
    ops.js computes only new rows. In a text of one character less, this dimension is shorter.
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
    """Return the plan and the constants of `model` for a text of `length` characters."""
    ids_BT = torch.arange(length)[None] % model.vocab_size
    torch.backends.mha.set_fastpath_enabled(False)  # it fuses an nn.Transformer into one operation
    with record_attention(model) as recorded, Trace(ids_BT) as trace:
        logits_BTV = model(ids_BT)
    plan, constants = trace.plan([logits_BTV, [list(call) for _, call in recorded]])
    return plan | {"blocks": [block for block, _ in recorded]}, constants


def make_probe(model: nn.Module, T: int) -> list[tuple[list[int], list[float | None]]]:
    """Return three texts, each with the loss of every character after the first, in nats.

    The page computes these losses again. If they differ, it shows a warning.
    """
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(model.vocab_size, (1, T), generator=generator)
    probe = []
    for x_BT in (ids_BT[:, :n] for n in (2, math.ceil(T / 3), T)):
        nats = F.cross_entropy(model(x_BT)[0, :-1], x_BT[0, 1:], reduction="none").tolist()
        probe.append((x_BT[0].tolist(), [round(x, 6) if math.isfinite(x) else None for x in nats]))
    return probe


def pack(x: Tensor) -> tuple[str, bytes]:
    """Return the format and the bytes of a constant, in the smallest format that is exact."""
    for kind in ("half", "float"):
        short = x.to(getattr(torch, kind))
        if torch.equal(short.to(x.dtype), x):
            return kind, short.numpy().astype({"half": "<f2", "float": "<f4"}[kind]).tobytes()
    return "double", x.double().numpy().astype("<f8").tobytes()
