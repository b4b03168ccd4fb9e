"""Tests of edited copies of our networks: training, sampling and the page follow the edit."""

import sys
from pathlib import Path

import pytest

import sample
import train
from model.run import checkpoint
from tests.conftest import curve
from tests.helpers import ALIBI, MASK, SCALE, WINDOW, own_equation, page_data

COPIES = {"gpt": {SCALE: ALIBI}, "quill": own_equation("scores_BHTS.sigmoid() * visible_TS")}


@pytest.mark.parametrize("network", COPIES)
def test_a_copy_trains_scores_and_resumes(network, edit_network, tiny, text_file, capsys):
    edit_network(network, COPIES[network])
    assert tiny("--network=mine --max_iters=4 --eval_interval=2 --out_dir=run") == 0
    assert train.main(["--resume", "run", "--max_iters=6"]) == 0
    assert checkpoint.load("run/last.pt").config["network"] == "mine"
    text_file.write_text(text_file.read_text()[:100])
    assert sample.main(["run", "--score", str(text_file)]) == 0
    assert sample.main(["run", "--attention", "page.html", "--num_samples=2"]) == 0
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", [{SCALE: ""}, {MASK: WINDOW}], ids=["no scaling", "a window"])
def test_an_edit_of_the_equation_changes_training_sampling_and_page(
    change, dtype, tiny, edit_network, capsys
):
    results = []
    for i, changes in enumerate(({}, change)):
        edit_network("gpt", changes)
        sys.modules.pop("model.networks.mine", None)
        flags = f"--dtype={dtype} --out_dir={i}"
        assert (
            tiny(f"--network=mine --max_iters=40 --learning_rate=0.03 --log_interval=1 {flags}")
            == 0
        )
        text_flags = ["0", "--temperature=1", f"--dtype={dtype}", "--attention=page.html"]
        capsys.readouterr()
        assert sample.main(text_flags) == 0
        text, page = capsys.readouterr().out, page_data(Path("page.html").read_text("utf-8"))
        losses = [loss for _, loss in curve(Path(str(i)), "train")]
        results.append((text, page["probe"], *losses[1:]))
    assert all(a != b for a, b in zip(*results, strict=True))
