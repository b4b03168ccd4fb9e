"""Tests that need a GPU: CUDA graphs, float16, checkpoints that move between GPU and CPU.

conftest.py hides the GPU from the tests, so these tests start processes that see it. A process
takes seconds to start. Therefore it makes several runs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model.run import checkpoint
from tests.helpers import LINES, ROOT, VISIBLE_GPUS, assert_same_run, equal, summary

# The first argument is a list of runs. Each item has the number of steps after which the run is
# stopped (null: the run is not stopped) and the arguments of train.py.
RUNS = """
import json, os, signal, sys, train
update = train.update_average
for stop_at, argv in json.loads(sys.argv[1]):
    def update_and_stop(ema, model, decay, step):
        update(ema, model, decay, step)
        if step + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
    train.update_average = update_and_stop
    print("status", train.main(argv))
"""
SIZES = "--n_layer=2 --n_embd=64 --block_size=512 --batch_size=8 --warmup_iters=5 --log_interval=1"
SIZES += " --learning_rate=0.003 --train_temperature=0.9 --max_iters=60 --eval_interval=30"
SIZES += " --dropout=0.2 --weight_decay=0.5 --device=cuda --data=text.txt"
# These edits of the network come before RUNS.
READ_A_VALUE = """
from model.networks.quill import MLP
forward = MLP.forward
MLP.forward = lambda self, x_BTC: forward(self, x_BTC * (2 if x_BTC[0, 0, 0] > 0 else 1))
"""
OVERFLOW = """
import pytest
from tests.helpers import overflow_at
overflow_at(pytest.MonkeyPatch(), [40])
"""


@pytest.fixture(scope="session")
def gpu_env() -> dict[str, str]:
    """Return an environment in which a process sees the GPU. Skip the test if there is no GPU."""
    env = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    env |= {"PYTHONPATH": str(ROOT)} | VISIBLE_GPUS
    ask = [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"]
    if torch.version.cuda is None or "True" not in subprocess.check_output(ask, env=env, text=True):
        pytest.skip("no CUDA device")
    return env


@pytest.fixture
def train_on_gpu(gpu_env, text_file):
    """Return train_on_gpu(*runs, edit=""), which makes all runs in one process.

    It returns the standard output and error. `edit` is code that changes the network.
    """
    text_file.write_text(10 * LINES, "utf-8")

    def start(*runs: tuple[int | None, str], edit: str = "") -> tuple[str, str]:
        argument = json.dumps([(stop_at, flags.split()) for stop_at, flags in runs])
        command = [sys.executable, "-c", edit + RUNS, argument]
        done = subprocess.run(command, env=gpu_env, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    return start


def weights(run: str) -> list[dict]:
    """Return the weights of the average and of the trained network, and the optimizer states."""
    saved = checkpoint.load(f"{run}/last.pt")
    return [saved.model, saved.trained, saved.optimizers]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("network", ["quill", "gpt"])
def test_a_run_with_a_cuda_graph_equals_one_without_and_one_that_was_stopped(
    train_on_gpu, network, dtype
):
    """The runs are equal to the last bit. From step 50 on, they learn from their average."""
    flags = f"{SIZES} --network={network} --dtype={dtype} --ema_decay=0.9"
    out, err = train_on_gpu(
        (None, f"{flags} --out_dir=graph"),
        (None, f"{flags} --compile=off --out_dir=plain"),
        (30, f"{flags} --out_dir=stopped"),
        (None, "--resume=stopped"),
    )
    assert out.count("status 0") == 3 and out.count("status 130") == 1
    assert "without a CUDA graph" not in err
    assert equal(weights("graph"), weights("plain"))
    assert_same_run(Path("graph"), Path("stopped"))
    assert summary(Path("graph"))["device"].startswith("cuda")
    assert summary(Path("graph"))["dtype"] == dtype


MUON = """
import torch
from model.optim import Muon
results, kept = [], []
for has_graph in (True, False):
    torch.manual_seed(0)
    weights = [torch.randn(size, device="cuda") for size in ((8, 16), (16, 8), (8, 16))]
    named = [(str(i), w) for i, w in enumerate(weights)]
    muon = Muon(named, 0.01, 0.1, torch.bfloat16, uses_graph=has_graph)
    for step in range(12):
        if step % 6 == 0:  # the gradients move to other memory
            assert (muon.graph is not None) == (has_graph and step == 6)
            kept.append([torch.empty_like(w) for w in weights])
        for w, grad in zip(weights, kept[-1]):
            w.grad = grad.normal_()
        muon.step()
    results.append(weights)
assert all(map(torch.equal, *results))
"""


def test_muon_in_a_cuda_graph_equals_muon(gpu_env):
    subprocess.run([sys.executable, "-c", MUON], env=gpu_env, check=True)


def test_a_network_that_reads_a_value_is_trained_without_a_graph(train_on_gpu):
    runs = [(None, f"{SIZES} --compile={mode} --out_dir={mode}") for mode in ("auto", "off")]
    out, err = train_on_gpu(*runs, edit=READ_A_VALUE)
    assert out.count("status 0") == 2
    assert err.count("warning: training without a CUDA graph") == 1
    assert equal(weights("auto"), weights("off"))


def test_float16_skips_a_step_after_an_overflow(train_on_gpu):
    flags = f"{SIZES} --dtype=float16 --compile=off --max_iters"
    out, _ = train_on_gpu(
        (None, f"{flags}=40 --learning_rate=0 --out_dir=before"),
        (None, f"{flags}=42 --learning_rate=0 --out_dir=after"),
        (None, f"{flags}=60 --out_dir=run"),
        edit=OVERFLOW,
    )
    assert out.count("status 0") == 3
    before, after = (checkpoint.load(f"{x}/last.pt").scaler["scale"] for x in ("before", "after"))
    assert after == before / 2
    assert summary(Path("run"))["val_loss"] < 3


def test_checkpoints_move_between_gpu_and_cpu_and_logits_agree(train_on_gpu, gpu_env):
    flags = f"{SIZES} --dtype=float32 --ema_decay=0.9"
    out, _ = train_on_gpu(
        (None, f"{flags} --out_dir=gpu"),
        (None, f"{flags} --device=cpu --out_dir=cpu"),
    )
    assert out.count("status 0") == 2
    for run in ("gpu", "cpu"):
        losses = []
        for device in ("cuda", "cpu"):
            command = [sys.executable, str(ROOT / "sample.py"), run, "--score=text.txt"]
            command += [f"--device={device}", "--dtype=float32"]
            text = subprocess.check_output(command, env=gpu_env, text=True)
            losses.append(float(text.split()[0]))
        assert losses[0] == pytest.approx(losses[1], abs=2e-3)  # the GPU computes products in TF32
    out, _ = train_on_gpu(
        (None, "--resume=gpu --device=cpu --max_iters=70"),
        (None, "--resume=cpu --device=cuda --max_iters=70"),
    )
    assert out.count("status 0") == 2
    assert [summary(Path(run))["device"].split(":")[0] for run in ("gpu", "cpu")] == ["cpu", "cuda"]
