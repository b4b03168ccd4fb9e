"""Peak memory of training by the size of the network, with whole batches and with 8 micro-batches.

Of the whole process on a CPU under Linux: two steps, an evaluation, a sample and saving. A network
has 64 channels for each of its --layers, in heads of 64; the batch is --windows of 256 characters.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from data.reader import tiny_shakespeare
from tests.benchmarks.peer import ROOT, machine


def peak_memory(n_layer: int, windows: int, *flags: str) -> tuple[int, float]:
    """Parameters, and gigabytes of a process that trains the network."""
    with tempfile.TemporaryDirectory() as folder:
        text, run = Path(folder, "text.txt"), Path(folder, "run")
        text.write_bytes(tiny_shakespeare().read_bytes()[:20_000])
        command = [sys.executable, "train.py", "--device=cpu", f"--data={text}", f"--out_dir={run}"]
        command += [f"--n_layer={n_layer}", f"--n_head={n_layer}", f"--n_embd={64 * n_layer}"]
        command += [f"--batch_size={windows}", "--max_iters=2", "--eval_interval=2"]
        command += ["--ema_decay=0", "--dropout=0", *flags]  # not what a short text gets
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"train.py ended with status {status}")
        return json.loads((run / "summary.json").read_text())["params"], usage.ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 8, 12, 16])
    args = parser.parse_args()
    print(machine())
    print(f"{'layers':>6} {'channels':>8} {'parameters':>11} {'GB':>6} {'in 8 parts':>10}")
    for n_layer in args.layers:
        params, plain = peak_memory(n_layer, args.windows)
        _, in_parts = peak_memory(n_layer, args.windows, "--gradient_accumulation_steps=8")
        line = f"{n_layer:>6} {64 * n_layer:>8} {params:>11,} {plain:>6.2f} {in_parts:>10.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
