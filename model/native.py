"""native.c, compiled once for this machine: the network at the speed of a CPU, for sampling."""

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT, TokenShift

SOURCE = Path(__file__).with_name("native.c")
COLUMNS, TEXTS = 32, 8  # of a matrix side by side, and texts that share one reading of it


class Native:
    """B texts on their way through `model`, in one thread; only where it `suits`."""

    def __init__(self, model: GPT, B: int) -> None:
        size, V = model.config, model.head.out_features
        W, D, reach = size.block_size, size.n_embd // size.n_head, TokenShift.REACH
        self.sizes = np.array([size.n_layer, B, size.n_embd, size.n_head, V, W, reach], np.intc)  # native.c's `sizes`
        self.weights = packed(model)
        seen = size.n_head * (whole(W) * D + whole(D) * W)  # a text's keys and values in one block
        self.state = np.zeros(B * (6 * size.n_embd + size.n_layer * (2 * reach * size.n_embd + seen)), np.float32)
        self.logits_BV = np.empty((B, V), np.float32)
        self.ids_B = np.empty(B, np.int64)
        self.step, self.position = library().step, 0
        self.step.restype, self.step.argtypes = None, [*[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_void_p] * 2]
        self.given = self.sizes.ctypes.data, self.weights.ctypes.data, self.ids_B.ctypes.data
        self.taken = self.state.ctypes.data, self.logits_BV.ctypes.data

    def __call__(self, ids_BT: np.ndarray) -> np.ndarray:
        """The next T characters of each text, to logits_BV of the one that follows; valid until the next call."""
        for t in range(ids_BT.shape[1]):
            self.ids_B[:] = ids_BT[:, t]
            self.step(*self.given, self.position, *self.taken)
            self.position += 1
        return self.logits_BV


def suits(model: GPT) -> bool:
    """Whether `Native` can stand in for the model: in float32 on a CPU, where there is a C compiler."""
    weight = model.embedding.weight
    plain = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return weight.device.type == "cpu" and plain and library() is not None


def whole(n: int) -> int:
    """The next multiple of COLUMNS."""
    return -(-n // COLUMNS) * COLUMNS


def packed(model: GPT) -> np.ndarray:
    """The weights in the order in which native.c meets them, a matrix COLUMNS outputs at a time, padded with zeros."""

    def matrix(weight_OC: Tensor) -> np.ndarray:
        out, C = weight_OC.shape
        values = np.pad(weight_OC.detach().numpy(), ((0, whole(out) - out), (0, 0)))
        return values.reshape(-1, COLUMNS, C).transpose(0, 2, 1)

    weights = [model.embedding.weight.detach()]
    for block in model.blocks:
        weights += [block.shift_attention.share.detach(), matrix(block.attention.qkv_3CC.flatten(0, 1))]
        weights += [matrix(block.attention.proj.weight), block.shift_mlp.share.detach()]
        weights += [matrix(block.mlp.fc.weight), matrix(block.mlp.proj.weight)]
    return np.concatenate([np.ravel(weight) for weight in [*weights, matrix(model.head.weight)]])


@cache
def library() -> ctypes.CDLL | None:
    """native.c compiled for this very processor, kept beside Python's own compiled files; None where that fails."""
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-O3", "-march=native", "-ffast-math", "-fPIC", f"-DCOLUMNS={COLUMNS}", f"-DTEXTS={TEXTS}"]

    def digest(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()[:16]

    def run(*argv: str) -> bytes:
        return subprocess.run([*compiler, *argv], capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout

    try:
        facts = run(*flags, "-dM", "-E", "-x", "c", os.devnull)  # which processor, which compiler
        key = digest(SOURCE.read_bytes() + Path(__file__).read_bytes() + facts)
        for kept in SOURCE.parent.glob(f"__pycache__/native-{key}-*.so"):
            if kept.stem.endswith(digest(kept.read_bytes())):  # a damaged one would end the process
                return ctypes.CDLL(str(kept))
        with tempfile.TemporaryDirectory() as folder:
            # In two steps: a linker told of -ffast-math would have tiny numbers flushed to zero in all of the process.
            run(*flags, "-c", str(SOURCE), "-o", f"{folder}/native.o")
            run("-shared", f"{folder}/native.o", "-lm", "-o", f"{folder}/native.so")
            made = Path(folder, "native.so")
            with contextlib.suppress(OSError):  # where it cannot be kept, it is compiled each time
                kept = SOURCE.parent / f"__pycache__/native-{key}-{digest(made.read_bytes())}.so"
                shutil.copy(made, partial := kept.with_suffix(f".{Path(folder).name}"))
                partial.replace(kept)
            return ctypes.CDLL(str(made))
    except (OSError, subprocess.CalledProcessError):
        return None
