"""Writing: characters a second, Quill, nanoGPT's `generate` and llama2.c's run.c in turn, at one size.

--run RUN is what Quill samples from (left out: the newest), and gives the size; --llama DIR is a clone of
karpathy/llama2.c, on a random model of that size (hidden layer of 8/3 the width, so that there are as many weights).
"""

import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from configs import TrainConfig
from configs.schema import build
from model import checkpoint
from model.checkpoint import Checkpoint
from model.generate import SamplingConfig, stream
from model.gpt import GPT
from tests.benchmarks.peer import ROOT, arguments, machine

LENGTH, MANY = 4000, 64
NANOGPT = """
import sys, time, torch
from model import GPT, GPTConfig
block_size, vocab_size, n_layer, n_head, n_embd, length = map(int, sys.argv[1:])
model = GPT(GPTConfig(block_size=block_size, vocab_size=vocab_size, n_layer=n_layer, n_head=n_head, n_embd=n_embd,
            dropout=0.0, bias=False)).eval()
with torch.no_grad():
    model.generate(torch.zeros(1, 1, dtype=torch.long), 20)
    began = time.perf_counter()
    model.generate(torch.zeros(1, 1, dtype=torch.long), length, temperature=0.8, top_k=200)
print("speed", length / (time.perf_counter() - began))
"""


def quill(saved: Checkpoint, count: int, length: int) -> float:
    """Characters a second, all samples together, from start to end."""
    config = build(TrainConfig, saved.config)
    model = GPT(config.model, len(saved.vocab)).eval()
    checkpoint.restore(saved, model)
    began = time.perf_counter()
    for _ in stream(
        model, saved.vocab, [0], SamplingConfig(max_new_tokens=length, num_samples=count)
    ):
        pass
    return count * length / (time.perf_counter() - began)


def nanogpt(clone: Path, saved: Checkpoint) -> float:
    size = [
        saved.config["block_size"],
        len(saved.vocab),
        *(saved.config[key] for key in ("n_layer", "n_head", "n_embd")),
    ]
    command = [sys.executable, "-c", NANOGPT, *map(str, (*size, LENGTH))]
    said = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout
    return float(said.rpartition("speed ")[2])


def llama(clone: Path, saved: Checkpoint) -> float:
    """The median of twenty texts of two windows: the context is one window in the mean, as Quill's is in the end."""
    V, C = len(saved.vocab), saved.config["n_embd"]
    layers, heads, length = (
        saved.config["n_layer"],
        saved.config["n_head"],
        2 * saved.config["block_size"],
    )
    hidden = 8 * C // 3
    numbers = V * C + layers * (4 * C * C + 3 * C * hidden + 2 * C) + C + length * (C // heads)
    weights = np.random.default_rng(0).normal(size=numbers).astype(np.float32) * 0.1
    weights[C : 2 * C] *= 1e-3  # token 1 ends the text: let it be unlikely
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(
            struct.pack("7i", C, hidden, layers, heads, heads, V, length) + weights.tobytes()
        )
        Path(folder, "tokens").write_bytes(
            struct.pack("i", 1) + struct.pack("fis", 0.0, 1, b"x") * V
        )
        flags = [
            "-O3",
            "-ffast-math",
            "-march=native",
            "-fopenmp",
            str(clone / "run.c"),
            "-lm",
            "-o",
            f"{folder}/run",
        ]
        subprocess.run(["gcc", *flags], check=True, capture_output=True)
        speeds = []
        for seed in range(1, 21):
            flags = f"model -z tokens -t 0.8 -p 0 -s {seed} -n {length}".split()
            said = subprocess.run(
                ["./run", *flags], cwd=folder, capture_output=True, text=True, check=True
            ).stderr
            speeds += map(float, re.findall(r"tok/s: ([\d.]+)", said))
    return median(speeds)


def first_character(path: Path) -> float:
    """Seconds from `python sample.py` to the first character of the text."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "sample.py", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        process.stdout.read(1)
        return time.perf_counter() - began


def main() -> None:
    given = arguments(run=None, llama="")
    path = checkpoint.find(given.run, "best").absolute()
    saved = checkpoint.load(path)
    quill(saved, MANY, 20)  # compiled, if it was not before
    print(machine())
    print(
        f"{LENGTH} characters of one text, {LENGTH // 4} of each of {MANY}, seconds to the first; characters a second"
    )
    print(
        f"{'one':>7} {'many':>7} {'first':>6} | {'nanoGPT':>7} {'one/':>6} {'many/':>6} | {'llama2.c':>8} {'one/':>5}"
    )
    for _ in given.seeds:
        one, many, first = (
            quill(saved, 1, LENGTH),
            quill(saved, MANY, LENGTH // 4),
            first_character(path),
        )
        line = f"{one:>7,.0f} {many:>7,.0f} {first:>5.2f}s |"
        if given.nanogpt:
            theirs = nanogpt(given.nanogpt, saved)
            line += f" {theirs:>7,.0f} {one / theirs:>6.1f} {many / theirs:>6.1f} |"
        if given.llama:
            theirs = llama(Path(given.llama), saved)
            line += f" {theirs:>8,.0f} {one / theirs:>5.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
