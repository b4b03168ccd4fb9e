"""Tests of the digest of source code: it follows what is computed, and nothing else."""

import sys

import pytest

from model.run import source

CODE = '''"""What is computed."""
import torch

class Config:
    """Settings."""
    limit: int = 4

class Net:
    """A network."""
    def forward(self, x: int, flag=False) -> int:
        """One step."""
        return helper(x, 'size') ** 2

def helper(x, name):
    return f"{x!r:>{2}} {name}" + "\\n" + x
'''
SAME = [
    ("** 2", "** 2  # comment"),
    ("A network.", "The network."),
    ('        """One step."""\n', ""),
    ("helper(x, 'size') ** 2", '(\n            helper( x, "size", ) ** 2)'),
]
DIFFERENT = [
    ("** 2", "* 2"),
    ("flag=False", "flag=True"),
    ("limit: int = 4", "limit: int = 5"),
    ("    def forward", "    @torch.no_grad()\n    def forward"),
    ("class Net", "class Net(torch.nn.Module)"),
    ("def helper", "Net.forward = print\ndef helper"),
    ("import torch\n", "import torch\nimport patches\n"),
    ("= 4\n", '= setattr(torch, "tanh", torch.sin)\n'),
    ("{2}", "{3}"),
]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [(*edit, False) for edit in SAME] + [(*edit, True) for edit in DIFFERENT],
)
def test_an_edit_changes_the_digest_if_it_may_change_a_result(
    monkeypatch, tmp_path, before, after, changes
):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(source, "notes", [])
    path = tmp_path / "network_of_test.py"
    path.write_text(CODE)
    monkeypatch.setattr(source, "PROVEN", {path.stem: source.source_digest(path.stem)})
    is_proven = source.is_proven.__wrapped__  # not cached
    assert is_proven(path.stem, note="slow")
    assert CODE.count(before) == 1
    path.write_text(CODE.replace(before, after))
    assert is_proven(path.stem, note="slow") != changes
    assert len(source.notes) == changes


@pytest.mark.parametrize("name", source.PROVEN)
def test_fast_paths_are_for_the_code_as_it_is(name):
    digest = source.source_digest(name)
    assert digest == source.PROVEN[name], (
        "It was edited. For quill or attention.py, make the same edit in csampler.c and "
        "pack_weights. If all other tests pass, the digest to put into model/run/source.py is "
        f"{digest}"
    )


def test_code_is_read_as_python_reads_it(monkeypatch, tmp_path):
    """A coding line may turn a comment into code."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    path = tmp_path / "network_of_test.py"
    path.write_text("x = 1  # \\nx = 2")
    digest = source.source_digest(path.stem)
    path.write_text(path.read_text(), "utf-8-sig")
    assert source.source_digest(path.stem) == digest
    path.write_text("# -*- coding: unicode_escape -*-\nx = 1  # \\nx = 2")
    assert source.source_digest(path.stem) != digest


def test_the_digest_is_the_same_in_every_version_of_python(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "network_of_test.py").write_text(CODE)
    digest = "5dbc10eaddf2e8e371307d7938be0b0f25265127e05a9faee5c14561ecbe72e1"
    assert source.source_digest("network_of_test") == digest
