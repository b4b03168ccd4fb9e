"""The default run beside nanoGPT's train_shakespeare_char on a GPU: until A100_LOSS, over its time to its best."""

from data.download import tiny_shakespeare
from tests.benchmarks.minute import A100_LOSS
from tests.benchmarks.peer import arguments, machine, nanogpt, quill


def main() -> None:
    given = arguments()
    print(machine())
    print(
        f"{'seed':>6} {'to ' + str(A100_LOSS):>10} {'wall':>6} {'best':>7} | {'nanoGPT best':>12} {'after':>7} | ratio"
    )
    for seed in given.seeds:
        ours = quill("--device", "cuda", "--seed", seed)
        line = f"{seed:>6} {ours.seconds_to(A100_LOSS):>9.1f}s {ours.wall:>5.0f}s {ours.summary['best_val_loss']:>7.4f} |"
        if given.nanogpt:
            theirs = nanogpt(given.nanogpt, tiny_shakespeare(), "--log_interval=1000")
            after = theirs.seconds_to(theirs.best)
            line += (
                f" {theirs.best:>12.4f} {after:>6.0f}s | {ours.seconds_to(A100_LOSS) / after:.3f}"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
