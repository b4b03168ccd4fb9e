"""Two processes with half of the cores each against one process with all of them, alternating.

Characters per second of training steps. The cores are the same, so 1.00 is the best possible ratio.
--part: the share of the usual number of steps.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.peer import ROOT, arguments, machine

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RUNS = {  # flags, and steps
    "default": ([], 250),
    "11.9 M": (
        ["--n_layer=4", "--n_head=6", "--n_embd=384", "--batch_size=16", "--val_fraction=0.02"],
        24,
    ),
}


def chars_per_second(count: int, *flags: str) -> float:
    """Of a run with `count` processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*TORCHRUN, f"--nproc_per_node={count}", "train.py", *flags]
        env = os.environ | {"OMP_NUM_THREADS": str(os.cpu_count() // count)}
        command += ["--device=cpu", "--eval_interval=1000000", f"--out_dir={folder}/run"]
        subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)
        return json.loads(Path(folder, "run/summary.json").read_text())["chars_per_second"]


def main() -> None:
    args = arguments(part=1.0)
    print(machine())
    print(f"{'network':>8} {'one':>8} {'two':>8} ratio")
    for name, (flags, steps) in RUNS.items():
        flags += [f"--max_iters={max(1, round(steps * float(args.part)))}"]
        for seed in args.seeds:
            one, two = (chars_per_second(count, *flags, f"--seed={seed}") for count in (1, 2))
            print(f"{name:>8} {one:>8,.0f} {two:>8,.0f} {two / one:.2f}", flush=True)


if __name__ == "__main__":
    main()
