"""What several tests share: an empty working folder, a small text, a training run in miniature."""

import json
from pathlib import Path

import hypothesis
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import train
from data import corpus

hypothesis.settings.register_profile(
    "quill", deadline=None
)  # a machine may be busy: no test is timed
hypothesis.settings.load_profile("quill")

LINES = "".join(
    f"{who}:\nThe {what} is {how} - and so am I.\n\n"
    for who in ("KATE", "PETER", "ANNE", "TOM")
    for what in ("moon", "king", "rose", "sea", "crown")
    for how in ("pale", "old", "far", "deep", "mine")
)
TINY = "--n_layer 2 --n_head 2 --n_embd 16 --block_size 16 --batch_size 4 --device cpu --compile off".split()  # noqa: SIM905


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """Every test runs in a folder of its own and prepares its texts there."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(corpus, "PREPARED", folder / "prepared")
    return folder


@pytest.fixture
def text_file(elsewhere) -> Path:
    path = elsewhere / "text.txt"
    path.write_text(LINES, "utf-8")
    return path


@pytest.fixture
def tiny(text_file):
    """Train in miniature: tiny("--max_iters", "20") gives the exit status."""

    def run(*flags: str) -> int:
        return train.main(["--data", str(text_file), *TINY, *flags])

    return run


def curve(run_dir: Path, split: str, tag: str = "loss") -> list[tuple[int, float]]:
    """The points TensorBoard shows, in the order it has them."""
    events = EventAccumulator(str(run_dir / split), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def summary(run_dir: Path) -> dict:
    return json.loads((run_dir / "summary.json").read_text("utf-8"))
