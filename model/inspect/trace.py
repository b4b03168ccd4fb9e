"""Records what a network computes, as a list of operations that ops.js repeats in a browser.

PyTorch itself reports each operation. The list leaves out operations that do not depend on the text
(their results are constants) or only make a view, such as transpose. A view shares its memory, the
*buffer*, with another tensor. The list describes each tensor by its buffer, offset, shape and
strides. An operation in place writes into a copy, so the buffer keeps its earlier numbers.
"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from model import networks
from model.system.console import AbortError

OPS = Path(__file__).with_name("ops.js")
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "logical_not"}
NAMES = """mm bmm embedding cat roll gather scatter sort sort_1 cumsum sum amax clone _to_copy
copy fill where add sub mul div pow remainder maximum minimum bitwise_and bitwise_or bitwise_not neg
abs sign reciprocal sqrt rsqrt exp expm1 log log1p sin cos floor ceil round trunc relu sigmoid tanh
erf"""
KNOWN = COMPARISONS | set(NAMES.split())  # the operations in ops.js
SETTINGS = {"dtype", "layout", "device", "pin_memory", "memory_format"}  # ops.js ignores them


def var(x: Tensor, dims: list[int], correction: float = 1, **_: Any) -> Tensor:
    """Compute the variance over some dimensions."""
    n = math.prod(x.size(dim) for dim in dims)
    return (x - x.mean(dims, keepdim=True)).square().sum(dims) / (n - correction)


PARTS = {  # functions for operations that PyTorch does not break up into simpler ones
    torch.ops.aten.topk.default: lambda x, k, dim=-1, *largest: [
        y.narrow(dim, 0, k) for y in x.sort(dim, *(largest[:1] or [True]))
    ],
    torch.ops.prims.var.default: var,
}


def memory(x: Tensor) -> int:
    """Return a number that identifies the buffer of a tensor: its address."""
    return x.untyped_storage().data_ptr()


def whole_buffer(x: Tensor) -> Tensor:
    """Return a flat tensor of all numbers in the buffer of x."""
    return x.new_empty(0).set_(x.untyped_storage())


def network_line() -> str:
    """Return the end of an error message: which line of a network's file is being computed."""
    for frame in reversed(traceback.extract_stack()):
        if Path(frame.filename).parent == networks.FOLDER:
            return f" in line {frame.lineno} of {Path(frame.filename).name}, `{frame.line}`"
    return ""


def refuse(problem: str, name: str) -> NoReturn:
    """Raise AbortError with the problem, the operation `name` and the line of the network."""
    raise AbortError(f"the page cannot {problem}: {name}{network_line()}.")


def decompose(func: torch._ops.OpOverload) -> Callable | None:
    """Return a function that computes the same as `func` by simpler operations, or None."""
    parts = PARTS.get(func) or decomposition_table.get(func)
    return parts or (func.decompose if func._can_decompose() else None)


def exact(name: str, x: Tensor, values: list, inputs: list[Tensor]) -> tuple[str, list]:
    """Return the operation that has the same result in JavaScript, where each number is float64."""
    if any(y.is_complex() for y in (x, *inputs)):
        refuse("compute complex numbers", name)
    if x.is_floating_point() or name in COMPARISONS:
        return name, values
    if any(y.is_floating_point() for y in inputs):
        if name != "_to_copy":
            hint = " (x.topk(1).indices works)" if name == "argmax" else ""
            refuse("compute integers from floating-point numbers" + hint, name)
        return ("ne", [values[0], 0]) if x.dtype == torch.bool else ("trunc", values[:1])
    if x.dtype == torch.bool:
        return {"add": "bitwise_or", "bitwise_not": "logical_not"}.get(name, name), values
    if x.numel() and x.abs().max() >= 2 ** (31 if name.startswith("bitwise") else 53):
        refuse("compute integers as large as these", name)
    return name, values


class Trace(TorchDispatchMode):
    """Inside `with`, records all operations that depend on ids_BT, but not in inference mode."""

    def __init__(self, ids_BT: Tensor) -> None:
        super().__init__()
        self.live = {memory(ids_BT)}  # buffers that depend on the text
        self.changes: Counter[int] = Counter()  # how often each buffer was changed in place
        # Each version of a buffer has a number. The keys are its address and its changes so far.
        self.numbers: dict[tuple[int, int], int] = {}
        self.buffers: list[Tensor] = []
        self.constants: set[int] = set()  # the numbers of buffers that do not depend on the text
        self.ops: list[tuple] = []  # name, output, arguments, all rows?, buffers read, line
        self.kept: list[Any] = []  # keeps all tensors alive, so that no address is used twice
        self.ids = self.encode(ids_BT)

    def encode(self, x: Any) -> Any:
        """Return x for JSON. A tensor becomes its buffer's number, offset, shape and strides."""
        if torch.is_tensor(x):
            key = memory(x), self.changes[memory(x)]
            if key not in self.numbers:
                self.numbers[key] = len(self.buffers)
                self.buffers.append(whole_buffer(x))
                self.constants.update([] if memory(x) in self.live else [self.numbers[key]])
            place = self.numbers[key], x.storage_offset(), list(x.shape), list(x.stride())
            return dict(zip(("buffer", "offset", "shape", "strides"), place, strict=True))
        is_infinite = isinstance(x, float) and not math.isfinite(x)
        return str(x).replace("inf", "Infinity") if is_infinite else x

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        name = schema.name.partition("::")[2].rstrip("_")
        name = "copy" if name == "copy_to" else name  # its name in PyTorch 2.9
        inputs = [x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)]
        is_live = any(memory(x) in self.live for x in inputs)
        is_live = is_live and not re.match("new_|.*_like$", name)  # these use only the shape
        if is_live and name not in KNOWN and (parts := decompose(func)) is not None:
            with self:
                return parts(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            refuse("show a network that draws random numbers", name)
        values = [
            tree_map(self.encode, args[i] if i < len(args) else kwargs.get(a.name, a.default_value))
            for i, a in enumerate(schema.arguments)
            if is_live and a.name not in SETTINGS
        ]
        used = {self.encode(x)["buffer"] for x in inputs if is_live}
        is_change = schema.is_mutable and torch.Tag.inplace_view not in func.tags
        before = self.encode(whole_buffer(args[0])) if is_change else None
        if is_change and before["buffer"] in self.constants:
            self.buffers[before["buffer"]] = whole_buffer(args[0]).clone()
        output = func(*args, **kwargs)
        self.kept += (args, kwargs, output)
        if is_change:
            self.changes[memory(args[0])] += 1
        if is_live:
            self.record(name, values, used, inputs, output, before)
        return output

    def record(
        self, name: str, values: list, used: set, inputs: list, output: Any, before: dict | None
    ) -> None:
        """Record an operation that depends on the text, unless it only makes a view."""
        outputs = [x for x in tree_leaves(output) if torch.is_tensor(x)]
        if not outputs:
            refuse("show a network that turns a tensor into a Python number", name)
        is_change = before is not None
        if is_change:
            self.live.add(memory(outputs[0]))
            after = self.encode(whole_buffer(outputs[0]))
            self.ops.append(("copy", after, [after, before], True, {before["buffer"]}, ""))
        elif any(memory(x) == memory(outputs[0]) for x in inputs):
            return
        self.live.update(map(memory, outputs))
        name, values = exact(name, outputs[0], values, inputs)
        for i, x in enumerate(outputs):
            result = f"{name}_{i}" if i else name
            line = "" if result in KNOWN else network_line()
            self.ops.append((result, self.encode(x), values, is_change, used, line))

    def plan(self, outputs: dict[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
        """Return what page.js needs to compute `outputs`: a plan, and the constants, flat.

        Raises AbortError if ops.js lacks an operation.
        """
        needed = {self.encode(x)["buffer"] for x in tree_leaves(outputs) if torch.is_tensor(x)}
        needed.add(self.ids["buffer"])
        ops, unknown = [], set()
        for name, out, args, is_whole, used, line in reversed(self.ops):
            if out["buffer"] in needed:
                needed |= used
                ops.insert(0, {"name": name, "out": out, "args": args, "isWhole": is_whole})
                unknown.update([] if name in KNOWN else [name + line])
        if unknown:
            names = ", ".join(sorted(unknown)[:3])
            raise AbortError(f"the page cannot compute {names}. Add it to OPS in {OPS}.")
        buffers = [
            {"size": len(x) * (i in needed), "isFloat": x.is_floating_point()}
            for i, x in enumerate(self.buffers)
        ]
        constants = sorted(needed & self.constants)
        for place, i in enumerate(constants):
            buffers[i] = {"constant": place}
        plan = {"ids": self.ids, "ops": ops, "buffers": buffers}
        return plan | tree_map(self.encode, outputs), [self.buffers[i] for i in constants]
