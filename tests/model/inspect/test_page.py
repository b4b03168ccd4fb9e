"""Tests of the attention page: its script, run by V8, computes what the model computes."""

import base64
import importlib
import json
import math
import re
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import py_mini_racer
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model.inspect import page, trace
from model.inspect.page import SCRIPT, attention_page
from model.inspect.record import record_attention, residual_stream
from model.inspect.trace import KNOWN, OPS, Trace
from model.networks import network_names
from model.system.errors import AbortError
from tests.conftest import NO_MASK
from tests.model.test_networks import random_gpt, random_ids

VOCAB = "ab</script>'\"&\n\t\u202e\x1b\U0001f600é"
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


def instead_of_gelu(expression: str) -> tuple[str, dict[str, str]]:
    """A change of gpt: another function of x."""
    return "gpt", {"self.gelu(self.fc(x_BTC))": f"(lambda x: {expression})(self.fc(x_BTC))"}


def instead_of_attention(expression: str) -> tuple[str, dict[str, str]]:
    """A change of gpt: another function of x, which mixes positions."""
    call = "self.dropout(self.attention(self.norm_1(x_BTC)))"
    return "gpt", {call: f"(lambda x: {expression})(self.norm_1(x_BTC))"}


SCALE, MASK = " / math.sqrt(q_BHTD.size(-1))", ".masked_fill(is_later_TT, -torch.inf)"
ALIBI = f"""{SCALE}
        distance_TT = torch.arange(T)[:, None] - torch.arange(T)
        slope_H11 = 2.0 ** -torch.arange(1, self.n_head + 1)[:, None, None]
        scores_BHTT = scores_BHTT - slope_H11 * distance_TT"""
WINDOW = f"{MASK}.masked_fill((~is_later_TT).tril(-8), -torch.inf)"
TRACE = Path(trace.__file__).read_text("utf-8")
CLOSE = {"atol": 1e-4, "rtol": 1e-4}
NORM = "self.norm(x_BTC)"
EDITS = {
    **{name: (name, {}) for name in network_names()},
    "softmax, written out": ("quill", own_softmax("scores_BHTS / 8**0.5")),
    "SiLU, gated": instead_of_gelu("torch.nn.functional.silu(x) * x.sigmoid()"),
    "GELU by tanh": instead_of_gelu("torch.nn.functional.gelu(x, approximate='tanh')"),
    "rounded": instead_of_gelu("x * torch.div(x, torch.tensor(2.0).item(), rounding_mode='floor')"),
    "softplus, mish": instead_of_gelu("torch.nn.functional.mish(torch.nn.functional.softplus(x))"),
    "RMSNorm": ("gpt", {NORM: "torch.nn.functional.rms_norm(x_BTC, (16,))"}),
    "LayerNorm by hand": (
        "gpt",
        {NORM: "(x_BTC - x_BTC.mean(-1, keepdim=True)) / x_BTC.var(-1, keepdim=True).sqrt()"},
    ),
    "BatchNorm": (
        "gpt",
        {NORM: "torch.nn.functional.batch_norm(x_BTC.mT, *torch.ones(2, 16) / 3).mT"},
    ),
    "no attention": instead_of_attention("0"),
    "a mean of the past": instead_of_attention(
        "(x * 1).cumsum_(1) / torch.arange(1, x.size(1) + 1)[:, None]"
    ),
    "a shift by padding": instead_of_attention("torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]"),
    "a sum in place": instead_of_attention(
        "(y := x + 1, y[:, 1:].add_(x[:, :-1]))[0].cumsum(1) / 9"  # later rows read earlier ones
    ),
    "PyTorch's attention": instead_of_attention(
        "torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)"
    ),
    "a shift in place": instead_of_attention(
        "(lambda y: x * y + (y[:, 1:].add_(x[:, :-1]), y)[1])(torch.ones_like(x))"
    ),
    "ALiBi": ("gpt", {SCALE: ALIBI}),
    "softcap": ("gpt", {MASK: f".div(20).tanh().mul(20){MASK}"}),
    "a window": ("gpt", {MASK: WINDOW}),
    "sigmoid for softmax": ("quill", own_equation("scores_BHTS.sigmoid() * visible_TS")),
    "no mask": ("gpt", NO_MASK["gpt"]),
}


def page_data(html: str) -> dict:
    """What the page's script reads."""
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(content)


def unpack(data: dict) -> list[np.ndarray]:
    """The constants of a page."""
    packed, arrays, start = zlib.decompress(base64.b64decode(data["constants"])), [], 0
    for length, kind in data["formats"]:
        dtype = np.dtype({"half": "<f2", "float": "<f4"}[kind])
        arrays.append(np.frombuffer(packed, dtype, length, start))
        start += length * dtype.itemsize
    assert start == len(packed)
    return arrays


class Script:
    """The script of the page, without a browser, in V8."""

    def __init__(self, plan: dict, constants: list[list[float]]) -> None:
        numbers = json.dumps(constants).replace("Infinity", "1e999")
        self.engine = py_mini_racer.MiniRacer()
        self.engine.eval(OPS.read_text("utf-8") + SCRIPT.read_text("utf-8"))
        self.engine.eval(
            f"const constants = {numbers}.map((xs) => Float32Array.from(xs));"
            f"const net = makeNetwork({json.dumps(plan)}, constants);"
            "const text = makeText(net);"
            "const values = (x) => [x.shape, x.strides, x.offset, Array.from(x.data)];"
            "const read = (ids) => { text.set(ids); let pieces = 1;"
            "  while (!text.step()) pieces++; return pieces; };"
            "const write = (count, ...options) => { for (; count > 0; count--) {"
            "  read([...text.ids, text.next(...options)]); } return text.ids; };"
        )

    def eval(self, code: str) -> object:
        return json.loads(self.engine.eval(f"JSON.stringify({code} ?? null)"))

    def tensor(self, name: str) -> torch.Tensor:
        """An output, such as `lens[0]`."""
        shape, strides, offset, numbers = self.eval(f"values(net.{name})")
        return torch.tensor(numbers).as_strided(shape, strides, offset)


def open_page(model: nn.Module, ids: list[int]) -> tuple[Script, dict]:
    """The script of a page of `model`, which has not computed its text yet, and its data."""
    data = page_data(attention_page(model, VOCAB, ids, ""))
    return Script(data["plan"], [array.tolist() for array in unpack(data)]), data


def assert_shows(page: Script, model: nn.Module, ids: list[int]) -> None:
    """The page has computed what the model computes for this text."""
    first, n = page.eval("text.first"), page.eval("text.shown.length")
    ids_BT = torch.tensor([ids[first:]])
    with record_attention(model) as calls:
        stream, lens = residual_stream(model, ids_BT)
    for name, expected in (("stream", stream), ("lens", lens)):
        for i, x_BTC in enumerate(expected):
            torch.testing.assert_close(page.tensor(f"{name}[{i}]")[:, :n], x_BTC, **CLOSE)
    calls = calls[: len(calls) // (1 + len(lens))]  # the others are of the lens
    assert page.eval("net.calls.length") == len(calls)
    for i, (_, call) in enumerate(calls):
        for part, x in enumerate(call):
            shown = page.tensor(f"calls[{i}][{part}]")[:, :, :n]
            torch.testing.assert_close(shown[..., :n] if part == 3 else shown, x, **CLOSE)
    nats = F.cross_entropy(lens[-1][0, :-1], ids_BT[0, 1:], reduction="none")
    assert page.eval("text.surprises") == [
        None,
        *(pytest.approx(x, abs=1e-3) for x in nats.tolist()),
    ]


@torch.no_grad()
@pytest.mark.parametrize("edit", EDITS)
def test_page_computes_what_the_model_computes(edit, edit_network):
    """For a text that grows, shrinks, changes in the middle, becomes longer than the context."""
    edit_network(*EDITS[edit])
    model, V = random_gpt(len(VOCAB), network="mine", block_size=24).float(), len(VOCAB)
    a, b = random_ids(2, 40, V=V).tolist()
    page, data = open_page(model, a)
    T = page.eval("net.T")
    is_in_place = edit in ("a mean of the past", "a sum in place", "a shift in place")
    assert (page.eval("net.rows") == T) == is_in_place
    for text in (a, a[:9], a[:T], a[:20], a[:5] + b[5:], [9], b):
        page.eval(f"read({text})")
        if text == a:  # as the page does when it opens
            error = page.eval(f"net.error({data['expected']})")
            assert (error < 1e-4) == (edit != "no mask")
        if edit != "no mask":
            assert_shows(page, model, text)


@torch.no_grad()
def test_only_what_is_new_is_computed_in_pieces():
    model, ids = (
        random_gpt(len(VOCAB), block_size=25).float(),
        random_ids(80, V=len(VOCAB)).tolist(),
    )
    page, _ = open_page(model, ids)
    T, rows = page.eval("net.T"), []
    for text in (
        ids[:T],
        [*ids[: T - 1], 3],
        ids[: T - 1],
        [*ids[:9], 1 - min(ids[9], 1), *ids[10:T]],
        ids[: T + 1],
    ):
        page.eval(f"text.set({text})")
        rows.append(len(text) - page.eval("text.first") - page.eval("net.same(text.shown)"))
        assert page.eval(f"read({text})") == max(1, math.ceil(rows[-1] / 8))
    jump = math.ceil(T / 2)
    assert rows == [T, 1, 0, T - 9, T + 1 - jump]  # a longer text loses half


@torch.no_grad()
def test_the_page_writes_as_the_model_does_and_a_seed_repeats_a_text():
    model, prompt = random_gpt(len(VOCAB), block_size=24, n_embd=24).float(), [1, 2, 3]
    page, _ = open_page(model, prompt)
    greedy = prompt
    for _ in range(40):  # the page cuts a text that is longer than the context, by half at once
        page.eval(f"read({greedy})")
        shown = greedy[page.eval("text.first") :]
        greedy = [*greedy, model(torch.tensor([shown]))[0, -1].argmax().item()]
    texts = {}
    for name, temperature, seed in (("0", 0, 7), ("7", 1, 7)):
        page.eval(f"read({prompt})")
        page.eval(f"write(15, {temperature}, {seed})")
        texts[name] = page.eval(f"write(25, {temperature}, {seed})")
    assert texts["0"] == greedy != texts["7"]
    page.eval(f"read({prompt})")
    assert page.eval("write(40, 1, 7)") == texts["7"]  # also if it was stopped in between
    page.eval(f"read({prompt})")
    assert page.eval("write(40, 1, 8)") != texts["7"]
    assert len(set(page.eval("write(40, 1e9, 7)")[-40:])) > 5  # each position draws anew
    # The frequencies of the next character are its probabilities.
    page.eval(f"read({prompt})")
    drawn = page.eval("Array.from({ length: 4000 }, (_, seed) => text.next(0.7, seed))")
    probs = (model(torch.tensor([prompt]))[0, -1] / 0.7).softmax(-1)
    counts = torch.bincount(torch.tensor(drawn), minlength=len(VOCAB)) / 4000
    torch.testing.assert_close(counts, probs, atol=0.03, rtol=0)


# For each operation of ops.js, functions of x_BTC (B = 1, T = 9, C = 6) that PyTorch computes by it
torch.manual_seed(0)
C6, T9, OTHER = torch.randn(6), torch.randn(9, 1), torch.randn(1, 9, 6)
floor = partial(torch.div, other=1, rounding_mode="floor")
OPERATIONS = {
    "mm": lambda x: x[0, :, 1:5] @ OTHER[0, :3, :4].mT,
    "bmm": lambda x: x.view(1, 9, 2, 3).transpose(1, 2) @ x.view(1, 9, 2, 3).permute(0, 2, 3, 1),
    "embedding": lambda x: F.embedding(torch.arange(9).flip(0), x[0].mT.clone().mT),
    "native_layer_norm": lambda x: F.layer_norm(x, (6,), C6, C6).mT + F.layer_norm(x.mT, (9,)),
    "_softmax": lambda x: (99 * x).softmax(-1) + x.softmax(1),  # exp(99) is too large
    "cumsum": lambda x: x.cumsum(-1) + x.cumsum(1),
    "cat": lambda x: torch.cat((x[..., 3:], OTHER, x[..., :1]), dim=-1),
    "constant_pad_nd": lambda x: F.pad(x, (2, -1, 1, 0), value=3.0),
    "roll": lambda x: x.roll(2, 1) + x.roll(-1, -1),
    "sum": lambda x: x.sum(-1, keepdim=True) + x.sum(1) + x.sum(),
    "var": lambda x: x.var(-1, keepdim=True) + x.var(1, correction=0),
    "amax": lambda x: x.amax(-1, keepdim=True) + x.amax(1),
    "clone": lambda x: x.mT.clone(memory_format=torch.contiguous_format),
    "_to_copy": lambda x: x.double(),
    "copy": lambda x: x + torch.zeros(1, 9, 6).copy_(x[..., :1]),
    "fill": lambda x: torch.cat(((x * 1).fill_(5.0), x)),
    "where": lambda x: torch.where(x > 0, x, C6),
    "add": lambda x: torch.add(x, C6, alpha=2.0) + 1,
    "sub": lambda x: torch.sub(x, T9, alpha=2.0) - 1,
    "div": lambda x: x / C6 + torch.div(x, 0.3, rounding_mode="floor"),
    "pow": lambda x: x**3 + x.abs() ** 0.5,
    "bitwise_and": lambda x: ((x > 0) & (x < C6)) + OTHER,
    "bitwise_or": lambda x: ((x > 1) | (x < C6)) + OTHER,
    "bitwise_not": lambda x: ~(x > 0) + OTHER,
    **{
        name: lambda x, name=name: getattr(x, name)(C6 * T9)
        for name in ("mul", "maximum", "minimum")
    },
    **{
        name: lambda x, name=name: getattr(floor(x), name)(floor(C6)) + OTHER
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    },
    **{
        name: lambda x, name=name: getattr(torch, name)(x[..., 1::2].mT.abs() + 0.1)
        for name in ("sqrt", "rsqrt", "log", "log1p", "reciprocal")
    },
    **{
        name: lambda x, name=name: getattr(torch, name)(x[..., 1::2].mT)
        for name in ("neg", "abs", "exp", "expm1", "sin", "cos", "relu", "sigmoid", "tanh", "erf")
    },
}


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_an_operation_is_pytorchs(name):
    """On views, and with other shapes broadcast to that of x."""
    table, ids_BT = torch.randn(9, 6), torch.randperm(9)[None]
    with Trace(ids_BT) as tracer:
        lens = [OPERATIONS[name](F.embedding(ids_BT, table))]
    plan, constants = tracer.plan({"stream": [], "lens": lens, "calls": []})
    assert name in {operation for operation, *_ in plan["ops"]}
    page = Script(plan, [x.tolist() for x in constants])
    ids_BT = torch.randperm(9)[None]
    page.eval(f"net.run({ids_BT[0].tolist()})")
    expected = OPERATIONS[name](F.embedding(ids_BT, table))
    torch.testing.assert_close(page.tensor("lens[0]"), expected.float(), atol=1e-5, rtol=1e-5)


def test_page_holds_text_vocabulary_and_weights_and_loads_nothing(monkeypatch):
    model = random_gpt(len(VOCAB), n_embd=64).float()
    ids = random_ids(20, V=len(VOCAB)).tolist()
    html = attention_page(model, VOCAB, ids, "</script>")
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|https?:', html)
    data = page_data(html)
    assert (data["about"], data["vocab"], data["text"]) == ("</script>", list(VOCAB), ids)
    constants = unpack(data)
    for parameter in model.parameters():
        expected = parameter.detach().flatten().numpy()
        (shown,) = (x for x in constants if np.allclose(x[:9], expected[:9], 1e-3))
        assert shown.dtype == (np.float16 if parameter.numel() >= page.HALF_FROM else np.float32)
        np.testing.assert_allclose(shown, expected, rtol=1e-3, atol=1e-6)
    monkeypatch.setattr(page, "MAX_TEXT_CHARS", 15)
    cut = page_data(attention_page(model, VOCAB, ids, "x"))
    assert (cut["text"], cut["about"]) == (ids[-15:], "x; the last 15 of 20 characters")
    monkeypatch.setattr(page, "MAX_PAGE_SIZE", len(html) // 2)
    with pytest.raises(AbortError, match="would have 1 MB"):
        attention_page(model, VOCAB, ids, "")


@pytest.mark.parametrize(
    ("number", "kind"), [(0.5, "half"), (-torch.inf, "half"), (0.1, "float"), (-1e9, "float")]
)
def test_constants_are_exact(number, kind):
    assert page.pack(torch.tensor([1.0, number]))[0] == kind


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("x.logcumsumexp(1)", "cannot compute logcumsumexp.*Add it to OPS in .*ops.js"),
        ("x.cummax(1).indices", "cummax"),
        ("x * x.mean().item()", "reads its own numbers"),
        ("x + torch.rand(3)[0]", "draws random numbers"),
        ("x.long().float()", "_to_copy to integers"),
        ("x * torch.view_as_complex(x.view(1, -1, 8, 2)).abs().mean()", "complex numbers"),
    ],
)
def test_what_the_page_cannot_compute_is_named(expression, named, edit_network):
    edit_network(*instead_of_attention(expression))
    with pytest.raises(AbortError, match=named):
        attention_page(random_gpt(network="mine").float(), "abcde", [0, 1, 2], "")


def test_pytorch_has_the_private_names_that_trace_py_uses():
    for module, name in re.findall(r"from (torch\._.*|torch.*\._.*) import (\w+)", TRACE):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
    assert hasattr(torch.ops.aten.add.Tensor, "decompose")


@torch.no_grad()
def test_page_without_residual_stream_still_shows_predictions():
    model, ids = random_gpt(len(VOCAB)).float(), [1, 2, 3]
    for block in model.blocks:  # a new tensor for each block: they hand on none
        block.register_forward_pre_hook(lambda _, args: (args[0].clone(), *args[1:]))
    page, data = open_page(model, ids)
    page.eval(f"read({ids})")
    assert page.eval(f"[net.error({data['expected']}) < 1e-4, net.stream]") == [True, []]
