"""A chart of loss curves as SVG, readable on a light and on a dark page.

python -m tests.benchmarks.chart RUN_DIR FILE.svg draws the losses of a run.
"""

import math
import sys
from pathlib import Path

from model.logger import read_losses

COLORS = {"#c95400": "#ff913c", "#005ab5": "#4da3ff"}  # on a light page: on a dark one
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 50, 130, 30, 50


def draw_svg(curves: dict[str, list[tuple[float, float]]], x_label: str) -> str:
    """The curves, points (x, nats per character) by name, over the whole range of both axes."""
    xs = [x for points in curves.values() for x, _ in points]
    losses = [loss for points in curves.values() for _, loss in points]
    low, high = math.floor(min(losses) * 5) / 5, math.ceil(max(losses) * 5) / 5

    def x_of(x: float) -> float:
        return LEFT + x / max(xs) * (WIDTH - LEFT - RIGHT)

    def y_of(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    elements = [f'<text x="{LEFT - 40}" y="18">loss, nats per character</text>']
    for i in range(7):
        loss, x = low + (high - low) * i / 6, max(xs) * i / 6
        elements.append(f'<text x="{LEFT - 40}" y="{y_of(loss) + 4:.1f}">{loss:.2f}</text>')
        elements.append(f'<path d="M{LEFT},{y_of(loss):.1f} H{WIDTH - RIGHT}" class="grid"/>')
        elements.append(
            f'<text x="{x_of(x):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{x:,.0f}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    elements.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{x_label}</text>')
    for i, (name, points) in enumerate(curves.items()):
        line = " ".join(f"{x_of(x):.1f},{y_of(loss):.1f}" for x, loss in points)
        elements.append(f'<polyline points="{line}" class="line{i}"/>')
        x, loss = points[-1]
        place = f'x="{x_of(x) + 6:.1f}" y="{y_of(loss) + 4 - 14 * i:.1f}"'
        elements.append(f'<text {place} class="name{i}">{name} {loss:.3f}</text>')
    light, dark = [], []
    for i, color in enumerate(COLORS):
        light.append(f".line{i}{{fill:none;stroke-width:2;stroke:{color}}}.name{i}{{fill:{color}}}")
        dark.append(f".line{i}{{stroke:{COLORS[color]}}}.name{i}{{fill:{COLORS[color]}}}")
    style = (
        "svg{background:#fff}text{fill:#1b1f24}.grid{stroke:#d1d9e0}"
        + "".join(light)
        + "@media(prefers-color-scheme:dark){svg{background:#14181d}text{fill:#e8ecf0}"
        + ".grid{stroke:#39424d}"
        + "".join(dark)
        + "}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="13"><style>{style}</style>\n'
        + "\n".join(elements)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    run_dir, target = map(Path, sys.argv[1:])
    folders = {"training": run_dir / "train", "validation": run_dir / "val"}
    curves = {name: read_losses(folder) for name, folder in folders.items()}
    target.write_text(draw_svg(curves, "step"), "utf-8")
