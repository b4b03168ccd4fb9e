"""Draw loss curves as one SVG file that is readable on a light and on a dark page.

python -m tests.benchmarks.chart RUN_DIR FILE.svg draws the losses of a run.
"""

import json
import sys
import tomllib
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from model.run.logger import read_losses

# Contrast at least 4 on white and on GitHub's dark page, #0d1117.
GRAY = "#797979"
COLORS = ["#c95f00", "#2a7fde"]
TEXT_AND_AXES = ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"]
STYLE = dict.fromkeys(TEXT_AND_AXES, GRAY) | {
    "axes.prop_cycle": mpl.cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.sans-serif": ["DejaVu Sans"],  # measures the text; a page without it has sans-serif
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "quill",  # the same ids each time
}


def draw_svg(path: Path, x_label: str, title: str, curves: dict[str, list]) -> None:
    """Draw the curves, points (x, nats per character) by name."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, points in curves.items():
            # At most 500 points, counted from the last, keep the file small.
            xs, losses = zip(*points[:: -(len(points) // 500 + 1)], strict=True)
            style = "o-" if len(points) < 50 else "-"
            axes.plot(xs, losses, style, markersize=4, label=name)
        axes.set(xlabel=x_label, ylabel="loss (nats per character)", xlim=(0, None))
        axes.grid(color=GRAY, alpha=0.25)
        figure.legend(title=title, loc="outside upper left", frameon=False, alignment="left")
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    run_dir, target = map(Path, sys.argv[1:])
    config = tomllib.loads((run_dir / "config.toml").read_text("utf-8"))
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    title = f"Quill: context {config['block_size']}, {summary['dtype']}, seed {config['seed']}"
    validation = read_losses(run_dir / "val")
    curves = {
        "training loss, single batches": read_losses(run_dir / "train"),
        f"validation loss, whole validation split: {validation[-1][1]:.3f} at the end": validation,
    }
    draw_svg(target, "training step", title, curves)
