"""Makes tables of README and docs again: python -m tests.benchmarks.tables TABLE [FILES]

    first_loss            a number in README, which .ci/run compares
    readme NANOGPT        README, and recipe.md, "Results"
    losses                guide.md, "What a loss looks like"
    own_text MOBY RUSSIAN guide.md, "Your own text" and "Overfitting"
    textbook, changes     recipe.md, "Against the textbook"
    exercises             learn.md, "Exercises"

NANOGPT is a clone of karpathy/nanoGPT, whose prepare.py needs `pip install requests`. MOBY and
RUSSIAN are texts (Moby Dick, and War and Peace in Russian). For times, nothing else should run
meanwhile. A CPU that has more than AVX2 uses only AVX2 with the variables
ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

from data.reader import read_text, tiny_shakespeare

ROOT = Path(__file__).parents[2]
SEEDS = ("1", "2", "3")
ONE_SEED = {"losses": ("1337",), "textbook": ("1",)}  # the default seed is 1337
# This command is in nanoGPT's README, under "I only have a macbook".
CPU_COMMAND = "train.py config/train_shakespeare_char.py --device=cpu --compile=False"
CPU_COMMAND += " --eval_iters=20 --log_interval=1 --block_size=64 --batch_size=12 --n_layer=4"
CPU_COMMAND += " --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000 --dropout=0.0"

EVALUATE = """
import numpy, torch
from model import GPT, GPTConfig
saved = torch.load("out-shakespeare-char/ckpt.pt", weights_only=True)
model = GPT(GPTConfig(**saved["model_args"])).eval()
model.load_state_dict(saved["model"])
ids = torch.from_numpy(numpy.fromfile("data/shakespeare_char/val.bin", "uint16").astype("int64"))
nats = 0.0
with torch.no_grad():
    for start in range(0, len(ids) - 1, 64):
        y = ids[start + 1 : start + 65]
        nats += model(ids[None, start : start + len(y)], y[None])[1].item() * len(y)
print(nats / (len(ids) - 1))
"""

QUILL, GPT, OPTIM = "model/networks/quill.py", "model/networks/gpt.py", "model/optim.py"
SHIFT, ROTATE = "        B, _, C = x_BTC.shape\n", "    cos_TD, sin_TD = cos_TD.to"
TABLE = "        self.position = nn.Embedding(config.block_size, config.n_embd)\n"
EMBEDDING, READ = "        self.embedding = nn.Embedding(", "self.embedding(ids_BT)"
# Edits of the code: in which file, what is replaced (it occurs once), and what replaces it.
EDITS = {
    "no token shift": [(QUILL, SHIFT, "        return x_BTC\n" + SHIFT)],
    "no attention": [(QUILL, "self.attention(h_BTC, cos_TD, sin_TD, cache)", "0 * x_BTC")],
    "no positions": [(QUILL, ROTATE, "    return x_BHTD\n" + ROTATE)],
    "position table": [
        (QUILL, ROTATE, "    return x_BHTD\n" + ROTATE),
        (QUILL, EMBEDDING, TABLE + EMBEDDING),
        (QUILL, READ, READ + " + self.position.weight[torch.arange(ids_BT.size(1)) % 256]"),
    ],
    "Muon for all matrices": [(OPTIM, 'name.startswith("blocks.")', "True")],
    "gpt, no attention": [(GPT, "self.attention(self.norm_1(x_BTC))", "0 * x_BTC")],
    "gpt, no feed-forward layer": [(GPT, "self.mlp(self.norm_2(x_BTC))", "0 * x_BTC")],
    "gpt, no positions": [(GPT, " + self.position(positions_T)", "")],
    "gpt, no mask": [(GPT, ".masked_fill(is_later_TT, -torch.inf)", "")],
    "gpt, no division": [(GPT, " / math.sqrt(q_BHTD.size(-1))", "")],
    "gpt, no adding": [(GPT, "= x_BTC + self.d", "= self.d"), (GPT, "return x_BTC + ", "return ")],
}
ARTICLES = "--network gpt --n_layer 4 --n_head 4 --optimizer adamw --weight_decay 0.1 --min_lr 3e-4"
ARTICLES += " --warmup_iters 100 --learning_rate 3e-3 --max_iters 1100"
TEXTS = ("20000", "40000", "60000", "100000", "russian")
# A row is train.py's flags, and after a # the edits.
TABLES = {
    "losses": ["--max_iters 1", "--max_iters 100", "", "--minutes 10"],
    "own_text": [f"--data {x}.txt" for x in TEXTS]
    + [f"--data {x}.txt --init_from ../moby" for x in TEXTS]
    + ["--data 20000.txt --max_iters 474"],
    "textbook": [f"{x} --eval_interval 275" for x in (ARTICLES, "--network gpt", "")],
    "changes": [
        "",
        *(f"# {name}" for name in EDITS if "gpt" not in name),
        "--optimizer adamw",
        "--min_lr 7e-4",
        "--n_head 4",
        "--n_layer 4 --n_embd 192 --max_iters 290",  # in about the time of a default run
    ],
    "exercises": ["--network gpt", "--network gpt --n_head 1"]
    + [f"--network gpt # {name}" for name in EDITS if "gpt" in name],
}


def make_row(row: str, seeds: tuple[str, ...], texts: dict[str, str], work: Path) -> None:
    """Train with each seed in a copy of Quill. Print a line with all that a table may need."""
    flags, _, edits = row.partition("#")
    copy, left_out = Path(tempfile.mkdtemp(dir=work)), (".git", ".venv", "runs")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True)
    for name, text in texts.items():
        (copy / name).write_text(text, "utf-8")
    for file, old, new in EDITS.get(edits.strip(), []):
        code = (copy / file).read_text("utf-8")
        assert code.count(old) == 1, old
        (copy / file).write_text(code.replace(old, new), "utf-8")
    seconds, runs = [], []
    for seed in seeds:
        start_time = time.perf_counter()
        command = ["train.py", *flags.split(), "--seed", seed, "--out_dir", seed]
        output = python(*command, folder=copy)
        seconds.append(time.perf_counter() - start_time)
        runs.append(json.loads((copy / seed / "summary.json").read_text("utf-8")))
    last, best = ([run[key] for run in runs] for key in ("val_loss", "best_val_loss"))
    spread = stdev if len(runs) > 1 else (lambda _: math.nan)
    sample = python("sample.py", seed, "--max_new_tokens", "200", folder=copy)
    line = next((line for line in sample.splitlines() if len(line) >= 40), "")
    print(
        f"{row or 'default'}: loss {mean(last):.3f} ± {spread(last):.3f}, "
        f"best {mean(best):.3f} ± {spread(best):.3f} at {[run['best_step'] for run in runs]}, "
        f"a guess among {math.exp(mean(last)):.1f}, {mean(seconds):.0f} s, "
        f"seed {seed} in time {re.findall('step.* val loss ([0-9.]+)', output)}, `{line}`",
        flush=True,
    )


def python(*arguments: str, folder: Path) -> str:
    """Run Python in a folder. Return what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, encoding="utf-8")
    return done.stdout


def evaluations(*flags: str) -> Iterator[tuple[float, int, float]]:
    """Yield the seconds, the step and the loss at each evaluation of a run, and at its end.

    The run stops when the caller stops asking.
    """
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "train.py", *flags, "--out_dir", f"{out}/run"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stdout:
                    if match := re.match(r"step +(\d+).* val loss ([\d.]+)", line):
                        step, loss = int(match[1]), float(match[2])
                        yield time.perf_counter() - start_time, step, loss
                assert process.wait() == 0
                yield time.perf_counter() - start_time, step, loss
            finally:
                process.terminate()


def first_loss() -> None:
    """Compare the loss of the default run after 138 steps with the loss in README."""
    loss = next(loss for _, step, loss in evaluations() if step == 138)
    print(f"default run, step 138: val loss {loss:.4f}")
    if abs(loss - 1.797) > 0.004:  # bfloat16 and float32 differ by 0.0001
        sys.exit("error: it should be 1.797. If the change is intended, make all tables again.")


def readme(nanogpt: str, work: Path) -> None:
    """Measure nanoGPT's CPU command, Quill until it has nanoGPT's loss, and the default run."""
    copy = Path(shutil.copytree(nanogpt, work / "nanogpt"))
    data = copy / "data/shakespeare_char"
    shutil.copy(tiny_shakespeare(), data / "input.txt")
    python("prepare.py", folder=data)
    start_time = time.perf_counter()
    python(*CPU_COMMAND.split(), folder=copy)
    seconds = time.perf_counter() - start_time
    target = float(python("-c", EVALUATE, folder=copy).split()[-1])
    print(f"nanoGPT's CPU command: {seconds:.0f} s, {target:.3f}", flush=True)
    for seed in SEEDS:
        often = evaluations("--seed", seed, "--eval_interval", "25")
        until = next(row for row in often if row[2] <= target)
        often.close()
        (*_, whole) = evaluations("--seed", seed)
        for name, (seconds, _, loss) in {"until that loss": until, "default run": whole}.items():
            print(f"{name}, seed {seed}: {seconds:.0f} s, {loss:.3f}", flush=True)


def main(table: str = "", *files: str) -> None:
    """Make a table. All tables are of CPUs."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as name:
        work, texts = Path(name), {}
        if table == "first_loss":
            return first_loss()
        if table == "readme":
            return readme(*files, work)
        if table == "own_text":
            moby, russian = files
            flags = ["--data", moby, "--seed", "1", "--out_dir", f"{work}/moby"]
            python("train.py", *flags, folder=ROOT)
            shakespeare = tiny_shakespeare().read_text("utf-8")
            texts = {f"{n}.txt": shakespeare[: int(n)] for n in TEXTS[:-1]}
            texts["russian.txt"] = read_text(Path(russian), "utf-8")[:100_000]
        if table not in TABLES:
            sys.exit(__doc__)
        for row in TABLES[table]:
            make_row(row, ONE_SEED.get(table, SEEDS), texts, work)


if __name__ == "__main__":
    main(*sys.argv[1:])
