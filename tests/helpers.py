"""What several test files need: runs, simulated time, random networks, edits of networks."""

import inspect
import itertools
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import train
from configs.settings import GPTConfig
from model.attention import recording
from model.loss import evaluate
from model.networks import make_network, network_class, network_names, quill
from model.run import checkpoint, progress
from tests.conftest import curve

STEPS = "--max_iters=16 --eval_interval=8 --log_interval=1"
NETWORKS = network_names()
CONFIG = GPTConfig(n_layer=3, n_head=2, n_embd=16, block_size=12)
NO_KERNEL = {"if not (is_recorded() or": "if False and ("}
SCALE, MASK = " / math.sqrt(q_BHTD.size(-1))", ".masked_fill(is_later_TT, -torch.inf)"
ALIBI = f"""{SCALE}
        distance_TT = torch.arange(T)[:, None] - torch.arange(T)
        slope_H11 = 2.0 ** -torch.arange(1, self.n_head + 1)[:, None, None]
        scores_BHTT = scores_BHTT - slope_H11 * distance_TT"""
WINDOW = f"{MASK}.masked_fill((~is_later_TT).tril(-8), -torch.inf)"


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


def at_steps(monkeypatch, steps, action) -> None:
    """Call action(model) at the end of these steps. The next step has the number 0."""
    make_average, update = train.make_average, progress.Clock.update
    count, last, models = itertools.count(), [None, 0], []

    def keep_model(model, decay):
        models.append(model)
        return make_average(model, decay)

    def act_and_update(clock, *signals):
        is_new_step = clock is last[0] and clock.state.step > last[1]
        last[:] = clock, clock.state.step
        if is_new_step and next(count) in steps:
            action(models[-1])
        update(clock, *signals)

    monkeypatch.setattr(train, "make_average", keep_model)
    monkeypatch.setattr(progress.Clock, "update", act_and_update)


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


def own_equation(weights: str) -> dict[str, str]:
    """Return an edit of quill: an expression of scores_BHTS and visible_TS gives the weights."""
    mask = "causal_mask(T, S, self.config.block_size, like=scores_BHTS)"
    return NO_KERNEL | {
        "(q_BHTD * D**-0.5) @ k_BHSD.mT": "q_BHTD @ k_BHSD.mT",
        f"mask_TS = {mask}": f"visible_TS = {mask} == 0",
        "(scores_BHTS + mask_TS).softmax(dim=-1)": weights,
    }


def page_data(html: str) -> dict:
    """Return the data that the script of a page reads."""
    content = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1]
    return json.loads(content)
