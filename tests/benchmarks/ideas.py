"""What each idea is worth: from the textbook GPT to Quill's network, and from there one step back.

Each variant is an edit of model/networks/quill.py in a copy of the repository. The loss is that of
the last tenth of Tiny Shakespeare's training part; no validation text is read.

    python -m tests.benchmarks.ideas steps FILE    # losses after equal steps
    python -m tests.benchmarks.ideas speed FILE    # seconds per step, all variants in turn
    python -m tests.benchmarks.ideas seconds FILE  # losses after equal time, by these speeds
    python -m tests.benchmarks.ideas table FILE    # prints what is in FILE
    python -m tests.benchmarks.ideas chart FILE > IDEAS.svg

FILE gets one line of JSON for each run; a second start goes on where the first one ended. Losses
are measured in two processes at a time, with one thread each.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
from matplotlib.figure import Figure

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.chart import GRAY, NO_DATE, STYLE
from tests.benchmarks.peer import ROOT, machine

SEEDS = (1, 2, 3)
STEPS = 1100
TRAIN_CHARS = 1_003_854
QUILL, CORPUS = "model/networks/quill.py", "data/corpus.py"
Edit = list[tuple[str, str, str]]  # file, regular expression, replacement

# What stands in the textbook instead of an idea of Quill.
NO_SHIFT = [(QUILL, r"        B, _, C = x_BTC\.shape\n", "        return x_BTC\n")]
LEARNED_SHIFT = [
    (QUILL, r"TokenShift\(\)", "TokenShift(config.n_embd)"),
    (QUILL, r"(    def forward\(self, x_BTC.*\n.*\n)        B, _, C = x_BTC\.shape\n",
     r"    def __init__(self, C: int) -> None:\n        super().__init__()\n"
     r"        self.mix_1 = nn.Parameter(torch.zeros(C))\n"
     r"        self.mix_2 = nn.Parameter(torch.zeros(C))\n\n\1"
     r"        padded = F.pad(x_BTC, (0, 0, 2, 0))\n"
     r"        out_BTC = torch.addcmul(x_BTC, self.mix_1, padded[:, 1:-1])\n"
     r"        return torch.addcmul(out_BTC, self.mix_2, padded[:, :-2])\n"),
]  # fmt: skip
QK_NORM = [(QUILL, r"rotate\((self\.split_heads.*?), cos_TD", r"rotate(norm(\1), cos_TD")]
NO_POSITIONS = [
    (QUILL, r"(        for block in self\.blocks:\n)",
     r"        cos_TD, sin_TD = torch.ones_like(cos_TD), torch.zeros_like(sin_TD)\n\1"),
]  # fmt: skip
LEARNED_POSITIONS = [
    *NO_POSITIONS,
    (QUILL, r"(        self\.init_weights\(\)\n)",
     r"        self.position = nn.Embedding(config.block_size, config.n_embd)\n"
     r"        self.max_length = config.block_size\n\1"),
    (QUILL, r"        x_BTC = norm\(self\.embedding\(ids_BT\)",
     r"        start, T = (cache.length if cache is not None else 0), ids_BT.size(1)\n"
     r"        x_BTC = norm(self.embedding(ids_BT) + self.position.weight[start : start + T]"),
]  # fmt: skip
ZERO_START = [
    (QUILL, r"        self\.init_weights\(\)\n",
     r"        nn.init.zeros_(self.head.weight)\n"
     r"        for name, parameter in self.blocks.named_parameters():\n"
     r"            if name.endswith('proj.weight'):\n                nn.init.zeros_(parameter)\n"),
]  # fmt: skip
TIED = [
    (QUILL, r"(        self\.init_weights\(\)\n)",
     r"        self.head.weight = self.embedding.weight\n\1"),
    (QUILL, r"x_BTC = norm\((self\.embedding.*)\)\n", r"x_BTC = \1\n"),
]  # fmt: skip
GELU = [(QUILL, r"relu_squared\(self\.fc\(x_BTC\)\)", "F.gelu(self.fc(x_BTC))")]
GAINS = [
    (QUILL, r"(        self\.(dropout = Drop|embedding =))",
     r"        self.norm = nn.LayerNorm(config.n_embd, bias=False)\n"
     r"        self.norm_1 = nn.LayerNorm(config.n_embd, bias=False)\n"
     r"        self.norm_2 = nn.LayerNorm(config.n_embd, bias=False)\n\1"),
    (QUILL, r"self\.shift_mlp_1\(norm\(", "self.shift_mlp_1(self.norm("),
    (QUILL, r"self\.shift_attention\(norm\(", "self.shift_attention(self.norm_1("),
    (QUILL, r"self\.shift_mlp_2\(norm\(", "self.shift_mlp_2(self.norm_2("),
    (QUILL, r"self\.head\(norm\(", "self.head(self.norm("),
]  # fmt: skip
ONE_MLP = [
    (QUILL, r"        self\.(shift_)?mlp_1 = .*\n", ""),
    (QUILL, r"        h_BTC = self\.mlp_1.*\n.*\n", ""),
    (QUILL, r"x_BTC = x_BTC \+ self\.dropout\((self\.attention.*)\)\n",
     r"h_BTC = \1\n        x_BTC = x_BTC.to(h_BTC.dtype) + self.dropout(h_BTC)\n"),
]  # fmt: skip
FLOAT32_SUMS = [(QUILL, r"x_BTC\.to\(h_BTC\.dtype\)", "x_BTC")]
WITH_REPLACEMENT = [
    (CORPUS, r"        starts = \[\]\n",
     r"        rng = np.random.default_rng([seed, step])\n"
     r"        drawn = rng.integers(self.train_chars - block_size, size=batch_size)\n"
     r"        return self.gather_examples(drawn[rows], block_size)\n        starts = []\n"),
]  # fmt: skip
NO_ATTENTION = [(QUILL, r"self\.attention\(h_BTC, cos_TD, sin_TD, cache\)", "0 * h_BTC")]
NO_RESIDUAL = [(QUILL, r"= x_BTC \+ (self\.dropout\(self\.attention)", r"= \1")]
ADAMW = ("--optimizer=adamw", "--weight_decay=0.1", "--warmup_iters=100", "--learning_rate=3e-3")
COSINE = ("--min_lr=7e-4", "--lr_decay_iters={max_iters}")  # to a tenth

# In the order in which they are added to the textbook: each idea, and what stands there without it.
PATH: list[tuple[str, tuple[str, ...], Edit]] = [
    ("textbook", (), []),
    ("Muon", (*ADAMW, "--min_lr=3e-4"), []),
    ("token shift", (), NO_SHIFT),
    ("rotation", (), LEARNED_POSITIONS),
    ("examples without replacement", (), WITH_REPLACEMENT),
    ("linear decay to zero", COSINE, []),
    ("two feed-forward layers per attention, two heads", ("--n_layer=4", "--n_head=4"), ONE_MLP),
    ("embedding and head apart", (), TIED),
    ("ReLU²", (), GELU),
    ("norms without gains", (), GAINS),
    ("sums in bfloat16", (), FLOAT32_SUMS),
]
# Taken from Quill, one at a time.
AWAY: list[tuple[str, tuple[str, ...], Edit]] = [
    ("no attention", (), NO_ATTENTION),
    ("no residual connection around attention", (), NO_RESIDUAL),
    ("no positions", (), NO_POSITIONS),
    ("learned positions", (), LEARNED_POSITIONS),
    ("query-key normalization", (), QK_NORM),
    ("no token shift", (), NO_SHIFT),
    ("token shift with learned shares", (), LEARNED_SHIFT),
    ("no first feed-forward layer", (), ONE_MLP),
    ("four blocks without it", ("--n_layer=4",), ONE_MLP),
    ("zeros at the start", (), ZERO_START),
    ("embedding tied to the head", (), TIED),
    ("GELU", (), GELU),
    ("norms with gains", (), GAINS),
    ("AdamW", ADAMW, []),
    ("AdamW, learning rate 7e-3", (*ADAMW, "--learning_rate=7e-3"), []),
    ("cosine decay to a tenth", COSINE, []),
    ("examples with replacement", (), WITH_REPLACEMENT),
]


def variants() -> dict[str, tuple[tuple[str, ...], Edit]]:
    """Flags and edits by name; "+ idea" has all that comes before it in PATH."""
    found = {}
    for i, (name, _, _) in enumerate(PATH):
        # Backwards, so that AdamW's learning rates count.
        flags = tuple(flag for _, flags, _ in PATH[:i:-1] for flag in flags)
        edit = [change for _, _, edit in PATH[i + 1 :] for change in edit]
        edit.sort(key=ONE_MLP.__contains__)  # last, as it removes lines that others change
        found[f"+ {name}" if i else name] = (flags, edit)
    return found | {f"Quill, {name}": (flags, edit) for name, flags, edit in AWAY}


def run(name: str, work: Path, max_iters: int, *flags: str, threads: int | None = None) -> dict:
    """Train the variant on train.txt in `work`; returns its summary."""
    own_flags, edit = variants()[name]
    with tempfile.TemporaryDirectory(dir=work) as folder:
        for part in ("train.py", "model", "configs", "data"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, Path(folder, part))
        for file, pattern, replacement in edit:
            path = Path(folder, file)
            text, count = re.subn(pattern, replacement, path.read_text("utf-8"))
            assert count, (name, pattern)
            path.write_text(text, "utf-8")
        command = [sys.executable, "train.py", f"--data={work / 'train.txt'}", "--out_dir=run"]
        command += [flag.format(max_iters=max_iters) for flag in [*own_flags, *flags]]
        command += [f"--max_iters={max_iters}", f"--eval_interval={max_iters}"]
        environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (name, done.stderr)
        return json.loads(Path(folder, "run/summary.json").read_text())


def main() -> None:
    mode, file = sys.argv[1], Path(sys.argv[2])
    file.touch()
    known = [json.loads(line) for line in file.read_text().splitlines()]
    speeds = dict.fromkeys(variants(), 0.0)
    for name in speeds:
        measured = [r["step"] for r in known if (r["mode"], r["name"]) == ("speed", name)]
        speeds[name] = min(measured, default=0.0)  # what else runs only adds to it
    work = Path(tempfile.mkdtemp())
    (work / "train.txt").write_text(tiny_shakespeare().read_text()[:TRAIN_CHARS])

    def measure(name: str, seed: int) -> None:
        if any((r["mode"], r["name"], r["seed"]) == (mode, name, seed) for r in known):
            return
        if mode == "speed":
            summary = run(name, work, 150)
            result = {"step": 2048 / summary["chars_per_second"]}
        else:
            share = 1.0 if mode == "steps" else speeds[QUILL_NAME] / speeds[name]
            if mode == "seconds" and 0.95 < share < 1.05:
                return  # as fast as Quill
            steps = round(STEPS * share)
            loss = run(name, work, steps, f"--seed={seed}", threads=1)["val_loss"]
            result = {"loss": loss, "steps": steps}
        with file.open("a") as out:
            out.write(json.dumps({"mode": mode, "name": name, "seed": seed} | result) + "\n")
        print(mode, name, seed, result, flush=True)

    if mode == "table":
        print_table(known, speeds)
        return
    if mode == "chart":
        draw_chart(known)
        return
    print(machine())
    with ThreadPoolExecutor(1 if mode == "speed" else 2) as pool:
        list(pool.map(lambda job: measure(*job), [(name, s) for s in SEEDS for name in variants()]))
    shutil.rmtree(work)


QUILL_NAME = f"+ {PATH[-1][0]}"


def print_table(known: list[dict], speeds: dict[str, float]) -> None:
    """Mean losses after equal steps and after equal time, and milliseconds per step.

    The change is that from the line above, or from Quill.
    """
    print("| variant | loss, equal steps | change | equal time | change | ms per step |")
    print("|---|---|---|---|---|---|")
    reference = {"steps": None, "seconds": None}
    for name in variants():
        cells = []
        for mode, before in reference.items():
            losses = losses_of(known, mode, name)
            spread = f" ± {stdev(losses):.3f}" if len(losses) > 1 else ""
            cells.append(f"{mean(losses):.3f}{spread}" if losses else "")
            cells.append(f"{mean(losses) - before:+.3f}" if losses and before else "")
            if losses and not name.startswith("Quill"):
                reference[mode] = mean(losses)
        print(f"| {name} | {' | '.join(cells)} | {1000 * speeds[name]:.1f} |")


def losses_of(known: list[dict], mode: str, name: str) -> list[float]:
    """Of all seeds. A variant that is as fast as Quill was not measured by time."""
    losses = [r["loss"] for r in known if (r["mode"], r["name"]) == (mode, name)]
    return losses if losses or mode == "steps" else losses_of(known, "steps", name)


def draw_chart(known: list[dict]) -> None:
    """Losses by variant, as SVG on standard output: the way to Quill, and what it is without."""
    path = [name for name in variants() if not name.startswith("Quill")]
    away = [name for name in variants() if name.startswith("Quill, ") and "residual" not in name]
    labels = [*path[:-1], f"{QUILL_NAME} (Quill)"], ["Quill", *away]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 7.5), layout="constrained")
        panels = figure.subplots(2, height_ratios=[len(path), len(away) + 1])
        for axes, y_labels, names in zip(panels, labels, (path, [QUILL_NAME, *away]), strict=True):
            for mode, mark in (("steps", "o"), ("seconds", "D")):
                losses = [losses_of(known, mode, name) for name in names]
                means = [mean(values) for values in losses]
                spread = [stdev(values) if len(values) > 1 else 0 for values in losses]
                options = {"markersize": 4, "linestyle": "", "elinewidth": 1}
                label = f"equal {mode.replace('seconds', 'time')}"
                axes.errorbar(means, y_labels, xerr=spread, marker=mark, label=label, **options)
            axes.invert_yaxis()
            axes.grid(color=GRAY, alpha=0.25)
        panels[1].axvline(mean(losses_of(known, "steps", QUILL_NAME)), color=GRAY, linewidth=0.8)
        panels[1].set(xlabel="loss on the held-out tenth (nats per character)")
        title = "Mean and standard deviation of three seeds"
        options = {"loc": "outside upper left", "frameon": False, "alignment": "left"}
        figure.legend(*panels[0].get_legend_handles_labels(), title=title, ncols=2, **options)
        figure.savefig(sys.stdout, format="svg", transparent=True, metadata=NO_DATE)


if __name__ == "__main__":
    main()
