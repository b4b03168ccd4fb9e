"""Tests of edited networks: training, sampling and the attention page follow the edit."""

import shutil
from pathlib import Path

import pytest

import sample
import train
from model import networks
from model.networks import gpt
from model.run import checkpoint
from tests.helpers import curve, gpt_attention, page_data, window

EDITS = {
    "gpt": "Attention.forward = helpers.gpt_attention(helpers.alibi)",
    "quill": "Attention.attend = helpers.quill_attention(helpers.gate)",
}


@pytest.mark.parametrize("network", EDITS)
def test_a_copy_trains_scores_and_resumes(network, tiny, text_file, monkeypatch, tmp_path, capsys):
    """Networks are files, so a user copies a file and edits the copy."""
    shutil.copytree(networks.FOLDER, tmp_path, dirs_exist_ok=True)
    code = Path(tmp_path, f"{network}.py").read_text()
    edit = f"\n\nfrom tests import helpers\n\n{EDITS[network]}\n"
    Path(tmp_path, f"my_{network}.py").write_text(code + edit)
    monkeypatch.setattr(networks, "FOLDER", tmp_path)
    monkeypatch.setattr(networks, "__path__", [str(tmp_path)])
    assert tiny(f"--network=my_{network} --max_iters=4 --eval_interval=2 --out_dir=run") == 0
    assert train.main(["--resume", "run", "--max_iters=6"]) == 0
    assert checkpoint.load("run/last.pt").config["network"] == f"my_{network}"
    text_file.write_text(text_file.read_text()[:100])
    assert sample.main(["run", "--score", str(text_file)]) == 0
    assert sample.main(["run", "--attention", "page.html", "--num_samples=2"]) == 0
    output = capsys.readouterr()
    assert "warning: the network" not in output.out and "warning" not in output.err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "equation",
    [lambda q, k, mask_TT: (q @ k.mT + mask_TT).softmax(-1), window],
    ids=["no scaling", "a window"],
)
def test_an_edit_of_the_equation_changes_training_sampling_and_page(
    equation, dtype, tiny, monkeypatch, capsys
):
    results = []
    for run in ("before", "after"):
        if run == "after":
            monkeypatch.setattr(gpt.Attention, "forward", gpt_attention(equation))
        flags = f"--network=gpt --max_iters=40 --learning_rate=0.03 --dtype={dtype}"
        assert tiny(f"{flags} --log_interval=1 --out_dir={run}") == 0
        capsys.readouterr()
        text_flags = ["--temperature=1", f"--dtype={dtype}", "--attention=page.html"]
        assert sample.main(["before", *text_flags]) == 0
        text, page = capsys.readouterr().out, page_data(Path("page.html").read_text("utf-8"))
        losses = [loss for _, loss in curve(Path(run), "train")]
        results.append((text, page["probe"], *losses[1:]))
    assert all(a != b for a, b in zip(*results, strict=True))
