"""Tests of the optimizers and of the learning-rate schedule."""

import contextlib
import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.settings import GPTConfig, OptimConfig
from model.networks import make_network
from model.networks.quill import GPT
from model.optim import Muon, learning_rate, make_optimizers, orthogonalize


def tiny_model() -> GPT:
    return GPT(GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=8), vocab_size=7)


def optimizer_step(
    config: OptimConfig, make_grad, model: nn.Module | None = None
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return every parameter before and after one step with gradients from `make_grad`."""
    model = model or tiny_model()
    model.blocks[0].requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
        parameter.grad = make_grad(parameter) if parameter.requires_grad else None
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for optimizer in make_optimizers(model, config, torch.float32):
        optimizer.step()
    after = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return {name: (before[name], after[name]) for name in before}


def copy_matrices(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copy all matrices. A tensor of three or more dimensions is a stack of matrices."""
    return [matrix.clone() for x in tensors for matrix in x.detach().reshape(-1, *x.shape[-2:])]


def test_a_tensor_that_is_a_single_row_goes_to_adamw():
    model = tiny_model()
    model.blocks[0].gain = nn.Parameter(torch.ones(1, 16))
    _, adamw = make_optimizers(model, OptimConfig(), torch.float32)
    assert any(parameter is model.blocks[0].gain for parameter in adamw.param_groups[0]["params"])


def test_a_network_without_blocks_is_adamws_alone():
    """A table of bigrams, for example, has no blocks."""
    model = tiny_model()
    model.blocks = nn.ModuleList()
    (adamw,) = make_optimizers(model, OptimConfig(), torch.float32)
    assert sum(len(group["params"]) for group in adamw.param_groups) == 2


class FakeGraph:
    """Counts CUDA graphs and computes like Muon without a graph."""

    made = replayed = 0

    def __init__(self) -> None:
        FakeGraph.made += 1

    def replay(self) -> None:
        FakeGraph.replayed += 1


def test_muon_uses_a_graph_only_while_gradients_and_momenta_stay(monkeypatch):
    """The momenta move when they are loaded. Then a new graph is recorded, which reads them."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    for stay, expected in ((False, (0, 0)), (True, (2, 4))):
        FakeGraph.made = FakeGraph.replayed = 0
        weight = nn.Parameter(torch.randn(8, 16))
        muon = Muon([("w", weight)], 0.1, 0.1, torch.float32, uses_graph=stay)
        weight.grad = torch.randn_like(weight)
        for step in range(6):
            if step == 3:
                muon.load_state_dict(copy.deepcopy(muon.state_dict()))
            muon.step()
        assert (FakeGraph.made, FakeGraph.replayed) == expected


def test_one_learning_rate_serves_both_optimizers():
    """The root mean square of a step lies between a tenth of the learning rate and all of it."""
    config = OptimConfig(learning_rate=0.01)
    for name, (old, new) in optimizer_step(config, torch.randn_like).items():
        rms = (new - old).square().mean().sqrt().item()
        is_frozen = name.startswith("blocks.0.")
        assert rms == 0 if is_frozen else 0.1 < rms / 0.01 < 1.01, name


def test_weight_decay_shrinks_only_the_matrices_of_the_blocks():
    config = OptimConfig(learning_rate=0.1, weight_decay=0.5)
    for name, (old, new) in optimizer_step(config, torch.zeros_like).items():
        is_block_matrix = name.startswith("blocks.1.") and new.ndim >= 2  # block 0 is frozen
        torch.testing.assert_close(new, (1 - 0.1 * 0.5 * is_block_matrix) * old)


def test_adamw_alone_updates_all_and_decays_exactly_the_matrices():
    config = OptimConfig(
        optimizer="adamw", learning_rate=0.1, weight_decay=0.5, beta1=0.8, beta2=0.7
    )
    (adamw,) = make_optimizers(tiny_model(), config, torch.float32)
    assert {group["betas"] for group in adamw.param_groups} == {(0.8, 0.7)}
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 8}
    model = make_network(GPTConfig("gpt", bias=True, **sizes), 7)  # quill has no gains and biases
    for name, (old, new) in optimizer_step(config, torch.zeros_like, model).items():
        is_decayed = new.ndim >= 2 and not name.startswith("blocks.0.")  # block 0 is frozen
        torch.testing.assert_close(new, (1 - 0.1 * 0.5 * is_decayed) * old)


def move_singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """Apply a polynomial to the singular values three times. `orthogonalize` approximates this."""
    U, values, V = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm(p=4)
    for _ in range(3):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return U @ values.diag() @ V


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(16, 16), (64, 16), (16, 64)])
def test_orthogonalizing_moves_the_singular_values_close_to_1(shape, dtype):
    """The scale does not matter. If singular values are far apart, the small ones stay small."""
    torch.manual_seed(0)
    x_NRC = torch.randn(5, *shape)
    x_NRC[1:3] *= torch.logspace(0, -3, shape[1])  # columns of different lengths
    x_NRC[2:] *= torch.tensor([1e-6, 1e6, 0])[:, None, None]
    out_NRC = orthogonalize(x_NRC, dtype)
    assert out_NRC.dtype == torch.float32
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.03}[dtype]
    for x_RC, out_RC in zip(x_NRC[:4], out_NRC[:4], strict=True):
        expected = move_singular_values(x_RC).float()
        torch.testing.assert_close(out_RC, expected, rtol=0, atol=tolerance)
        largest = torch.linalg.matrix_norm(out_RC, 2)
        assert 0.6 < largest < 1.3
    assert (torch.linalg.svdvals(out_NRC[3])[:8] > 0.6).all()
    assert not out_NRC[4].any()  # zeros stay zeros


def test_muon_step_is_pytorch_muon_with_equal_length_rows(monkeypatch):
    """PyTorch's Muon updates one matrix at a time. The test replaces its orthogonalization."""
    name = "_zeropower_via_newtonschulz"
    monkeypatch.setattr(f"torch.optim._muon.{name}", lambda x, *_: move_singular_values(x).float())
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((16, 16), (64, 16), (2, 2, 16, 64))]
    unused = nn.Parameter(torch.randn(16, 16))  # it has no gradient
    named_parameters = [(str(i), parameter) for i, parameter in enumerate([*ours, unused])]
    theirs = [nn.Parameter(matrix) for matrix in copy_matrices(ours)]
    muon = Muon(named_parameters, lr=0.1, weight_decay=0.3, dtype=torch.float32)
    pytorch_muon = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.0)
    for scale in (1e-6, 1e-6, 1e6, 1e6):
        before, theirs_before = copy_matrices(ours), copy_matrices(theirs)
        for parameter in ours:
            parameter.grad = scale * torch.randn_like(parameter)
        for parameter, grad in zip(theirs, copy_matrices([p.grad for p in ours]), strict=True):
            parameter.grad = grad
        muon.step()
        pytorch_muon.step()
        for i, after in enumerate(copy_matrices(ours)):
            update = F.normalize(theirs_before[i] - theirs[i].detach())
            length = 0.1 * 0.2 * update.size(1) ** 0.5
            expected = before[i] * (1 - 0.1 * 0.3) - length * update
            torch.testing.assert_close(after, expected, rtol=0, atol=1e-4)


CLOCKS = st.lists(st.floats(1e-3, 1), min_size=61, max_size=61)  # the time of each step


def rates_of(config: OptimConfig, seconds: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the progress before each step and at the end, and the learning rates there."""
    progress = np.cumsum([0.0, *seconds]) / sum(seconds)
    return progress, np.array([learning_rate(step, p, config) for step, p in enumerate(progress)])


@given(st.integers(0, 60), CLOCKS)
def test_a_cosine_follows_a_clock_that_runs_unevenly(warmup, seconds):
    config = OptimConfig(warmup_iters=warmup, learning_rate=0.5, min_lr=0.1)
    _, rates = rates_of(config, seconds)
    assert rates[warmup] == pytest.approx(0.5)  # the cosine begins at the peak
    assert rates[-1] == pytest.approx(0.1)
    assert (np.diff(rates[warmup:]) <= 1e-12).all()
    assert (np.diff(rates[: warmup + 1]) > 0).all()
