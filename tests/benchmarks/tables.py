"""The tables of README and docs/ that show figures of runs.

`python -m tests.benchmarks.tables run --texts FOLDER` makes the runs that are not in results.jsonl
yet, two at a time with one thread each, in float32. Run it again after an interruption. `time
--nanogpt DIR` runs README's commands and nanoGPT's one after the other, with all cores; nothing
else may run. `write` puts the tables into the documents and draws their pictures.

A run belongs to the newest commit that changed the code; those of older ones are made again. On a
CPU where --dtype auto is bfloat16, `time` runs twice: as it is, and as a CPU with AVX2
(ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2), in float32. The
default runs of the latter are those of all tables.

FOLDER has moby.txt (2701.txt of Project Gutenberg) and spanish.txt (the files of Debian's
fortunes-es, joined in the order of their names). DIR is a clone of karpathy/nanoGPT (its prepare.py
needs `pip install requests`). All other texts are the first characters of Tiny Shakespeare.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from data.corpus import Corpus, open_corpus
from data.reader import tiny_shakespeare
from model.run import checkpoint
from model.run.checkpoint import Checkpoint
from model.system.device import choose_dtype
from tests.benchmarks.chart import COLORS, GRAY, NO_DATE, STYLE, draw_svg, read_losses
from tests.benchmarks.convert import load_nanogpt
from tests.benchmarks.peer import CPU_COMMAND, ROOT, nanogpt, quill

RESULTS = Path(__file__).with_name("results.jsonl")
CODE = ("train.py", "sample.py", "configs", "data", "model")
# With the computation of the recipe's 791 steps, each of which costs 4/3 with the average
UNREGULARIZED = "--ema_decay 0 --max_iters 1054 --learning_rate 7e-3 --dropout 0 "
UNREGULARIZED += "--train_temperature 1 --weight_decay 0.5"
ARTICLES = (
    "--network gpt --n_layer 4 --n_head 4 --optimizer adamw --weight_decay 0.1 --warmup_iters 100 "
    "--learning_rate 3e-3 --min_lr 3e-4 --max_iters 1100"
)
# What a copy of a network has instead of what
EDITS = {
    "no attention": ("quill", "self.dropout(self.attention(h_BTC, cos_TD, sin_TD, cache))", "0"),
    "no positions": (
        "quill",
        "    cos_TD, sin_TD = cos_TD.to(x_BHTD.dtype)",
        "    return x_BHTD\n{}",
    ),
    "no token shift": (
        "quill",
        "        B, T, C = x_BTC.shape\n        sizes",
        "        return x_BTC\n{}",
    ),
    "gpt, no attention": ("gpt", "self.dropout(self.attention(self.norm_1(x_BTC)))", "0"),
    "gpt, no positions": ("gpt", " + self.position(positions_T)", ""),
    "gpt, no mask": ("gpt", ".masked_fill(is_later_TT, -torch.inf)", ""),
    "gpt, no division by √d": ("gpt", " / math.sqrt(q_BHTD.size(-1))", ""),
    "gpt, no feed-forward layer": ("gpt", "self.dropout(self.mlp(self.norm_2(x_BTC)))", "0"),
}
GPT = "--network gpt"
# What keeps a network from being too sure of a text that it has read often, taken away
CONFIDENCE = {
    "no temperature": "--train_temperature 1",
    "no average": "--ema_decay 0",
    "neither": "--train_temperature 1 --ema_decay 0",
}
# A place in the validation text of the 100 kB: the first one where the network without a
# temperature (seed 1) gives at least 0.9 to a wrong character.
EXAMPLE_POSITION, EXAMPLE_TEXT, EXAMPLE_NEXT = 15, "With old M", "e"
DECILES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1]


@dataclass(frozen=True)
class Run:
    """A training with each of the seeds; afterwards its model may write and predict texts."""

    name: str
    flags: str = ""
    seeds: tuple[int, ...] = (1,)
    text: str = ""  # "20": the first 20,000 characters of Tiny Shakespeare; "": all of it
    base: str = ""  # the run whose model it starts from
    temperatures: tuple[float, ...] = ()  # of texts that it writes
    edit: str = ""  # of the network
    has_predictions: bool = False  # keeps what its model says of the validation text


THREE = (1, 2, 3)
DEFAULT = "default, float32"  # made by `time`
RUNS = [
    Run("moby", text="moby"),
    *(Run(f"{n} kB", text=str(n), seeds=THREE, has_predictions=True) for n in (20, 60, 100, 300)),
    *(
        Run(f"100 kB, {name}", flags, text="100", seeds=THREE, has_predictions=True)
        for name, flags in CONFIDENCE.items()
    ),
    *(Run(f"{n} kB from moby", text=str(n), seeds=THREE, base="moby") for n in (20, 60, 100)),
    Run("Spanish", text="spanish", seeds=THREE),
    Run("Spanish, unregularized", UNREGULARIZED, text="spanish"),
    *(Run(f"{n} steps", f"--max_iters {n}", temperatures=(0.8,)) for n in (1, 30, 100, 300)),
    Run("20 kB, long", "--max_iters 474", text="20"),
    Run("20 kB, long, 0.6", "--max_iters 474 --dropout 0.6", text="20"),
    Run("20 kB, small", "--max_iters 474 --n_embd 64", text="20"),
    Run("articles", ARTICLES),
    Run("gpt", GPT, seeds=THREE),
    Run("gpt, one head", f"{GPT} --n_head 1", seeds=THREE),
    *(
        Run(name, GPT if network == "gpt" else "", seeds=THREE, edit=name)
        for name, (network, *_) in EDITS.items()
    ),
    Run("AdamW", "--optimizer adamw", seeds=THREE),
    Run("cosine decay to a tenth", "--min_lr 7e-4", seeds=THREE),
]


def commit() -> str:
    """The newest commit that changed the code."""
    command = ["git", "log", "-1", "--format=%h", "--", *CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def cpu() -> str:
    """The instructions of this CPU, or those that ATEN_CPU_CAPABILITY leaves it."""
    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        return "AVX2"
    return "AVX512-BF16" if torch.cpu.get_capabilities().get("avx512_bf16") else "AVX512"


def auto_dtype() -> str:
    """What --dtype auto takes on this CPU, or on one with the instructions that are left to it."""
    if cpu() == "AVX2":
        return "float32"
    return str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch.")


def stored() -> list[dict]:
    """What has been measured."""
    lines = RESULTS.read_text("utf-8").splitlines() if RESULTS.exists() else []
    return [json.loads(line) for line in lines]


def store(**row: object) -> None:
    """Add a run."""
    common = {"commit": commit(), "cpu": cpu(), "torch": torch.__version__}
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row | common, ensure_ascii=False) + "\n")


def done() -> set[tuple[str, int]]:
    """Name and seed of each run of this code that has been measured."""
    return {(row["name"], row["seed"]) for row in stored() if row["commit"] == commit()}


def write_texts(folder: Path, texts: Path | None = None) -> None:
    """The beginnings of Tiny Shakespeare as 20.txt and so on; those of `texts`."""
    for n in (20, 60, 100, 300):
        text = tiny_shakespeare().read_text("utf-8")[: n * 1000]
        (folder / f"{n}.txt").write_text(text, "utf-8")
    for name, size in (("moby", None), ("spanish", 100_000)) if texts else ():
        text = (texts / f"{name}.txt").read_text("utf-8")[:size]
        (folder / f"{name}.txt").write_text(text, "utf-8")


def measured(
    out: Path, temperatures: tuple[float, ...], has_predictions: bool, root: Path = ROOT
) -> dict:
    """The losses of a finished run, and what its model writes and predicts."""
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    training = read_losses(out / "train")
    fifths = [training[max(0, i - 4) : i + 1] for i in range(len(training))]
    return {
        "iters": summary["iters"],
        "best": summary["best_val_loss"],
        "best_step": summary["best_iter"],
        "last": summary["val_loss"],
        "curve": [(step, round(loss, 4)) for step, loss in read_losses(out / "val")],
        # Each point is the mean of the latest five
        "training": [(part[-1][0], round(mean(y for _, y in part), 3)) for part in fifths],
        "texts": {
            f"{t:g}": call(root, "sample.py", out, "--temperature", t, "--max_new_tokens=150")
            for t in temperatures
        },
        **(predictions(out) if has_predictions else {}),
    }


@torch.no_grad()
def predict(saved: Checkpoint) -> tuple[Tensor, Tensor, Corpus]:
    """log_probs_NV of a checkpoint at each place of its validation text; the N characters; both."""
    model = checkpoint.load_model(saved)
    corpus = open_corpus(model.config, saved.vocab)
    logits, targets = [], []
    for starts_B, T in corpus.eval_windows(model.config.block_size, 8192):
        x_BT, y_BT = corpus.gather_examples(starts_B, T)
        logits.append(model(x_BT).flatten(0, 1))
        targets.append(y_BT.flatten())
    return torch.cat(logits).log_softmax(dim=-1), torch.cat(targets), corpus


def predictions(out: Path) -> dict:
    """How often a run's last model is right, by how sure it is."""
    log_probs_NV, y_N, corpus = predict(checkpoint.load(out / "last.pt"))
    probability_N, guess_N = log_probs_NV.exp().max(dim=-1)

    def means(key_N: Tensor, edges: list[float], *values: Tensor) -> list[tuple[float, ...]]:
        """The means of `values` where the key is between two edges, and how many there are."""
        kept = [(key_N >= low) & (key_N < high) for low, high in pairwise(edges)]
        return [(*(x[k].float().mean().item() for x in values), int(k.sum())) for k in kept]

    probs_V = log_probs_NV[EXAMPLE_POSITION].exp().tolist()
    return {
        "confidence": means(probability_N, DECILES, probability_N, guess_N == y_N),
        "example": {c: round(p, 4) for c, p in zip(corpus.tokenizer.vocab, probs_V, strict=True)},
    }


def call(root: Path, *command: object) -> str:
    """The output of a program of the clone, with one thread."""
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=root,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


# -------------------------------------------------------------------------------- Runs for losses
def make_runs(texts: Path, workers: int, only: str) -> None:
    """All runs of RUNS that are missing; those that start from another's model come last."""
    finished = done()
    missing = [
        (run, seed)
        for run in RUNS
        for seed in run.seeds
        if (run.name, seed) not in finished and re.match(only, run.name)
    ]
    first = [pair for pair in missing if not pair[0].base]
    last = [pair for pair in missing if pair[0].base]
    if last and (RUNS[0], 1) not in first:
        first.append((RUNS[0], 1))  # its model is gone
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as pool:
        folder = Path(name)
        subprocess.run(["git", "clone", "-q", ROOT, folder / "quill"], check=True)
        write_texts(folder, texts)
        networks = folder / "quill/model/networks"
        for i, (network, old, new) in enumerate(EDITS.values()):
            source = (networks / f"{network}.py").read_text("utf-8")
            assert old in source, old
            (networks / f"edit{i}.py").write_text(source.replace(old, new.format(old)), "utf-8")
        for pairs in (first, last):
            list(pool.map(lambda pair: make_run(folder, *pair), pairs))


def make_run(folder: Path, run: Run, seed: int) -> None:
    """Train, write texts, store."""
    out = folder / f"{run.name}, {seed}"
    text = folder / f"{run.text}.txt" if run.text else tiny_shakespeare()
    flags = [*run.flags.split(), "--data", text, "--seed", seed, "--dtype=float32"]
    flags += ["--init_from", folder / f"{run.base}, 1"] if run.base else []
    flags += [f"--network=edit{list(EDITS).index(run.edit)}"] if run.edit else []
    call(folder / "quill", "train.py", "--out_dir", out, *flags)
    row = measured(out, run.temperatures, run.has_predictions, folder / "quill")
    store(name=run.name, seed=seed, **row)
    print(f"{run.name}, seed {seed}: {row['last']:.4f}", flush=True)


# ------------------------------------------------------------------------------------------ Times
def make_times(nanogpt_dir: Path) -> None:
    """README's commands and nanoGPT's; times are of whole processes, evaluations included."""
    finished = done()
    dtype = auto_dtype()

    def measure(name: str, seed: int, *flags: object, until: float = 0.0) -> None:
        name = f"{name}, {dtype}"
        if (name, seed) in finished:
            return
        temperatures = (0.8,) if name == DEFAULT else ()
        look = None if until else lambda out: measured(out, temperatures, False)
        outcome = quill("--seed", seed, "--dtype", dtype, *flags, until=until, look=look)
        seconds, loss = outcome.curve[-1]
        row = outcome.looked or {"last": loss}
        store(name=name, seed=seed, seconds=seconds if until else outcome.wall, **row)
        print(f"{name}, seed {seed}: {seconds:.0f} s, {loss:.4f}", flush=True)

    name = f"nanoGPT, {dtype}"  # which Quill is compared in; nanoGPT computes in float32
    if (name, 1337) not in finished:
        theirs = nanogpt(nanogpt_dir, tiny_shakespeare(), *CPU_COMMAND, look=whole_split_loss)
        store(name=name, seed=1337, seconds=theirs.wall, last=theirs.looked)
        print(f"{name}: {theirs.wall:.0f} s, {theirs.looked:.4f}", flush=True)
    theirs = rows(name)[0]["last"]
    for seed in THREE:
        measure("default", seed)
        measure("until nanoGPT's loss", seed, "--eval_interval", 25, until=theirs)
    if dtype == "float32":
        with tempfile.TemporaryDirectory() as folder:
            write_texts(Path(folder))
            for n in (20, 60, 100, 300):
                measure(f"{n} kB", 1, "--data", Path(folder, f"{n}.txt"))
    else:
        measure("15 minutes", 1, "--minutes", 15)


def whole_split_loss(folder: Path) -> float:
    """The loss of nanoGPT's checkpoint over the whole validation split, in float32."""
    data = folder / "data/shakespeare_char"
    saved = load_nanogpt(folder / "out-shakespeare-char/ckpt.pt", data / "meta.pkl")
    log_probs_NV, y_N, _ = predict(saved)
    return F.nll_loss(log_probs_NV, y_N).item()


# ----------------------------------------------------------------------------------------- Tables
def rows(name: str) -> list[dict]:
    """The newest run of each seed."""
    newest = {row["seed"]: row for row in stored() if row["name"] == name}
    return [newest[seed] for seed in sorted(newest)]


def loss(name: str, key: str = "last", digits: int = 3) -> str:
    """1.234, or the mean of several seeds and their standard deviation; with 2 digits only 1.23."""
    losses = [row[key] for row in rows(name)]
    spread = f" ± {stdev(losses):.3f}" if len(losses) > 1 and digits > 2 else ""
    return f"{mean(losses):.{digits}f}{spread}"


def best(name: str) -> str:
    """The lowest loss, with its step if it is not the last."""
    (row,) = rows(name)
    step = "" if row["best_step"] == row["iters"] else f" (step {row['best_step']})"
    return f"{row['best']:.3f}{step}"


def written(name: str) -> str:
    """A line of what the first seed's model wrote: the first one of at least 40 characters."""
    lines = [line for line in rows(name)[0]["texts"]["0.8"].splitlines() if len(line) >= 40]
    line = (lines or rows(name)[0]["texts"]["0.8"].split("\n\n"))[0]
    return "`" + " ".join(line.split())[:70].replace("`", "'").replace("|", "/") + "`"


def table(*lines: tuple[str, ...]) -> str:
    """Markdown; the first line is the head."""
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|---" * len(lines[0]) + "|", *body]) + "\n"


def times(name: str) -> str:
    """Seconds of each seed."""
    return ", ".join(f"{row['seconds']:.0f}" for row in rows(name)) + " s"


def losses(name: str) -> str:
    """The last loss of each seed."""
    return ", ".join(f"{row['last']:.3f}" for row in rows(name))


def timed(titles: dict[str, str]) -> str:
    """Times and losses of commands, by their titles."""
    lines = ((title, times(name), losses(name)) for title, name in titles.items())
    return table(("command", "time", "loss"), *lines)


def results() -> str:
    return timed(
        {
            "`python train.py`, seeds 1, 2, 3": DEFAULT,
            "nanoGPT's CPU command": "nanoGPT, float32",
            "Quill until that loss, seeds 1, 2, 3": "until nanoGPT's loss, float32",
        }
    )


def bfloat16() -> str:
    return timed(
        {
            "`python train.py`, seeds 1, 2, 3": "default, bfloat16",
            "`python train.py --minutes 15 --seed 1`": "15 minutes, bfloat16",
        }
    )


SHAKESPEARE = {
    "20 kB": "20 kB",
    "60 kB": "60 kB",
    "100 kB": "100 kB",
    "300 kB": "300 kB",
    "1.1 MB": DEFAULT,
}


def started(name: str, digits: int = 3) -> str:
    """The best loss with --init_from, if there are such runs."""
    name = f"{name} from moby"
    return loss(name, "best", digits) if rows(name) else ""


def own_text() -> str:
    lines = []
    for title, name in SHAKESPEARE.items():
        timed = rows(DEFAULT if name == DEFAULT else f"{name}, float32")
        seconds = mean(row["seconds"] for row in timed)
        lines.append((title, f"{seconds:.0f} s", loss(name, "best", 2), started(name, digits=2)))
    return table(("text", "time", "loss", "with `--init_from`"), *lines)


def tries() -> str:
    lines = {
        "the recipe: 158 steps, dropout 0.4 (three seeds)": "20 kB",
        "three times the steps: `--max_iters 474`": "20 kB, long",
        "and more dropout: `--max_iters 474 --dropout 0.6`": "20 kB, long, 0.6",
        "and a smaller network: `--max_iters 474 --n_embd 64`": "20 kB, small",
        "`--init_from` a model of Moby Dick (three seeds)": "20 kB from moby",
    }
    return table(
        ("20 kB", "best", "last"),
        *(
            (title, loss(name, "best") if len(rows(name)) > 1 else best(name), loss(name))
            for title, name in lines.items()
        ),
    )


def steps() -> str:
    names = {n: f"{n} steps" for n in ("1", "30", "100", "300")} | {"1,100": DEFAULT}
    lines = ((n, loss(name)[:5], written(name)) for n, name in names.items())
    return table(("steps", "loss", "text"), *lines)


def exercises() -> str:
    lines = {
        "nothing": "gpt",
        "no attention: `0` for `self.dropout(self.attention(…))`": "gpt, no attention",
        "no feed-forward layer: `0` for `self.dropout(self.mlp(…))`": "gpt, no feed-forward layer",
        "no positions: without `+ self.position(positions_T)`": "gpt, no positions",
        "no mask: without `.masked_fill(…)`": "gpt, no mask",
        "no division by √d: without `/ math.sqrt(…)`": "gpt, no division by √d",
        "one head instead of two: `--n_head 1`": "gpt, one head",
    }
    return table(("change", "loss"), *((title, loss(name)) for title, name in lines.items()))


def ideas() -> str:
    names = ("no token shift", "no attention", "no positions", "AdamW", "cosine decay to a tenth")
    ours = mean(row["last"] for row in rows(DEFAULT))
    lines = [("none", loss(DEFAULT), "")]
    for name in names:
        worse = mean(row["last"] for row in rows(name)) - ours
        lines.append((name, loss(name), f"{worse:+.3f}"))
    return table(("change", "loss", "difference"), *lines)


def at_275(name: str) -> float:
    """The loss of seed 1 at the first evaluation from step 275 on."""
    return next(loss for step, loss in rows(name)[0]["curve"] if step >= 275)


def textbook() -> str:
    return table(
        ("loss of seed 1", "step 275", "end"),
        *(
            (title, f"{at_275(name):.3f}", f"{rows(name)[0]['last']:.3f}")
            for title, name in {
                "`python train.py --network gpt`": "gpt",
                "the network and recipe of the articles": "articles",
                "`python train.py`": DEFAULT,
            }.items()
        ),
    )


TABLES = (
    results,
    bfloat16,
    own_text,
    tries,
    steps,
    exercises,
    ideas,
    textbook,
)


def fill(document: str) -> str:
    """The document with new tables between its markers."""
    by_name = {function.__name__: function for function in TABLES}
    return re.sub(
        r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: match[1] + by_name[match[2]]() + match[3],
        document,
        flags=re.S,
    )


def draw_confidence() -> None:
    """How sure networks are of new text, with the recipe's temperature and average and without."""
    names = {"neither": "100 kB, neither", "average only": "100 kB, no temperature"}
    names |= {"temperature only": "100 kB, no average", "both (the recipe)": "100 kB"}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.4, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
        shown = [("average only", COLORS[1]), ("both (the recipe)", COLORS[3])]
        probs = [rows(names[title])[0]["example"] for title, _ in shown]
        likely = sorted(probs[0], key=probs[0].get, reverse=True)[:4]
        for i, (title, color) in enumerate(shown):
            places = [place + 0.4 * (i - 0.5) for place in range(len(likely))]
            bars = left.bar(places, [probs[i][c] for c in likely], 0.38, label=title, color=color)
            left.bar_label(bars, fmt="%.2f", fontsize=7, color=GRAY)
        left.set(title=f"after “{EXAMPLE_TEXT}”", ylabel="probability", ylim=(0, 1))
        left.set_xticks(
            range(len(likely)), [f"{c}\n(came)" if c == EXAMPLE_NEXT else c for c in likely]
        )
        left.legend(frameon=False)
        for name, run in names.items():
            bins = list(zip(*(row["confidence"] for row in rows(run)), strict=True))
            # A bin of few predictions says little
            means = [
                np.average(b, axis=0, weights=[n for *_, n in b])
                for b in bins
                if sum(n for *_, n in b) > 100
            ]
            says, right_share = zip(*((x, y) for x, y, _ in means), strict=True)
            right.plot(
                says, right_share, "o-", markersize=3, label=f"{name}: loss {loss(run, digits=2)}"
            )
        right.plot([0, 1], [0, 1], ":", color=GRAY)
        right.set(
            title="all of the validation text",
            xlabel="probability of the likeliest character",
            ylabel="how often it is right",
        )
        right.legend(frameon=False)
        figure.savefig(ROOT / "docs/temperature.svg", transparent=True, metadata=NO_DATE)


def draw() -> None:
    """The pictures of docs/guide.md and of the training temperature."""
    draw_confidence()
    curves = {}
    for title, name in {"unregularized": "Spanish, unregularized", "the recipe": "Spanish"}.items():
        curves[f"{title}: validation"] = rows(name)[0]["curve"]
        curves[f"{title}: training, mean of five batches"] = rows(name)[0]["training"]
    draw_svg(
        ROOT / "docs/overfitting.svg", "training step", "100,000 characters of Spanish", curves
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=("run", "time", "write"))
    parser.add_argument("--texts", type=Path, help="the folder of moby.txt and spanish.txt")
    parser.add_argument("--nanogpt", type=Path, help="a clone of karpathy/nanoGPT")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="run: the names that begin with this pattern")
    args = parser.parse_args()
    if args.task == "run":
        make_runs(args.texts, args.workers, args.only)
    if args.task == "time":
        make_times(args.nanogpt)
    if args.task == "write":
        for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
            document.write_text(fill(document.read_text("utf-8")), "utf-8")
        draw()


if __name__ == "__main__":
    main()
