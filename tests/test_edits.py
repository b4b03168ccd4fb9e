"""Edits people make to Quill. Each is made in one place; then everything else must follow.

An edit replaces a class or a function, as a change of the source would. `check_all_follows` then
trains, interrupts, resumes, samples in every way, scores and reads TensorBoard, and compares
everything with the edited network itself, run over the whole text.
"""

import dataclasses
import io
import math
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import configs
import sample
import train
from model import attention, checkpoint, csampler, errors, generate, gpt, optim
from model.device import seed_all
from tests.conftest import LINES, curve
from tests.test_train import assert_same_run

BLOCK_SIZE = 16  # of the `tiny` fixture: all texts below are longer
HAS_COMPILER = csampler.load_library() is not None
VOCAB = "".join(sorted(set(LINES)))


# ------------------------------------------------------------------ what must follow from an edit


@pytest.fixture
def check_all_follows(tiny, monkeypatch, capsys):
    """Train, resume, sample, score, and compare all of it with the model."""

    def check(*flags: str, uses_csampler: bool) -> nn.Module:
        errors.print_once.cache_clear()
        flags = ("--max_iters", "24", "--log_interval", "1", *flags)
        assert tiny(*flags, "--learning_rate", "0.02", "--out_dir", "whole") == 0
        losses = [loss for _, loss in curve(Path("whole"), "train")]
        assert losses[-1] < losses[0] - 0.3

        with monkeypatch.context() as patch:
            interrupt_at_step(patch, 17)
            status = tiny(*flags, "--learning_rate", "0.02", "--out_dir", "resumed")
            assert status == 128 + signal.SIGTERM
        assert train.main(["--resume", "resumed"]) == 0
        assert_same_run(Path("whole"), Path("resumed"))

        model = load_model("whole/last.pt")
        note = "Sampling uses PyTorch, about 10 times slower."
        assert capsys.readouterr().err.count(note) == (HAS_COMPILER and not uses_csampler)
        check_samples(model, capsys, monkeypatch)
        check_score(model, capsys)
        events = EventAccumulator("whole/val").Reload().Tensors("sample/text_summary")
        shown = events[-1].tensor_proto.string_val[0].decode()
        sample_text = "".join(line[4:] for line in shown.splitlines(keepends=True))
        assert len(sample_text) == 300
        check_text(model, "\n", sample_text)
        return model

    return check


def interrupt_at_step(patch, step: int) -> None:
    """Send this process SIGTERM in the middle of a training step."""
    clip, count = train.clip_grad_norm_, iter(range(10**6))

    def clip_and_interrupt(*args):
        if next(count) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return clip(*args)

    patch.setattr(train, "clip_grad_norm_", clip_and_interrupt)


def load_model(path: str) -> nn.Module:
    saved = checkpoint.load(path)
    config = configs.make_config(sample.TrainConfig, saved.config)
    model = sample.GPT(config.model, len(saved.vocab))
    checkpoint.restore(saved, model)
    return model.eval()


@torch.inference_mode()
def uncached_logits(model: nn.Module, ids: list[int], prompt_length: int) -> np.ndarray:
    """logits_TV of every character after the prompt, from the model without a cache."""
    limit = model.max_length
    if limit is None:
        return model(torch.tensor([ids]))[0, prompt_length - 1 : -1].double().numpy()
    # Whenever a character does not fit, the text starts again from its latest half.
    half, logits = -(-limit // 2), []
    for end in range(prompt_length, len(ids)):
        since_restart = (end - max(prompt_length, limit + 1)) % (limit - half + 1)
        first = end - half - since_restart if end > limit else 0
        logits.append(model(torch.tensor([ids[first:end]]))[0, -1])
    return torch.stack(logits).double().numpy()


def check_text(model: nn.Module, prompt: str, text: str, seed: int = 1337, number: int = 0) -> None:
    """`text` is what the model must write after `prompt` as text `number` of a seed."""
    ids = [VOCAB.index(character) for character in prompt + text]
    rng = np.random.default_rng([seed, number])
    for end, logits_V in enumerate(uncached_logits(model, ids, len(prompt)), start=len(prompt)):
        text_1T = np.array([ids[:end]])
        probs_1V = generate.next_char_probs(logits_V[None], text_1T, generate.SamplingConfig())
        assert generate.sample_ids(probs_1V, np.array([rng.random()]))[0] == ids[end]


def check_samples(model: nn.Module, capsys, monkeypatch) -> None:
    """One text, ten texts, a prompt longer than the context, and an interactive session."""
    prompt, length = LINES[: BLOCK_SIZE + 5].replace("\n", " "), 2 * BLOCK_SIZE
    flags = ["whole", "--which", "last", "--max_new_tokens", str(length)]

    def run_sample(*argv: str) -> str:
        capsys.readouterr()
        assert sample.main([*flags, *argv]) == 0
        return capsys.readouterr().out

    def check(text: str, **which: int) -> None:
        assert len(text) == len(prompt) + length
        check_text(model, prompt, text.removeprefix(prompt), **which)

    check_text(model, "\n", run_sample())
    texts = run_sample("--prompt", prompt, "--num_samples", "10").split(sample.SEPARATOR)
    check(texts[0])
    check(texts[9], number=9)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{prompt}\n{prompt}\n"))
    output = run_sample("--interactive")
    check(output[: len(output) // 2 - 1])
    check(output[len(output) // 2 : -1], seed=1338)


def check_score(model: nn.Module, capsys) -> None:
    """--score gives the mean negative log-likelihood."""
    text = LINES[: 3 * BLOCK_SIZE]
    Path("scored.txt").write_text(text)
    capsys.readouterr()
    assert sample.main(["whole", "--which", "last", "--score", "scored.txt"]) == 0
    ids = [VOCAB.index(character) for character in "\n" + text]
    nats = 0.0
    for end in range(1, len(ids)):
        # A network with a limited length starts again after each block.
        first = (end - 1) // BLOCK_SIZE * BLOCK_SIZE if model.max_length is not None else 0
        with torch.inference_mode():
            logits_V = model(torch.tensor([ids[first:end]]))[0, -1]
        nats -= logits_V.log_softmax(-1)[ids[end]].item()
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(nats / len(text), abs=2e-4)


# ------------------------------------------------------------------------ edits of the network


class GELUInMLP(gpt.MLP):
    """The same parameters, another activation."""

    def forward(self, x_BTC):
        return self.proj(F.gelu(self.fc(x_BTC)))


class SwiGLU(gpt.MLP):
    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)

    def forward(self, x_BTC):
        return self.proj(F.silu(self.gate(x_BTC)) * self.fc(x_BTC))


class MLPWithBias(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=True)
        self.proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=True)
        nn.init.zeros_(self.proj.weight)

    forward = gpt.MLP.forward


class DropoutInMLP(gpt.MLP):
    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(config.dropout + 0.2)

    def forward(self, x_BTC):
        return self.proj(self.dropout(F.relu(self.fc(x_BTC)).square()))


class UsualBlock(gpt.Block):
    """Attention, then one feed-forward layer, and RMSNorm with learned gains."""

    def __init__(self, config):
        super().__init__(config)
        del self.shift_mlp_1, self.mlp_1
        self.norm_1, self.norm_2 = nn.RMSNorm(config.n_embd), nn.RMSNorm(config.n_embd)

    def forward(self, x_BTC, cos_TE, sin_TE, cache=None):
        h_BTC = self.shift_attention(self.norm_1(x_BTC), cache)
        x_BTC = x_BTC + self.dropout(self.attention(h_BTC, cos_TE, sin_TE, cache))
        h_BTC = self.shift_mlp_2(self.norm_2(x_BTC), cache)
        return x_BTC + self.dropout(self.mlp_2(h_BTC))


class NoTokenShift(nn.Module):
    def __init__(self, n_embd):
        super().__init__()

    def forward(self, x_BTC, cache=None):
        return x_BTC


class UnusedLayer(gpt.MLP):
    """It exists, but its weights never get a gradient."""

    def __init__(self, config):
        super().__init__(config)
        self.unused = nn.Linear(config.n_embd, config.n_embd)


class GatedAttention(attention.Attention):
    """One more projection."""

    def __init__(self, n_embd, n_head, window):
        super().__init__(n_embd, n_head, window)
        self.gate = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x_BTC, cos_TE, sin_TE, cache=None):
        return self.gate(x_BTC).sigmoid() * super().forward(x_BTC, cos_TE, sin_TE, cache)


class OneKeyValueHead(attention.Attention):
    """All heads share one key and one value."""

    def __init__(self, n_embd, n_head, window):
        super().__init__(n_embd, n_head, window)
        self.key = nn.Linear(n_embd, n_embd // n_head, bias=False)
        self.value = nn.Linear(n_embd, n_embd // n_head, bias=False)

    def split_heads(self, x_BTC):
        heads = x_BTC.size(-1) * self.n_head // self.query.in_features
        return x_BTC.unflatten(-1, (heads, -1)).transpose(1, 2).expand(-1, self.n_head, -1, -1)


class QueryWithBias(attention.Attention):
    def __init__(self, n_embd, n_head, window):
        super().__init__(n_embd, n_head, window)
        self.query = nn.Linear(n_embd, n_embd, bias=True)


class TiedGPT(gpt.GPT):
    """Embedding and head are one matrix."""

    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.head.weight = self.embedding.weight


class TwoStreamsGPT(gpt.GPT):
    """A second residual stream, which every other block reads and writes."""

    def forward(self, ids_BT, cache=None):
        x_BTC = gpt.norm(self.embedding(ids_BT))
        start = cache.length if cache is not None else 0
        width = self.config.n_embd // self.config.n_head
        angles = gpt.rotation_angles(start, ids_BT.size(1), width, like=x_BTC)
        streams = [x_BTC, x_BTC]
        for i, block in enumerate(self.blocks):
            streams[i % 2] = block(streams[0] + streams[1], *angles, cache)
        if cache is not None:
            cache.length += ids_BT.size(1)
        return self.head(gpt.norm(streams[0] - streams[1] / 2))


class LearnedPositionsGPT(gpt.GPT):
    """A learned embedding of each position in place of rotation."""

    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        self.position = nn.Embedding(config.block_size, config.n_embd)
        self.max_length = config.block_size

    def forward(self, ids_BT, cache=None):
        start, T = (cache.length if cache is not None else 0), ids_BT.size(1)
        positions_T = torch.arange(start, start + T, device=ids_BT.device)
        x_BTC = gpt.norm(self.embedding(ids_BT) + self.position(positions_T))
        half_width = self.config.n_embd // self.config.n_head // 2
        no_rotation = x_BTC.new_ones(T, half_width), x_BTC.new_zeros(T, half_width)
        for block in self.blocks:
            x_BTC = block(x_BTC, *no_rotation, cache)
        if cache is not None:
            cache.length += T
        return self.head(gpt.norm(x_BTC))


def weights_with_softcap(q, k, causal=False, scale=None, window=None):
    """The equation edited: scores are limited to -2 .. 2."""
    T, S = q.size(-2), k.size(-2)
    scores_BHTS = 2 * (q @ k.mT * q.size(-1) ** -0.5 / 2).tanh()
    visible_TS = torch.ones(T, S, dtype=torch.bool).tril(S - T).triu(S - T - (window or S) + 1)
    return scores_BHTS.masked_fill(~visible_TS, -math.inf).softmax(-1)


def rms_norm(x):
    return F.rms_norm(x, (x.size(-1),))


NETWORK_EDITS = {
    "none": (),
    "gelu": ((gpt, "MLP", GELUInMLP),),
    "swiglu": ((gpt, "MLP", SwiGLU),),
    "bias in the MLP": ((gpt, "MLP", MLPWithBias),),
    "bias of the query": ((gpt, "Attention", QueryWithBias),),
    "dropout in the MLP": ((gpt, "MLP", DropoutInMLP),),
    "RMSNorm": ((gpt, "norm", rms_norm),),
    "usual block, with gains": ((gpt, "Block", UsualBlock),),
    "no token shift": ((gpt, "TokenShift", NoTokenShift),),
    "unused layer": ((gpt, "MLP", UnusedLayer),),
    "gate in attention": ((gpt, "Attention", GatedAttention),),
    "one key-value head": ((gpt, "Attention", OneKeyValueHead),),
    "softcap": ((attention, "attention_weights", weights_with_softcap),),
    "tied embedding and head": ((gpt, "GPT", TiedGPT),),
    "second residual stream": ((gpt, "GPT", TwoStreamsGPT),),
    "learned positions": ((gpt, "GPT", LearnedPositionsGPT),),
}
SAME_LOGITS = ("none", "dropout in the MLP", "tied embedding and head")


def make_edit(monkeypatch, module, name: str, replacement) -> None:
    """Replace it in its module and where it was imported from there."""
    original = getattr(module, name)
    for place in (module, gpt, attention, optim, generate, csampler, train, sample):
        if getattr(place, name, None) is original:
            monkeypatch.setattr(place, name, replacement)


@pytest.mark.parametrize("edit", NETWORK_EDITS)
def test_everything_follows_an_edit_of_the_network(edit, monkeypatch, check_all_follows):
    for module, name, replacement in NETWORK_EDITS[edit]:
        make_edit(monkeypatch, module, name, replacement)
    model = check_all_follows(uses_csampler=edit in SAME_LOGITS)
    muon, adamw = optim.make_optimizers(model, optim.OptimConfig(), torch.float32)
    seed_all(1337)
    fresh = sample.GPT(model.config, len(VOCAB)).state_dict()
    for name, parameter in model.named_parameters():
        owners = [
            optimizer
            for optimizer in (muon, adamw)
            for group in optimizer.param_groups
            for other in group["params"]
            if other is parameter
        ]
        is_block_matrix = name.startswith("blocks.") and parameter.ndim >= 2
        assert owners == [muon if is_block_matrix else adamw], name
        if "unused" not in name:
            assert parameter.detach().ne(fresh[name]).any(), f"{name} was not trained"


class SharedBlocksGPT(gpt.GPT):
    """The same block in every layer, so that the layers share one place in the cache."""

    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        self.blocks = nn.ModuleList([self.blocks[0]] * config.n_layer)


class MixesOutsideTheCache(gpt.MLP):
    """Each position uses the mean of all earlier ones, but keeps nothing in the cache."""

    def forward(self, x_BTC):
        counts_T1 = torch.arange(1, x_BTC.size(1) + 1)[:, None]
        return super().forward(x_BTC.cumsum(1) / counts_T1)


class SeesDoubledCharacters(gpt.GPT):
    """Its embedding knows whether a character is the same as the one before, the cache does not."""

    def __init__(self, config, vocab_size):
        super().__init__(config, vocab_size)
        self.doubled = nn.Parameter(torch.randn(config.n_embd))
        self.embedding.register_forward_hook(self.mark)

    def mark(self, layer, inputs, x_BTC):
        (ids_BT,) = inputs
        is_doubled = F.pad(ids_BT[:, 1:] == ids_BT[:, :-1], (1, 0))
        return x_BTC + is_doubled[..., None] * self.doubled


@pytest.mark.parametrize(
    ("name", "edit"),
    [("GPT", SharedBlocksGPT), ("MLP", MixesOutsideTheCache), ("GPT", SeesDoubledCharacters)],
)
def test_a_network_that_needs_more_than_its_cache_is_refused(name, edit, tiny, monkeypatch, capsys):
    make_edit(monkeypatch, gpt, name, edit)
    status = tiny("--max_iters", "24", "--learning_rate", "0.02", "--out_dir", "run")
    Path("scored.txt").write_text(LINES)
    if status == 0:  # shared blocks: the C sampler, which needs no cache, computes them rightly
        assert sample.main(["run", "--score", "scored.txt"]) == 1
    assert "other logits with a cache than without" in capsys.readouterr().err.splitlines()[-1]


class KeepsAConstant(attention.Attention):
    """Keeps a tensor of the first forward pass for all others."""

    def forward(self, x_BTC, cos_TE, sin_TE, cache=None):
        if not hasattr(self, "gains_C"):
            self.gains_C = torch.ones(x_BTC.size(-1)) * 2
        return super().forward(x_BTC * self.gains_C, cos_TE, sin_TE, cache)


def test_a_network_may_keep_tensors_of_an_evaluation_for_training(tiny, monkeypatch):
    make_edit(monkeypatch, gpt, "Attention", KeepsAConstant)
    flags = ("--max_iters", "2", "--dtype", "float32", "--out_dir", "run")
    assert tiny(*flags) == 0
    assert train.main(["--resume", "run", "--max_iters", "6", "--eval_interval", "2"]) == 0


class BatchNormInMLP(gpt.MLP):
    def __init__(self, config):
        super().__init__(config)
        self.norm = nn.BatchNorm1d(config.n_embd)

    def forward(self, x_BTC):
        return super().forward(self.norm(x_BTC.mT).mT)


def test_a_network_with_buffers_resumes_exactly_also_after_compiling(tiny, monkeypatch):
    def run_once(loss_fn, *args):  # as compiling does
        loss_fn(*args[-1])
        return loss_fn

    make_edit(monkeypatch, gpt, "MLP", BatchNormInMLP)
    monkeypatch.setattr(train, "maybe_compile", run_once)
    assert tiny("--max_iters", "9", "--out_dir", "whole") == 0
    with monkeypatch.context() as patch:
        interrupt_at_step(patch, 5)
        assert tiny("--max_iters", "9", "--out_dir", "resumed") == 128 + signal.SIGTERM
    assert train.main(["--resume", "resumed"]) == 0
    assert_same_run(Path("whole"), Path("resumed"))


class EmbeddingWithoutOneId(nn.Embedding):
    def forward(self, ids_BT):
        return super().forward(ids_BT) * (ids_BT != 5)[..., None]


class BansOneCharacterGPT(gpt.GPT):
    def forward(self, ids_BT, cache=None):
        logits_BTV = 2 * super().forward(ids_BT, cache)
        return logits_BTV.index_fill(-1, torch.tensor([3]), -math.inf)


class WithoutRepetition(gpt.GPT):
    """The character that was just written becomes less likely if it was doubled."""

    def forward(self, ids_BT, cache=None):
        logits_BTV = super().forward(ids_BT, cache)
        is_doubled = F.pad(ids_BT[:, 1:] == ids_BT[:, :-1], (1, 0))
        return logits_BTV - 2 * F.one_hot(ids_BT, logits_BTV.size(-1)) * is_doubled[..., None]


def test_the_csampler_notices_edits_of_one_id_or_of_doubled_characters_and_infinite_logits():
    config = gpt.GPTConfig(n_layer=1, n_head=2, n_embd=16, block_size=16)
    for model in (
        gpt.GPT(config, 65),
        BansOneCharacterGPT(config, 65),
        WithoutRepetition(config, 65),
    ):
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        assert (csampler.make_csampler(model.eval()) is None) == (type(model) is not gpt.GPT)
        model.embedding.__class__ = EmbeddingWithoutOneId
        assert csampler.make_csampler(model) is None


def test_a_checkpoint_of_another_network_is_refused_with_the_parameter_that_differs(
    tiny, monkeypatch, capsys
):
    assert tiny("--max_iters", "2", "--out_dir", "run") == 0
    make_edit(monkeypatch, gpt, "MLP", SwiGLU)
    for main, argv in ((sample.main, ["run"]), (train.main, ["--resume", "run"])):
        assert main(argv) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert 'Missing key(s) in state_dict: "blocks.0.mlp_1.gate.weight"' in error


# ---------------------------------------------------------------- edits of the optimizers


@pytest.mark.parametrize(
    "make_block_optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
        lambda parameters: torch.optim.Muon(parameters, lr=0.1),
        lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5),
    ],
    ids=["SGD", "AdamW", "Muon of PyTorch", "RMSprop"],
)
def test_everything_follows_another_optimizer_of_the_blocks(
    make_block_optimizer, monkeypatch, check_all_follows
):
    monkeypatch.setattr(optim, "Muon", lambda named, *settings: make_block_optimizer(named))
    check_all_follows(uses_csampler=True)


# ---------------------------------------------------------------- edits of the sampling rule


def with_repetition_penalty(logits_BV, text_BT, config, original=generate.next_char_probs):
    """Each of the last 20 characters becomes less likely."""
    penalized_BV = logits_BV.copy()
    for row, recent in zip(penalized_BV, text_BT[:, -20:], strict=True):
        row[np.unique(recent)] -= 1.0
    return original(penalized_BV, text_BT, config)


def with_min_p(logits_BV, text_BT, config, original=generate.next_char_probs):
    """Only characters with at least a tenth of the largest probability."""
    probs_BV = original(logits_BV, text_BT, config)
    probs_BV[probs_BV < 0.1 * probs_BV.max(-1, keepdims=True)] = 0
    return probs_BV / probs_BV.sum(-1, keepdims=True)


def by_length(logits_BV, text_BT, config, original=generate.next_char_probs):
    """A rule that needs the whole text, prompt included: only one character is possible."""
    probs_BV = np.zeros_like(logits_BV, dtype=np.float64)
    probs_BV[np.arange(len(text_BT)), text_BT.sum(1) % logits_BV.shape[1]] = 1
    return probs_BV


@pytest.mark.parametrize("rule", [with_repetition_penalty, with_min_p, by_length])
def test_everything_follows_another_sampling_rule(rule, monkeypatch, check_all_follows):
    make_edit(monkeypatch, generate, "next_char_probs", rule)
    check_all_follows(uses_csampler=True)


# ---------------------------------------------------------------- new config keys

NEW_KEYS = {
    "int": (Annotated[int, "help"], 3, "5", 5),
    "int with an interval": (Annotated[int, "help", "[1, 9]"], 3, "5", 5),
    "int without help": (int, 3, "5", 5),
    "negative int": (Annotated[int, "help"], 3, "-5", -5),
    "optional int": (Annotated[int | None, "help", "[1, 9]"], None, "5", 5),
    "float": (Annotated[float, "help"], 0.5, "1", 1.0),
    "float with an interval": (Annotated[float, "help", "(0, 1)"], 0.5, "0.25", 0.25),
    "optional float": (Annotated[float | None, "help"], None, "0.25", 0.25),
    "bool": (Annotated[bool, "help"], False, None, True),
    "text": (Annotated[str, "help"], "a", "b c", "b c"),
    "optional text": (Annotated[str | None, "help"], None, "b", "b"),
    "choice": (Annotated[Literal["relu", "gelu"], "help"], "relu", "gelu", "gelu"),
    "choice of numbers": (Annotated[Literal[1, 2], "help"], 1, "2", 2),
    "optional choice": (Annotated[Literal["relu", "gelu"] | None, "help"], None, "gelu", "gelu"),
}


@pytest.mark.parametrize("kind", NEW_KEYS)
def test_a_new_config_key_becomes_a_flag_a_toml_key_and_a_line_of_help(
    kind, tiny, monkeypatch, capsys
):
    hint, default, text, value = NEW_KEYS[kind]
    add_key(monkeypatch, hint, default)
    flags = ["--new_key"] if text is None else [f"--new_key={text}"]

    def new_key(*argv: str) -> object:
        return configs.load_config(configs.parse_train_command(list(argv))).model.new_key

    assert new_key("--device", "cpu") == default
    assert tiny("--max_iters", "1", *flags, "--out_dir", "run") == 0
    saved = checkpoint.load("run/last.pt").config
    assert (saved["new_key"], type(saved["new_key"])) == (value, type(value))
    assert new_key("run/config.toml") == value
    assert train.main(["--resume", "run", "--max_iters", "2"]) == 0
    assert sample.main(["run", "--max_new_tokens", "1"]) == 0
    if kind == "bool":  # what a preset turned on can be turned off
        assert new_key("run/config.toml", "--no-new_key") is False
    capsys.readouterr()
    assert train.main(["--help"]) == 0
    assert "--new_key" in capsys.readouterr().out


def add_key(monkeypatch, hint: object, default: object) -> None:
    """Add `new_key` to the group "model", as a new line of GPTConfig would."""
    namespace = {"__annotations__": {"new_key": hint}, "new_key": default}
    groups = {f.name: f.type for f in dataclasses.fields(configs.TrainConfig)}
    groups["model"] = dataclass(frozen=True)(type("GPTConfig", (gpt.GPTConfig,), namespace))
    edited = dataclasses.make_dataclass(
        "TrainConfig",
        [(name, group, field(default_factory=group)) for name, group in groups.items()],
        frozen=True,
    )
    make_edit(monkeypatch, configs, "TrainConfig", edited)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("int", "x"), ("int", "1.5"), ("int with an interval", "10"), ("optional int", "0"),
        ("float", "x"), ("float", "nan"), ("float with an interval", "1"), ("bool", "yes"),
        ("choice", "tanh"), ("choice of numbers", "3"), ("optional choice", "tanh"),
    ],
)  # fmt: skip
def test_a_wrong_value_of_a_new_config_key_is_refused_by_name(kind, wrong, monkeypatch, capsys):
    hint, default, *_ = NEW_KEYS[kind]
    add_key(monkeypatch, hint, default)
    assert train.main([f"--new_key={wrong}", "--data", "missing.txt"]) == 2
    error = capsys.readouterr().err
    assert "new_key" in error
    assert error.count("\n") == 1


@pytest.fixture(autouse=True)
def same_vocabulary(text_file):
    """The checks above know the vocabulary of LINES."""
    assert "".join(sorted(set(text_file.read_text()))) == VOCAB
