"""The default run and nanoGPT's CPU command, one after the other.

The ratio is Quill's time to A100_LOSS over the wall clock of nanoGPT's whole command. With
--nanogpt, --chart FILE.svg draws both curves of the last seed.
"""

import re
from pathlib import Path

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.chart import draw_svg
from tests.benchmarks.peer import CPU_COMMAND, ROOT, Outcome, arguments, machine, nanogpt, quill

A100_LOSS = 1.4697  # what nanoGPT's README reports for about three minutes on an A100


def main() -> None:
    args = arguments(chart="")
    print(machine())
    print(
        f"{'seed':>6} {f'to {A100_LOSS}':>10} {'wall':>6} {'best':>7} | "
        f"{'nanoGPT wall':>12} {'loss':>7} | ratio"
    )
    for seed in args.seeds:
        ours = quill("--seed", seed)
        seconds, best = ours.seconds_to(A100_LOSS), ours.summary["best_val_loss"]
        line = f"{seed:>6} {seconds:>9.1f}s {ours.wall:>5.0f}s {best:>7.4f} |"
        if args.nanogpt:
            theirs = nanogpt(args.nanogpt, tiny_shakespeare(), *CPU_COMMAND)
            line += f" {theirs.wall:>11.1f}s {theirs.best:>7.4f} | {seconds / theirs.wall:.2f}"
            if args.chart:
                draw_chart(ROOT / args.chart, seed, ours, theirs)
        print(line, flush=True)


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
