"""What must follow from an edit. tests/test_edits.py calls this where edited code is imported."""

import io
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import sample
import train
from configs.schema import make_config
from model import checkpoint, generate, optim
from model.fast.csampler import load_library, make_csampler
from model.inspect.record import record_attention
from model.network import make_network
from model.run.device import seed_all
from tests.conftest import LINES, TINY, curve
from tests.test_train import assert_same_run

BLOCK_SIZE = 16  # of TINY
VOCAB = "".join(sorted(set(LINES)))
PROMPT = LINES.replace("\n", " ")
RATES = ["--learning_rate", "0.02", "--log_interval", "1", "--data", "text.txt"]


def train_tiny(*flags: str) -> int:
    """Train a tiny network in the working directory; returns the exit status."""
    Path("text.txt").write_text(LINES, "utf-8")
    return train.main([*TINY, *RATES, "--max_iters", "24", *flags])


def everything_follows(network: str, edited: str = "") -> None:
    """Training, resuming, sampling, scoring and TensorBoard agree with the edited network.

    A note names what was `edited`.
    """
    flags = ("--network", network)
    with Captured() as output:
        assert train_tiny(*flags, "--out_dir", "whole") == 0
    losses = [loss for _, loss in curve(Path("whole"), "train")]
    assert losses[-1] < losses[0] - 0.3
    assert ("is not what was tested" in output.err) == bool(edited)
    assert edited in output.err

    with pytest.MonkeyPatch.context() as patch:
        interrupt_at_step(patch, 17)
        assert train_tiny(*flags, "--out_dir", "resumed") == 128 + signal.SIGTERM
    assert train.main(["--resume", "resumed"]) == 0
    assert_same_run(Path("whole"), Path("resumed"))

    model = load_model("whole/last.pt")
    assert model.has_proven_cache == (edited in ("", "csampler.c"))
    check_samples(model)
    check_score(model)
    events = EventAccumulator("whole/val").Reload().Tensors("sample/text_summary")
    shown = events[-1].tensor_proto.string_val[0].decode()
    check_text(model, "\n", "".join(line[4:] for line in shown.splitlines(keepends=True)))
    check_recording(model)


def everything_follows_in_copies(path: str) -> None:
    """The copy `mine` is followed, the copy `same` samples in PyTorch, and quill still in C."""
    everything_follows("mine", "model.networks.mine")
    config = checkpoint.load(path).config
    for network, is_fast in (("mine", False), ("same", False), ("quill", True)):
        model_config = make_config(train.TrainConfig, config | {"network": network}).model
        model = make_network(model_config, len(VOCAB))
        assert model.has_proven_cache == is_fast
        assert (make_csampler(model) is not None) == (is_fast and load_library() is not None)
    with Captured() as output:
        assert sample.main([path, "--max_new_tokens", "5"]) == 0
    assert len(output.out) == 5
    with Captured() as output:
        assert train_tiny("--init_from", path, "--network", "mine", "--out_dir", "other") == 2
    assert "network is mine" in output.err


class Captured:
    """Collects what is written to standard output and standard error, as `out` and `err`."""

    def __enter__(self) -> "Captured":
        self.streams, sys.stdout, sys.stderr = (
            (sys.stdout, sys.stderr),
            io.StringIO(),
            io.StringIO(),
        )
        return self

    def __exit__(self, *_) -> None:
        self.out, self.err = sys.stdout.getvalue(), sys.stderr.getvalue()
        sys.stdout, sys.stderr = self.streams


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
    config = make_config(train.TrainConfig, saved.config)
    model = make_network(config.model, len(saved.vocab))
    checkpoint.restore(saved, model)
    return model.eval()


def reads_on(model: nn.Module) -> bool:
    """Whether it reads more than the latest block_size characters."""
    return model.has_proven_cache and model.max_length is None


@torch.inference_mode()
def uncached_logits(model: nn.Module, ids: list[int], prompt_length: int) -> np.ndarray:
    """logits_TV of every character after the prompt, from the model without a cache."""
    if reads_on(model):
        return model(torch.tensor([ids]))[0, prompt_length - 1 : -1].double().numpy()
    logits = [
        model(torch.tensor([ids[max(0, end - BLOCK_SIZE) : end]]))[0, -1]
        for end in range(prompt_length, len(ids))
    ]
    return torch.stack(logits).double().numpy()


def check_text(model: nn.Module, prompt: str, text: str, seed: int = 1337, number: int = 0) -> None:
    """`text` is what the model must write after `prompt` as text `number` of a seed."""
    ids = [VOCAB.index(character) for character in prompt + text]
    rng = np.random.default_rng([seed, number])
    for end, logits_V in enumerate(uncached_logits(model, ids, len(prompt)), start=len(prompt)):
        text_1T = np.array([ids[:end]])
        probs_1V = generate.next_char_probs(logits_V[None], text_1T, generate.GenerationConfig())
        assert generate.sample_ids(probs_1V, np.array([rng.random()]))[0] == ids[end]


def run_sample(*argv: str) -> str:
    """What sample.py writes."""
    with Captured() as output:
        assert sample.main(["whole", "--which", "last", *argv]) == 0, output.err
    return output.out


def check_samples(model: nn.Module) -> None:
    """Prompts of every length from 1 to past the window, a long one, and ten texts at once."""
    lengths = range(1, BLOCK_SIZE + 5)
    lines = [PROMPT[:length] for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
        output = run_sample("--interactive", "--max_new_tokens", "10")
    for turn, prompt in enumerate(lines):
        assert output.startswith(prompt)
        text = output[len(prompt) : len(prompt) + 10]
        check_text(model, prompt, text, seed=1337 + turn)
        output = output[len(prompt) + 11 :]
    assert output == ""

    prompt = PROMPT[:20]
    flags = ("--max_new_tokens", str(2 * BLOCK_SIZE), "--num_samples", "10")
    texts = run_sample("--prompt", prompt, *flags).split(sample.SEPARATOR)
    for number in (0, 9):
        check_text(model, prompt, texts[number].removeprefix(prompt), number=number)
    long_prompt = PROMPT[:1000]
    text = run_sample("--prompt", long_prompt, "--max_new_tokens", "20")
    check_text(model, long_prompt, text.removeprefix(long_prompt))


def check_score(model: nn.Module) -> None:
    """--score gives the mean negative log-likelihood."""
    text = LINES[: 3 * BLOCK_SIZE]
    Path("scored.txt").write_text(text)
    ids = [VOCAB.index(character) for character in "\n" + text]
    nats = 0.0
    for end in range(1, len(ids)):
        first = 0 if reads_on(model) else (end - 1) // BLOCK_SIZE * BLOCK_SIZE
        with torch.inference_mode():
            logits_V = model(torch.tensor([ids[first:end]]))[0, -1]
        nats -= logits_V.log_softmax(-1)[ids[end]].item()
    scored = float(run_sample("--score", "scored.txt").split()[0])
    assert scored == pytest.approx(nats / len(text), abs=2e-4)


@torch.no_grad()
def check_recording(model: nn.Module) -> None:
    """What is recorded are weights of visible characters, and recording changes no logit."""
    ids_BT = torch.tensor([[VOCAB.index(character) for character in PROMPT[:BLOCK_SIZE]]])
    expected_BTV = model(ids_BT)
    with record_attention(model) as calls:
        torch.testing.assert_close(model(ids_BT), expected_BTV)
    assert [call.block for call in calls] == list(range(1, len(model.blocks) + 1))
    for call in calls:
        assert not call.weights_BHTS.triu(1).any()
    Path("page.html").unlink(missing_ok=True)
    run_sample("--max_new_tokens", "5", "--attention", "page.html")
    assert Path("page.html").exists()


def optimizers_follow() -> None:
    """Every matrix in a block goes to Muon, all else to AdamW, and all is trained but `unused`."""
    assert train_tiny("--out_dir", "run") == 0
    model = load_model("run/last.pt")
    muon, adamw = optim.make_optimizers(model, optim.OptimConfig(), torch.float32)
    seed_all(1337)
    fresh = make_network(model.config, len(VOCAB)).state_dict()
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


def resumes_exactly_after_compiling() -> None:
    """Also a network with buffers, in which compiling, which calls it once, changes them."""

    def call_once(self, network, mode, x_BT):
        network(x_BT)
        return network

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Machine, "compile", call_once)
        assert train_tiny("--max_iters", "9", "--out_dir", "whole") == 0
        with pytest.MonkeyPatch.context() as inner:
            interrupt_at_step(inner, 5)
            assert train_tiny("--max_iters", "9", "--out_dir", "resumed") == 128 + signal.SIGTERM
        assert train.main(["--resume", "resumed"]) == 0
    assert_same_run(Path("whole"), Path("resumed"))


def learns_from_the_same_teacher() -> None:
    """`mine`, which computes what quill does, also does so with a teacher."""
    for network in ("quill", "mine"):
        flags = ("--network", network, "--teacher_iters", "8", "--out_dir", network)
        assert train_tiny(*flags) == 0
    assert curve(Path("quill"), "train") == curve(Path("mine"), "train")


def resumes_exactly_with_a_teacher() -> None:
    """Also a network whose buffers are replaced in each training step, those of the teacher too."""
    flags = ("--max_iters", "12", "--teacher_iters", "5", "--out_dir")
    assert train_tiny(*flags, "whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at_step(patch, 8)
        assert train_tiny(*flags, "resumed") == 128 + signal.SIGTERM
    assert train.main(["--resume", "resumed"]) == 0
    assert_same_run(Path("whole"), Path("resumed"))


def evaluates_alike_after_a_resume() -> None:
    """The evaluation that a resumed run repeats has the same loss."""
    assert train_tiny("--max_iters", "4", "--out_dir", "run") == 0
    val_loss = checkpoint.load("run/last.pt").val_loss
    assert train.main(["--resume", "run"]) == 0
    assert checkpoint.load("run/last.pt").val_loss == val_loss


def keeps_tensors_of_an_evaluation() -> None:
    """A layer may keep a tensor that it made in an evaluation, and use it in training."""
    flags = ("--dtype", "float32", "--out_dir", "run")
    assert train_tiny(*flags, "--max_iters", "2") == 0
    assert train.main(["--resume", "run", "--max_iters", "6", "--eval_interval", "2"]) == 0


def other_checkpoints_are_refused(path: str) -> None:
    """A checkpoint of the network before the edit is refused, naming the parameter that differs."""
    Path("text.txt").write_text(LINES, "utf-8")
    resume = ["--resume", path, "--data", "text.txt"]
    for main, argv in ((sample.main, [path]), (train.main, resume)):
        with Captured() as output:
            assert main(argv) == 2
        missing = 'Missing key(s) in state_dict: "blocks.0.mlp_1.gate.weight"'
        assert missing in output.err.splitlines()[-1]
