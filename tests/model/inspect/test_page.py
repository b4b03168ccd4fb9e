"""Tests of the attention page: its script, run by V8, computes what the model computes."""

import base64
import itertools
import json
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import py_mini_racer
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model import networks
from model.inspect import page
from model.inspect.page import SCRIPT, attention_page
from model.inspect.record import record_attention
from model.inspect.trace import KNOWN, OPS, Trace
from model.networks import gpt, network_class, quill
from model.system.console import AbortError
from tests.helpers import (
    NETWORKS,
    alibi,
    attend_without_mask,
    gate,
    gpt_attention,
    page_data,
    quill_attention,
    random_gpt,
    random_ids,
    window,
)

VOCAB = "ab</script>'\"&\n\t\u202e\x1b\U0001f600é"


def instead_of_gelu(f: Callable) -> tuple:
    """Return an edit of gpt: f replaces GELU."""
    return gpt.MLP, "forward", lambda self, x: self.proj(f(self.fc(x)))


def instead_of_attention(f: Callable) -> tuple:
    """Return an edit of gpt: f, which may mix positions, replaces attention."""
    return gpt.Attention, "forward", lambda self, x: f(x)


def own_equation(equation: Callable) -> tuple:
    """Return an edit of gpt: an equation of queries, keys and mask gives the attention weights."""
    return gpt.Attention, "forward", gpt_attention(equation)


CLOSE = {"atol": 1e-4, "rtol": 1e-4}
EDITS = {  # a class, its method, the new method
    **{name: (network_class(name), "forward", network_class(name).forward) for name in NETWORKS},
    "softmax, written out": (
        quill.Attention,
        "attend",
        quill_attention(lambda scores, mask_TS: (scores / 8**0.5 + mask_TS).softmax(-1)),
    ),
    "sigmoid for softmax": (quill.Attention, "attend", quill_attention(gate)),
    "SiLU, gated": instead_of_gelu(lambda x: F.silu(x) * x.sigmoid()),
    "GELU by tanh": instead_of_gelu(lambda x: F.gelu(x, approximate="tanh")),
    "no attention": instead_of_attention(lambda x: 0 * x),
    "a shift by padding": instead_of_attention(lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1]),
    "a sum in place": instead_of_attention(
        lambda x: (y := x + 1, y[:, 1:].add_(x[:, :-1]))[0].cumsum(1) / 9
    ),
    "PyTorch's attention": instead_of_attention(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)
    ),
    "ALiBi": own_equation(alibi),
    "softcap": own_equation(
        lambda q, k, mask_TT: (20 * (q @ k.mT / 20).tanh() + mask_TT).softmax(-1)
    ),
    "a window": own_equation(window),
    "in place": own_equation(
        lambda q, k, mask_TT: (q @ k.mT).masked_fill_(mask_TT < 0, -torch.inf).softmax(-1)
    ),
    "keys by queries": own_equation(lambda q, k, mask_TT: ((k @ q.mT).mT + mask_TT).softmax(-1)),
    "one key for all": own_equation(lambda q, k, mask_TT: (q @ k[:, :1].mT + mask_TT).softmax(-1)),
    "two of the channels": instead_of_attention(
        lambda x: x.scatter(-1, (top := x.topk(2)).indices, top.values.round())
    ),
    "no mask": (gpt.Attention, "forward", attend_without_mask),
}


def edited_network(edit: str, monkeypatch: pytest.MonkeyPatch, block_size: int = 12) -> nn.Module:
    """Return a random network with one of the EDITS."""
    monkeypatch.setattr(*EDITS[edit])
    network = EDITS[edit][0].__module__.split(".")[-1]
    return random_gpt(len(VOCAB), network, block_size=block_size).float()


def unpack(data: dict) -> list[np.ndarray]:
    """Return the constants of a page."""
    packed = np.frombuffer(zlib.decompress(base64.b64decode(data["constants"])), np.uint8)
    numbers = packed.reshape(4, -1).T.copy().view("<f4")[:, 0]
    assert len(numbers) == sum(data["sizes"])
    return np.split(numbers, np.cumsum(data["sizes"])[:-1])


class Script:
    """The script of a page. It runs in V8, without a browser."""

    def __init__(self, plan: dict, constants: list[list[float]]) -> None:
        numbers = json.dumps(constants).replace("Infinity", "1e999")
        self.engine = py_mini_racer.MiniRacer()
        self.run(OPS.read_text("utf-8") + SCRIPT.read_text("utf-8"))
        self.run(
            f"const constants = {numbers}.map((xs) => Float32Array.from(xs));"
            f"model = makeModel({json.dumps(plan)}, constants);"
            "const values = (x) => [x.shape, x.strides, x.offset, Array.from(x.data)];"
            "const writeOn = (count, temperature, seed) => { for (; count > 0; count--) {"
            "  const id = model.next(temperature, uniform(seed, model.ids.length));"
            "  model.read([...model.ids, id]); } return model.ids; };"
        )

    def run(self, code: str) -> object:
        try:
            return self.engine.eval(code)
        except py_mini_racer.JSEvalException as error:  # it quotes the line, with all weights
            raise AssertionError(f"{str(error)[:200]} ... {str(error)[-200:]}") from None

    def eval(self, code: str) -> object:
        return json.loads(self.run(f"JSON.stringify({code} ?? null)"))

    def tensor(self, name: str) -> torch.Tensor:
        """Return an output of the model, such as `logits`."""
        shape, strides, offset, numbers = self.eval(f"values(model.{name})")
        return torch.tensor(numbers).float().as_strided(shape, strides, offset)


def open_page(model: nn.Module, ids: list[int]) -> tuple[Script, dict]:
    """Return the script of a page of `model`, and its data. Nothing is computed yet."""
    data = page_data(attention_page(model, VOCAB, ids, ""))
    return Script(data["plan"], [array.tolist() for array in unpack(data)]), data


def assert_shows(page: Script, model: nn.Module, ids: list[int]) -> None:
    """Check that the page has computed what the model computes for this text."""
    n, ids_BT = len(ids), torch.tensor([ids])
    with record_attention(model) as calls:
        logits_BTV = model(ids_BT)
    torch.testing.assert_close(page.tensor("logits")[:, :n], logits_BTV, **CLOSE)
    assert page.eval("model.calls.length") == len(calls)
    for i, (_, call) in enumerate(calls):
        for h, t in itertools.product(range(call.weights_BHTS.size(1)), {0, n // 2, n - 1}):
            shown = [page.eval(f"model.vector({i}, {h}, '{name}', {t})") for name in "qkv"]
            shown.append(page.eval(f"model.weights({i}, {h}, {t})"))
            for numbers, x_BHTD in zip(shown, call, strict=True):
                expected = x_BHTD[0, h % x_BHTD.size(1), t, : len(numbers)]
                torch.testing.assert_close(torch.tensor(numbers).float(), expected, **CLOSE)
    nats = F.cross_entropy(logits_BTV[0, :-1], ids_BT[0, 1:], reduction="none")
    assert page.eval("model.surprises") == pytest.approx([0, *nats.tolist()], abs=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("edit", EDITS)
def test_page_computes_what_the_model_computes(edit, monkeypatch):
    """The text grows, shrinks and changes in the middle."""
    model, V = edited_network(edit, monkeypatch, block_size=24), len(VOCAB)
    a, b = random_ids(2, 40, V=V).tolist()
    page, data = open_page(model, a)
    T = page.eval("model.T")
    assert page.eval(f"model.check({json.dumps(data['probe'])})") == (edit != "no mask")
    assert page.eval("model.isWhole") == (edit in ("no mask", "keys by queries"))
    for text in (a[:20], a[:9], a[:T], a[:20], a[:5] + b[5:T], [9], b[:T]):
        page.eval(f"model.read({text})")
        if edit != "no mask":
            assert_shows(page, model, text)


@torch.no_grad()
@pytest.mark.parametrize("block_size", [2, 24])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_head_that_is_off_hands_nothing_on(network, block_size):
    model = random_gpt(len(VOCAB), network=network, block_size=block_size).float()
    ids = [5, 3, 1, 4, 1, 5][:block_size]
    page, _ = open_page(model, ids)
    for block, head in ((0, 1), (2, 0)):
        kept_C = torch.ones(2, 8).index_fill(0, torch.tensor(head), 0).flatten()
        proj = model.blocks[block].attention.proj
        with proj.register_forward_pre_hook(lambda _, args, kept_C=kept_C: (args[0] * kept_C,)):
            expected = model(torch.tensor([ids]))
        page.eval(f"model.read({ids}, [[{block}, {head}]])")
        torch.testing.assert_close(page.tensor("logits")[:, : len(ids)], expected, **CLOSE)
        # This computes only the last row.
        page.eval(f"model.read({[*ids[:-1], 2]}, [[{block}, {head}]])")
        for t in (0, 1):
            assert not any(page.eval(f"model.weights({block}, {head}, {t})"))
    page.eval(f"model.read({ids})")
    assert_shows(page, model, ids)


@torch.no_grad()
@pytest.mark.parametrize("edit", ["softmax, written out", "a window", "ALiBi"])
def test_a_head_is_the_textbooks_if_its_weights_are(edit, monkeypatch):
    page, data = open_page(edited_network(edit, monkeypatch), [1])
    page.eval(f"model.check({json.dumps(data['probe'])})")
    is_textbook = page.eval("isSoftmax(model.weights(0, 0, 9), model.scores(0, 0, 9))")
    assert is_textbook == (edit != "ALiBi")


@torch.no_grad()
def test_only_what_is_new_is_computed():
    ids = random_ids(25, V=len(VOCAB)).tolist()
    page, _ = open_page(random_gpt(len(VOCAB), block_size=25).float(), ids)
    rows, changed = [], [*ids[:9], 1 - min(ids[9], 1), *ids[10:]]
    for text in (ids, [*ids[:-1], 1 - min(ids[-1], 1)], ids[:-1], changed):
        page.eval(f"model.read({text})")
        rows.append(page.eval("to - from"))
    assert rows == [25, 1, 0, 16]


@torch.no_grad()
def test_the_page_writes_as_the_model_does_and_a_seed_repeats_a_text():
    model, prompt = random_gpt(len(VOCAB), block_size=64, n_embd=24).float(), [1, 2, 3]
    page, _ = open_page(model, prompt)
    greedy = prompt
    for _ in range(40):
        greedy = [*greedy, model(torch.tensor([greedy]))[0, -1].argmax().item()]
    texts = []
    for temperature, seed in ((0, 7), (1, 7), (1, 7), (1, 8)):
        page.eval(f"(model.read({prompt}), writeOn(15, {temperature}, {seed}))")
        texts.append(page.eval(f"writeOn(25, {temperature}, {seed})"))
    assert texts[0] == greedy != texts[1] == texts[2] != texts[3]
    page.eval(f"model.read({prompt})")
    assert len(set(page.eval("writeOn(40, 1e9, 7)")[-40:])) > 5  # each position draws a new number
    # The page draws each next character as often as it is probable.
    page.eval(f"model.read({prompt})")
    drawn = page.eval(
        "Array.from({ length: 4000 }, (_, seed) => model.next(0.7, uniform(seed, 3)))"
    )
    probs = (model(torch.tensor([prompt]))[0, -1] / 0.7).softmax(-1)
    counts = torch.bincount(torch.tensor(drawn), minlength=len(VOCAB)) / 4000
    torch.testing.assert_close(counts, probs, atol=0.03, rtol=0)


# Each operation of ops.js has a function of x_BTC (B = 1, T = 9, C = 6) that uses the operation.
torch.manual_seed(0)
C6, T9, OTHER = torch.randn(6), torch.randn(9, 1), torch.randn(1, 9, 6)
floor = partial(torch.div, other=1, rounding_mode="floor")


def each(names: str, f: Callable) -> dict[str, Callable]:
    """Return, for each name, the function f(name, x) of x."""
    return {name: partial(f, name) for name in names.split()}


OPERATIONS = {
    "mm": lambda x: x[0, :, 1:5] @ OTHER[0, :3, :4].mT,
    "bmm": lambda x: x.view(1, 9, 2, 3).transpose(1, 2) @ x.view(1, 9, 2, 3).permute(0, 2, 3, 1),
    "embedding": lambda x: F.embedding(torch.arange(9).flip(0), x[0].mT.clone().mT),
    "gather": lambda x: x.gather(-1, x.argsort(-1)) + x.gather(1, x.argsort(1)),
    "scatter": lambda x: x.scatter(-1, x.argsort(-1)[..., :2], 5.0).scatter(1, x.argsort(1), x),
    "sort": lambda x: x.sort(-1).values + x.sort(1, descending=True).values,
    "sort_1": lambda x: x.argsort(-1) + x.argsort(1, descending=True) + OTHER,
    "round": lambda x: ((x * 4).floor() / 2).round(),
    "trunc": lambda x: (9 * x).long() + x.bool() + OTHER,
    "remainder": lambda x: x.remainder(0.3) + (x > 0) % 2,
    "logical_not": lambda x: ~((x > 0) + (x < C6)) + OTHER,
    "bitwise_not": lambda x: ~(9 * x).long() + OTHER,
    "_to_copy": lambda x: x.double(),
    "cumsum": lambda x: x.cumsum(-1) + x.cumsum(1),
    "cat": lambda x: torch.cat((x[..., 3:], OTHER, x[..., :1]), dim=-1),
    "roll": lambda x: x.roll(2, 1) + x.roll(-1, -1),
    "sum": lambda x: x.sum(-1, keepdim=True) + x.sum(1) + x.sum(),
    "amax": lambda x: x.amax(-1, keepdim=True) + x.amax(1),
    "clone": lambda x: x.mT.clone(memory_format=torch.contiguous_format),
    "copy": lambda x: x + torch.zeros(1, 9, 6).copy_(x[..., :1]),
    "fill": lambda x: torch.cat(((x * 1).fill_(5.0), x)),
    "where": lambda x: torch.where(x > 0, x, C6),
    "add": lambda x: torch.add(x, C6, alpha=2.0) + 1,
    "sub": lambda x: torch.sub(x, T9, alpha=2.0) - 1,
    "div": lambda x: x / C6 + torch.div(x, 0.3, rounding_mode="floor"),
    "pow": lambda x: x**3 + x.abs() ** 0.5,
    "bitwise_and": lambda x: ((x > 1) & (x < C6)) + (((99 * x).long() & 255) + OTHER),
    "bitwise_or": lambda x: ((x > 1) | (x < C6)) + OTHER,
    **each("mul maximum minimum", lambda name, x: getattr(x, name)(C6 * T9)),
    **each("eq ne lt le gt ge", lambda name, x: getattr(floor(x), name)(floor(C6)) + OTHER),
    **each("sqrt rsqrt log log1p reciprocal", lambda name, x: getattr(x.mT.abs() + 0.1, name)()),
    **each("neg abs exp expm1 sin cos relu sigmoid", lambda name, x: getattr(x.mT, name)()),
    **each("tanh erf sign floor ceil", lambda name, x: getattr(x[..., 1::2].mT, name)()),
}
BROKEN_UP = {  # PyTorch and trace.py break these functions up into operations
    "norms": lambda x: F.layer_norm(x, (6,), C6, C6) + F.layer_norm(x, (9, 6)),
    "softmax": lambda x: (99 * x).softmax(-1) + x.softmax(1),  # exp(99) would be too large
    "padding": lambda x: F.pad(x, (2, -1, 1, 0), value=3.0),
    "variance": lambda x: x.var(-1, keepdim=True) + x.var(1, correction=0) + x.var(),
    "in place": lambda x: (x * 1).add_(x).mul_(x[:, :1]).clamp_(-1) + x.mT.clone().mT.relu_(),
    "a changed constant": lambda x: x + (y := torch.ones(6)) + y.add_(1) + x * y,
    "a changed part": lambda x: x * (y := x + 1) + (y[:, 1:].add_(x[:, :-1]), y)[1],
    "large integers": lambda x: (9 * x).long() * 104729**2 % 255 + OTHER,
}


@torch.no_grad()
@pytest.mark.parametrize("name", sorted(KNOWN | set(BROKEN_UP)))
def test_an_operation_is_pytorchs(name):
    """The inputs include views, and shapes that are broadcast to the shape of x."""
    table, ids_BT = torch.randn(9, 6), torch.randperm(9)[None]
    compute = (OPERATIONS | BROKEN_UP)[name]
    with Trace(ids_BT) as tracer:
        output = compute(F.embedding(ids_BT, table))
    plan, constants = tracer.plan({"logits": output, "calls": []})
    assert name in BROKEN_UP or name in {op["name"] for op in plan["ops"]}
    page = Script(plan, [x.tolist() for x in constants])
    assert set(page.eval("Object.keys(OPS)")) == KNOWN
    ids_BT = torch.randperm(9)[None]
    page.eval(f"model.read({ids_BT[0].tolist()})")
    expected = compute(F.embedding(ids_BT, table))
    torch.testing.assert_close(page.tensor("logits"), expected.float(), atol=1e-5, rtol=1e-5)


def test_page_holds_text_vocabulary_and_weights_and_loads_nothing(monkeypatch):
    model = random_gpt(len(VOCAB), n_embd=64).float()
    ids = random_ids(12, V=len(VOCAB)).tolist()
    html = attention_page(model, VOCAB, ids, "</script>")
    assert not re.search(r'(src|href)="(?!data:)|url\(|@import|https?:', html)
    data = page_data(html)
    assert (data["about"], data["vocab"], data["text"]) == ("</script>", list(VOCAB), ids)
    constants = unpack(data)
    for parameter in model.parameters():
        expected = parameter.detach().flatten().numpy()
        (shown,) = (x for x in constants if np.allclose(x[:9], expected[:9], 1e-3))
        is_half = np.array_equal(shown, shown.astype(np.float16))
        assert is_half == (parameter.numel() >= page.HALF_FROM)
        np.testing.assert_allclose(shown, expected, rtol=1e-3, atol=1e-6)
    monkeypatch.setattr(page, "FIRST_CHARS", 5)
    cut = page_data(attention_page(model, VOCAB, ids, "x", 3))
    assert (cut["text"], cut["typed"], cut["about"]) == (ids[:5], 3, "x")


@torch.no_grad()
def test_a_character_that_the_model_holds_for_impossible_is_no_fault():
    """Its logit is -inf, so its surprise is infinite. JSON cannot hold an infinite number."""
    model, is_3 = random_gpt(len(VOCAB), block_size=24).float(), torch.arange(len(VOCAB)) == 3
    model.head.register_forward_hook(lambda _, args, logits: logits.masked_fill(is_3, -torch.inf))
    page, data = open_page(model, [1, 3, 2])
    json.loads(json.dumps(data), parse_constant=pytest.fail)
    assert page.eval(f"model.check({json.dumps(data['probe'])})")


@pytest.mark.parametrize(
    ("f", "named"),
    [
        (
            lambda x: x.logcumsumexp(1),
            r"logcumsumexp in line \d+ of test_page.py, `.*sumexp.* to OPS in",
        ),
        (lambda x: x.cummax(1).indices, "cummax_1"),
        (lambda x: x * x.mean().item(), "into a Python number: .* in line"),
        (lambda x: x + torch.rand(3)[0], "draws random numbers"),
        (
            lambda x: x * x.argmax(-1, True),
            r"integers from floating-point .*topk\(1\).indices works",
        ),
        (lambda x: x * (x.long() << 60), "__lshift"),
        (lambda x: x * ((x + 9).long() * 2**50), "integers as large"),
        (lambda x: x * ((x + 9).long() * torch.tensor(2**25 + 1)), "integers above"),
        (lambda x: x * torch.view_as_complex(x.view(1, -1, 8, 2)).abs().mean(), "complex numbers"),
    ],
)
def test_what_the_page_cannot_compute_is_named(f, named, monkeypatch):
    """The error has the line of the network's file. The network's edit is in this file."""
    monkeypatch.setattr(*instead_of_attention(f))
    model = random_gpt(network="gpt").float()
    monkeypatch.setattr(networks, "FOLDER", Path(__file__).parent)
    with pytest.raises(AbortError, match=named):
        attention_page(model, "abcde", [0, 1, 2], "")
