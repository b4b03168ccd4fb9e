"""Tests of the digest of source code: it follows what is computed, and nothing else."""

import pytest

from model.run import source

A = '''"""What is computed."""
import torch
from model.b import helper as used

SIZE: int = 0
CHECKED = check(digest="12")

class Net:
    """A network."""
    def forward(self, x: int, flag=False) -> int:
        """One step."""
        return used(x, 'SIZE') + SIZE

def unrelated(x):
    return x
'''
B = """
def helper(x, name):
    return x * scale() ** 2

def scale():
    return 1

def other(x, name):
    return 5
"""
SAME = [
    ("+ SIZE", "+ SIZE  # comment"),
    ("A network.", "The network."),
    ('        """One step."""\n', ""),
    ("x: int, flag=False) -> int", "x: float, flag: bool = False)"),
    ("SIZE: int", "SIZE: bool"),
    ("used(x, 'SIZE') + SIZE", '(\n            used( x, "SIZE", ) + SIZE)'),
    ('digest="12"', 'digest="34"'),
    ("    return x\n", "    return 2 * x\n"),
    ("return 5", "return 6"),
    ("def other", "new = 1\ndef other"),
]
DIFFERENT = [
    ("+ SIZE", "- SIZE"),
    ("SIZE: int = 0", "SIZE: int = 0.0"),
    ("SIZE: int = 0", "SIZE: int = False"),
    ("SIZE: int = 0", "SIZE: int = None"),
    ("SIZE: int = 0", "SIZE = 1\nSIZE: int = 0"),
    ("SIZE: int = 0", "SIZE = 0\nSIZE += 1\nSIZE += 1"),
    ("def unrelated", "_ = setattr(Net, 'forward', len)\ndef unrelated"),
    ("flag=False", "flag=True"),
    ("flag=False", "flag"),
    ("    def forward", "    @torch.no_grad()\n    def forward"),
    ("class Net", "@torch.compile\nclass Net"),
    ("class Net", "class Net(torch.nn.Module)"),
    ("def unrelated", "Net.forward = unrelated\ndef unrelated"),
    ("def unrelated", "done = setattr(Net, 'forward', unrelated)\ndef unrelated"),
    ("import torch\n", "import torch\nfrom elsewhere import *\n"),
    ("import helper as used", "import other as used"),
    ("** 2", "* 2"),
    ("return 1", "return 3"),
    ("def other", "scale = print\ndef other"),
]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [(*edit, False) for edit in SAME] + [(*edit, True) for edit in DIFFERENT],
)
def test_an_edit_changes_the_digest_if_it_may_change_a_result(
    monkeypatch, tmp_path, before, after, changes
):
    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr(source, "notes", [])
    (tmp_path / "model").mkdir()
    (tmp_path / "model/a.py").write_text(A)
    (tmp_path / "model/b.py").write_text(B)
    digest = source.source_digest("model.a", "Net")
    assert (A + B).count(before) == 1
    (tmp_path / "model/a.py").write_text(A.replace(before, after))
    (tmp_path / "model/b.py").write_text(B.replace(before, after))
    assert source.is_proven("model.a", "Net", digest=digest, note="slow") != changes
    assert len(source.notes) == changes
