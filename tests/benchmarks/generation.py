"""Sampling speed of Quill, nanoGPT's `generate` and llama2.c's run.c, one after the other.

--run RUN is the checkpoint that Quill samples from (default: the newest). The others get random
weights, with as many channels and about as many parameters. --llama DIR is a clone of
karpathy/llama2.c. --length is the length of a text.
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
import torch
from configs.training import TrainConfig

from configs.flags import make_config
from model import checkpoint
from model.checkpoint import Checkpoint
from model.generate import GenerationConfig, stream
from model.network import count_heads, make_network
from tests.benchmarks.peer import ROOT, arguments, machine

MANY = 64  # texts written together
NANOGPT = """
import sys, time, torch
from model import GPT, GPTConfig
block_size, vocab_size, n_layer, n_head, n_embd, length = map(int, sys.argv[1:])
config = GPTConfig(block_size=block_size, vocab_size=vocab_size, n_layer=n_layer, n_head=n_head,
                   n_embd=n_embd, dropout=0.0, bias=False)
model = GPT(config).eval()
with torch.no_grad():
    model.generate(torch.zeros(1, 1, dtype=torch.long), 20)
    start_time = time.perf_counter()
    model.generate(torch.zeros(1, 1, dtype=torch.long), length, temperature=0.8, top_k=200)
print("speed", length / (time.perf_counter() - start_time))
"""


def quill(saved: Checkpoint, count: int, length: int) -> float:
    """Characters per second of `count` texts together."""
    model = make_network(make_config(TrainConfig, saved.config).model, len(saved.vocab)).eval()
    checkpoint.restore(saved, model)
    config = GenerationConfig(max_new_tokens=length, num_samples=count)
    start_time = time.perf_counter()
    with torch.inference_mode():
        for _ in stream(model, saved.vocab, [0], config):
            pass
    return count * length / (time.perf_counter() - start_time)


def peer_layers(saved: Checkpoint) -> int:
    """Layers of attention and one feed-forward layer with as many parameters as Quill's blocks."""
    return round(saved.config["n_layer"] * 20 / 12)  # 20 and 12 x n_embd² each


def peer_heads(saved: Checkpoint) -> int:
    """As many heads as Quill."""
    return count_heads(make_config(TrainConfig, saved.config).model)


def nanogpt(clone: Path, saved: Checkpoint, length: int) -> float:
    """Characters per second of one text."""
    n_head, n_embd = peer_heads(saved), saved.config["n_embd"]
    sizes = saved.config["block_size"], len(saved.vocab), peer_layers(saved), n_head, n_embd, length
    command = [sys.executable, "-c", NANOGPT, *map(str, sizes)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    return float(done.stdout.rpartition("speed ")[2])


def llama(clone: Path, saved: Checkpoint) -> float:
    """Characters per second: the median of 20 texts.

    A text is twice as long as Quill's window. Its context is one window on average, as is Quill's
    in a long text.
    """
    L, H, C = peer_layers(saved), peer_heads(saved), saved.config["n_embd"]
    hidden = 8 * C // 3  # three matrices of this width are as large as nanoGPT's two of 4 C
    V, length = len(saved.vocab), 2 * saved.config["block_size"]
    n_weights = V * C + L * (4 * C * C + 3 * C * hidden + 2 * C) + C + length * (C // H)
    weights = np.random.default_rng(0).normal(size=n_weights).astype(np.float32) * 0.1
    weights[C : 2 * C] *= 1e-3  # token 1 ends the text; this makes it unlikely
    header = struct.pack("7i", C, hidden, L, H, H, V, length)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(header + weights.tobytes())
        tokens = struct.pack("i", 1) + struct.pack("fis", 0.0, 1, b"x") * V
        Path(folder, "tokens").write_bytes(tokens)
        flags = ["-O3", "-ffast-math", "-march=native", "-fopenmp"]
        command = ["gcc", *flags, str(clone / "run.c"), "-lm", "-o", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True)
        speeds = []
        for seed in range(1, 21):
            flags = f"model -z tokens -t 0.8 -p 0 -s {seed} -n {length}".split()
            command = ["./run", *flags]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            speeds += map(float, re.findall(r"tok/s: ([\d.]+)", done.stderr))
    return median(speeds)


def seconds_to_first_character(path: Path) -> float:
    """From the start of `python sample.py` to the first character of the text."""
    command = [sys.executable, "sample.py", str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    start_time = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        process.stdout.read(1)
        return time.perf_counter() - start_time


def main() -> None:
    args = arguments(run=None, llama="", length=4000)
    length = int(args.length)
    path = checkpoint.resolve(args.run, "best").absolute()
    saved = checkpoint.load(path)
    print(machine())
    print(f"characters per second: one text of {length}, {MANY} texts of {length // 4};")
    print("first: seconds to the first character")
    print(
        f"{'one':>7} {'many':>7} {'first':>6} | {'nanoGPT':>7} {'one/':>6} {'many/':>6} | "
        f"{'llama2.c':>8} {'one/':>5}"
    )
    for _ in args.seeds:
        one = quill(saved, 1, length)
        many = quill(saved, MANY, length // 4)
        first = seconds_to_first_character(path)
        line = f"{one:>7,.0f} {many:>7,.0f} {first:>5.2f}s |"
        if args.nanogpt:
            theirs = nanogpt(args.nanogpt, saved, length)
            line += f" {theirs:>7,.0f} {one / theirs:>6.1f} {many / theirs:>6.1f} |"
        if args.llama:
            theirs = llama(Path(args.llama), saved)
            line += f" {theirs:>8,.0f} {one / theirs:>5.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
