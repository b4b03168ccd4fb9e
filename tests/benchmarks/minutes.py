"""When runs with --minutes end, and what they reach: python -m tests.benchmarks.minutes

--texts FILE ...: the texts; --minutes M ...: the times; --busy N: beside so many busy processes.
A positive "late" is how many seconds after its time the whole command ended.
"""

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.peer import arguments, machine, quill


def main() -> None:
    args = arguments(texts=[], minutes=["0.5", "1"], busy="0")
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(int(args.busy))
    ]
    print(f"{machine()}, beside {args.busy} busy processes")
    print(f"{'text':>20} {'minutes':>7} {'seed':>4} {'late':>6} {'steps':>6} {'best':>7}")
    try:
        for minutes in map(float, args.minutes):
            for text in map(Path, args.texts):
                for seed in args.seeds:
                    run = quill("--data", text.absolute(), "--minutes", minutes, "--seed", seed)
                    late, steps = run.wall - 60 * minutes, run.summary["iters"]
                    best = run.summary["best_val_loss"]
                    print(
                        f"{text.name:>20} {minutes:>7g} {seed:>4} {late:>+6.1f} {steps:>6} "
                        f"{best:>7.4f}",
                        flush=True,
                    )
    finally:
        for process in busy:
            process.kill()


if __name__ == "__main__":
    main()
