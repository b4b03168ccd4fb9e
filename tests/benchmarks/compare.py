"""Does my idea help? Two networks, or two settings, trained with several seeds.

    python -m tests.benchmarks.compare mine quill [--seeds N] [--data TEXT ...] [--KEY VALUE ...]
    python -m tests.benchmarks.compare quill quill --a.learning_rate 0.014

The first network is A, the second is B. Flags of train.py go to both, --a.KEY and --b.KEY to one of
them. No run reads the validation text: it is cut off first, and the rest is split again in the same
way. Finished runs are kept in runs/compare. The same command goes on after them; it makes a run
again if something that it depends on has changed. --chart FILE.svg draws the curves.

Equal time: both are timed in turn before all runs, and A also gets as many steps as it can make in
B's time, with a schedule that ends there. The answer is about equal time.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles, stdev
from typing import Any

import torch

from configs.flags import make_config, to_dict
from configs.settings import TrainConfig
from data.corpus import Corpus, open_corpus
from model.networks import require_consistent
from model.run.checkpoint import Checkpoint
from model.run.setup import choose_settings, parse_train_command
from model.system.device import training_machine
from model.system.errors import AbortError, UserError, report_errors
from model.system.files import atomic_write, lock_run_dir
from model.system.processes import Processes
from tests.benchmarks.peer import ROOT, to_flag

FOLDER = Path("runs/compare")
TEXT = FOLDER / "text.txt"  # that all runs read
ROUNDS, ROUND_SECONDS = 7, 5.0
SAME_SPEED = 0.03  # speeds that differ by less are equal
BUSY = 0.06  # a larger difference between the quartiles of the rounds: something else is running
LOSS_PER_LN_TIME = 0.08  # nats: e times the time lowers the default run's loss by about this
FEW_STEPS = 500  # below, time is worth several times as much: 0.3 nats at 100 steps
SMALL = 0.01  # nats
# Not for the user to give: what compare decides, what ends a run early or by the clock, and weights
# that may have been trained on the text that validates here.
REFUSED = ("seed", "out_dir", "minutes", "init_from")
OF_BOTH = ("data", "encoding", "val_fraction", "val_split", "max_iters")  # not for one alone
# Quantiles of Student's t by degrees of freedom: 0.975 for the interval, 0.8 for the power.
STUDENT_T = {
    2: (4.303, 1.061), 4: (2.776, 0.941), 6: (2.447, 0.906), 8: (2.306, 0.889), 10: (2.228, 0.879),
    12: (2.179, 0.873), 14: (2.145, 0.868), 16: (2.120, 0.865), 18: (2.101, 0.862),
    20: (2.086, 0.860), 24: (2.064, 0.857), 30: (2.042, 0.854), 40: (2.021, 0.851),
    60: (2.000, 0.848), 120: (1.980, 0.845),
}  # fmt: skip


# -------------------------------------------------------------------------------------- Statistics


@dataclass(frozen=True)
class Difference:
    """The mean loss of A minus that of B, in nats, with its 95 % interval."""

    value: float
    low: float
    high: float
    deviation: float  # standard deviation of a single loss, pooled over A and B
    of_speed: float  # the part of the standard error that is that of the speeds
    seeds: int
    is_same: bool  # with every seed, A and B have the same loss


def difference(
    losses_a: list[float], losses_b: list[float], speed_error: float = 0.0
) -> Difference:
    """Compare the losses of as many seeds of A and of B.

    They are not paired: the same seed means little in two networks. `speed_error` is the standard
    error of ln(speed of A / speed of B), if A had as many steps as this ratio says.
    """
    seeds = len(losses_a)
    deviation = math.hypot(stdev(losses_a), stdev(losses_b)) / math.sqrt(2)
    of_speed = LOSS_PER_LN_TIME * speed_error
    error = math.hypot(deviation * math.sqrt(2 / seeds), of_speed)
    value, half_width = mean(losses_a) - mean(losses_b), student_t(2 * seeds - 2)[0] * error
    is_same = losses_a == losses_b
    interval = (value - half_width, value + half_width)
    return Difference(value, *interval, deviation, of_speed, seeds, is_same)


def student_t(freedom: int) -> tuple[float, float]:
    """The two quantiles of the table for at most so many degrees of freedom."""
    return STUDENT_T[max(known for known in STUDENT_T if known <= freedom)]


def seeds_needed(size: float, deviation: float) -> int:
    """How many seeds of each show a difference of this size in four of five comparisons."""
    seeds = 2
    while sum(student_t(2 * seeds - 2)) * deviation * math.sqrt(2 / seeds) > size and seeds < 1000:
        seeds += 1
    return seeds


def answer(found: Difference, a: str, b: str) -> str:
    """What the interval says, in words."""
    if found.is_same:
        return f"{a} and {b} are the same, bit for bit."
    if found.low > 0 or found.high < 0:
        return f"{a} is {'worse' if found.low > 0 else 'better'}."
    if found.low > -SMALL and found.high < SMALL:
        return f"No difference larger than {SMALL} in either direction."
    if found.of_speed > found.deviation * math.sqrt(2 / found.seeds):
        return "The speeds are too uncertain to tell. Start again with nothing else running."
    sizes = [f"{size} needs {seeds_needed(size, found.deviation)}" for size in (0.015, 0.01, 0.005)]
    return (
        f"{found.seeds} seeds do not tell. With this spread of losses (standard deviation "
        f"{found.deviation:.4f}), a difference of {', '.join(sizes)}."
    )


# -------------------------------------------------------------------------------------------- Runs


@dataclass(frozen=True)
class Variant:
    """A network with its settings."""

    name: str  # mine, or "quill, learning_rate 0.014"
    config: TrainConfig  # except the text, the seed and the directory
    surroundings: dict[str, str]  # what a loss depends on beside config, seed and source files

    @property
    def inputs(self) -> dict[str, Any]:
        """What a loss depends on, except the seed and the source files."""
        return to_dict(self.config) | self.surroundings


def make_variant(network: str, common: list[str], own: list[str], text: Corpus) -> Variant:
    """Raises UserError for flags that train.py would refuse, or that make no comparison."""
    command, own_given = parse_train_command([*common, *own]), parse_train_command(own).given
    wrong = [key for key in REFUSED if key in command.given]
    wrong += [key for key in OF_BOTH if key in own_given]
    wrong += ["resume"] if command.resume is not None else []
    if wrong:
        raise UserError(f"{wrong[0]} cannot be given here. See the first lines of compare.py.")
    values = command.given | {"network": network, "data": None, "encoding": "utf-8"}
    config = make_config(TrainConfig, values)
    machine = training_machine(config, Processes())
    if command.uses_recipe:
        chosen = choose_settings(config, Checkpoint(), text, machine)
        config = make_config(TrainConfig, chosen | values)
    require_consistent(config)
    surroundings = {"text": text.sha256, "PyTorch": torch.__version__, "device": str(machine)}
    name = ", ".join([network, *(f"{key} {value}" for key, value in own_given.items())])
    return Variant(name.replace("/", "_"), config, surroundings)


def training_part(common: list[str]) -> Corpus:
    """Write the text without its validation text to TEXT, and read that.

    Says why the part of it that validates may mislead.
    """
    config = make_config(TrainConfig, parse_train_command(common).given)
    whole = open_corpus(config)
    ids_N = whole.ids_N[: whole.train_chars]
    with atomic_write(TEXT) as file:
        file.write("".join(map(whole.tokenizer.vocab.__getitem__, ids_N.tolist())).encode())
    part = open_corpus(replace(config, data=(str(TEXT),), encoding="utf-8"))
    for sentence in part.warnings:
        print(f"warning: {sentence}")
    return part


def copy_source(folder: Path) -> None:
    """Copy what a run needs, so that edits during the comparison change nothing."""
    for path in ROOT.glob("*.py"):
        shutil.copy(path, folder)
    for part in ("model", "configs", "data"):
        ignore = shutil.ignore_patterns("*.txt*", "__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)


@contextmanager
def start(
    config: TrainConfig, out_dir: Path, source: Path, round_seconds: float = 0.0
) -> Iterator[subprocess.Popen]:
    """compare_child.py with the modules in `source`, which speaks on standard error.

    At the end its standard input is closed, and it is waited for, also after Ctrl-C: it has
    received that, too, and saves.
    """
    script = Path(__file__).with_name("compare_child.py")
    command = [sys.executable, "-P", str(script), str(round_seconds)]
    command += [to_flag(key, value) for key, value in to_dict(config).items()]
    command += ["--data", str(TEXT), "--out_dir", str(out_dir)]
    paths = filter(None, [str(source), os.environ.get("PYTHONPATH")])
    process = subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield process
    finally:
        process.communicate()


def read_lines(process: subprocess.Popen, name: str, source: Path) -> Iterator[str]:
    """The lines that a run writes to standard error.

    Passes on an error of the run: a traceback as it is, otherwise the last line. Refuses a network
    that looks ahead, since its loss would be the best of all.
    """
    text = ""
    for line in process.stderr:
        text += line
        if line.startswith("warning: ") and "looks ahead" in line:
            process.kill()
            raise UserError(f"{name}: {line.removeprefix('warning: ')}")
        yield line
    if not process.wait():
        return
    text = text.replace(str(source), str(ROOT))
    if "Traceback" in text:
        sys.stderr.write(text)
    lines = text.strip().splitlines() or [f"the run ended with status {process.returncode}."]
    error = UserError if process.returncode == 2 else AbortError
    raise error(f"{name}: {lines[-1].removeprefix('error: ')}")


def is_current(run_dir: Path, inputs: dict[str, Any], source: Path) -> bool:
    """Whether this run is finished, and made of these inputs and source files. Says if not."""
    if not (run_dir / "inputs.json").exists():
        return False
    kept = json.loads((run_dir / "inputs.json").read_text("utf-8"))
    changed = [key for key in inputs if kept.get(key) != inputs[key]]
    changed += changed_files(read_source(run_dir / "source"), source)
    if changed:
        print(f"{run_dir} is made again, since this changed: {', '.join(changed)}", flush=True)
    return not changed


def read_source(folder: Path) -> dict[str, str]:
    """The source files that a run has kept, by their paths in the repository."""
    paths = sorted(folder.rglob("*.py"))
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in paths}


def changed_files(kept: dict[str, str], source: Path) -> list[str]:
    """Those of the kept source files that are now missing or different."""
    now = read_source(source)
    return [name for name, text in kept.items() if now.get(name) != text]


def train(variant: Variant, seed: int, source: Path) -> dict[str, Any]:
    """The summary of this run. It is made if it is missing or out of date."""
    run_dir = FOLDER / variant.name / f"seed-{seed}"
    if not is_current(run_dir, variant.inputs, source):
        shutil.rmtree(run_dir, ignore_errors=True)
        with start(replace(variant.config, seed=seed), run_dir, source) as process:
            lines = dict.fromkeys(read_lines(process, variant.name, source))
        if seed == 1:
            print("".join(line for line in lines if line.startswith("warning: ")), end="")
        with atomic_write(run_dir / "inputs.json") as file:  # last: the run is finished
            file.write(json.dumps(variant.inputs, indent=2).encode())
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    print(f"{variant.name}, seed {seed}: {summary['val_loss']:.4f}", flush=True)
    return summary


# ------------------------------------------------------------------------------------------- Speed


@dataclass(frozen=True)
class Speed:
    """Steps a second of A and of B, round by round, and the settings of both."""

    rounds: list[tuple[float, float]]
    configs: tuple[TrainConfig, TrainConfig]

    def seconds(self, i: int) -> float:
        """How long a run of A (0) or B (1) takes, without evaluations."""
        return self.configs[i].max_iters / median(speeds[i] for speeds in self.rounds)

    def chars_per_second(self, i: int) -> float:
        """Of A (0) or B (1)."""
        config = self.configs[i]
        speed = median(speeds[i] for speeds in self.rounds)
        return speed * config.batch_size * config.block_size

    @property
    def ratios(self) -> list[float]:
        """The speed of A as a multiple of that of B, in each round."""
        return [a / b for a, b in self.rounds]

    @property
    def equal_time(self) -> float:
        """A makes this many times its steps in the time of B."""
        a, b = self.configs
        return median(self.ratios) * b.max_iters / a.max_iters

    @property
    def error(self) -> float:
        """The standard error of ln of the ratio."""
        return stdev(map(math.log, self.ratios)) / math.sqrt(len(self.ratios))

    @property
    def is_busy(self) -> bool:
        """Whether the rounds differ too much."""
        lower, _, upper = quantiles(self.ratios, n=4)
        return upper / lower - 1 > BUSY

    def describe(self, a: str, b: str) -> str:
        """The ratio and its range for a person."""
        ratios = self.ratios
        lines = [
            f"speed: {a} makes {median(ratios):.3f} times as many steps a second as {b} "
            f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds)"
        ]
        if self.is_busy:
            lines.append(
                "warning: the rounds differ too much. Is something else running? To measure again, "
                f"delete {FOLDER / f'{a} - {b}.json'}"
            )
        if min(config.max_iters for config in self.configs) < FEW_STEPS:
            lines.append(
                f"warning: in runs of fewer than {FEW_STEPS} steps, the interval for equal time is "
                "too narrow."
            )
        return "\n".join(lines)


def measure_speed(a: Variant, b: Variant, source: Path) -> Speed:
    """Both in turn, after a round to warm up. It is kept for a second start."""
    path, inputs = FOLDER / f"{a.name} - {b.name}.json", [a.inputs, b.inputs]
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if kept.get("inputs") != inputs or changed_files(kept["files"], source):
        seconds = 2 * (ROUNDS + 1) * ROUND_SECONDS + 10
        print(f"speed: takes {seconds:.0f} s or more. Nothing else should run now.", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            dirs = Path(folder, "a"), Path(folder, "b")
            with (
                closing(paced_run(a, dirs[0], source)) as run_a,
                closing(paced_run(b, dirs[1], source)) as run_b,
            ):
                rounds = [(next(run_a), next(run_b)) for _ in range(ROUNDS + 1)][1:]
            files = read_source(dirs[0] / "source") | read_source(dirs[1] / "source")
        kept = {"rounds": rounds, "inputs": inputs, "files": files}
        with atomic_write(path) as file:
            file.write(json.dumps(kept).encode())
    return Speed(kept["rounds"], (a.config, b.config))


def paced_run(variant: Variant, out_dir: Path, source: Path) -> Iterator[float]:
    """A training without end or evaluations. Each `next` makes a round, and is steps a second."""
    config = replace(variant.config, max_iters=10**9, eval_interval=10**9)
    with start(config, out_dir, source, ROUND_SECONDS) as process:
        lines = read_lines(process, variant.name, source)
        while True:
            with suppress(BrokenPipeError):  # the run has failed, as its last line says
                process.stdin.write("\n")
                process.stdin.flush()
            yield next(float(line.split()[-1]) for line in lines if "steps a second" in line)


# -------------------------------------------------------------------------------------------- Main


@report_errors
def main(argv: list[str]) -> None:
    """Measure the speed, make the runs, print the table."""
    args, common, own = parse(argv)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with lock_run_dir(FOLDER), tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        copy_source(source)
        text = training_part(common)
        a, b = (make_variant(args.networks[i], common, own[i], text) for i in (0, 1))
        if a.name == b.name:
            raise UserError(f"both are {a.name}. Change one of them with --a.KEY VALUE.")
        speed = measure_speed(a, b, source)
        print(speed.describe(a.name, b.name))
        variants = [a, b]
        if abs(speed.equal_time - 1) > SAME_SPEED:
            variants.append(longer(a, speed))
        seconds = args.seeds * sum(speed.seconds(min(i, 1)) for i in range(len(variants)))
        count = args.seeds * len(variants)
        minutes = seconds / 60
        print(f"runs: {count}, about {minutes:.0f} minutes; Ctrl-C stops, the same command goes on")
        print(f"      tensorboard --logdir {FOLDER}", flush=True)
        runs = [[train(v, seed, source) for v in variants] for seed in range(1, args.seeds + 1)]
    print_table(a.name, b.name, list(zip(*runs, strict=True)), speed)
    if args.chart:
        draw_chart(Path(args.chart), variants, args.seeds)


def parse(argv: list[str]) -> tuple[argparse.Namespace, list[str], tuple[list[str], list[str]]]:
    """compare's own arguments, the flags of both variants, those of A and those of B."""
    parser = argparse.ArgumentParser(
        usage="python -m tests.benchmarks.compare A B [--key value ...] [--a.key value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("networks", nargs=2, help="files in model/networks, without .py")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--chart", metavar="FILE.svg", help="needs requirements-dev.txt")
    args, words = parser.parse_known_args(argv)
    if args.seeds < 2:
        raise UserError(f"seeds is {args.seeds}. An interval needs two or more.")
    if args.chart and (not args.chart.endswith(".svg") or not Path(args.chart).parent.is_dir()):
        raise UserError(f"chart is {args.chart}. It must be an .svg file in an existing folder.")
    if any(re.match("--([ab][.])?network(=|$)", word) for word in words):
        raise UserError("the two networks stand before the flags, without --network.")
    flags = {"": [], "a": [], "b": []}
    whose = ""
    for word in words:
        if word.startswith("--"):
            whose = word[2] if word.startswith(("--a.", "--b.")) else ""
        if word.endswith(".toml"):
            flags[""].insert(0, word)  # a preset is of both
            continue
        flags[whose].append(re.sub("^--[ab][.]", "--", word))
    return args, flags[""], (flags["a"], flags["b"])


def longer(a: Variant, speed: Speed) -> Variant:
    """A with as many steps as take the time of B."""
    steps = round(a.config.max_iters * speed.equal_time)
    return replace(a, name=f"{a.name}, equal time", config=replace(a.config, max_iters=steps))


def print_table(a: str, b: str, runs: list[tuple[dict, ...]], speed: Speed) -> None:
    """Losses, speeds and the answer. `runs` are those of A, of B, and of A in B's time."""
    losses_a, losses_b, *more = [[run["val_loss"] for run in of_variant] for of_variant in runs]
    in_time = more[0] if more else losses_a
    rows = [("", "loss, equal steps", "equal time", "characters/s", "parameters")]
    for i, (name, *losses) in enumerate([(a, losses_a, in_time), (b, losses_b, losses_b)]):
        cells = [f"{mean(values):.4f} ± {stdev(values):.4f}" for values in losses]
        speed_and_size = f"{speed.chars_per_second(i):,.0f}", f"{runs[i][0]['params']:,}"
        rows.append((name, *cells, *speed_and_size))
    steps = difference(losses_a, losses_b)
    found = difference(in_time, losses_b, speed.error)
    interval = f"{found.value:+.4f}, 95 % interval {found.low:+.3f} to {found.high:+.3f}"
    rows.append((f"{a} - {b}", f"{steps.value:+.4f}", interval, "", ""))
    first = max(len(row[0]) for row in rows)
    print()
    for name, loss, timed, *others in rows:
        end = f"{others[0]:14}{others[1]}"
        print(f"{name:{first}}  {loss:20}{timed:18}{end}".rstrip())
    notes = "lower is better; ± standard deviation; held-out part of the training text"
    print(f"{answer(found, a, b)} ({found.seeds} seeds of each; {notes}.)")


def draw_chart(path: Path, variants: list[Variant], seeds: int) -> None:
    """The validation loss of each variant over the steps, mean of all seeds."""
    from tests.benchmarks.chart import draw_svg, read_losses

    curves = {}
    for variant in variants:
        dirs = [FOLDER / variant.name / f"seed-{seed}/val" for seed in range(1, seeds + 1)]
        points = zip(*map(read_losses, dirs), strict=True)
        curves[variant.name] = [
            (of_seeds[0][0], mean(y for _, y in of_seeds)) for of_seeds in points
        ]
    draw_svg(path, "training step", f"Validation loss, mean of {seeds} seeds", curves)


if __name__ == "__main__":
    sys.exit(main())
