"""Tests of what a browser shows of the attention page. Without Chromium, they are skipped."""

import base64
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from model.inspect import page, record
from model.networks import quill
from tests.helpers import gate, quill_attention, random_gpt

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]

HOSTILE = (
    "<script>document.title='attacked'</script></style>&amp;\"'`\n\t\0\x1b\u202e\u05d0\U0001f600"
    "a\nbc\u09df"  # form NFC would split the last character
)
# This script clicks, presses keys, types and lets the model write. At the end, it replaces the page
# with a record of what it has seen.
ACTIONS = """<script>
async function act() {
  const until = async (holds) => {
    while (!holds()) await new Promise((done) => setTimeout(done, 10));
  };
  await until(() => !document.querySelector("main").hidden);
  const element = (id) => document.getElementById(id), seen = {}, box = element("typed");
  const spans = () => [...element("shown").querySelectorAll("span")];
  const cells = (id) => [...element(id).tBodies[0].rows].map(
    (row) => [...row.cells].map((cell) => cell.innerText));
  seen.titles = [...document.querySelectorAll("#weights th")].filter((th) => th.offsetParent).map(
    (th) => th.innerText);
  const look = () => ({
    read: shown.caret,
    blue: spans().map((span) => span.style.backgroundColor),
    bars: spans().map((span) => span.style.cssText.split("background")[0]),
    weights: cells("weights"),
    next: cells("next"),
    came: element("came").innerText,
    loss: element("loss").innerText,
  });
  const place = async (position) => {
    box.focus();
    box.setSelectionRange(position, position);
    await until(() => look().read === position);
  };
  seen.start = look();
  document.querySelectorAll("#maps button")[4].click();
  await place(CARET); seen.caret = look();
  element("left").click(); seen.left = look();
  element("right").click(); element("right").click(); seen.right = look();
  document.querySelectorAll("#maps button")[0].click(); seen.block = look();
  document.querySelectorAll("#maps button")[1].click(); seen.head = look();
  const check = document.querySelectorAll("#maps input")[1];
  const isCut = () => element("loss").innerText.includes("instead");
  check.click(); await until(isCut); seen.off = look();
  check.click(); await until(() => !isCut()); seen.on = look();
  seen.text = box.value;
  box.value = "ab?\\nc\u09dfb";
  box.setSelectionRange(2, 2);
  box.dispatchEvent(new Event("input"));
  await until(() => spans().length === 6);
  seen.typed = box.value;
  seen.note = element("note").textContent;
  seen.typing = look();
  element("temperature").value = "0";
  element("temperature").dispatchEvent(new Event("input"));
  seen.table = cells("next").map((row) => row[1]);
  element("write").click();
  await until(() => spans().length >= 20);
  element("write").click();
  seen.written = box.value;
  seen.mine = spans().map((span) => span.classList.contains("written"));
  seen.button = element("write").textContent;
  element("back").click();
  await until(() => spans().length === 6);
  seen.back = box.value;
  seen.title = document.title;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.body.replaceChildren(result);
}
act();
</script></body>"""


def open_in_browser(url: str, milliseconds: int) -> tuple[str, list[str]]:
    """Return the document after `milliseconds` of browser time, and the lines of the console."""
    flags = ["--headless", "--no-sandbox", "--window-size=1280,2000", "--enable-logging=stderr"]
    flags += [f"--virtual-time-budget={milliseconds}", "--dump-dom"]
    command = [CHROMIUM, *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@torch.no_grad()
def continue_text(model: torch.nn.Module, vocab: str, text: str, length: int) -> str:
    """Return the text, continued with the likeliest characters up to `length`."""
    while len(text) < length:
        logits_TV = model(torch.tensor([[vocab.index(char) for char in text]]))[0]
        text += vocab[logits_TV[-1].argmax()]
    return text


@pytest.mark.parametrize("edited", [False, True], ids=["the equation", "an edited equation"])
def test_attention_page_follows_caret_and_escapes_hostile_text(edited, monkeypatch):
    if edited:
        monkeypatch.setattr(quill.Attention, "attend", quill_attention(gate))
    vocab = "".join(sorted(set(HOSTILE)))
    model = random_gpt(V=len(vocab), block_size=100).float()
    ids = [vocab.index(char) for char in HOSTILE]
    html = page.attention_page(model, vocab, ids, HOSTILE)
    with record.record_attention(model) as calls, torch.no_grad():
        log_probs_TV = model(torch.tensor([ids]))[0].log_softmax(-1)
    kept_C = (torch.arange(16) < 8).float()  # without the second head of the first block
    proj = model.blocks[0].attention.proj
    with proj.register_forward_pre_hook(lambda _, args: (args[0] * kept_C,)), torch.no_grad():
        without_TV = model(torch.tensor([ids]))[0].log_softmax(-1)
    T, caret = len(ids), 30
    path = Path("page.html")
    path.write_text(html.replace("</body>", ACTIONS.replace("CARET", str(caret))), "utf-8")
    document, console = open_in_browser(path.resolve().as_uri(), 8000)
    assert not console
    encoded = re.search(r'<pre id="result">(.*?)</pre>', document)[1]
    seen = json.loads(base64.b64decode(encoded))
    assert seen.pop("title") == "Attention"
    assert ("score" in seen.pop("titles")) == (not edited)
    assert seen.pop("text") == HOSTILE
    assert seen.pop("on") == seen["head"]
    assert seen.pop("note") == "The model does not know ?. "
    assert (seen.pop("button"), seen.pop("typed"), seen.pop("back")) == (
        "Continue",
        *["ab\nc\u09dfb"] * 2,
    )
    assert seen.pop("typing")["read"] == 2
    assert seen.pop("table")[:2] == ["1.00", "0.00"]  # at temperature 0
    written = seen.pop("written")
    assert written == continue_text(model, vocab, "ab\nc\u09dfb", len(written))
    assert seen.pop("mine") == [False] * 6 + [True] * (len(written) - 6)

    read = {name: look["read"] for name, look in seen.items()}
    assert read.pop("start") > T / 2
    assert read == {"caret": caret, "left": caret - 1} | dict.fromkeys(
        ("right", "block", "head", "off"), caret + 1
    )
    blue = {name: look["blue"] for name, look in seen.items()}
    assert blue["start"] != blue["caret"] != blue["left"] != blue["right"] != blue["block"]
    assert blue["block"] != blue["head"] == blue["off"]
    assert seen["off"]["bars"] != seen["head"]["bars"]
    for name, block, head in (("caret", -1, 0), ("block", 0, 0), ("head", 0, 1), ("off", 0, 1)):
        t, call = read[name] - 1, calls[block][1]
        weights_S = call.weights_BHTS[0, head, t]
        *rows, total = seen[name]["weights"]
        shown = [float(row[-1]) for row in rows if "other" not in row[0]]
        largest = weights_S.sort(descending=True).values[: len(shown)]
        np.testing.assert_allclose(shown, largest, atol=1e-3)
        assert float(total[-1]) == pytest.approx(weights_S.sum().item(), abs=1e-3)
        if not edited:  # the table's weight is its exp(score), divided by the sum
            for _, score, power, weight in rows[: len(shown)]:
                assert float(power) == pytest.approx(math.exp(float(score)), rel=2e-3)
                assert float(weight) == pytest.approx(float(power) / float(total[2]), abs=1e-3)
        came = int(ids[t + 1])
        expected = [x[t, came].item() for x in (log_probs_TV, without_TV)]
        nats = float(re.search(r"(\S+) nats.$", seen[name]["came"])[1])
        assert nats == pytest.approx(-expected[name == "off"], abs=6e-3)
        (row,) = (row for row in seen[name]["next"] if "in the text" in row[0])
        probs = [float(x) for x in row[1:3] if x]
        assert probs == pytest.approx(
            np.exp(expected[::-1] if name == "off" else expected[:1]), abs=1e-3
        )
    worse, *_, without, all_heads = re.findall(r"\d+\.\d\d\d|\d+(?= guesses)", seen["off"]["loss"])
    losses = [-x[range(T - 1), ids[1:]] for x in (log_probs_TV, without_TV)]
    assert float(all_heads) == pytest.approx(losses[0].mean().item(), abs=1e-3)
    assert float(without) == pytest.approx(losses[1].mean().item(), abs=1e-3)
    assert int(worse) == (losses[1] - losses[0] > 0.01).sum()


def test_a_damaged_page_says_so():
    model = random_gpt(V=5, block_size=8).float()
    html = page.attention_page(model, "abcde", [0, 1, 2], "")
    Path("page.html").write_text(html.replace('"constants": "', '"constants": "AAAA'), "utf-8")
    document, _ = open_in_browser(Path("page.html").resolve().as_uri(), 3000)
    assert re.search(r'id="alert".*The page cannot start: Error: its numbers are damaged', document)
