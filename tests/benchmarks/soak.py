"""The long form of tests/test_trust.py, some hours: kills, flipped bits, hostile input, an hour of training watched.

--kills, --flips, --fuzz: how many; --hour: seconds of training whose memory, files and threads are watched.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median_high

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis.database import InMemoryExampleDatabase

import train
from data import corpus
from model import checkpoint
from tests.benchmarks.peer import ROOT, arguments, machine
from tests.conftest import LINES, TINY
from tests.test_train import assert_same_run
from tests.test_trust import FUZZ, LONG, assert_whole, flip, kill_and_resume


def kills(count: int) -> str:
    """Runs of some 20 kills each, every one compared with the run never killed."""
    begin, rng = ["--data", "text.txt", *TINY, *LONG], random.Random(0)
    assert train.main([*begin, "--out_dir", "whole"]) == 0
    done = inside = runs = 0
    while done < count:
        run = Path(f"killed{runs}")
        killed, saving = kill_and_resume(run, begin, min(20, count - done), rng)
        assert_same_run(Path("whole"), run)
        assert_whole(run)
        done, inside, runs = done + killed, inside + saving, runs + 1
    return f"{inside} inside a save; all {runs} runs equal to the last bit to the run never killed"


def flips(count: int) -> str:
    """Bits anywhere in a checkpoint, one at a time."""
    assert train.main(["--data", "text.txt", *TINY, "--max_iters", "2", "--out_dir", "run"]) == 0
    whole, refused = Path("run/best.pt").read_bytes(), 0
    for bit in np.random.default_rng(0).integers(8 * len(whole), size=count):
        Path("x.pt").write_bytes(flip(whole, int(bit)))
        try:
            checkpoint.load("x.pt")
        except ValueError:
            refused += 1
    return f"{refused} refused"


def fuzz(count: int) -> str:
    """Hostile corpora, presets, checkpoints, prompts and flags: `attempt` raises for a traceback or another status."""
    if not Path("run").exists():
        assert (
            train.main(["--data", "text.txt", *TINY, "--max_iters", "2", "--out_dir", "run"]) == 0
        )
    for attempt, inputs in FUZZ.items():
        share = settings(
            max_examples=-(-count // len(FUZZ)),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=InMemoryExampleDatabase(),
        )
        share(given(inputs)(attempt))()
    return "0 tracebacks, 0 other statuses than 0, 1, 2"


def hour(seconds: int) -> str:
    """Resident memory, open files and threads of a training: what they reach in its first half and its second."""
    flags = [
        "--data",
        "text.txt",
        "--max_iters",
        "100000000",
        "--eval_interval",
        "50",
        "--out_dir",
        "long",
    ]
    command = [sys.executable, str(ROOT / "train.py"), *flags]
    began, seen = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while time.monotonic() - began < seconds and process.poll() is None:
                time.sleep(seconds / 200)
                own = Path(f"/proc/{process.pid}")
                pages = int((own / "statm").read_text().split()[1])
                megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
                seen.append((megabytes, len(os.listdir(own / "fd")), len(os.listdir(own / "task"))))
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
    halves = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    # At most so much memory; files and threads in the middle, as a save opens one for a moment.
    (memory, files, threads), after = (
        (max(megabytes), median_high(open_), median_high(running))
        for megabytes, open_, running in (zip(*half, strict=True) for half in halves)
    )
    assert after[0] - memory < 20 and after[1] <= files and after[2] <= threads, (
        halves,
        "it grows",
    )
    return (
        f"{checkpoint.load('long/last.pt').step:,} steps; at most {memory:.0f} MB in the first half, {after[0]:.0f} in "
        f"the second; {files} and {after[1]} files; {threads} and {after[2]} threads"
    )


def main() -> None:
    given_ = arguments(kills=100, flips=2000, fuzz=10000, hour=3600)
    print(machine(), "\n\n| what | how many | outcome |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        corpus.PREPARED = Path(folder, "prepared")
        for part in (kills, flips, fuzz, hour):
            count = int(getattr(given_, part.__name__))
            Path("text.txt").write_text(LINES)
            if count:
                with contextlib.redirect_stdout(sys.stderr):  # what the runs say is not the table's
                    outcome = part(count)
                print(f"| {part.__name__} | {count:,} | {outcome} |", flush=True)


if __name__ == "__main__":
    main()
