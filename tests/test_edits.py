"""Edits people make to Quill, as changes of source files in a copy of the repository.

Each is made in one place; then everything else must follow, or fail loudly. The checks are in
edit_checks.py, which runs in a process of its own that imports the copy.
"""

import multiprocessing
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

# No module of Quill may be imported here: a process that calls a function of this file imports it.
ROOT = Path(__file__).parent.parent
GPT, TEXTBOOK = "model/networks/quill.py", "model/networks/gpt.py"
ATTENTION, NETWORK = "model/attention.py", "model/network.py"
OPTIM, GENERATE = "model/optim.py", "model/generate.py"
Edit = list[tuple[str, str, str]]  # file, what stands there, what takes its place


@pytest.fixture(scope="session")
def context():
    """Starts processes quickly: each is a fork of one that has imported PyTorch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.utils.tensorboard", "pytest"])
    return context


@pytest.fixture
def run_edited(context, elsewhere):
    """run_edited(edit, check, *arguments): call a function of edit_checks.py on the edited code."""

    def run(edit: Edit, check: str, *arguments: object) -> None:
        copy = elsewhere / "copy"
        for folder in ("model", "data", "configs"):
            ignored = shutil.ignore_patterns("prepared", "*.txt", "*.pyc")
            shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
        for name in ("train.py", "sample.py"):
            shutil.copy(ROOT / name, copy)
        for name, old, new in edit:
            text = (copy / name).read_text("utf-8") if (copy / name).exists() else ""
            assert old in text, f"{name} has no {old!r}"
            (copy / name).write_text(text.replace(old, new), "utf-8")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            pool.submit(call_in_copy, copy, elsewhere, check, arguments).result()

    return run


def call_in_copy(copy: Path, folder: Path, check: str, arguments: tuple) -> None:
    """Import the edited code, and call a function of edit_checks.py in `folder`."""
    sys.path.insert(0, str(copy))
    os.chdir(folder)
    from tests import edit_checks  # noqa: PLC0415

    assert Path(edit_checks.train.__file__).parent == copy
    getattr(edit_checks, check)(*arguments)


MLP_ACTIVATION = "F.relu(self.fc(x_BTC)).square()"
MLP_PROJ = "        self.proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)\n"
EMBED = "x_BTC = norm(self.embedding(ids_BT))"
HEAD = "return self.head(norm(x_BTC))"
INIT = "        self.init_weights()\n"
KEY = "self.key = nn.Linear(C, C, bias=False)"
ATTEND = "return self.proj(out_BHTD.transpose(1, 2).flatten(2))"

# What the C sampler and the cache have nothing to do with: they stay in use.
UNCHANGED_NETWORK: dict[str, Edit] = {
    "none": [],
    "comments, docstrings, formatting": [
        (GPT, '"""x_BTC to out_BTC."""', '"""Other words."""\n        # A comment'),
        (ATTENTION, "T, S, D = q.size(-2), k.size(-2), q.size(-1)",
         "T, S, D = (\n        q.size(-2),\n        k.size(-2),\n        q.size(-1),\n    )"),
        (GPT, '    """LayerNorm', "    # Comment\n    '''LayerNorm"),
        (GPT, 'faster than RMSNorm."""', "faster than RMSNorm.'''"),
    ],
    "a new setting, another default": [
        (NETWORK, "= 0.0\n", '= 0.1\n    new_key: Annotated[int, "new", "[1, 9]"] = 3\n'),
    ],
    "another optimizer: SGD": [
        (OPTIM, "Muon(matrices, config.learning_rate, config.weight_decay, muon_dtype)",
         "torch.optim.SGD(matrices, lr=0.1, momentum=0.9)"),
    ],
    "another optimizer: Muon of PyTorch": [
        (OPTIM, "Muon(matrices, config.learning_rate, config.weight_decay, muon_dtype)",
         "torch.optim.Muon(matrices, lr=0.1)"),
    ],
    "a sampling rule that needs the whole text": [
        (GENERATE, "    V = logits_BV.shape[-1]\n",
         "    V = logits_BV.shape[-1]\n"
         "    probs_BV = np.zeros_like(logits_BV, dtype=np.float64)\n"
         "    probs_BV[np.arange(len(text_BT)), text_BT.sum(1) % V] = 1\n"
         "    return probs_BV\n"),
    ],
}  # fmt: skip

# Edits of what the network computes.
OTHER_NETWORK: dict[str, Edit] = {
    "GELU": [(GPT, MLP_ACTIVATION, "F.gelu(self.fc(x_BTC))")],
    "SwiGLU": [
        (GPT, MLP_PROJ, MLP_PROJ
         + "        self.gate = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)\n"),
        (GPT, MLP_ACTIVATION, "F.silu(self.gate(x_BTC)) * self.fc(x_BTC)"),
    ],
    "bias in the MLP": [
        (GPT, "4 * config.n_embd, bias=False", "4 * config.n_embd, bias=True"),
        (GPT, MLP_PROJ, MLP_PROJ.replace("False", "True")),
    ],
    "dropout in the MLP": [
        (GPT, MLP_PROJ, MLP_PROJ + "        self.dropout = nn.Dropout(config.dropout + 0.2)\n"),
        (GPT, MLP_ACTIVATION, f"self.dropout({MLP_ACTIVATION})"),
    ],
    "a layer that is not used": [
        (GPT, MLP_PROJ, MLP_PROJ + "        self.unused = nn.Linear(config.n_embd, 4)\n"),
    ],
    "bias of the query": [
        (GPT, "self.query = nn.Linear(C, C, bias=False)",
         "self.query = nn.Linear(C, C, bias=True)"),
    ],
    "RMSNorm": [(GPT, "F.layer_norm(x,", "F.rms_norm(x,")],
    "usual block, with gains": [
        (GPT, "        self.shift_mlp_1 = TokenShift()\n",
         "        self.norm_1 = nn.RMSNorm(config.n_embd)\n"),
        (GPT, "        self.mlp_1 = MLP(config)\n",
         "        self.norm_2 = nn.RMSNorm(config.n_embd)\n"),
        (GPT, "        h_BTC = self.mlp_1(self.shift_mlp_1(norm(x_BTC), cache))\n", ""),
        (GPT, "        x_BTC = x_BTC.to(h_BTC.dtype) + self.dropout(h_BTC)", "       "),
        (GPT, "self.shift_attention(norm(x_BTC)", "self.shift_attention(self.norm_1(x_BTC)"),
        (GPT, "self.shift_mlp_2(norm(x_BTC)", "self.shift_mlp_2(self.norm_2(x_BTC)"),
    ],
    "no token shift": [
        *((GPT, f"        self.shift_{name} = TokenShift()\n", "")
          for name in ("mlp_1", "attention", "mlp_2")),
        *((GPT, f"self.shift_{name}(norm(x_BTC), cache)", "norm(x_BTC)")
          for name in ("mlp_1", "attention", "mlp_2")),
    ],
    "gate in attention": [
        (GPT, KEY, f"self.gate = nn.Linear(C, C, bias=False)\n        {KEY}"),
        (GPT, ATTEND, ATTEND.replace("return ", "return self.gate(x_BTC).sigmoid() * ")),
    ],
    "one key-value head": [
        (GPT, KEY, "self.key = nn.Linear(C, C // config.n_head, bias=False)"),
        (GPT, KEY.replace("key", "value"),
         "self.value = nn.Linear(C, C // config.n_head, bias=False)"),
        (GPT, "return x_BTC.unflatten(-1, (self.config.n_head, -1)).transpose(1, 2)",
         "heads = x_BTC.size(-1) * self.config.n_head // self.query.in_features\n"
         "        x_BHTD = x_BTC.unflatten(-1, (heads, -1)).transpose(1, 2)\n"
         "        return x_BHTD.expand(-1, self.config.n_head, -1, -1)"),
    ],
    "softcap": [
        (ATTENTION, "    if causal:\n        minus_inf",
         "    scores_BHTS = 2 * (scores_BHTS / 2).tanh()\n    if causal:\n        minus_inf"),
    ],
    "ALiBi in place of rotation": [
        (ATTENTION, "    if causal:\n        minus_inf",
         "    distance_TS = torch.arange(S - T, S)[:, None] - torch.arange(S)\n"
         "    slopes_H11 = 2.0 ** -torch.arange(1, q.size(1) + 1)[:, None, None]\n"
         "    scores_BHTS = scores_BHTS - slopes_H11 * distance_TS\n"
         "    if causal:\n        minus_inf"),
        (GPT, "rotate(self.split_heads(self.query(x_BTC)), cos_TE, sin_TE)",
         "self.split_heads(self.query(x_BTC))"),
        (GPT, "rotate(self.split_heads(self.key(x_BTC)), cos_TE, sin_TE)",
         "self.split_heads(self.key(x_BTC))"),
    ],
    "an attend that does more than a weighted sum": [
        (ATTENTION, "return F.dropout(weights_BHTS, dropout).to(v.dtype) @ v",
         "return (weights_BHTS @ v).tanh()"),
    ],
    "tied embedding and head": [
        (GPT, INIT, "        self.head.weight = self.embedding.weight\n" + INIT),
    ],
    "second residual stream": [
        (GPT, "        for block in self.blocks:\n",
         "        streams = [x_BTC, x_BTC]\n        for i, block in enumerate(self.blocks):\n"
         "            x_BTC = streams[0] + streams[1]\n"),
        (GPT, "            x_BTC = block(x_BTC, cos_TE, sin_TE, cache)\n",
         "            x_BTC = block(x_BTC, cos_TE, sin_TE, cache)\n"
         "            streams[i % 2] = x_BTC\n"),
        (GPT, HEAD, "return self.head(norm(streams[0] - streams[1] / 2))"),
    ],
    "learned positions": [
        (GPT, INIT, "        self.position = nn.Embedding(config.block_size, config.n_embd)\n"
         "        self.max_length = config.block_size\n" + INIT),
        (GPT, EMBED, "positions_T = torch.arange(start, start + T, device=ids_BT.device)\n"
         "        x_BTC = norm(self.embedding(ids_BT) + self.position(positions_T))"),
        (GPT, "        for block in self.blocks:\n",
         "        cos_TE, sin_TE = torch.ones_like(cos_TE), torch.zeros_like(sin_TE)\n"
         "        for block in self.blocks:\n"),
    ],
    # What a comparison of logits would hardly find.
    "another eps": [(GPT, "(x.size(-1),))", "(x.size(-1),), eps=1e-4)")],
    "a method that an imported module replaces": [
        ("model/patches.py", "",
         "from model import attention\n\nattention.MAX_EQUATION_WEIGHTS = 0\n"
         "old = attention.fast_attend\nattention.fast_attend = lambda *a, **b: old(*a, **b) / 2\n"),
        (GPT, "from model.attention import", "import model.patches\nfrom model.attention import"),
    ],
    "far keys count half": [
        (ATTENTION, "    return scores_BHTS.softmax(dim=-1)",
         "    weights_BHTS = scores_BHTS.softmax(dim=-1)\n"
         "    return weights_BHTS - weights_BHTS.tril(S - T - 12) / 2"),
    ],
    # What no cache can follow, or this one does not.
    "positions are mixed outside the cache": [
        (GPT, "self.proj(F.relu(", "self.proj(x_BTC.cumsum(1).repeat(1, 1, 4) / 9 + F.relu("),
    ],
    "the embedding sees doubled characters": [
        (GPT, EMBED, f"{EMBED}\n        is_doubled = ids_BT[:, 1:] == ids_BT[:, :-1]\n"
         "        x_BTC = x_BTC * (1 + F.pad(is_doubled, (1, 0))[..., None])"),
    ],
    "the same block in every layer": [
        (GPT, "nn.ModuleList(Block(config) for _ in range(config.n_layer))",
         "nn.ModuleList([Block(config)] * config.n_layer)"),
    ],
    "the token shift keeps nothing": [
        (GPT, "last_B2C = cache.last_inputs.get(self, last_B2C)", "pass"),
    ],
    "the cache keeps too few keys": [(ATTENTION, "(window - 1))", "(window - 3))")],
}  # fmt: skip
EDITS = UNCHANGED_NETWORK | OTHER_NETWORK


@pytest.mark.parametrize("name", EDITS)
def test_everything_follows_an_edit(name, run_edited):
    edited = ""
    if name in OTHER_NETWORK:
        files = {file for file, _, _ in EDITS[name]}
        edited = "model.networks.quill" if GPT in files else "model.attention"
    run_edited(EDITS[name], "everything_follows", "quill", edited)


def test_an_edit_of_the_c_sampler_alone_changes_nothing(run_edited):
    edit = [("model/fast/csampler.c", "sum > 0 ? sum * sum : 0", "sum > 0 ? sum : 0")]
    run_edited(edit, "everything_follows", "quill", "csampler.c")


GELU = "self.proj(self.gelu(self.fc(x_BTC)))"
BLOCK = """x_BTC = x_BTC + self.dropout(self.attention(self.norm_1(x_BTC), cache))
        return x_BTC + self.dropout(self.mlp(self.norm_2(x_BTC)))"""
POSITIONS = "self.embedding(ids_BT) + self.position(positions_T)"

NO_CACHE = [
    (TEXTBOOK, "x_BTC: Tensor, cache: Cache | None = None)", "x_BTC: Tensor)"),
    (TEXTBOOK, "ids_BT: Tensor, cache: Cache | None = None)", "ids_BT: Tensor)"),
    (TEXTBOOK, "        if cache is not None:\n            k_BHSD, v_BHSD = cache.append("
     "self, k_BHTD, v_BHTD, self.config.block_size)\n", ""),
    (TEXTBOOK, "        if cache is not None:\n            cache.length += T\n", ""),
    (TEXTBOOK, "(cache.length if cache is not None else 0)", "0"),
    (TEXTBOOK, "(x_BTC), cache)", "(x_BTC))"),
    (TEXTBOOK, "block(x_BTC, cache)", "block(x_BTC)"),
    (TEXTBOOK, "import Cache, fast_attend", "import fast_attend"),
]  # fmt: skip
# Edits of the textbook network.
TEXTBOOK_EDITS: dict[str, Edit] = {
    "none": [],
    "ReLU²": [(TEXTBOOK, GELU, "self.proj(self.fc(x_BTC).relu().square())")],
    "SwiGLU": [
        (TEXTBOOK, "        self.gelu = nn.GELU()\n",
         "        self.gate = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)\n"),
        (TEXTBOOK, GELU, "self.proj(nn.functional.silu(self.gate(x_BTC)) * self.fc(x_BTC))"),
    ],
    "RMSNorm": [(TEXTBOOK, "nn.LayerNorm(config.n_embd, bias=config.bias)",
                 "nn.RMSNorm(config.n_embd)")],
    "query-key normalization": [
        (TEXTBOOK, "q_BHTD = self.split_heads(self.query(x_BTC))",
         "q_BHTD = nn.functional.normalize(self.split_heads(self.query(x_BTC)), dim=-1) * 3"),
    ],
    "normalization after each layer": [
        (TEXTBOOK, BLOCK, """x_BTC = self.norm_1(x_BTC + self.dropout(self.attention(x_BTC, cache)))
        return self.norm_2(x_BTC + self.dropout(self.mlp(x_BTC)))"""),
    ],
    "both layers side by side": [
        (TEXTBOOK, BLOCK, """h_BTC = self.norm_1(x_BTC)
        return x_BTC + self.dropout(self.attention(h_BTC, cache) + self.mlp(h_BTC))"""),
        (TEXTBOOK, "        self.norm_2 = nn.LayerNorm(config.n_embd, bias=config.bias)\n", ""),
    ],
    "no positions, no limit": [
        (TEXTBOOK, POSITIONS, "self.embedding(ids_BT)"),
        (TEXTBOOK, "        self.position = nn.Embedding(config.block_size, config.n_embd)\n", ""),
        (TEXTBOOK, "self.max_length = config.block_size", "self.max_length = None"),
    ],
    "no cache": NO_CACHE,
    "embedding and head apart": [
        (TEXTBOOK, "        self.head.weight = self.embedding.weight  # Press and Wolf 2017\n", ""),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTBOOK_EDITS)
def test_everything_follows_an_edit_of_the_textbook_network(name, run_edited):
    edited = "" if name == "none" else "model.networks.gpt"
    run_edited(TEXTBOOK_EDITS[name], "everything_follows", "gpt", edited)


def test_everything_follows_an_edit_of_attention_in_the_textbook_network(run_edited):
    run_edited(OTHER_NETWORK["softcap"], "everything_follows", "gpt", "model.attention")


def test_a_copy_of_a_network_is_a_third_one_and_old_checkpoints_keep_working(
    run_edited, trained_run
):
    """README's way to change a network. The copy never samples in C, not even unchanged."""
    code = (ROOT / GPT).read_text("utf-8")
    edited = code.replace(MLP_ACTIVATION, "F.gelu(self.fc(x_BTC))")
    copies = [("model/networks/mine.py", "", edited), ("model/networks/same.py", "", code)]
    run_edited(copies, "everything_follows_in_copies", str(trained_run / "best.pt"))


@pytest.mark.parametrize(
    "name", ["none", "a layer that is not used", "SwiGLU", "gate in attention"]
)
def test_matrices_of_a_new_layer_go_to_muon_and_all_else_to_adamw(name, run_edited):
    run_edited(EDITS[name], "optimizers_follow")


def test_a_network_may_keep_tensors_of_an_evaluation_for_training(run_edited):
    edit = [
        (GPT, "        return self.proj(F.relu(self.fc(x_BTC)",
         "        if not hasattr(self, 'gains_C'):\n"
         "            self.gains_C = torch.ones(x_BTC.size(-1)) * 2\n"
         "        return self.proj(F.relu(self.fc(x_BTC * self.gains_C)"),
    ]  # fmt: skip
    run_edited(edit, "keeps_tensors_of_an_evaluation")


def test_a_network_that_draws_random_numbers_in_evaluation_is_evaluated_alike(run_edited):
    edit = [(GPT, EMBED, f"{EMBED}\n        x_BTC = F.dropout(x_BTC, 0.1)")]
    run_edited(edit, "evaluates_alike_after_a_resume")


def test_a_teacher_with_buffers_that_change_is_saved_as_it_is(run_edited):
    edit = [
        (GPT, MLP_PROJ, MLP_PROJ + '        self.register_buffer("calls", torch.zeros(()))\n'),
        (GPT, f"        return self.proj({MLP_ACTIVATION})",
         "        if torch.is_grad_enabled():\n            self.calls = self.calls + 1\n"
         f"        return self.proj({MLP_ACTIVATION}) * (1 + self.calls.sin() / 10)"),
    ]  # fmt: skip
    run_edited(edit, "resumes_exactly_with_a_teacher")


def test_the_teacher_of_a_network_that_holds_functions_is_not_tied_to_the_second_one(run_edited):
    code = (ROOT / GPT).read_text("utf-8")
    code = code.replace(MLP_PROJ, MLP_PROJ + f"        self.act = lambda x_BTC: {MLP_ACTIVATION}\n")
    code = code.replace(f"self.proj({MLP_ACTIVATION})", "self.proj(self.act(x_BTC))")
    assert "self.proj(self.act(x_BTC))" in code
    run_edited([("model/networks/mine.py", "", code)], "learns_from_the_same_teacher")


def test_a_network_with_buffers_resumes_exactly_also_after_compiling(run_edited):
    edit = [
        (GPT, MLP_PROJ, MLP_PROJ + "        self.norm = nn.BatchNorm1d(config.n_embd)\n"),
        (GPT, "F.relu(self.fc(x_BTC))", "F.relu(self.fc(self.norm(x_BTC.mT).mT))"),
    ]
    run_edited(edit, "resumes_exactly_after_compiling")


def test_a_checkpoint_of_another_network_is_refused_with_the_parameter_that_differs(
    run_edited, trained_run
):
    run_edited(EDITS["SwiGLU"], "other_checkpoints_are_refused", str(trained_run))
