"""Draw curves as one SVG file that is readable on a light and on a dark page.

python -m tests.benchmarks.chart RUN_DIR LOSS.svg MUON.svg draws the losses of a run, and what Muon
makes of its momentum.
"""

import json
import sys
import tomllib
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from model import checkpoint
from model.optim import orthogonalize

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


def draw_losses(run_dir: Path, path: Path) -> None:
    """Training and validation loss over the steps of a run."""
    config = tomllib.loads((run_dir / "config.toml").read_text("utf-8"))
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    title = f"Quill: context {config['block_size']}, {summary['dtype']}, seed {config['seed']}"
    validation = read_losses(run_dir / "val")
    curves = {
        "training loss, single batches": read_losses(run_dir / "train"),
        f"validation loss, whole validation split: {validation[-1][1]:.3f} at the end": validation,
    }
    draw_svg(path, "training step", title, curves)


def draw_muon(run_dir: Path, path: Path) -> None:
    """Singular values of the first matrix's momentum at the end of a run, and orthogonalized."""
    saved = checkpoint.load(run_dir / "last.pt")
    muon = saved.optimizers[0]
    name = muon["param_groups"][0]["param_names"][0]
    momentum_RC = muon["state"][0]["momentum_buffer"]
    (update_RC,) = orthogonalize(momentum_RC[None], torch.float32)
    before, after = torch.linalg.svdvals(momentum_RC), torch.linalg.svdvals(update_RC)
    curves = {
        "momentum, largest scaled to 1": list(enumerate((before / before[0]).tolist(), start=1)),
        "orthogonalized": list(enumerate(after.tolist(), start=1)),
    }
    title = f"{name}, step {saved.step}"
    draw_svg(path, "singular values by size", title, curves, "singular value")


if __name__ == "__main__":
    run_dir, losses, muon = map(Path, sys.argv[1:])
    draw_losses(run_dir, losses)
    draw_muon(run_dir, muon)
