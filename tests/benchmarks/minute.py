"""The default run and nanoGPT's CPU command, one after the other, like with like.

With --nanogpt, two more runs of Quill: the time to the loss at which nanoGPT ends, with an
evaluation each 25 steps, and the loss after nanoGPT's time, by --minutes. Losses are over the whole
validation split, times are of whole processes, evaluations included.
"""

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.like import whole_split_loss
from tests.benchmarks.peer import CPU_COMMAND, arguments, machine, nanogpt, quill

A100_LOSS = 1.4697  # what nanoGPT's README reports for about three minutes on an A100


def main() -> None:
    args = arguments()
    print(machine())
    for seed in args.seeds:
        ours = quill("--seed", seed)
        print(
            f"seed {seed}: default run {ours.wall:.0f} s, loss {ours.summary['val_loss']:.4f}, "
            f"{ours.seconds_to(A100_LOSS):.0f} s to {A100_LOSS}",
            flush=True,
        )
        if not args.nanogpt:
            continue
        theirs = nanogpt(args.nanogpt, tiny_shakespeare(), *CPU_COMMAND, look=whole_split_loss)
        print(f"    nanoGPT (seed 1337) {theirs.wall:.0f} s, loss {theirs.looked:.4f}", flush=True)
        soon = quill("--seed", seed, "--eval_interval", 25, until=theirs.looked)
        seconds, loss = soon.curve[-1]
        ratio = seconds / theirs.wall
        print(f"    Quill's time to that loss {seconds:.0f} s ({loss:.4f}), ratio {ratio:.2f}")
        timed = quill("--seed", seed, "--minutes", theirs.wall / 60)
        loss = timed.summary["best_val_loss"]
        print(f"    Quill's loss after that time {loss:.4f} ({timed.wall:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
