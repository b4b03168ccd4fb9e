"""Pictures of docs/learn.md and docs/recipe.md, as SVG files in the folder OUT.

python -m tests.benchmarks.pictures OUT draws those that need no run: the blocks, token shift, a
small matrix and Muon, RoPE. python -m tests.benchmarks.pictures OUT RUN_DIR GPT_RUN_DIR also draws
three heads of both runs.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Arc, FancyBboxPatch, Rectangle
from torch import Tensor

from model.inspect.record import record_attention
from model.networks.quill import TokenShift
from model.optim import orthogonalize
from model.run import checkpoint
from tests.benchmarks.chart import COLORS, GRAY, NO_DATE, STYLE

CELL = 0.5  # inches
SENTENCE = "the king and the queen"
# Chosen by eye, of the default seed: a diagonal, columns, a broad one. Other runs have others.
HEADS = ("gpt, block 1, head 2", "gpt, block 2, head 1", "quill, block 2, head 1")
ORANGE, BLUE, GREEN = COLORS[:3]


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata=NO_DATE)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure whose coordinates are inches, from the upper left corner down."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "-|>", "color": color, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.4}
    axes.annotate("", end, start, arrowprops=style)


# ------------------------------------------------------------------------------------- One block
@dataclass(frozen=True)
class Layer:
    """A branch of the residual stream."""

    name: str
    lines: list[str]  # what it computes; a line with * exists only in this network
    color: str


def draw_network(axes: Axes, left: float, title: str, own: str, layers: list[Layer]) -> None:
    """The residual stream from top to bottom, and what reads it and adds to it."""
    stream, box, right = left + 0.25, left + 1.0, left + 3.45
    LINE, GAP = 0.19, 0.22

    def write(x: float, y: float, text: str, color: str = GRAY, **style: object) -> None:
        is_own = text.startswith("*")
        style = {"fontsize": 9.5, "va": "center"} | style
        color = ORANGE if is_own else color
        axes.text(x, y, text.removeprefix("*"), color=color, **style)

    write(left + 0.1, 0.15, title, fontsize=12, fontweight="bold")
    write(left + 0.1, 0.45, "ids of hello: 1 0 2 2 3")
    write(right, 0.45, "1 x 5", ha="right")
    write(left + 0.1, 0.72, "embedding")
    write(left + 0.95, 0.72, own)
    write(right, 0.72, "1 x 5 x C", ha="right")
    y = top = 1.0
    y += 0.12
    for layer in layers:
        height = LINE * (len(layer.lines) + 1) + 0.16
        y += GAP
        axes.add_patch(
            FancyBboxPatch(
                (box, y),
                right - box,
                height,
                boxstyle="round,pad=0,rounding_size=0.06",
                facecolor=layer.color + "18",
                edgecolor=layer.color,
            )
        )
        write(box + 0.1, y + 0.17, layer.name, layer.color, fontweight="bold", fontsize=10.5)
        for i, line in enumerate(layer.lines, start=1):
            write(box + 0.1, y + 0.17 + i * LINE, line)
        read, add = y + 0.16, y + height - 0.12
        arrow(axes, (stream, read), (box, read), layer.color)
        arrow(axes, (box, add), (stream + 0.09, add), layer.color)
        for place in (read, add):
            write(stream + 0.14, place - 0.09, "1 x 5 x C", layer.color, fontsize=8)
        plus = {"boxstyle": "circle,pad=0.1", "facecolor": layer.color, "edgecolor": "none"}
        axes.text(stream, add, "+", color="white", fontsize=10, ha="center", va="center", bbox=plus)
        y += height
    bottom = y + 0.15
    frame = Rectangle(
        (left + 0.02, top), 3.52, bottom - top, fill=False, edgecolor=GRAY, linestyle=(0, (4, 3))
    )
    axes.add_patch(frame)
    write(right, top + 0.13, "block, n_layer times", ha="right", fontsize=8.5)
    axes.plot([stream, stream], [0.83, bottom + 0.12], color=GRAY, linewidth=2.5, zorder=0)
    arrow(axes, (stream, bottom + 0.1), (stream, bottom + 0.22), GRAY)
    write(left + 0.1, bottom + 0.35, "norm, head: logits")
    write(right, bottom + 0.35, "1 x 5 x V", ha="right")


def draw_blocks(out: Path) -> None:
    """One block of gpt and one of quill, with the shapes of `hello`."""
    qkv = "query, key, value: 1 x H x 5 x D"
    weights = ["weights: 1 x H x 5 x 5", "weighted sum of values, proj"]
    shift = "*token shift"
    gpt = [
        Layer("attention", ["norm", qkv, *weights], BLUE),
        Layer("feed-forward", ["norm", "fc: 1 x 5 x 4C", "*GELU", "proj"], GREEN),
    ]
    feed_forward = ["norm", shift, "fc: 1 x 5 x 4C", "*ReLU²", "proj"]
    quill = [
        Layer("feed-forward", feed_forward, GREEN),
        Layer("attention", ["norm", shift, qkv, "*rotate query and key", *weights], BLUE),
        Layer("feed-forward", feed_forward, GREEN),
    ]
    figure, axes = canvas(7.3, 6.7)
    draw_network(axes, 0.05, "gpt", "*+ position table", gpt)
    draw_network(axes, 3.7, "quill", "*then norm", quill)
    style = {"fontsize": 9.5, "va": "top", "linespacing": 1.4}
    own = (
        "orange: only in this network;\nquill also has another order,\nand two feed-forward layers"
    )
    axes.text(0.15, 4.9, own, color=ORANGE, **style)
    symbols = "C channels, H heads of D = C / H\n(d in the text), V characters"
    axes.text(0.15, 5.75, symbols, color=GRAY, **style)
    save(figure, out / "block.svg")


# ------------------------------------------------------------------------- Token shift, and Muon
def draw_cell(axes: Axes, x: float, y: float, text: str, color: str = GRAY) -> None:
    """A square with a number."""
    face = "none" if color == GRAY else color + "30"
    axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor=face, edgecolor=color))
    place = (x + CELL / 2, y + CELL / 2)
    axes.text(*place, text, color=color, fontsize=11, ha="center", va="center")


def draw_shift(out: Path) -> None:
    """Which channels a layer of quill reads from which position."""
    figure, axes = canvas(6.4, 2.1)
    lefts = {"two before": 1.2, "one before": 2.3, "now": 3.4, "the layer reads": 5.2}
    for name, left in lefts.items():
        axes.text(left + CELL / 2, 0.3, name, color=GRAY, fontsize=10.5, ha="center")
    x_CT = torch.arange(1, 10).view(3, 3).T  # as TokenShift, with three channels
    y_CT = TokenShift()(x_CT.T[None].float())[0].T
    *positions, reads = lefts.values()
    for channel, color in enumerate((ORANGE, BLUE, GREEN)):
        y = 0.5 + channel * CELL
        name = f"channel {channel + 1}"
        axes.text(0.1, y + CELL / 2, name, color=GRAY, fontsize=10.5, va="center")
        shifted = int(y_CT[channel, -1])
        for left, number in zip(positions, x_CT[channel].tolist(), strict=True):
            draw_cell(axes, left, y, str(number), color if number == shifted else GRAY)
        draw_cell(axes, reads, y, str(shifted), color)
    save(figure, out / "shift.svg")


def draw_small_muon(out: Path) -> None:
    """A matrix of two by two as a sum of columns times rows, before and after Muon."""
    u_RS, v_CS = torch.tensor([[0.6, -0.8], [0.8, 0.6]]), torch.tensor([[0.8, -0.6], [0.6, 0.8]])
    before_RC = u_RS @ torch.diag(torch.tensor([10.0, 1.0])) @ v_CS.T
    (after_RC,) = orthogonalize(before_RC[None], torch.float32)
    figure, axes = canvas(7.0, 2.7)

    def write(x: float, y: float, text: str, color: str = GRAY, size: float = 13) -> None:
        axes.text(x, y, text, color=color, fontsize=size, ha="center", va="center")

    for name, y, x_RC in (("before", 0.25, before_RC), ("after", 1.55, after_RC)):
        write(0.42, y + CELL, name, size=10.5)
        for row in range(2):
            for column in range(2):
                text = f"{x_RC[row, column]:.2f}"
                draw_cell(axes, 0.9 + column * CELL, y + row * CELL, text)
        left = 2.2
        for i, color in enumerate((ORANGE, BLUE)):
            size = u_RS[:, i] @ x_RC @ v_CS[:, i]
            write(left - 0.16, y + CELL, "=+"[i])
            write(left + 0.25, y + CELL, f"{size:.2g}", color, 16)
            for j in range(2):
                draw_cell(axes, left + 0.65, y + j * CELL, f"{u_RS[j, i]:.1f}", color)
                draw_cell(axes, left + 1.2 + j * CELL, y + CELL / 2, f"{v_CS[j, i]:.1f}", color)
            left += 2.45
    save(figure, out / "muon_small.svg")


def draw_rope(out: Path) -> None:
    """A key at position 2 and a query at position 5, turned; both ten characters later."""
    figure, axes = canvas(6.6, 2.7)
    for middle, positions in ((1.6, (2, 5)), (4.9, (12, 15))):
        angles = torch.tensor(positions) / 2  # half a radian per character
        x, y = 1.05 * angles.cos(), 1.05 * angles.sin()
        axes.add_patch(Arc((middle, 1.5), 2.1, 2.1, color=GRAY, alpha=0.4))
        axes.add_patch(
            Arc(
                (middle, 1.5),
                0.7,
                0.7,
                theta1=-float(angles[1].rad2deg()),
                theta2=-float(angles[0].rad2deg()),
                color=GRAY,
            )
        )
        for i, (name, color) in enumerate((("k", ORANGE), ("q", BLUE))):
            arrow(axes, (middle, 1.5), (middle + float(x[i]), 1.5 - float(y[i])), color)
            place = (middle + 1.18 * float(x[i]), 1.5 - 1.18 * float(y[i]))
            style = {"color": color, "fontsize": 13, "ha": "center", "va": "center"}
            axes.text(*place, name, **style)
        between = angles.mean()
        place = (middle + 0.66 * float(between.cos()), 1.5 - 0.5 * float(between.sin()))
        axes.text(
            *place,
            f"{angles[1] - angles[0]:g} rad",
            color=GRAY,
            fontsize=11,
            ha="center",
            va="center",
        )
        title = (
            f"k at {positions[0]}, q at {positions[1]}: q · k = {(angles[1] - angles[0]).cos():.2f}"
        )
        axes.text(middle, 0.15, title, color=GRAY, fontsize=10.5, ha="center")
    save(figure, out / "rope.svg")


# -------------------------------------------------------------------------------------- Of a run
@torch.no_grad()
def heads_of(run_dir: Path) -> dict[str, Tensor]:
    """weights_TT of each head of a model for SENTENCE, by its name."""
    saved = checkpoint.load(run_dir / "best.pt")
    model = checkpoint.load_model(saved)
    with record_attention(model) as calls:
        model(torch.tensor([[saved.vocab.index(character) for character in SENTENCE]]))
    return {
        f"{model.config.network}, block {block}, head {i}": weights_TT
        for block, call in calls
        for i, weights_TT in enumerate(call.weights_BHTS[0], start=1)
    }


def draw_heads(out: Path, *run_dirs: Path) -> None:
    """What the heads of HEADS look at."""
    heads = {name: x_TT for run_dir in run_dirs for name, x_TT in heads_of(run_dir).items()}
    figure = Figure(figsize=(8.4, 3.1), layout="constrained", dpi=200)
    shades = LinearSegmentedColormap.from_list("shades", [BLUE + "00", BLUE])
    for axes, name in zip(figure.subplots(1, 3), HEADS, strict=True):
        axes.imshow(heads[name].sqrt(), cmap=shades, vmin=0, vmax=0.8, interpolation="nearest")
        axes.set_title(name, fontsize=10)
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            set_ticks(range(len(SENTENCE)), SENTENCE.replace(" ", "␣"), fontsize=7)
        axes.tick_params(length=0)
    save(figure, out / "heads.svg")


def main(argv: list[str]) -> None:
    out, *runs = map(Path, argv)
    out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        draw_blocks(out)
        draw_shift(out)
        draw_small_muon(out)
        draw_rope(out)
        if runs:
            run_dir, gpt_run_dir = runs
            draw_heads(out, run_dir, gpt_run_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
