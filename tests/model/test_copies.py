"""Copies of our networks with a changed line: everything follows, as for the original."""

import pytest
import torch

import sample
import train
from model import checkpoint
from model.attention import Cache
from model.generate import uses_cache
from model.inspect.page import attention_page
from model.network import network_class
from tests.model.inspect.test_page import ATTEND, own_equation, page_data
from tests.model.test_networks import random_gpt, random_ids

GPT_ATTEND = "attend(q_BHTD, k_BHSD, v_BHSD, causal=True, dropout=dropout)"
ALIBI = """
        T, S, H = q_BHTD.size(2), k_BHSD.size(2), self.config.n_head
        distance_TS = torch.arange(S - T, S)[:, None] - torch.arange(S)
        slope_H11 = 2.0 ** -torch.arange(1, H + 1)[:, None, None]
        bias_HTS = -slope_H11 * distance_TS
        out_BHTD = """
RELU2 = "relu_squared(self.fc(x_BTC))"
FC = "self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)"
# Of each copy: the original, what stands there, what takes its place, whether the page shows how
# the weights follow from queries and keys.
COPIES = {
    "quill": ("quill", {}, True),
    "gpt": ("gpt", {}, True),
    "quill with GELU": ("quill", {RELU2: "F.gelu(self.fc(x_BTC))"}, True),
    "quill with a gate": (
        "quill",
        {
            FC: FC + "\n        " + FC.replace("fc", "gate", 1),
            RELU2: "F.silu(self.gate(x_BTC)) * self.fc(x_BTC)",
        },
        True,
    ),
    "quill with ALiBi": (
        "quill",
        {"out_BHTD = " + ATTEND: ALIBI + ATTEND[:-1] + ", bias=bias_HTS)"},
        False,
    ),
    "gpt with ALiBi": (
        "gpt",
        {"out_BHTD = " + GPT_ATTEND: ALIBI + GPT_ATTEND[:-1] + ", bias=bias_HTS)"},
        False,
    ),
    "quill with sigmoid attention": ("quill", own_equation("sigmoid"), False),
}


@pytest.fixture(params=COPIES)
def copy(request, edit_network) -> bool:
    """The network `mine` is the copy; whether its page shows queries and keys."""
    original, changes, is_textbook = COPIES[request.param]
    edit_network(original, changes)
    return is_textbook


@torch.no_grad()
def test_copied_network_samples_with_cache_and_has_attention_page(copy, capsys):
    model, ids_BT, cache = random_gpt(network="mine"), random_ids(2, 12), Cache()
    logits = [model(part_BT, cache) for part_BT in ids_BT.split([1, 4, 6, 1], dim=1)]
    torch.testing.assert_close(torch.cat(logits, dim=1), model(ids_BT))
    assert uses_cache(model)
    assert capsys.readouterr().err == ""
    data = page_data(attention_page(model.float(), "abcdefghijk", ids_BT[0].tolist(), ""))
    assert [block for block, _ in data["blocks"]] == [1, 2, 3]
    assert (data["vectors"] is not None) == copy


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
