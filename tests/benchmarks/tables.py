"""README's losses and times on a CPU: Quill, nanoGPT's CPU command, Quill until its loss.

python -m tests.benchmarks.tables NANOGPT [--key value ...], where NANOGPT is a clone of
karpathy/nanoGPT (its prepare.py needs `pip install requests`). The flags go to Quill's train.py.
Times are those of whole commands, with an empty compile cache; nothing else should run. A CPU with
more than AVX2 can do as if: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
MKL_ENABLE_INSTRUCTIONS=AVX2, and --dtype float32.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from data.corpus import open_corpus
from data.reader import tiny_shakespeare
from model.loss import evaluate
from model.run import checkpoint
from model.system.device import Machine
from tests.benchmarks.convert import load_nanogpt

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3)
# nanoGPT's README, "I only have a macbook"
CPU_COMMAND = "train.py config/train_shakespeare_char.py --device=cpu --compile=False"
CPU_COMMAND += " --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4"
CPU_COMMAND += " --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"


def run(*command: object, folder: Path, until: float = 0.0) -> tuple[float, float]:
    """Seconds and latest validation loss of a training command, which ends at the loss `until`."""
    start_time, loss = time.perf_counter(), float("nan")
    with tempfile.TemporaryDirectory() as cache:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=folder,
            env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in process.stdout:
            if match := re.match(r"step.* val loss ([\d.]+)", line):
                loss = float(match[1])
            if loss <= until:
                process.send_signal(signal.SIGTERM)
                until = 0.0
        process.wait()
    return time.perf_counter() - start_time, loss


def quill(seed: int, *flags: str, until: float = 0.0) -> tuple[float, float]:
    """`python train.py` with this seed and these flags."""
    with tempfile.TemporaryDirectory() as out:
        command = ("train.py", "--seed", seed, *flags, "--out_dir", f"{out}/run")
        return run(*command, folder=ROOT, until=until)


def nanogpt(clone: Path) -> tuple[float, float]:
    """nanoGPT's CPU command. The loss is that of its checkpoint on the whole validation split."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(shutil.copytree(clone, f"{name}/nanogpt"))
        data = work / "data/shakespeare_char"
        shutil.copy(tiny_shakespeare(), data / "input.txt")
        subprocess.run([sys.executable, "prepare.py"], cwd=data, check=True, capture_output=True)
        seconds, _ = run(*CPU_COMMAND.split(), folder=work)
        saved = load_nanogpt(work / "out-shakespeare-char/ckpt.pt", data / "meta.pkl")
    model, machine = checkpoint.load_model(saved), Machine(torch.device("cpu"), torch.float32)
    corpus = open_corpus(model.config, saved.vocab)
    batches = corpus.eval_batches(model.config.block_size, 4096, machine.processes)
    return seconds, evaluate(model, batches, machine)


def main(clone: str, *flags: str) -> None:
    """Make the runs one after the other; print a row for each command."""
    print("| command | time | loss |\n|---|---|---|")

    def show(name: str, *runs: tuple[float, float]) -> None:
        seconds = ", ".join(f"{seconds:.0f}" for seconds, _ in runs)
        print(f"| {name} | {seconds} s | {', '.join(f'{loss:.3f}' for _, loss in runs)} |")

    theirs = nanogpt(Path(clone))
    show("nanoGPT's CPU command", theirs)
    show("`python train.py`, seeds 1, 2, 3", *(quill(seed, *flags) for seed in SEEDS))
    often = (*flags, "--eval_interval", "25")
    until = (quill(seed, *often, until=theirs[1]) for seed in SEEDS)
    show("Quill until that loss, seeds 1, 2, 3", *until)


if __name__ == "__main__":
    main(*sys.argv[1:])
