"""Does my idea help? Compare two networks, or two settings, over several seeds.

    python -m tests.benchmarks.compare mine quill [--seeds N] [--data TEXT ...] [--KEY VALUE ...]
    python -m tests.benchmarks.compare quill quill --a.learning_rate 0.014

The first network is A, the second is B. Flags of train.py go to both, --a.KEY and --b.KEY to one of
them. Runs of A and B take turns. Nothing else should run meanwhile. No run reads the validation
text: compare cuts the validation text off first, and splits the rest again in the same way. compare
refuses a network whose loss means nothing (model/check.py).

The answer is about equal time. If the speeds differ by more than 3 %, A is trained again, with as
many steps as A can make in B's time.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from configs.errors import UserError
from configs.flags import make_config
from configs.settings import DataConfig, TrainConfig
from data.corpus import open_corpus
from model.check import find_mistake
from model.networks import make_network
from model.run.setup import parse_train_command
from model.system.console import report_errors

ROOT = Path(__file__).parents[2]
SAME_SPEED = 0.03  # a smaller difference between speeds is ignored
# compare chooses the network, the seed and the folder itself. A run with --minutes depends on the
# clock. The weights of --init_from may have been trained on the text that validates here.
REFUSED = {"network", "seed", "out_dir", "minutes", "init_from"}
# The 0.975 quantile of Student's t, by degrees of freedom
STUDENT_T = {2: 4.303, 4: 2.776, 6: 2.447, 8: 2.306, 10: 2.228, 14: 2.145, 18: 2.101, 38: 2.024}


def difference(
    losses_a: list[float], losses_b: list[float], time_error: float = 0.0
) -> tuple[float, float, float]:
    """Return the mean loss of A minus the mean loss of B, in nats, and the 95 % interval.

    Losses are not paired by seed, because the same seed means little in two networks. `time_error`
    is the standard error, in nats, that comes from uncertain speeds.
    """
    seeds = len(losses_a)
    deviation = math.hypot(stdev(losses_a), stdev(losses_b)) / math.sqrt(2)
    error = math.hypot(deviation * math.sqrt(2 / seeds), time_error)
    t = STUDENT_T[max(known for known in STUDENT_T if known <= 2 * seeds - 2)]
    value = mean(losses_a) - mean(losses_b)
    return value, value - t * error, value + t * error


def answer(low: float, high: float, a: str) -> str:
    """Say in a sentence what the interval means."""
    if low > 0 or high < 0:
        return f"{a} is {'worse' if low > 0 else 'better'}."
    return f"No difference is shown. A difference larger than {max(-low, high):.3f} is unlikely."


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[list[str]]]:
    """Return compare's own arguments, and lists of flags for train.py: A's, B's and the text's."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("networks", nargs=2, help="names of files in model/networks, without .py")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each network (default 3)")
    args, words = parser.parse_known_args(argv)
    if args.seeds < 2:
        raise UserError(f"seeds is {args.seeds}. An interval needs two or more seeds.")
    flags: list[list[str]] = [[], [], []]
    owners = [0, 1]
    for word in words:
        if word.startswith("--"):
            owners = {"--a.": [0], "--b.": [1]}.get(word[:4], [0, 1])
            owners = [2] if re.match("--(data|encoding)(=|$)", word) else owners
        for owner in [0, 1] if word.endswith(".toml") else owners:  # a preset is for both
            flags[owner].append(re.sub("^--[ab][.]", "--", word))
    given = [parse_train_command(words) for words in flags]
    if wrong := sorted(REFUSED & {*given[0], *given[1]}):
        raise UserError(f"{wrong[0]} cannot be given here. Leave it out.")
    if make_config(DataConfig, given[0]) != make_config(DataConfig, given[1]):
        raise UserError("A and B need the same text, split alike. Give both the same flags.")
    for i, network in enumerate(args.networks):
        flags[i] += ["--network", network]
        model = make_network(make_config(TrainConfig, given[i] | {"network": network}), 65)
        if mistake := find_mistake(model):
            raise UserError(f"the network {network} {mistake}")
    return args, flags


def train(flags: list[str], text: Path, seed: int, out_dir: Path) -> dict[str, Any]:
    """Make a run. Return its summary, with the seconds of its steps. An error ends the program."""
    # A run measures its speed between evaluations. Without any, it measures the speed of all steps.
    command = [sys.executable, ROOT / "train.py", "--eval_interval", str(10**9)]
    command += [*flags, "--data", text, "--encoding", "utf-8"]
    command += ["--seed", str(seed), "--out_dir", out_dir]
    if status := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        sys.exit(status)
    run = json.loads((out_dir / "summary.json").read_text("utf-8"))
    config = tomllib.loads((out_dir / "config.toml").read_text("utf-8"))
    chars = run["step"] * config["batch_size"] * config["block_size"]
    print(f"{out_dir}: {run['val_loss']:.4f}", flush=True)
    return run | {"step_seconds": chars / run["chars_per_second"]}


def print_table(a: str, b: str, runs: list[list[dict]]) -> None:
    """Print losses, speeds and the answer. `runs` has the runs of A, of B, and of A in B's time."""
    losses = [[run["val_loss"] for run in of_variant] for of_variant in runs]
    in_time = losses[2] if len(losses) > 2 else losses[0]
    pairs = zip(runs[0], runs[1], strict=True)
    logs = [math.log(x["step_seconds"] / y["step_seconds"]) for x, y in pairs]
    steps, *_ = difference(losses[0], losses[1])
    # The runs of A in B's time show how the loss of A depends on ln(time).
    slope = (mean(in_time) - mean(losses[0])) / mean(logs) if len(losses) > 2 else 0.0
    time_error = slope * stdev(logs) / math.sqrt(len(logs))
    value, low, high = difference(in_time, losses[1], time_error)
    rows = [("", "loss, equal steps", "equal time", "characters/s", "parameters")]
    for i, (name, *both) in enumerate([(a, losses[0], in_time), (b, losses[1], losses[1])]):
        cells = [f"{mean(values):.4f} ± {stdev(values):.4f}" for values in both]
        speed = mean(run["chars_per_second"] for run in runs[i])
        rows.append((name, *cells, f"{speed:,.0f}", f"{runs[i][0]['params']:,}"))
    interval = f"{value:+.4f}, 95 % interval {low:+.3f} to {high:+.3f}"
    rows.append((f"{a} - {b}", f"{steps:+.4f}", interval, "", ""))
    first = max(len(row[0]) for row in rows)
    for name, loss, timed, speed, size in rows:
        print(f"{name:{first}}  {loss:20}{timed:18}{speed:14}{size}".rstrip())
    print(answer(low, high, a))


@report_errors
def main(argv: list[str]) -> None:
    """Make the runs in turn. Print the table."""
    args, flags = parse(argv)
    folder = Path("runs/compare", time.strftime("%Y%m%d-%H%M%S"))
    folder.mkdir(parents=True)
    text = folder / "text.txt"
    corpus = open_corpus(make_config(TrainConfig, parse_train_command([*flags[0], *flags[2]])))
    text.write_text(corpus.tokenizer.decode(corpus.ids_N[: corpus.train_chars]), "utf-8")
    a, b = args.networks
    names = [a, b] if a != b else [f"{a} (A)", f"{b} (B)"]
    runs: list[list[dict]] = [[], []]
    seeds = range(1, args.seeds + 1)
    for i in (0, 1):  # one step of each network shows whether all settings are right
        train([*flags[i], "--max_iters", "1"], text, 0, folder / f"{'ab'[i]}, one step")
    for seed in seeds:
        for i in (0, 1):
            runs[i].append(train(flags[i], text, seed, folder / f"{'ab'[i]}-{seed}"))
    seconds = [mean(run["step_seconds"] for run in of_variant) for of_variant in runs]
    if abs(math.log(seconds[1] / seconds[0])) > SAME_SPEED:
        steps = max(1, round(runs[0][0]["step"] * seconds[1] / seconds[0]))
        longer = [*flags[0], "--max_iters", str(steps)]
        runs.append([train(longer, text, s, folder / f"a-{s}, {steps} steps") for s in seeds])
    print_table(*names, runs)


if __name__ == "__main__":
    sys.exit(main())
