"""The long form of tests/test_trust.py, some hours: kills, flipped bits, hostile input, an hour of training watched.

--kills, --flips, --fuzz: how many; --hour: seconds of training whose memory, files and threads are watched.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
    begin, rng = ["--data", "text.txt", *TINY, *LONG, "--max_iters", "800"], random.Random(0)
    assert train.main([*begin, "--out_dir", "whole"]) == 0
    done = inside = runs = 0
    while done < count:
        run = Path(f"killed{runs}")
        killed, saving = kill_and_resume(run, begin, min(20, count - done), rng)
        assert_same_run(Path("whole"), run)
        assert_whole(run)
        done, inside, runs = done + killed, inside + saving, runs + 1
    return f"{done} kills ({inside} inside a save) in {runs} runs: {runs}/{runs} equal to the last bit"


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
    return f"{refused}/{count} flipped bits refused"


def fuzz(count: int) -> str:
    """Hostile corpora, presets, checkpoints, prompts and flags: `attempt` raises for a traceback or another status."""
    for attempt, inputs in FUZZ.items():
        share = settings(
            max_examples=count // len(FUZZ),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=InMemoryExampleDatabase(),
        )
        share(given(inputs)(attempt))()
    return f"{count} hostile inputs: 0 tracebacks"


def hour(seconds: int) -> str:
    """Resident memory, open files and threads of a training, watched from its first fifth to its end."""
    flags = ["--data", "text.txt", "--max_iters", "100000000", "--eval_interval", "50", "--out_dir", "long"]
    command = [sys.executable, str(ROOT / "train.py"), *flags]
    process, seen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), []
    began = time.time()
    while time.time() - began < seconds and process.poll() is None:
        time.sleep(seconds / 50)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        files = len(os.listdir(f"/proc/{process.pid}/fd"))
        seen.append((pages * os.sysconf("SC_PAGE_SIZE") / 1e6, files, len(os.listdir(f"/proc/{process.pid}/task"))))
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    half, end = seen[len(seen) // 2], seen[-1]
    return (
        f"{seconds} s of training: memory {half[0]:.0f} MB at half time, {end[0]:.0f} MB at the end; "
        f"files {half[1]} and {end[1]}, threads {half[2]} and {end[2]}"
    )


def main() -> None:
    given_ = arguments(kills=100, flips=2000, fuzz=10000, hour=3600)
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        corpus.PREPARED = Path(folder, "prepared")
        Path("text.txt").write_text(LINES)
        for part in (kills, flips, fuzz, hour):
            count = int(getattr(given_, part.__name__))
            if count:
                print(part(count), flush=True)


if __name__ == "__main__":
    main()
