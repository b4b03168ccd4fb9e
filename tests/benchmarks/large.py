"""A gigabyte of ASCII and one of many scripts: prepared, opened again, read in 5,000 steps.

--size, --steps: the length of a text in bytes, and of the training.

MB/s is per second of one core outside the kernel, so without the disk; then of the wall clock. Peak
is the whole process's memory while it prepares, with PyTorch's 220 MB. The first step is counted
from the start of `python train.py` on the prepared text. Memory is what the process allocated after
a tenth of the steps and at the end, without the text's pages, which the system can drop.
"""

import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from data import prepared
from data.shakespeare import tiny_shakespeare
from tests.benchmarks.peer import ROOT, arguments, machine

PHRASES = [
    "hello world ",
    "Привет, мир ",
    "日本語のテキスト",
    "éàü ",
    "😀 ",
    "العربية ",
    "ελληνικά ",
]
PREPARE = "import sys; from tests.benchmarks import large; print(large.prepare(sys.argv[1]))"
NETWORK = ("--n_layer=1", "--n_head=1", "--n_embd=16", "--compile=off")


def write_text(path: Path, chunk: str, size: int) -> None:
    """So many bytes: `chunk`, again and again from another place."""
    with open(path, "wb") as file:
        while file.tell() < size:
            start = random.randrange(len(chunk))
            file.write((chunk[start:] + chunk[:start]).encode())


def many_scripts() -> str:
    """A million characters of about 3,000 different ones, a third of them ASCII."""
    han = [chr(0x4E00 + i) for i in range(3000)]
    phrases = [random.choice(PHRASES) for _ in range(100_000)]
    return "".join(phrase + random.choice(han) for phrase in phrases)


def prepare(path: str) -> str:
    """In a process of its own: prepare the text and report."""
    started, used = time.perf_counter(), os.times().user
    prepared.open_prepared([Path(path)], "utf-8")
    wall, used = time.perf_counter() - started, os.times().user - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    megabytes = os.path.getsize(path) / 1e6
    return f"{megabytes / used:>6.0f} {megabytes / wall:>6.0f} {peak:>6.0f}"


def train(path: Path, steps: int) -> str:
    """So many steps on the prepared text."""
    run, memory = path.with_name("run"), []
    flags = [f"--data={path}", f"--out_dir={run}", *NETWORK]
    flags += [f"--max_iters={steps}", f"--eval_interval={steps}"]
    started = time.time()
    with subprocess.Popen([sys.executable, "train.py", *flags], cwd=ROOT) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            for kilobytes in re.findall(r"RssAnon:\s+(\d+)", status):
                memory.append((time.time(), int(kilobytes) / 1000))
            time.sleep(0.1)
    if process.returncode:
        sys.exit(f"train.py ended with status {process.returncode}")
    events = EventAccumulator(str(run / "train"), size_guidance={"scalars": 0}).Reload()
    times = {event.step: event.wall_time for event in events.Scalars("loss")}
    tenth = next(at for step, at in times.items() if step >= steps / 10)
    early = next(megabytes for at, megabytes in memory if at > tenth)
    return f"{times[0] - started:>6.1f} {early:>6.0f} {memory[-1][1]:>6.0f}"


def main() -> None:
    args = arguments(size=10**9, steps=5000)
    print(machine())
    print(f"{'':>12} {'MB/s':>6} {'wall':>6} {'peak':>6} {'1st':>6} {'memory':>13}")
    random.seed(0)
    texts = {"ASCII": tiny_shakespeare().read_text(), "many scripts": many_scripts()}
    for name, chunk in texts.items():
        prepared.PREPARED.mkdir(exist_ok=True)
        before = set(prepared.PREPARED.iterdir())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "text.txt")
            write_text(path, chunk, int(args.size))
            os.sync()
            command = [sys.executable, "-c", PREPARE, str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            trained = train(path, int(args.steps))
            print(f"{name:>12} {done.stdout.strip():>20} {trained}", flush=True)
        for prepared_text in set(prepared.PREPARED.iterdir()) - before:
            prepared_text.unlink()


if __name__ == "__main__":
    main()
