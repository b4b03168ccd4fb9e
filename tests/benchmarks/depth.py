"""`python train.py --minutes 15` with several seeds: wall clock and validation loss."""

from statistics import mean

from tests.benchmarks.peer import arguments, machine, quill


def main() -> None:
    args = arguments()
    print(machine())
    print(f"{'seed':>6} {'wall':>7} {'best':>7}")
    losses = []
    for seed in args.seeds:
        ours = quill("--minutes=15", "--seed", seed)
        losses.append(ours.summary["best_val_loss"])
        print(f"{seed:>6} {ours.wall:>6.0f}s {losses[-1]:>7.4f}", flush=True)
    print(f"{'mean':>6} {'':>7} {mean(losses):>7.4f}")


if __name__ == "__main__":
    main()
