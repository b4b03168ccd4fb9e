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
from model.system.console import AbortError

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
    data = {
        "about": about,
        "vocab": list(vocab),
        "text": ids[: min(T, FIRST_CHARS)],
        "typed": len(ids) if n_typed is None else n_typed,
        "probe": make_probe(model, T),
        "plan": plan,
        "sizes": [len(x) for x in constants],
        "constants": pack(constants),
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
    if [op["name"] for op in plan["ops"]] != [op["name"] for op in shorter["ops"]]:
        return plan, constants
    for op, other in zip(plan["ops"], shorter["ops"], strict=True):
        sizes = list(zip(op["out"]["shape"], other["out"]["shape"], strict=True))
        changed = [d for d, (size, shorter_size) in enumerate(sizes) if size != shorter_size]
        if changed and sizes[changed[0]] == (T, T - 1) and not op["isWhole"]:
            op["out"]["row"] = changed[0]
    return plan, constants


def trace_text(model: nn.Module, length: int) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the plan and the constants of `model` for a text of `length` characters."""
    ids_BT = torch.arange(length)[None] % model.vocab_size
    torch.backends.mha.set_fastpath_enabled(False)  # it fuses an nn.Transformer into one operation
    with record_attention(model) as recorded, Trace(ids_BT) as trace:
        logits_BTV = model(ids_BT)
    calls = [
        {"block": block, "q": q, "k": k, "v": v, "weights": w} for block, (q, k, v, w) in recorded
    ]
    return trace.plan({"logits": logits_BTV, "calls": calls})


def make_probe(model: nn.Module, T: int) -> list[dict[str, list]]:
    """Return three texts. For each text, give the surprise of each next character, in nats.

    The page computes these numbers again. If they differ, it shows a warning.
    """
    ids_N = torch.randint(model.vocab_size, (T + 1,), generator=torch.Generator().manual_seed(0))
    probe = []
    for n in (min(2, T), math.ceil(T / 3), T):
        nats = F.cross_entropy(model(ids_N[None, :n])[0], ids_N[1 : n + 1], reduction="none")
        rounded = [round(x, 6) if math.isfinite(x) else None for x in nats.tolist()]
        probe.append({"ids": ids_N[: n + 1].tolist(), "nats": rounded})
    return probe


def pack(constants: list[Tensor]) -> str:
    """Return the numbers of all constants in single precision, compressed, in base64.

    The first bytes of all numbers come first, then all second bytes. This compresses better.
    """
    for x in constants:
        if not x.is_floating_point() and not torch.equal(x.float().to(x.dtype), x):
            raise AbortError("the page cannot store a constant with integers above 2^24.")
    numbers = torch.cat([torch.empty(0), *(x.float() for x in constants)]).numpy()
    bytes_4N = numbers.astype("<f4").view("u1").reshape(-1, 4).T
    return base64.b64encode(zlib.compress(bytes_4N.tobytes(), 9)).decode()
