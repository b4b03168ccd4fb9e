"""`python train.py --minutes M` with several seeds: size, wall clock and validation loss.

--minutes: M.
"""

from statistics import mean

from tests.benchmarks.peer import arguments, machine, quill


def main() -> None:
    args = arguments(minutes=15)
    print(machine())
    print(f"{'seed':>6} {'params':>9} {'steps':>6} {'wall':>7} {'best':>7}")
    losses = []
    for seed in args.seeds:
        ours = quill(f"--minutes={args.minutes}", "--seed", seed)
        params, steps, best = (ours.summary[key] for key in ("params", "iters", "best_val_loss"))
        losses.append(best)
        print(f"{seed:>6} {params:>9,} {steps:>6,} {ours.wall:>6.0f}s {best:>7.4f}", flush=True)
    print(f"{'mean':>6} {'':>9} {'':>6} {'':>7} {mean(losses):>7.4f}")


if __name__ == "__main__":
    main()
