"""Do the commands of the documents work? python -m tests.benchmarks.commands

Each line of each shell block in README and docs/ (except the log) runs word for word in a fresh
clone with a fresh virtual environment. The files and the run that they name are made first. What
needs other machines, another program or more than a few minutes is listed and not run. Takes half
an hour.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from data.reader import tiny_shakespeare
from tests.benchmarks.peer import ROOT

LEFT_OUT = {
    r"--nnodes": "needs several machines",
    r"OUT_DIR": "needs a model of nanoGPT",
    r"^tensorboard": "serves until it is stopped",
    r"--minutes|compare|benchmarks\.soak|bash \.ci": "takes long",
    r"nanogpt\.toml": "needs a GPU",
}


def commands() -> list[tuple[str, str]]:
    """(document, command), in the order in which they are read."""
    found = {}
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        blocks = re.findall(r"```sh\n(.*?)```", document.read_text("utf-8"), re.S)
        for line in "\n".join(blocks if document.name != "experiments.md" else []).splitlines():
            command = line.partition("  #")[0].strip()
            if command and not command.startswith("#"):
                found.setdefault(command, document.name)  # a command that is named twice runs once
    return [(document, command) for command, document in found.items()]


def prepare(clone: Path) -> None:
    """The texts that the commands name."""
    text = tiny_shakespeare().read_text("utf-8")
    shutil.copy(tiny_shakespeare(), clone / "data")
    for name, chars in {"poems.txt": 20_000, "novel.txt": 100_000, "speech.txt": 2000}.items():
        (clone / name).write_text(text[:chars], "utf-8")
    (clone / "names.txt").write_text(text[:20_000], "utf-8")
    (clone / "novel.gz").write_bytes(gzip.compress(text[:20_000].encode()))


def main() -> None:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        clone, venv = Path(folder, "quill"), Path(folder, "venv")
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        prepare(clone)
        environment = os.environ | {"PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        for document, command in commands():
            reason = next((why for what, why in LEFT_OUT.items() if re.search(what, command)), "")
            if reason:
                print(f"{reason:>26}  {document:14} {command}", flush=True)
                continue
            start_time = time.perf_counter()
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=clone,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            failed += done.returncode != 0
            status = f"{time.perf_counter() - start_time:.0f} s, status {done.returncode}"
            print(f"{status:>26}  {document:14} {command}", flush=True)
            if done.returncode:
                print(done.stdout[-500:], done.stderr[-1000:])
            runs = sorted((clone / "runs").glob("2*"), key=os.path.getmtime)
            if runs and not (clone / "runs/NAME").exists():
                shutil.copytree(runs[0], clone / "runs/NAME")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
