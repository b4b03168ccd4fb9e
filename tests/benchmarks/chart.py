"""Draw curves as one SVG file that is readable on a light and on a dark page."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

# Contrast at least 4 on white and on GitHub's dark page, #0d1117.
GRAY = "#797979"
COLORS = ["#c95f00", "#2a7fde", "#2a8a2a", "#a05fc0", "#d0427a", "#00868b"]
TEXT_AND_AXES = ["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"]
STYLE = dict.fromkeys(TEXT_AND_AXES, GRAY) | {
    "axes.prop_cycle": mpl.cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.sans-serif": ["DejaVu Sans"],  # measures the text; a page without it has sans-serif
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "quill",  # the same ids each time
}
NO_DATE = {"Date": None, "Creator": None}


def draw_svg(
    path: Path,
    x_label: str,
    title: str,
    curves: dict[str, list],
    y_label: str = "loss (nats per character)",
) -> None:
    """Draw the curves, points (x, y) by name."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for name, points in curves.items():
            # At most 500 points, counted from the last, keep the file small.
            xs, losses = zip(*points[:: -(len(points) // 500 + 1)], strict=True)
            style = "o-" if len(points) < 50 else "-"
            axes.plot(xs, losses, style, markersize=4, label=name)
        axes.set(xlabel=x_label, ylabel=y_label, xlim=(0, None))
        axes.grid(color=GRAY, alpha=0.25)
        figure.legend(title=title, loc="outside upper left", frameon=False, alignment="left")
        figure.savefig(path, transparent=True, metadata=NO_DATE)


def read_losses(event_dir: Path) -> list[tuple[int, float]]:
    """All points (step, loss). (That of tests/conftest.py would leave PyTorch one thread.)"""
    events = EventAccumulator(str(event_dir), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]
