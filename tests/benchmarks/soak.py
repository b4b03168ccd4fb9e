"""Hours of kills, flipped bits, random input and training; test_guarantees.py does it briefly.

--kills, --flips, --fuzz: how many of each; --hour: seconds of training whose memory, files and
threads are watched. 0 leaves a part out.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median_high

import numpy as np

import train
from model.networks import network_names
from model.run import checkpoint, report
from model.system.errors import UserError
from tests.benchmarks.peer import ROOT, arguments, machine
from tests.conftest import LINES, TINY
from tests.test_guarantees import FUZZ, assert_intact, flip
from tests.test_guarantees import fuzz as run_random_inputs
from tests.test_train import assert_same_run

TINY_RUN = ["--data=text.txt", *TINY]
MAX_ITERS, EVAL_INTERVAL = 800, 3
LONG = [f"--max_iters={MAX_ITERS}", f"--eval_interval={EVAL_INTERVAL}", "--log_interval=1"]
LONG += ["--dropout=0.1"]

# train.py with slower disk writes, so that kills fall inside them on any machine.
SLOW_DISK = """
import os, sys, time
fsync = os.fsync
os.fsync = lambda file: (time.sleep(0.003), fsync(file))
import train
from model.run import report
report.SAMPLE_CHARS = 6
sys.exit(train.main())
"""


def kill_and_resume(run: Path, flags: list[str], count: int, rng: random.Random) -> list[bool]:
    """Train to the end, killed so many times; returns for each kill whether it hit a save.

    Each comes at a random moment after some evaluations, which are so few that the last kill finds
    the run unfinished. Every other one waits for the start of a save.
    """
    hits, max_evaluations = [], max(1, int(MAX_ITERS / EVAL_INTERVAL / count / 1.5))
    while True:
        start_time, exists = time.time(), (run / "last.pt").exists()
        if not exists:  # a new run needs a new directory
            shutil.rmtree(run, ignore_errors=True)
        argv = ["--resume", str(run)] if exists else [*flags, "--out_dir", str(run)]
        with subprocess.Popen(
            [sys.executable, "-c", SLOW_DISK, *argv],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            if len(hits) < count:
                # The last line of the header, then evaluations
                lines = (line for line in process.stdout if line.startswith(("run ", "step ")))
                list(itertools.islice(lines, rng.randint(1, max_evaluations)))
                time.sleep(rng.uniform(0, 0.05))
                while len(hits) % 2 and not is_saving(run, start_time) and process.poll() is None:
                    pass
                process.kill()
            process.communicate()
        if process.returncode == 0:
            return hits
        assert process.returncode == -signal.SIGKILL, argv
        hits.append(is_saving(run, start_time))


def is_saving(run: Path, start_time: float) -> bool:
    """Whether part of a checkpoint has been written since that time."""
    with contextlib.suppress(FileNotFoundError):  # it has just been completed
        return any(path.stat().st_mtime > start_time for path in run.glob("*.pt.*.tmp"))
    return False


def kills(count: int) -> str:
    """Runs of up to 20 kills each, every one compared with an uninterrupted run.

    The networks in model/networks/ take turns, first with an average, then without one.
    """
    rng, hits, starts = random.Random(0), [], range(0, count, 20)
    variants = itertools.cycle(itertools.product((0.9, 0), network_names()))
    for start, (decay, network) in zip(starts, variants, strict=False):
        flags = [*TINY_RUN, *LONG, f"--network={network}", f"--ema_decay={decay}"]
        whole, run = Path(f"{network}-{decay}"), Path(f"killed{start}")
        if not whole.exists():
            assert train.main([*flags, "--out_dir", str(whole)]) == 0
        hits += kill_and_resume(run, flags, min(20, count - start), rng)
        assert_same_run(whole, run)
        assert_intact(run)
    return (
        f"{len(hits)} kills, {sum(hits)} in a save; all {len(starts)} runs equal the uninterrupted "
        "run to the last bit"
    )


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
    flags = ["--data=text.txt", "--max_iters=100000000", "--eval_interval=50"]
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
