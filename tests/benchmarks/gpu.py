"""The default run and nanoGPT's train_shakespeare_char on a GPU, one after the other.

The ratio is Quill's time to A100_LOSS over nanoGPT's time to its best validation loss.
"""

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.minute import A100_LOSS
from tests.benchmarks.peer import arguments, machine, nanogpt, quill


def main() -> None:
    args = arguments()
    print(machine())
    print(
        f"{'seed':>6} {f'to {A100_LOSS}':>10} {'wall':>6} {'best':>7} | "
        f"{'nanoGPT best':>12} {'after':>7} | ratio"
    )
    for seed in args.seeds:
        ours = quill("--device", "cuda", "--seed", seed)
        seconds, best = ours.seconds_to(A100_LOSS), ours.summary["best_val_loss"]
        line = f"{seed:>6} {seconds:>9.1f}s {ours.wall:>5.0f}s {best:>7.4f} |"
        if args.nanogpt:
            theirs = nanogpt(args.nanogpt, tiny_shakespeare(), "--log_interval=1000")
            after = theirs.seconds_to(theirs.best)
            line += f" {theirs.best:>12.4f} {after:>6.0f}s | {seconds / after:.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
