"""Hours of kills, flipped bits, random input and training; test_guarantees.py does it briefly.

--kills, --flips, --fuzz: how many of each; --hour: seconds of training whose memory, files and
threads are watched. 0 leaves a part out.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median_high
from typing import TextIO

import numpy as np

import train
from configs.flags import UserError
from configs.recipe import TEACHER_STEPS
from model import checkpoint
from model.inspect import report
from model.network import network_names
from tests.benchmarks.peer import ROOT, arguments, machine
from tests.conftest import LINES, TINY
from tests.test_guarantees import FUZZ, assert_intact, flip
from tests.test_guarantees import fuzz as run_random_inputs
from tests.test_train import assert_same_run

TINY_RUN = ["--data=text.txt", *TINY]
MAX_ITERS, EVAL_INTERVAL = 800, 3  # a teacher makes TEACHER_STEPS * MAX_ITERS steps
LONG = [f"--max_iters={MAX_ITERS}", f"--eval_interval={EVAL_INTERVAL}", "--log_interval=1"]
LONG += ["--dropout=0.1"]

# train.py with slower disk writes, so that kills fall inside them on any machine.
SLOW_DISK = """
import os, sys, time
fsync = os.fsync
os.fsync = lambda file: (time.sleep(0.003), fsync(file))
import train
from model.inspect import report
report.SAMPLE_CHARS = 6
sys.exit(train.main())
"""


def kill_and_resume(
    run: Path, flags: list[str], targets: list[str], rng: random.Random
) -> Counter[str]:
    """Train to the end, killed once for each target; returns how many kills hit what.

    The targets are "teacher", "between" it and the run itself, and "run", in this order. Each kill
    comes at a random moment; every other one of a teacher or run waits for the start of a save.
    """
    done, hits = 0, Counter()
    while True:
        start_time, exists = time.time(), (run / "last.pt").exists()
        if not exists:  # a new run needs a new directory
            shutil.rmtree(run, ignore_errors=True)
        argv = ["--resume", str(run)] if exists else [*flags, "--out_dir", str(run)]
        with subprocess.Popen(
            [sys.executable, "-c", SLOW_DISK, *argv],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            output = ""
            if done < len(targets):
                target = targets[done]
                count = rng.randrange(max_evaluations(target, targets.count(target)))
                output = read_until(process.stdout, target, count)
                time.sleep(rng.uniform(0, 0.02 if target == "between" else 0.05))
                waits = target != "between" and done % 2
                while waits and not is_saving(run, start_time) and process.poll() is None:
                    pass
                process.kill()
            output += process.communicate()[0]
        if process.returncode == 0:
            return hits
        assert process.returncode == -signal.SIGKILL, output
        done += 1
        hits["a save"] += is_saving(run, start_time)
        hits[place(output)] += 1


def max_evaluations(target: str, kills: int) -> int:
    """So few before each of these kills that the last one finds the teacher, or run, unfinished."""
    steps = MAX_ITERS * (TEACHER_STEPS if target == "teacher" else 1)
    return max(1, int(steps / EVAL_INTERVAL / kills / 1.5))


def read_until(lines: TextIO, target: str, count: int) -> str:
    """Read until so many evaluations of the target, or until the end of the teacher."""
    output, seen = "", 0
    for line in lines:
        output += line
        if target == "between":
            if place(output) == target:
                break
        elif place(output) == target:
            seen += line.startswith(("run ", "step "))  # the header, then evaluations
            if seen > count:
                break
    return output


def place(output: str) -> str:
    """Where training has come, by what it has printed."""
    _, has_teacher, after = output.partition("/teacher\n")  # in its header
    _, is_trained, after = after.partition("\nbest    ")  # its result
    if has_teacher and not is_trained:
        return "teacher"
    return "between" if has_teacher and "\nstep " not in after else "run"


def is_saving(run: Path, start_time: float) -> bool:
    """Whether part of a checkpoint has been written since that time."""
    with contextlib.suppress(FileNotFoundError):  # it has just been completed
        return any(path.stat().st_mtime > start_time for path in run.rglob("*.pt.*.tmp"))
    return False


def kills(count: int) -> str:
    """Runs of up to 20 kills each, every one compared with an uninterrupted run.

    The networks in model/networks/ take turns, first with a teacher, then without one.
    With a teacher, half of the kills hit it, or the time between it and the run itself.
    """
    rng, networks = random.Random(0), network_names()
    hits, done, runs = Counter(), 0, 0
    while done < count:
        network = networks[runs % len(networks)]
        has_teacher = runs // len(networks) % 2 == 0
        flags = [*TINY_RUN, *LONG, f"--network={network}", *(["--teacher"] if has_teacher else [])]
        whole, run = Path(f"{network}-{has_teacher}"), Path(f"killed{runs}")
        if not whole.exists():
            assert train.main([*flags, "--out_dir", str(whole)]) == 0
        number = min(20, count - done)
        early = ["teacher"] * (number // 3) + ["between"] * (number // 2 - number // 3)
        targets = early * has_teacher
        targets += ["run"] * (number - len(targets))
        hits += kill_and_resume(run, flags, targets, rng)
        for part in (".", "teacher") if has_teacher else (".",):
            assert_same_run(whole / part, run / part)
            assert_intact(run / part)
        done, runs = done + number, runs + 1
    counts = ", ".join(
        f"{hits[name]} in {name}" for name in ("teacher", "between", "run", "a save")
    )
    return f"{counts}; all {runs} runs equal the uninterrupted run to the last bit"


def flips(count: int) -> str:
    """One flipped bit at a time, anywhere in a checkpoint."""
    assert train.main([*TINY_RUN, "--max_iters", "2", "--out_dir", "flipped"]) == 0
    content, refused = Path("flipped/best.pt").read_bytes(), 0
    for bit in np.random.default_rng(0).integers(8 * len(content), size=count):
        Path("x.pt").write_bytes(flip(content, int(bit)))
        try:
            checkpoint.load("x.pt")
        except UserError:
            refused += 1
    return f"{refused:,} refused"


def fuzz(count: int) -> str:
    """Random texts, presets, checkpoints, prompts and flags."""
    assert train.main([*TINY_RUN, "--max_iters", "2", "--out_dir", "run"]) == 0
    for name in FUZZ:
        run_random_inputs(name, examples=-(-count // len(FUZZ)))
    return "no traceback, no exit status but 0, 1, 2"


def hour(seconds: int) -> str:
    """Memory, open files and threads of a long training, in its first and second half."""
    flags = ["--data=text.txt", "--no-teacher", "--max_iters=100000000", "--eval_interval=50"]
    command = [sys.executable, str(ROOT / "train.py"), *flags, "--out_dir", "long"]
    start_time, seen = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while time.monotonic() - start_time < seconds and process.poll() is None:
                time.sleep(seconds / 200)
                proc = Path(f"/proc/{process.pid}")
                pages = int((proc / "statm").read_text().split()[1])
                megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
                files, threads = (len(os.listdir(proc / name)) for name in ("fd", "task"))
                seen.append((megabytes, files, threads))
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
    halves = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    # The maximum of memory, but the median of files and threads: a save opens a file for a moment.
    first, second = (
        (max(megabytes), median_high(files), median_high(threads))
        for megabytes, files, threads in (zip(*half, strict=True) for half in halves)
    )
    assert second[0] - first[0] < 20 and second[1] <= first[1] and second[2] <= first[2], halves
    return (
        f"{checkpoint.load('long/last.pt').step:,} steps; at most {first[0]:.0f} MB in the first "
        f"half, {second[0]:.0f} in the second; {first[1]} and {second[1]} files; "
        f"{first[2]} and {second[2]} threads"
    )


def main() -> None:
    flags = arguments(kills=100, flips=2000, fuzz=10000, hour=3600)
    print(machine(), "\n\n| what | how many | result |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("text.txt").write_text(LINES)
        report.SAMPLE_CHARS = 6  # sampling would take most of the time
        for part in (kills, flips, fuzz, hour):
            count = int(getattr(flags, part.__name__))
            if count:
                with contextlib.redirect_stdout(sys.stderr):  # the table alone is on stdout
                    result = part(count)
                print(f"| {part.__name__} | {count:,} | {result} |", flush=True)


if __name__ == "__main__":
    main()
