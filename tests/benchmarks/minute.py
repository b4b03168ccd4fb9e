"""The default run beside nanoGPT's CPU command, in turn: seconds until A100_LOSS over nanoGPT's whole wall clock."""

from pathlib import Path

from data.download import tiny_shakespeare
from tests.benchmarks.peer import CPU_COMMAND, ROOT, Outcome, arguments, machine, nanogpt, quill

A100_LOSS = 1.4697  # what nanoGPT's README reports for about three minutes on an A100


def main() -> None:
    given = arguments(chart="")
    print(machine())
    print(
        f"{'seed':>6} {'to ' + str(A100_LOSS):>10} {'wall':>6} {'best':>7} | {'nanoGPT wall':>12} {'loss':>7} | ratio"
    )
    for seed in given.seeds:
        ours = quill("--seed", seed)
        line = f"{seed:>6} {ours.seconds_to(A100_LOSS):>9.1f}s {ours.wall:>5.0f}s {ours.summary['best_val_loss']:>7.4f} |"
        if given.nanogpt:
            theirs = nanogpt(given.nanogpt, tiny_shakespeare(), *CPU_COMMAND)
            line += f" {theirs.wall:>11.1f}s {theirs.best:>7.4f} | {ours.seconds_to(A100_LOSS) / theirs.wall:.2f}"
            if given.chart:
                Path(ROOT, given.chart).write_text(drawn({"Quill": ours, "nanoGPT": theirs}))
        print(line, flush=True)


def drawn(curves: dict[str, Outcome]) -> str:
    """Validation loss against wall clock, as SVG."""
    width, height, left, low, high = 640, 360, 50, 1.4, 2.6
    longest = max(outcome.wall for outcome in curves.values())

    def at(seconds: float, loss: float) -> str:
        x, y = (
            left + seconds / longest * (width - left - 80),
            20 + (high - min(loss, high)) / (high - low) * (height - 60),
        )
        return f"{x:.1f},{y:.1f}"

    marks = []
    for tenth in range(14, 27, 2):
        x, y = at(0, tenth / 10).split(",")
        marks.append(f'<text x="{left - 30}" y="{float(y) + 4}">{tenth / 10}</text>')
        marks.append(f'<path d="M{x},{y} H{width - 80}" stroke="#ddd"/>')
    for seconds in range(0, int(longest) + 1, 10):
        marks.append(
            f'<text x="{at(seconds, low).split(",")[0]}" y="{height - 20}">{seconds} s</text>'
        )
    for (name, outcome), colour in zip(curves.items(), ("#c0392b", "#2980b9"), strict=True):
        points = [at(*point) for point in outcome.curve]
        x, y = points[-1].split(",")
        marks.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        marks.append(
            f'<text x="{float(x) + 5}" y="{y}" fill="{colour}">{name} {outcome.curve[-1][1]:.3f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(marks)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
