"""The C sampler: csampler.c computes the network quill on a CPU, ten times as fast."""

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from model.run.errors import print_line
from model.run.files import atomic_write
from model.run.source import is_proven

SOURCE = Path(__file__).with_name("csampler.c")
COLUMNS = 32  # columns of a matrix that lie side by side in memory
TEXTS = 8  # texts that share one pass over a matrix
SHIFT = 3  # positions of which a token shift takes channels
SHIFTS = 3  # token shifts in a block
MAX_WINDOW = 2048  # with longer windows PyTorch is as fast

# tests/model/fast/test_csampler.py proves that csampler.c gives the logits of the network quill.
IS_PROVEN = is_proven(
    "model/fast/csampler.c", note="sampling with quill on a CPU takes about 10 times as long"
)


def make_csampler(model: nn.Module) -> Callable[[int], Callable[[np.ndarray], np.ndarray]] | None:
    """`make_c_step_fn` of this model, to be called with B, or None if the C sampler cannot be used.

    It is for quill, as long as its code is what was tested, in float32 on a CPU.
    """
    weight = next(model.parameters())
    is_float32 = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    fits = is_float32 and weight.device.type == "cpu" and model.config.block_size <= MAX_WINDOW
    is_quill = model.config.network == "quill" and model.has_proven_cache
    if is_quill and IS_PROVEN and fits and load_library() is not None:
        return functools.partial(make_c_step_fn, model, pack_weights(model))
    return None


def make_c_step_fn(
    model: nn.Module, weights: np.ndarray, B: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function for B texts: append token ids ids_BT, get the next-token logits_BV.

    `weights` are those of `pack_weights`. The array of logits is overwritten by the next call.
    """
    config, V = model.config, model.vocab_size
    C, H, L, W = config.n_embd, config.n_head, config.n_layer, config.block_size
    D = C // H
    # In each block, attention looks back W - 1 positions, and each token shift SHIFT - 1.
    receptive_field = 1 + L * (W - 1 + SHIFTS * (SHIFT - 1))
    keys_and_values = H * (round_up(W) * D + round_up(D) * W)  # of one text in one block
    sizes = np.array([L, B, C, H, V, W], np.intc)
    ids_B = np.empty(B, np.int64)
    state = np.zeros(B * (6 * C + L * (SHIFTS * SHIFT * C + keys_and_values)), np.float32)
    logits_BV = np.empty((B, V), np.float32)
    pointer = ctypes.c_void_p
    inputs = [array.ctypes.data_as(pointer) for array in (sizes, weights, ids_B)]
    outputs = [array.ctypes.data_as(pointer) for array in (state, logits_BV)]
    c_step = load_library().step
    c_step.restype = None
    c_step.argtypes = [pointer, pointer, pointer, ctypes.c_int64, pointer, pointer]
    position = 0

    def step(ids_BT: np.ndarray) -> np.ndarray:
        nonlocal position
        if position == 0:
            ids_BT = ids_BT[:, -receptive_field:]  # what came before has no influence
        for t in range(ids_BT.shape[1]):
            ids_B[:] = ids_BT[:, t]
            c_step(*inputs, position, *outputs)
            position += 1
        return logits_BV

    return step


def round_up(n: int) -> int:
    """The next multiple of COLUMNS."""
    return -(-n // COLUMNS) * COLUMNS


def pack_weights(model: nn.Module) -> np.ndarray:
    """All weights in the order in which csampler.c reads them, that of the state dict.

    A matrix is stored COLUMNS outputs at a time, padded with zeros.
    """
    parts = []
    for name, weight in model.state_dict().items():
        array = weight.numpy()
        if array.ndim == 2 and name != "embedding.weight":
            outputs, inputs = array.shape
            padded = np.pad(array, ((0, round_up(outputs) - outputs), (0, 0)))
            array = padded.reshape(-1, COLUMNS, inputs).transpose(0, 2, 1)
        parts.append(array.ravel())
    return np.concatenate(parts)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """csampler.c, compiled for this processor and kept in __pycache__.

    None, after a note on standard error that says why, if that fails.
    """
    compiler = os.environ.get("CC", "").split() or ["cc"]
    flags = ["-O3", "-march=native", "-ffast-math", "-fPIC"]
    flags += [f"-DCOLUMNS={COLUMNS}", f"-DTEXTS={TEXTS}", f"-DSHIFT={SHIFT}"]

    def run_compiler(*arguments: str) -> bytes:
        command = [*compiler, *arguments]
        done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        return done.stdout

    try:
        macros = run_compiler(*flags, "-dM", "-E", "-x", "c", os.devnull)  # processor and compiler
        key = hashlib.sha256(SOURCE.read_bytes() + macros).hexdigest()[:16]
        cached = SOURCE.parent / "__pycache__" / f"csampler-{key}.so"
        if cached.exists():
            return ctypes.CDLL(str(cached))
        with tempfile.TemporaryDirectory() as folder:
            # Compile and link separately: given -ffast-math, the linker would make the whole
            # process flush tiny numbers to zero.
            run_compiler(*flags, "-c", str(SOURCE), "-o", f"{folder}/csampler.o")
            run_compiler("-shared", f"{folder}/csampler.o", "-lm", "-o", f"{folder}/csampler.so")
            with contextlib.suppress(OSError):  # not writable: compile each time
                cached.parent.mkdir(exist_ok=True)
                with atomic_write(cached) as file:
                    file.write(Path(folder, "csampler.so").read_bytes())
            return ctypes.CDLL(f"{folder}/csampler.so")
    except OSError as error:
        problem = error.strerror or str(error)
    except subprocess.CalledProcessError as error:
        problem = error.stderr.decode(errors="replace").strip() or "it fails"
    print_line(
        f"note: the C sampler cannot be compiled with {compiler[0]}: {problem.splitlines()[0]}. "
        "Sampling uses PyTorch, about 10 times slower.",
        sys.stderr,
    )
    return None
