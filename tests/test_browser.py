"""What a person sees in a browser: the attention page, TensorBoard. Skipped without Chromium."""

import base64
import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import torch

from model.attention_page import attention_page, record_attention
from tests.model.test_gpt import random_gpt
from tests.test_edits import NETWORK_EDITS, make_edit

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

HOSTILE = (
    "<script>document.title='attacked'</script></style>&amp;\"'`\n\t\0\x1b\u202e\u05d0\U0001f600"
)
# Hovers, clicks and presses keys; then puts what it sees in place of the page.
ACTIONS = """<script>
async function act() {
  while (!document.querySelector("#weights")) await new Promise((done) => setTimeout(done, 50));
  const text = document.getElementById("text"), seen = {};
  const titles = [...document.querySelectorAll("#weights th")].map((th) => th.innerText);
  const column = titles.indexOf("weight");
  const look = () => ({
    chosen: Number(text.getAttribute("aria-valuenow")),
    spoken: text.getAttribute("aria-valuetext"),
    picture: [...document.getElementById("looked").children].map((span) => span.style.background),
    total: document.getElementById("total").textContent,
    weights: [...document.querySelectorAll("#weights tbody tr")].map(
      (tr) => tr.cells[column].innerText),
  });
  const press = (key) => text.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const point = (t, type) => text.children[t].dispatchEvent(
    new PointerEvent(type, { bubbles: true, pointerType: "mouse" }));
  seen.start = look();
  point(3, "pointerover"); seen.hover = look();
  press("ArrowRight"); seen.right = look();
  press("Home"); seen.home = look();
  press("End"); press("ArrowUp"); seen.up = look();
  document.querySelector("[name=layer][value='0']").click(); seen.layer = look();
  document.querySelector("#maps button:nth-child(2)").click(); seen.head = look();
  seen.text = [...text.children].map((span) => span.textContent);
  seen.title = document.title;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  document.body.replaceChildren(result);
}
act();
</script></body>"""


def open_in_browser(url: str, milliseconds: int) -> tuple[str, list[str]]:
    """The document after so much of the browser's time, and the lines of its console."""
    # Without WebGL, TensorBoard draws its lines as SVG.
    flags = ["--headless", "--no-sandbox", "--disable-3d-apis", "--window-size=1280,2000"]
    flags += ["--enable-logging=stderr", f"--virtual-time-budget={milliseconds}", "--dump-dom"]
    command = [CHROMIUM, *flags, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("edit", ["none", "gate in attention", "softcap"])
def test_attention_page_follows_mouse_and_keys_and_shows_hostile_text_as_text(
    edit, tmp_path, monkeypatch
):
    for module, name, replacement in NETWORK_EDITS[edit]:
        make_edit(monkeypatch, module, name, replacement)
    vocab = "".join(sorted(set(HOSTILE)))
    model = random_gpt(V=len(vocab), block_size=16).float().eval()
    ids = [vocab.index(char) for char in HOSTILE]
    page = attention_page(model, vocab, ids, HOSTILE)
    with record_attention(model) as calls, torch.inference_mode():
        model(torch.tensor([ids]))
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", ACTIONS), "utf-8")
    document, console = open_in_browser(path.as_uri(), 5000)
    assert not console
    encoded = re.search(r'<pre id="result">(.*?)</pre>', document)[1]
    seen = json.loads(base64.b64decode(encoded))
    assert seen["title"] == "Attention"
    assert len(seen["text"]) == len(HOSTILE)
    assert "".join(seen["text"]).startswith(
        "<script>document.title='attacked'</script></style>&amp;"
    )
    T = len(ids)
    chosen = {name: look["chosen"] for name, look in seen.items() if name not in ("text", "title")}
    assert chosen == {"start": min(T, 101), "hover": 4, "right": 5, "home": 1} | dict.fromkeys(
        ("up", "layer", "head"), T - 10
    )
    assert seen["start"]["picture"] != seen["hover"]["picture"] != seen["right"]["picture"]
    assert seen["up"]["picture"] != seen["layer"]["picture"] != seen["head"]["picture"]
    for name, layer, head in (("start", -1, 0), ("layer", 0, 0), ("head", 0, 1)):
        weights_S = calls[layer].weights_BHTS[0, head, chosen[name] - 1].numpy()
        largest = -np.sort(-weights_S)[:5]
        np.testing.assert_allclose([float(w) for w in seen[name]["weights"]], largest, atol=1e-3)
        assert seen[name]["total"] == "All weights sum to 1.000."
        assert f"Character {chosen[name]} of {T}" in seen[name]["spoken"]


def test_tensorboard_shows_the_loss_first_and_has_all_tabs(trained_run):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(trained_run)]
    url = f"http://localhost:{port}/"
    with subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    runs = json.load(urllib.request.urlopen(f"{url}data/runs"))
                    if len(runs) == 2:
                        break
                except OSError:
                    pass
                time.sleep(0.1)
            for _ in range(6):  # in a busy machine's virtual time, the lines may not be drawn yet
                document, _ = open_in_browser(url, 15000)
                loss_card = document.partition(">loss<")[2].partition(">loss_best<")[0]
                lines = re.findall(r'<path d="M[-\d.]+,[^"]*" style="fill: none', loss_card)
                if len(lines) == 2:
                    break
            plugins = json.load(urllib.request.urlopen(f"{url}data/plugins_listing"))
            tags = json.load(urllib.request.urlopen(f"{url}data/plugin/scalars/tags"))
        finally:
            server.kill()
    titles = re.findall(r'class="[^"]*group-title[^"]*"[^>]*>([^<]*)<', document)
    assert [title.strip() for title in titles if title.strip()][:2] == ["Pinned", "loss"]
    assert len(lines) == 2
    assert {run for run, names in tags.items() if "loss" in names} == {"train", "val"}
    for name in ("timeseries", "images", "text", "hparams", "projector"):
        assert plugins[name]["enabled"], name
