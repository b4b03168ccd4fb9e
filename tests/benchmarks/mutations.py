"""Small faults, planted one after the other: does the suite find each of them?

    python -m tests.benchmarks.mutations

It works in a copy of the newest commit, and takes about a minute and a half for each. The list was
written before tests were deleted, so that as many are found afterwards.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.peer import ROOT

FAULTS = (  # file, what stands there, what takes its place
    ("train.py", "seed_all(config.seed, step, processes.rank)", "seed_all(config.seed, step)"),
    ("train.py", "scaler.scale(loss / parts)", "scaler.scale(loss)"),
    ("train.py", "config.grad_clip or math.inf", "math.inf"),
    ("sample.py", "seed=config.seed + turn", "seed=config.seed"),
    ("configs/recipe.py", "learning_rate = max(1e-2 if", "learning_rate = max(2e-2 if"),
    ("configs/recipe.py", "MAX_EPOCHS = 24", "MAX_EPOCHS = 30"),
    ("configs/settings.py", '"[0, 1e30]"] = 7e-3', '"[0, 1e30]"] = 1.4e-3'),
    ("configs/flags.py", "            if value == []:", "            if False:"),
    ("data/corpus.py", "rng.integers(length - count * block_size)", "0"),
    ("data/corpus.py", "(1 - val_fraction)", "(1 - val_fraction / 2)"),
    ("data/check.py", "if share > MAX_LINES_FOUND", "if share > 2"),
    ("model/attention.py", "tril(S - T - window)", "tril(S - T - window - 1)"),
    ("model/attention.py", "triu(S - T + 1)", "triu(S - T + 2)"),
    ("model/networks/gpt.py", " / math.sqrt(q_BHTD.size(-1))", ""),
    ("model/networks/gpt.py", ".triu(1)", ".triu(2)"),
    ("model/networks/quill.py", "rotation_angles(0, T", "rotation_angles(1, T"),
    ("model/loss.py", "logits_BTV = logits_BTV / temperature", "logits_BTV = logits_BTV / 1"),
    ("model/optim.py", '1 - group["lr"] * group["weight_decay"]', "1.0"),
    ("model/optim.py", "decay = min(decay, (step + 1) / (step + 5))", "pass"),
    ("model/optim.py", "warmup = (step + 1) / (config.warmup_iters + 1)", "warmup = 1.0"),
    ("model/generate.py", "[config.seed, i]", "[config.seed, 0]"),
    ("model/generate.py", "new_BT.split(block_size, dim=1)", "new_BT.split(10**9, dim=1)"),
    (
        "model/trained.py",
        "self.batches(ids_N), self.machine",
        "self.batches(ids_N[1:]), self.machine",
    ),
    ("model/run/run.py", "self.logger.flush()", "pass"),
    ("model/run/run.py", "step != self.state.val_step and", "True and"),
    ("model/run/run.py", '("best.pt", "last.pt") if is_best', '("last.pt", "best.pt") if is_best'),
    ("model/run/run.py", "max(self.progress, progress)", "progress"),
    ("model/run/checkpoint.py", "if names != ", "if False and names != "),
    ("model/run/setup.py", "if max_iters < saved.step:", "if False:"),
    ("model/run/setup.py", "absolute_path(path) for path", "path for path"),
    ("model/run/logger.py", "state.step + (state.val_step == state.step)", "state.step"),
    ("model/run/report.py", "state.val_loss > best + 0.01", "False"),
    ("model/system/files.py", "if error.errno not in NO_FSYNC:", "if False:"),
    ("model/system/device.py", "torch.set_deterministic_debug_mode(before)", "pass"),
    ("model/system/processes.py", "dist.broadcast(buffer, 0)", "pass"),
    ("model/inspect/page.js", "start + net.rows", "start + net.rows + 1"),
    ("model/inspect/trace.py", "x.storage_offset()", "0"),
)


def main() -> None:
    """Print which faults the suite finds."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
        for name, old, new in FAULTS:
            path = Path(folder, name)
            source = path.read_text("utf-8")
            assert old in source, (name, old)
            path.write_text(source.replace(old, new, 1), "utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-x"]
            env = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
            print("found " if done.returncode else "MISSED", name, old, "->", new, flush=True)
            path.write_text(source, "utf-8")


if __name__ == "__main__":
    main()
