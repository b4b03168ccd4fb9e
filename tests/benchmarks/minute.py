"""The default run and nanoGPT's CPU command, one after the other.

The ratio is Quill's time to A100_LOSS over the wall clock of nanoGPT's whole command. --chart FILE
draws the curves of the last seed as SVG.
"""

from pathlib import Path

from data.download import tiny_shakespeare
from tests.benchmarks.chart import draw_svg
from tests.benchmarks.peer import CPU_COMMAND, ROOT, arguments, machine, nanogpt, quill

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
                curves = {"Quill": ours.curve, "nanoGPT": theirs.curve}
                Path(ROOT, args.chart).write_text(draw_svg(curves, "seconds"))
        print(line, flush=True)


if __name__ == "__main__":
    main()
