"""Copies of our networks with a changed line: everything follows, as for the original."""

import sys
from pathlib import Path

import pytest
import torch

import sample
import train
from model.attention import Cache
from model.inspect.check import uses_cache
from model.networks import network_class
from model.run import checkpoint
from tests.conftest import curve
from tests.model.inspect.test_page import VOCAB, assert_shows, open_page, own_equation, page_data
from tests.model.test_networks import random_gpt, random_ids

SCALE, MASK = " / math.sqrt(q_BHTD.size(-1))", ".masked_fill(is_later_TT, -torch.inf)"
ALIBI = f"""{SCALE}
        distance_TT = torch.arange(T)[:, None] - torch.arange(T)
        slope_H11 = 2.0 ** -torch.arange(1, self.n_head + 1)[:, None, None]
        scores_BHTT = scores_BHTT - slope_H11 * distance_TT"""
WINDOW = f"{MASK}.masked_fill((~is_later_TT).tril(-8), -torch.inf)"
RELU2 = "relu_squared(self.fc(x_BTC))"
FC = "self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)"
# Of each copy: the original, what stands there and what takes its place
COPIES = {
    "quill": ("quill", {}),
    "gpt": ("gpt", {}),
    "quill with GELU": ("quill", {RELU2: "F.gelu(self.fc(x_BTC))"}),
    "quill with a gate": (
        "quill",
        {
            FC: FC + "\n        " + FC.replace("fc", "gate", 1),
            RELU2: "F.silu(self.gate(x_BTC)) * self.fc(x_BTC)",
        },
    ),
    "quill with sigmoid attention": ("quill", own_equation("scores_BHTS.sigmoid() * visible_TS")),
    "gpt with ALiBi": ("gpt", {SCALE: ALIBI}),
    "gpt with softcap": ("gpt", {MASK: f".div(20).tanh().mul(20){MASK}"}),
    "gpt with a window": ("gpt", {MASK: WINDOW}),
    "gpt without scaling": ("gpt", {SCALE: ""}),
}


@pytest.fixture(params=COPIES)
def copy(request, edit_network) -> None:
    """The network `mine` is the copy."""
    edit_network(*COPIES[request.param])


@torch.no_grad()
@pytest.mark.usefixtures("copy")
def test_copied_network_is_sampled_and_computed_by_the_attention_page(capsys):
    """With its cache, if it has one."""
    model, ids_BT, cache = random_gpt(len(VOCAB), network="mine"), random_ids(2, 12), Cache()
    if has_cache := uses_cache(model):
        logits = [model(part_BT, cache) for part_BT in ids_BT.split([1, 4, 6, 1], dim=1)]
        torch.testing.assert_close(torch.cat(logits, dim=1), model(ids_BT))
    assert has_cache == hasattr(sys.modules["model.networks.mine"], "TokenShift")  # as quill
    assert capsys.readouterr().err == ""
    ids = ids_BT[0].tolist()
    page, _ = open_page(model.float(), ids)
    page.eval(f"read({ids})")
    assert_shows(page, model, ids)


@pytest.mark.parametrize("copy", ["gpt with ALiBi", "quill with sigmoid attention"], indirect=True)
def test_a_copy_trains_scores_and_resumes(copy, tiny, text_file, capsys):
    """Also with a setting that is for this network alone."""
    own = [f"--{key}" for key in network_class("mine").settings]
    assert tiny("--network=mine --max_iters=4 --eval_interval=2 --out_dir=run", *own) == 0
    assert train.main(["--resume", "run", "--max_iters=6"]) == 0
    assert checkpoint.load("run/last.pt").config["network"] == "mine"
    text_file.write_text(text_file.read_text()[:100])
    assert sample.main(["run", "--score", str(text_file)]) == 0
    assert sample.main(["run", "--attention", "page.html", "--num_samples=2"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", [{SCALE: ""}, {MASK: WINDOW}], ids=["no scaling", "a window"])
def test_an_edit_of_the_equation_changes_training_sampling_and_page(
    change, dtype, tiny, edit_network, capsys
):
    """In every dtype."""
    results = []
    for i, changes in enumerate(({}, change)):
        edit_network("gpt", changes)
        sys.modules.pop("model.networks.mine", None)
        flags = f"--dtype={dtype} --out_dir={i}"
        assert (
            tiny(f"--network=mine --max_iters=40 --learning_rate=0.03 --log_interval=1 {flags}")
            == 0
        )
        text_flags = ["0", "--temperature=1", f"--dtype={dtype}", "--attention=page.html"]
        capsys.readouterr()
        assert sample.main(text_flags) == 0
        text, page = capsys.readouterr().out, page_data(Path("page.html").read_text("utf-8"))
        losses = [loss for _, loss in curve(Path(str(i)), "train")]
        results.append((text, page["expected"], *losses[1:]))
    assert all(a != b for a, b in zip(*results, strict=True))
