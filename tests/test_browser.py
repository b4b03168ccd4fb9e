"""Tests of what a browser shows of the attention page. Without Chromium, they are skipped."""

import base64
import json
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
    "a\nbc"
)
# This script hovers, clicks, presses keys, types and lets the model write. At the end, it replaces
# the page with a record of what it has seen.
ACTIONS = """<script>
async function act() {
  const until = async (holds) => {
    while (!holds()) await new Promise((done) => setTimeout(done, 10));
  };
  await until(() => !document.body.inert);
  const text = document.getElementById("text"), seen = {};
  seen.titles = [...document.querySelectorAll("#weights th")].filter((th) => th.offsetParent).map(
    (th) => th.innerText);
  const weights = () => [...document.querySelectorAll("#weights tbody tr")].map(
    (tr) => tr.cells[3].innerText);
  const look = () => ({
    chosen: Number(text.getAttribute("aria-valuenow")),
    spoken: text.getAttribute("aria-valuetext"),
    picture: [...text.children].map((span) => span.style.backgroundColor),
    weights: weights(),
    next: [...document.querySelectorAll("#next tbody tr")].map((tr) => ({
      came: tr.querySelector(".came") !== null,
      prob: Number(tr.cells[1].innerText),
      width: tr.querySelector(".bar").getBoundingClientRect().width,
    })),
  });
  const press = (key) => text.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const point = (t, type) => text.children[t].dispatchEvent(
    new PointerEvent(type, { bubbles: true, pointerType: "mouse" }));
  seen.start = look();
  point(HOVERED, "click");
  point(0, "pointerover"); seen.pointed = look();
  point(0, "pointerleave"); seen.hover = look();
  press("ArrowRight"); seen.right = look();
  document.getElementById("before").click(); seen.before = look();
  press("Home"); seen.home = look();
  press("End"); press("ArrowUp"); seen.up = look();
  document.querySelectorAll("#maps button")[0].click(); seen.block = look();
  document.querySelectorAll("#maps button")[1].click(); seen.head = look();
  const box = document.querySelectorAll("#maps input")[1];
  box.click(); seen.off = document.getElementById("loss").textContent; seen.unused = weights();
  box.click(); seen.on = look();
  const read = () => [...text.children].map((span) => span.textContent);
  seen.text = read();
  const typed = document.getElementById("typed"), write = document.getElementById("write");
  typed.value = "ab?\\ncab";
  typed.setSelectionRange(2, 2);
  typed.dispatchEvent(new Event("input"));
  const before = String(read());
  await until(() => String(read()) !== before);
  seen.typing = look();
  seen.typed = read();
  seen.note = document.getElementById("note").textContent;
  document.getElementById("temperature").value = "0";
  write.click();
  await until(() => text.children.length >= 20);
  write.click();
  seen.writing = look();
  seen.written = typed.value;
  seen.button = write.textContent;
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
def test_attention_page_follows_mouse_keys_and_escapes_hostile_text(edited, monkeypatch):
    if edited:
        monkeypatch.setattr(quill.Attention, "attend", quill_attention(gate))
    vocab = "".join(sorted(set(HOSTILE)))
    model = random_gpt(V=len(vocab), block_size=100).float()
    ids = [vocab.index(char) for char in HOSTILE]
    html = page.attention_page(model, vocab, ids, HOSTILE)
    with record.record_attention(model) as calls, torch.no_grad():
        log_probs_TV = model(torch.tensor([ids]))[0].log_softmax(-1)
    T, ranks_T = len(ids), (-log_probs_TV).argsort().argsort()[range(len(ids) - 1), ids[1:]]
    hovered = int((ranks_T < 5).nonzero()[0])  # the next character is one of the five likeliest
    actions = ACTIONS.replace("HOVERED", str(hovered))
    path = Path("page.html")
    path.write_text(html.replace("</body>", actions), "utf-8")
    document, console = open_in_browser(path.resolve().as_uri(), 5000)
    assert not console
    encoded = re.search(r'<pre id="result">(.*?)</pre>', document)[1]
    seen = json.loads(base64.b64decode(encoded))
    assert seen.pop("title") == "Attention"
    assert ("q · k" in seen.pop("titles")) == (not edited)
    all_heads, without = map(float, re.findall(r"\d\.\d\d\d", seen.pop("off")))
    assert all_heads == pytest.approx(-log_probs_TV[range(T - 1), ids[1:]].mean().item(), abs=2e-3)
    assert without != all_heads and seen.pop("unused") == ["0.000"]
    assert seen.pop("on") == seen["head"]
    assert seen.pop("note").endswith("not know: ?")
    assert (seen.pop("button"), seen.pop("typed")) == ("Continue", ["a", "b", "↵\n", "c", "a", "b"])
    written = seen.pop("written").replace("?", "")
    expected = continue_text(model, vocab, "ab\ncab", len(written))
    assert written == expected
    assert seen.pop("typing")["chosen"] == 2
    assert seen.pop("writing")["chosen"] >= 20
    text = seen.pop("text")
    assert len(text) == len(HOSTILE)
    assert "".join(text).endswith("a↵\nbc")
    assert "".join(text).startswith("<script>document.title='attacked'</script></style>&amp;")

    chosen = {name: look["chosen"] for name, look in seen.items()}  # counted from 1
    expected = {"start": min(T, 101), "pointed": 1, "home": 1, "right": hovered + 2}
    expected |= dict.fromkeys(("hover", "before"), hovered + 1)
    assert chosen == expected | dict.fromkeys(("up", "block", "head"), T - 10)
    pictures = {name: look["picture"] for name, look in seen.items()}
    assert pictures["start"] != pictures["hover"] != pictures["right"]
    assert pictures["up"] != pictures["block"] != pictures["head"]
    for name, block, head in (("hover", -1, 0), ("block", 0, 0), ("head", 0, 1)):
        weights_S = calls[block][1].weights_BHTS[0, head, chosen[name] - 1].numpy()
        largest = -np.sort(-weights_S)[:5]
        *shown, total = [float(weight) for weight in seen[name]["weights"]]
        assert len(shown) >= (largest > 1e-3).sum()
        np.testing.assert_allclose(shown, largest[: len(shown)], atol=1e-3)
        assert total == pytest.approx(weights_S.sum(), abs=1e-3)
        assert f"character {chosen[name]} of {T}" in seen[name]["spoken"]

    assert max(ranks_T[[chosen[name] - 1 for name in ("up", "home")]]) >= 5
    for name in ("hover", "up", "home"):  # the character that came next always has a bar
        best, *others = seen[name]["next"]
        (came,) = (row for row in (best, *others) if row["came"])
        log_prob = log_probs_TV[chosen[name] - 1, ids[chosen[name]]]
        assert came["prob"] == pytest.approx(log_prob.exp().item(), abs=1e-3)
        assert len(others) == (4 if ranks_T[chosen[name] - 1] < 5 else 5)
        width = max(1, best["width"] * came["prob"] / best["prob"])
        assert came["width"] == pytest.approx(width, abs=best["width"] / 50)
