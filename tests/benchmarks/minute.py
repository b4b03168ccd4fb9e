"""The default run and nanoGPT's CPU command, one after the other.

The ratio is Quill's time to A100_LOSS over the wall clock of nanoGPT's whole command. --chart FILE
draws the curves of the last seed as SVG.
"""

from pathlib import Path

from data.download import tiny_shakespeare
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
                Path(ROOT, args.chart).write_text(draw_svg({"Quill": ours, "nanoGPT": theirs}))
        print(line, flush=True)


def draw_svg(outcomes: dict[str, Outcome]) -> str:
    """A chart of validation loss against wall clock."""
    width, height, left, right, low, high = 640, 360, 50, 80, 1.4, 2.6
    longest = max(outcome.wall for outcome in outcomes.values())

    def x_of(seconds: float) -> float:
        return left + seconds / longest * (width - left - right)

    def y_of(loss: float) -> float:
        return 20 + (high - min(loss, high)) / (high - low) * (height - 60)

    elements = []
    for loss in (1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.6):
        y = y_of(loss)
        elements.append(f'<text x="{left - 30}" y="{y + 4:.1f}">{loss}</text>')
        elements.append(f'<path d="M{left},{y:.1f} H{width - right}" stroke="#ddd"/>')
    for seconds in range(0, int(longest) + 1, 10):
        elements.append(f'<text x="{x_of(seconds):.1f}" y="{height - 20}">{seconds} s</text>')
    for (name, outcome), color in zip(outcomes.items(), ("#c0392b", "#2980b9"), strict=True):
        points = " ".join(
            f"{x_of(seconds):.1f},{y_of(loss):.1f}" for seconds, loss in outcome.curve
        )
        line_style = f'fill="none" stroke="{color}" stroke-width="2"'
        elements.append(f'<polyline points="{points}" {line_style}/>')
        seconds, loss = outcome.curve[-1]
        place = f'x="{x_of(seconds) + 5:.1f}" y="{y_of(loss):.1f}"'
        elements.append(f'<text {place} fill="{color}">{name} {loss:.3f}</text>')
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" '
            'font-size="12"><rect width="100%" height="100%" fill="white"/>',
            *elements,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    main()
