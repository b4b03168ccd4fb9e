"""The attention page: an HTML file that holds the model, runs it, and shows what each head does."""

import base64
import copy
import json
import math
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.inspect.record import record_attention, residual_stream
from model.inspect.trace import OPS, Trace
from model.system.errors import AbortError

TEMPLATE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.html", "page.js"))
MAX_PAGE_CHARS = 256  # that the model in the page reads at once
MAX_TEXT_CHARS = 5000  # in the page's box
MAX_PAGE_SIZE = 50_000_000
HALF_FROM = 4096  # parameters of so many numbers are rounded to half precision


@torch.inference_mode(False)
@torch.no_grad()
def attention_page(model: nn.Module, vocab: str, ids: list[int], about: str) -> str:
    """An HTML page, complete in itself, that computes what `model` does, first for a text.

    `model` is in eval mode. Raises AbortError if the page lacks one of its operations, or would be
    too large.
    """
    model = copy.deepcopy(model).cpu().float()
    for parameter in model.parameters():
        if parameter.numel() >= HALF_FROM:
            parameter.copy_(parameter.half())
    plan, constants = trace_model(model)
    if len(ids) > MAX_TEXT_CHARS:
        about += f"; the last {MAX_TEXT_CHARS:,} of {len(ids):,} characters"
        ids = ids[-MAX_TEXT_CHARS:]
    T = plan["ids"]["shape"][1]
    step = math.ceil(T / 2)
    first = math.ceil(max(0, len(ids) - T) / step) * step  # as page.js cuts it
    parts = [pack(x) for x in constants]
    data = {
        "about": about,
        "vocab": list(vocab),
        "text": ids,
        "expected": model(torch.tensor([ids[first:]]))[0, -1].tolist(),
        "plan": plan,
        "formats": [(len(x), kind) for x, (kind, _) in zip(constants, parts, strict=True)],
        "constants": base64.b64encode(zlib.compress(b"".join(b for _, b in parts), 9)).decode(),
    }
    # In a script, "<" could begin a tag that ends it.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    if len(content) > MAX_PAGE_SIZE:
        raise AbortError(
            f"the page would have {len(content) / 1e6:.0f} MB, since it holds the model; at most "
            f"{MAX_PAGE_SIZE / 1e6:.0f} are written."
        )
    page = TEMPLATE.read_text("utf-8").replace("/*OPS*/", OPS.read_text("utf-8"))
    return page.replace("/*PAGE*/", SCRIPT.read_text("utf-8")).replace("/*DATA*/", content)


def trace_model(model: nn.Module) -> tuple[dict[str, Any], list[Tensor]]:
    """The operations of `model`, with what the page shows of them, and its constants."""
    T = min(model.config.block_size, model.max_length or MAX_PAGE_CHARS, MAX_PAGE_CHARS)
    # Odd, and no size of a matrix: ops.js knows a dimension of time by its size.
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    T = next((n for n in range(T, 1, -1) if n % 2 and n not in sizes), 1)
    ids_BT = torch.arange(T)[None] % model.vocab_size
    with record_attention(model) as recorded, Trace(ids_BT) as trace:
        stream, lens = residual_stream(model, ids_BT)
    # Each part of the lens was a further pass; what it computed again is not needed.
    recorded = recorded[: len(recorded) // (1 + len(lens) if stream else 1)]
    outputs = {"stream": stream, "lens": lens, "calls": [call for _, call in recorded]}
    plan, constants = trace.plan(outputs)
    return plan | {"blocks": [block for block, _ in recorded]}, constants


def pack(x: Tensor) -> tuple[str, bytes]:
    """The format and the bytes of a constant: half precision if that changes nothing."""
    x = x.float()
    if torch.equal(x.half().float(), x):
        return "half", x.half().numpy().astype("<f2").tobytes()
    return "float", x.numpy().astype("<f4").tobytes()
