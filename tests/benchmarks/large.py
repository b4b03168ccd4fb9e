"""A gigabyte of ASCII and one of many scripts: reading the text, and the start of a training.

--size: the length of a text in bytes.

Reading, in a process of its own: MB per second of one core outside the kernel, so without the disk;
MB per second of the wall clock; the peak memory in MB of the whole process, with PyTorch's 220 MB.
Training: seconds from the start of `python train.py` to the first step, and the peak memory in MB.
"""

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.settings import DataConfig
from data.corpus import open_corpus
from data.reader import tiny_shakespeare
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
READ = "import sys; from tests.benchmarks import large; print(large.read(sys.argv[1]))"
FLAGS = ("--n_layer=1", "--n_head=1", "--n_embd=16", "--compile=off", "--max_iters=10")
FLAGS += ("--eval_interval=10", "--ema_decay=0")


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


def read(path: str) -> str:
    """In a process of its own: read the text and report."""
    start_time, start_user = time.perf_counter(), os.times().user
    open_corpus(DataConfig((path,)))
    wall, user = time.perf_counter() - start_time, os.times().user - start_user
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    megabytes = os.path.getsize(path) / 1e6
    return f"{megabytes / user:>6.0f} {megabytes / wall:>6.0f} {peak:>6.0f}"


def train(path: Path) -> str:
    """Ten steps on the text, and one evaluation."""
    run = path.with_name("run")
    command = [sys.executable, "train.py", f"--data={path}", f"--out_dir={run}", *FLAGS]
    start_time = time.time()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"train.py ended with status {status}")
    events = EventAccumulator(str(run / "train"), size_guidance={"scalars": 0}).Reload()
    first_step = events.Scalars("loss")[0].wall_time - start_time
    return f"{first_step:>6.1f} {usage.ru_maxrss / 1000:>6.0f}"


def main() -> None:
    args = arguments(size=10**9)
    print(machine())
    print(f"{'':>12} {'MB/s':>6} {'wall':>6} {'peak':>6} {'1st':>6} {'peak':>6}")
    random.seed(0)
    texts = {"ASCII": tiny_shakespeare().read_text(), "many scripts": many_scripts()}
    for name, chunk in texts.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "text.txt")
            write_text(path, chunk, int(args.size))
            os.sync()
            command = [sys.executable, "-c", READ, str(path)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            print(f"{name:>12} {done.stdout.strip():>20} {train(path)}", flush=True)


if __name__ == "__main__":
    main()
