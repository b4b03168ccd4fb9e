"""The default run and nanoGPT's CPU command, one after the other, like with like.

With --nanogpt, two more runs of Quill: the time to the loss at which nanoGPT ends, with an
evaluation each 25 steps, and the loss after nanoGPT's time, by --minutes. Losses are over the whole
validation split, times are of whole processes, evaluations included. --chart FILE.svg draws the
curves of the last seed.
"""

import re
from pathlib import Path

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.chart import draw_svg
from tests.benchmarks.like import whole_split_loss
from tests.benchmarks.peer import CPU_COMMAND, ROOT, Outcome, arguments, machine, nanogpt, quill

A100_LOSS = 1.4697  # what nanoGPT's README reports for about three minutes on an A100


def main() -> None:
    args = arguments(chart="")
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
        if args.chart:
            draw_chart(ROOT / args.chart, seed, ours, theirs)


def draw_chart(path: Path, seed: int, ours: Outcome, theirs: Outcome) -> None:
    """Draw the validation losses of both over wall clock."""
    context = re.search(r"x (\d+) characters", ours.output)[1]  # "steps of 8 x 256 characters"
    settings = f"context {context}, {ours.summary['dtype']}, seed {seed}"
    curves = {
        f"Quill, default run: {settings}; {ours.curve[-1][1]:.3f} at the end": ours.curve,
        "nanoGPT, CPU command of its README: context 64, float32, seed 1337; "
        f"{theirs.curve[-1][1]:.3f} at the end": theirs.curve,
    }
    x_label = "wall clock since the start of the command (seconds)"
    draw_svg(path, x_label, "Validation loss on Tiny Shakespeare", curves)


if __name__ == "__main__":
    main()
