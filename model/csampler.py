"""The C sampler: csampler.c computes the network of gpt.py for sampling on a CPU.

It is about ten times as fast as PyTorch, and used only after it has given the same logits.
"""

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
from torch import Tensor

from model.errors import RunError, atomic_write, print_once
from model.gpt import GPT, GPTConfig

SOURCE = Path(__file__).with_name("csampler.c")
COLUMNS = 32  # columns of a matrix that lie side by side in memory
TEXTS = 8  # texts that share one pass over a matrix
SHIFT = 2  # previous positions that a token shift mixes
SHIFTS = 3  # token shifts in a block
MAX_WINDOW = 2048  # the check takes window² time; with longer windows PyTorch is as fast


def make_csampler(model: GPT) -> "CSampler | None":
    """The C sampler for `model`, if it can be used and computes the same logits; otherwise None.

    It is for float32 on a CPU. Where the model differs from csampler.c, or no C compiler is
    found, a note on standard error says so, once. The model must be in eval mode.
    """
    weight = next(model.parameters())
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if torch.is_autocast_enabled("cpu") or model.config.block_size > MAX_WINDOW:
        return None
    if load_library() is None:
        problem = "no C compiler was found"
    else:
        difference = find_parameter_difference(model)
        if not difference:
            csampler = CSampler(model)
            if gives_same_logits(csampler, model):
                return csampler
        problem = "the network in model/ differs from model/csampler.c"
        problem += f" ({difference or 'other logits'})"
    print_once(f"note: {problem}. Sampling uses PyTorch, about 10 times slower.", sys.stderr)
    return None


def find_parameter_difference(model: GPT) -> str:
    """The first parameter that csampler.c does not have, or has in another shape, or ""."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    expected = dict(parameter_shapes(model.config, shapes.get("embedding.weight", (0,))[0]))
    for name in [*shapes, *expected]:
        if shapes.get(name) != expected.get(name):
            return f"parameter {name}"
    return "" if model.max_length is None else "max_length"


def gives_same_logits(csampler: "CSampler", model: GPT) -> bool:
    """Whether both give the same logits, to rounding, on a text longer than the window."""
    ids_T = probe_text(csampler.vocab_size, model.config.block_size)
    with torch.no_grad():
        expected_TV = model(torch.from_numpy(ids_T)[None])[0].numpy()
    step = csampler.start(1)
    logits_TV = np.concatenate([step(ids_11).copy() for ids_11 in ids_T[:, None, None]])
    tolerance = 1e-4 * max(1.0, np.abs(expected_TV).max())
    return bool(np.isfinite(tolerance) and np.abs(logits_TV - expected_TV).max() <= tolerance)


def probe_text(V: int, block_size: int) -> np.ndarray:
    """ids_T longer than the window: every id of a small vocabulary, then many repetitions."""
    rng = np.random.default_rng(0)
    each_once = rng.permutation(V)[:256]
    repeating = rng.integers(min(V, 4), size=max(32, block_size + 8 - len(each_once)))
    repeating[-5:-2] = repeating[-5]  # also where `check_cache` divides the text
    return np.concatenate((each_once, repeating))


def parameter_shapes(config: GPTConfig, V: int) -> list[tuple[str, tuple[int, ...]]]:
    """The parameters of the network in csampler.c, in the order in which it reads them."""
    C = config.n_embd
    block = [
        ("shift_mlp_1.mix_1", (C,)),
        ("shift_mlp_1.mix_2", (C,)),
        ("mlp_1.fc.weight", (4 * C, C)),
        ("mlp_1.proj.weight", (C, 4 * C)),
        ("shift_attention.mix_1", (C,)),
        ("shift_attention.mix_2", (C,)),
        ("attention.query.weight", (C, C)),
        ("attention.key.weight", (C, C)),
        ("attention.value.weight", (C, C)),
        ("attention.proj.weight", (C, C)),
        ("shift_mlp_2.mix_1", (C,)),
        ("shift_mlp_2.mix_2", (C,)),
        ("mlp_2.fc.weight", (4 * C, C)),
        ("mlp_2.proj.weight", (C, 4 * C)),
    ]
    blocks = [
        (f"blocks.{layer}.{name}", shape)
        for layer in range(config.n_layer)
        for name, shape in block
    ]
    return [("embedding.weight", (V, C)), *blocks, ("head.weight", (V, C))]


class CSampler:
    """The weights of a model as csampler.c reads them. Make one with `make_csampler`."""

    def __init__(self, model: GPT) -> None:
        self.config = model.config
        self.vocab_size = model.head.out_features
        self.weights = pack_weights(model)

    def start(self, B: int) -> Callable[[np.ndarray], np.ndarray]:
        """Returns a function for B texts: append token ids ids_BT, get the next-token logits_BV.

        The array of logits is overwritten by the next call.
        """
        config, V = self.config, self.vocab_size
        C, H, L, W = config.n_embd, config.n_head, config.n_layer, config.block_size
        D = C // H
        # In each block, attention looks back W - 1 positions, and each token shift SHIFT.
        receptive_field = 1 + L * (W - 1 + SHIFTS * SHIFT)
        keys_and_values = H * (round_up(W) * D + round_up(D) * W)  # of one text in one block
        sizes = np.array([L, B, C, H, V, W, SHIFT], np.intc)
        ids_B = np.empty(B, np.int64)
        state = np.zeros(B * (6 * C + L * (SHIFTS * SHIFT * C + keys_and_values)), np.float32)
        logits_BV = np.empty((B, V), np.float32)
        pointer = ctypes.c_void_p
        inputs = [array.ctypes.data_as(pointer) for array in (sizes, self.weights, ids_B)]
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


def pack_weights(model: GPT) -> np.ndarray:
    """All weights in the order in which csampler.c reads them.

    A matrix is stored COLUMNS outputs at a time, padded with zeros.
    """

    def pack_matrix(weight_OC: Tensor) -> np.ndarray:
        outputs, inputs = weight_OC.shape
        padded = np.pad(weight_OC.numpy(), ((0, round_up(outputs) - outputs), (0, 0)))
        return padded.reshape(-1, COLUMNS, inputs).transpose(0, 2, 1)

    parts = []
    weights = model.state_dict()
    for name, shape in parameter_shapes(model.config, model.head.out_features):
        is_matrix = len(shape) == 2 and name != "embedding.weight"
        parts.append(pack_matrix(weights[name]) if is_matrix else weights[name].numpy())
    return np.concatenate([np.ravel(part) for part in parts])


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """csampler.c, compiled for this processor and kept in __pycache__; None if that fails."""
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-O3", "-march=native", "-ffast-math", "-fPIC"]
    flags += [f"-DCOLUMNS={COLUMNS}", f"-DTEXTS={TEXTS}"]

    def run_compiler(*arguments: str) -> bytes:
        command = [*compiler, *arguments]
        done = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL)
        return done.stdout

    def digest(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()[:16]

    try:
        macros = run_compiler(*flags, "-dM", "-E", "-x", "c", os.devnull)  # processor and compiler
        key = digest(SOURCE.read_bytes() + Path(__file__).read_bytes() + macros)
        for cached in SOURCE.parent.glob(f"__pycache__/csampler-{key}-*.so"):
            if cached.stem.endswith(digest(cached.read_bytes())):  # a damaged one would crash
                return ctypes.CDLL(str(cached))
        with tempfile.TemporaryDirectory() as folder:
            # Compile and link separately: given -ffast-math, the linker would make the whole
            # process flush tiny numbers to zero.
            run_compiler(*flags, "-c", str(SOURCE), "-o", f"{folder}/csampler.o")
            run_compiler("-shared", f"{folder}/csampler.o", "-lm", "-o", f"{folder}/csampler.so")
            built = Path(folder, "csampler.so")
            name = f"csampler-{key}-{digest(built.read_bytes())}.so"
            cached = SOURCE.parent / "__pycache__" / name
            with contextlib.suppress(OSError, RunError):  # not writable: compile each time
                cached.parent.mkdir(exist_ok=True)
                with atomic_write(cached) as file:
                    file.write(built.read_bytes())
            return ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError):
        return None
