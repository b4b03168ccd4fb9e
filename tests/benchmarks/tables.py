"""Measures losses and times on a CPU for README: python -m tests.benchmarks.tables NANOGPT [FLAGS]

The rows are nanoGPT's CPU command, Quill, and Quill until it has nanoGPT's loss. NANOGPT is a clone
of karpathy/nanoGPT, whose prepare.py needs `pip install requests`. FLAGS go to Quill's train.py.
Nothing else should run meanwhile. A CPU that has more than AVX2 uses only AVX2 with --dtype float32
and the variables ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data.reader import tiny_shakespeare

ROOT = Path(__file__).parents[2]
SEEDS = ("1", "2", "3")
# This command is in nanoGPT's README, under "I only have a macbook".
CPU_COMMAND = "train.py config/train_shakespeare_char.py --device=cpu --compile=False"
CPU_COMMAND += " --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4"
CPU_COMMAND += " --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"

EVALUATE = """
import numpy, torch
from model import GPT, GPTConfig
saved = torch.load("out-shakespeare-char/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"])).eval()
model.load_state_dict(saved["model"])
ids = torch.from_numpy(numpy.fromfile("data/shakespeare_char/val.bin", "uint16").astype("int64"))
nats = 0.0
with torch.no_grad():
    for start in range(0, len(ids) - 1, 64):
        y = ids[start + 1 : start + 65]
        nats += model(ids[None, start : start + len(y)], y[None])[1].item() * len(y)
print(nats / (len(ids) - 1))
"""


def nanogpt(clone: str) -> tuple[float, float]:
    """Return the seconds of nanoGPT's CPU command, and the loss on the whole validation split."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(shutil.copytree(clone, f"{name}/nanogpt"))

        def python(*arguments: str, folder: str = ".") -> str:
            command, cwd = [sys.executable, *arguments], work / folder
            return subprocess.run(command, cwd=cwd, check=True, capture_output=True).stdout

        shutil.copy(tiny_shakespeare(), work / "data/shakespeare_char/input.txt")
        python("prepare.py", folder="data/shakespeare_char")
        start_time = time.perf_counter()
        python(*CPU_COMMAND.split())
        return time.perf_counter() - start_time, float(python("-c", EVALUATE))


def quill(*flags: str) -> list[tuple[float, float]]:
    """Return the seconds and the loss of `python train.py` at each evaluation and at the end."""
    rows, start_time = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "train.py", *flags, "--out_dir", f"{out}/run"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if match := re.match(r"step.* val loss ([\d.]+)", line):
                    rows.append((time.perf_counter() - start_time, float(match[1])))
    return [*rows, (time.perf_counter() - start_time, rows[-1][1])]


def main(clone: str, *flags: str) -> None:
    """Make the runs one after the other. Print a row for each command."""
    print("| command | time | loss |\n|---|---|---|")
    seconds, target = nanogpt(clone)
    print(f"| nanoGPT's CPU command | {seconds:.0f} s | {target:.3f} |")
    whole = [quill("--seed", seed, *flags)[-1] for seed in SEEDS]
    often = [quill("--seed", seed, *flags, "--eval_interval", "25") for seed in SEEDS]
    until = [next(row for row in rows if row[1] <= target) for rows in often]
    for name, rows in (("python train.py", whole), ("Quill until nanoGPT's loss", until)):
        times = ", ".join(f"{seconds:.0f}" for seconds, _ in rows)
        losses = ", ".join(f"{loss:.3f}" for _, loss in rows)
        print(f"| {name}, seeds {', '.join(SEEDS)} | {times} s | {losses} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
