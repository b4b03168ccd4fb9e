"""The pictures, and what tables.py measures of a run's predictions."""

import re

import pytest

from tests.benchmarks import pictures
from tests.benchmarks.tables import predictions
from tests.conftest import ROOT, summary


def test_pictures_without_a_run_are_those_of_the_documents(tmp_path):
    pictures.main([str(tmp_path)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["block.svg", "muon_small.svg", "rope.svg", "shift.svg"]
    for name in names:  # compare the words: another matplotlib may place them elsewhere
        drawn, stored = (
            re.findall(r"<text[^>]*>([^<]*)", (folder / name).read_text("utf-8"))
            for folder in (tmp_path, ROOT / "docs")
        )
        assert drawn == stored, "python -m tests.benchmarks.pictures docs"
        assert len(drawn) > 5


def test_predictions_are_those_of_the_whole_validation_text(trained_run, text_file, monkeypatch):
    (trained_run.parent / "text.txt").write_text(text_file.read_text("utf-8"), "utf-8")
    measured = predictions(trained_run)
    assert sum(n for *_, n in measured["confidence"]) == summary(trained_run)["val_chars"] - 1
    assert sum(measured["example"].values()) == pytest.approx(1, abs=1e-2)
