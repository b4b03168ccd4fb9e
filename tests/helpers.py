"""What several test files need: runs, simulated time, hooks, random networks, own equations."""

import contextlib
import inspect
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import train
from configs.settings import GPTConfig
from model.attention import record, recording
from model.loss import evaluate
from model.networks import make_network, network_class, network_names, quill
from model.run import checkpoint, log

ROOT = Path(__file__).parent.parent
LINES = "".join(
    f"{who}:\nThe {what} is {how} - and so am I.\n\n"
    for who in ("KATE", "PETER", "ANNE", "TOM")
    for what in ("moon", "king", "rose", "sea", "crown")
    for how in ("pale", "old", "far", "deep", "mine")
)
TINY = ["--n_layer=2", "--n_head=2", "--n_embd=16", "--block_size=16", "--batch_size=4"]
TINY += ["--device=cpu", "--compile=off"]
# For a short text, the recipe would choose other values for these settings.
TINY += ["--ema_decay=0", "--dropout=0", "--train_temperature=1", "--learning_rate=0.007"]
TINY += ["--weight_decay=0.5", "--eval_interval=99"]
STEPS = "--max_iters=16 --eval_interval=8 --log_interval=1"
# conftest.py hides all GPUs. These were visible before, if the user has named some.
GPUS = "CUDA_VISIBLE_DEVICES"
VISIBLE_GPUS = {GPUS: os.environ[GPUS]} if os.environ.get(GPUS) else {}
# In the tests, --dtype auto chooses this dtype: float32 or bfloat16.
AUTO_DTYPE = os.environ.get("TEST_AUTO_DTYPE", "float32")
NETWORKS = network_names()
CONFIG = GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=12)


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[Path]:
    """Make `folder` the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        features = dict(getattr(torch.cpu, "get_capabilities", dict)())  # not in PyTorch 2.9
        features |= {"avx512_bf16": False, "amx_bf16": AUTO_DTYPE == "bfloat16"}
        patch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
        patch.setattr(log, "SAMPLE_CHARS", 6)  # longer samples would take most of the time
        yield folder


def curve(run_dir: Path, split: str, tag: str = "loss") -> list[tuple[int, float]]:
    """Return the points (step, value) that TensorBoard shows."""
    events = EventAccumulator(str(run_dir / split), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))


def torchrun_variables(count: int) -> list[dict[str, str]]:
    """Return the environment variables of each of `count` processes, as torchrun sets them."""
    with socket.socket() as free_socket:
        free_socket.bind(("localhost", 0))
        port = str(free_socket.getsockname()[1])
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def equal(a, b) -> bool:
    """Return whether two structures of dicts, lists and tensors are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def assert_same_run(a: Path, b: Path) -> None:
    """Check that both checkpoints and all curves are equal, except for measured times."""
    for name in ("last.pt", "best.pt"):
        one, other = vars(checkpoint.load(a / name)), vars(checkpoint.load(b / name))
        times = {name for name in one if name.endswith(("seconds", "per_second"))}
        for field in one.keys() - times:
            assert equal(one[field], other[field]), f"{field} in {name}"
    for tag in ("loss", "optimizer/learning_rate", "optimizer/grad_norm"):
        assert curve(a, "train", tag) == curve(b, "train", tag)
    assert curve(a, "val") == curve(b, "val")


def assert_similar(a: Path, b: Path) -> None:
    """Check that the curves are equal up to rounding, and that the weights have equal names."""
    one, other = (checkpoint.load(run / "last.pt").model for run in (a, b))
    assert one.keys() == other.keys()  # no wrapper or compiler adds a prefix
    for split, tag in (("train", "loss"), ("train", "optimizer/grad_norm"), ("val", "loss")):
        values, expected = ([value for _, value in curve(run, split, tag)] for run in (a, b))
        assert values == pytest.approx(expected, rel=1e-3)


def at_steps(monkeypatch, steps: Container[int], action: Callable[[nn.Module], object]) -> None:
    """Call action(model) at the end of these steps. The next step has the number 0."""
    update, count = train.update_average, itertools.count()

    def update_and_act(ema, model, *args):
        update(ema, model, *args)
        if next(count) in steps:
            action(model)

    monkeypatch.setattr(train, "update_average", update_and_act)


def change_network(monkeypatch, action: Callable[[nn.Module], object]) -> None:
    """Call action(network) on each new network."""
    make = train.make_network

    def make_and_change(*args):
        network = make(*args)
        action(network)
        return network

    monkeypatch.setattr(train, "make_network", make_and_change)


def overflow_at(monkeypatch, steps: Container[int]) -> None:
    """Make a gradient infinite in these steps of each command.

    It is the gradient of one matrix, so only one optimizer has an infinite gradient.
    """

    def add_hook(network):
        count = itertools.count()
        matrix = next(p for p in network.blocks.parameters() if p.ndim == 2)
        matrix.register_hook(lambda grad: grad * (torch.inf if next(count) in steps else 1))

    change_network(monkeypatch, add_hook)


def after_each_save(monkeypatch, action) -> None:
    """Call action(path) each time after last.pt is written."""
    replace = Path.replace

    def replace_and_act(source, path):
        replace(source, path)
        if path.name == "last.pt":
            action(path)

    monkeypatch.setattr(Path, "replace", replace_and_act)


class Clock:
    """A simulated clock. Only training steps and evaluations move it on, by these seconds."""

    def __init__(self, monkeypatch, step_seconds: float, eval_seconds: float) -> None:
        self.now, self.eval_seconds = 0.0, eval_seconds

        def pass_time(_):
            self.now += step_seconds

        def evaluate_and_pass_time(*args):
            self.now += self.eval_seconds
            return evaluate(*args)

        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(train, "evaluate", evaluate_and_pass_time)
        at_steps(monkeypatch, range(10**6), pass_time)


def use_scaler(monkeypatch) -> None:
    """Train with a gradient scaler, as in float16."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *_, **__: scaler("cpu", 1024.0))


def has_cache(network: str) -> bool:
    return "cache" in inspect.signature(network_class(network).forward).parameters


def random_gpt(V: int = 11, network: str = "quill", **settings: float) -> nn.Module:
    """Return a float64 network in which no parameter has its initial value, as after training."""
    torch.manual_seed(0)
    model = make_network(replace(CONFIG, network=network, **settings), V).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, parameter.mean().item(), std=0.3)
    return model


def random_ids(*shape: int, V: int = 11) -> torch.Tensor:
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = 9999) -> torch.Tensor:
    """Compute attention as quill does in training."""
    D, H = q.size(-1), q.size(1)
    return quill.Attention(GPTConfig(n_embd=D * H, n_head=H, block_size=window)).attend(q, k, v)


def attend_by_equation(*inputs: torch.Tensor | int) -> torch.Tensor:
    """Compute attention as quill does for the attention page."""
    with recording():
        return attend(*inputs)


def attention_weights(q: torch.Tensor, k: torch.Tensor, window: int = 9999) -> torch.Tensor:
    with recording() as calls:
        attend(q, k, k, window)
    return calls[0].weights_BHTS


def attend_without_mask(attention: nn.Module, x_BTC: Tensor, *_: object) -> Tensor:
    """Replace `forward` of the attention of gpt or quill. It sees later characters."""
    layers = (attention.query, attention.key, attention.value)
    qkv = [attention.split_heads(layer(x_BTC)) for layer in layers]
    return attention.proj(F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2))


def gpt_attention(equation: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable:
    """Return a new `forward` for the attention of gpt.

    The weights are equation(q_BHTD, k_BHTD, mask_TT), where the mask is -inf for later keys.
    """

    def forward(attention: nn.Module, x_BTC: Tensor) -> Tensor:
        layers = (attention.query, attention.key, attention.value)
        q_BHTD, k_BHTD, v_BHTD = (attention.split_heads(layer(x_BTC)) for layer in layers)
        mask_TT = torch.full([x_BTC.size(1)] * 2, -torch.inf).triu(1)
        weights_BHTT = equation(q_BHTD, k_BHTD, mask_TT)
        record(q_BHTD, k_BHTD, v_BHTD, weights_BHTT)
        return attention.proj((weights_BHTT @ v_BHTD).transpose(1, 2).flatten(2))

    return forward


def quill_attention(equation: Callable[[Tensor, Tensor], Tensor]) -> Callable:
    """Return a new `attend` for the attention of quill, without the kernel.

    The weights are equation(scores_BHTS, mask_TS). The scores are not yet divided by √d.
    """

    def attend(attention: nn.Module, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor) -> Tensor:
        scores_BHTS = q_BHTD @ k_BHSD.mT
        T, S = scores_BHTS.shape[-2:]
        mask_TS = quill.causal_mask(T, S, attention.config.block_size, like=scores_BHTS)
        weights_BHTS = equation(scores_BHTS, mask_TS)
        record(q_BHTD, k_BHSD, v_BHSD, weights_BHTS)
        return weights_BHTS @ v_BHSD

    return attend


def alibi(q_BHTD: Tensor, k_BHTD: Tensor, mask_TT: Tensor) -> Tensor:
    """Return the weights of ALiBi: each head subtracts its slope times the distance."""
    H, T, D = q_BHTD.shape[1:]
    distance_TT = torch.arange(T)[:, None] - torch.arange(T)
    slope_H11 = 2.0 ** -torch.arange(1, H + 1)[:, None, None]
    return (q_BHTD @ k_BHTD.mT / D**0.5 - slope_H11 * distance_TT + mask_TT).softmax(-1)


def window(q_BHTD: Tensor, k_BHTD: Tensor, mask_TT: Tensor) -> Tensor:
    """Return the weights if each character sees itself and the seven characters before it."""
    far_TT = torch.ones_like(mask_TT, dtype=torch.bool).tril(-8)
    scores_BHTT = q_BHTD @ k_BHTD.mT / q_BHTD.size(-1) ** 0.5
    return (scores_BHTT + mask_TT).masked_fill(far_TT, -torch.inf).softmax(-1)


def gate(scores_BHTS: Tensor, mask_TS: Tensor) -> Tensor:
    """Return the sigmoid of the scores as weights. They need not sum to 1."""
    return scores_BHTS.sigmoid() * (mask_TS == 0)


def page_data(html: str) -> dict:
    """Return the data that the script of a page reads."""
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(content)
