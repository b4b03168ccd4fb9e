"""What a network computes for a text, as a list of operations that ops.js repeats in a browser.

Nothing here knows any network: PyTorch itself reports each operation. One that does not depend on
the text is not recorded, its result is a constant. Nor is one that only makes a view (transpose,
split, ...): a tensor is written as its buffer, the memory that it shares with other tensors, with
the offset, shape and strides that PyTorch gave it.
"""

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model.system.errors import AbortError

OPS = Path(__file__).with_name("ops.js")
FUNCTION = r"(\w+): (?:\(|one\(|two\(|copy|multiply)"
KNOWN = set(re.findall(FUNCTION, OPS.read_text("utf-8").partition("const OPS")[2]))
SETTINGS = {"dtype", "layout", "device", "pin_memory", "memory_format"}  # arguments without effect


def memory(x: Tensor) -> int:
    """What tells the buffer of a tensor from all others."""
    return x.untyped_storage().data_ptr()


def whole_buffer(x: Tensor) -> Tensor:
    """All numbers of the buffer of a tensor."""
    return x.new_empty(0).set_(x.untyped_storage())


class Trace(TorchDispatchMode):
    """Records what is computed from ids_BT inside `with`. Outside inference mode."""

    def __init__(self, ids_BT: Tensor) -> None:
        super().__init__()
        self.ids_BT = ids_BT
        self.live = {memory(ids_BT)}  # buffers that depend on the text
        self.done: list[tuple[str, Tensor, list]] = []  # operation, output, arguments
        self.kept: list[Any] = []  # no memory is used twice
        self.is_pure = True  # nothing is overwritten that was read before

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs, schema = kwargs or {}, func._schema
        name = schema.name.partition("::")[2]
        inputs = [x for x in tree_leaves((args, kwargs)) if torch.is_tensor(x)]
        is_live = any(memory(x) in self.live for x in inputs)
        is_live = is_live and not re.match("new_|.*_like$", name)  # of these, only the shape counts
        if is_live and name.rstrip("_") not in KNOWN:
            parts = decomposition_table.get(func, func.decompose if func._can_decompose() else None)
            if parts is not None:
                with self:
                    return parts(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise AbortError(f"the page cannot show a network that draws random numbers ({name}).")
        if is_live and any(x.is_complex() for x in inputs):
            raise AbortError(f"the page cannot compute complex numbers ({name}).")
        if is_live and schema.is_mutable:
            is_by_element = name.endswith("_") and torch.Tag.pointwise in func.tags
            self.is_pure &= is_by_element and self.is_unread(*inputs)
            if memory(args[0]) not in self.live:
                buffer = whole_buffer(args[0])  # a constant is about to be written to
                self.live.add(memory(buffer))
                self.done.insert(0, ("copy", buffer, [buffer, buffer.clone()]))
        output = func(*args, **kwargs)
        self.kept += (args, kwargs, output)
        if not is_live:
            return output
        outputs = [x for x in tree_leaves(output) if torch.is_tensor(x)]
        if not outputs:
            raise AbortError(f"the page cannot show a network that reads its own numbers ({name}).")
        if schema.is_mutable or all(memory(x) != memory(outputs[0]) for x in inputs):  # no view
            values = [
                args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
                for i, argument in enumerate(schema.arguments)
                if argument.name not in SETTINGS
            ]
            is_cut = any(x.is_floating_point() for x in inputs) and outputs[0].dtype == torch.long
            name = f"{name} to integers" if is_cut else name.rstrip("_")  # JavaScript has one type
            self.done.append((name, outputs[0], values))
            self.done += [(f"the other results of {name}", x, values) for x in outputs[1:]]
            self.live.update(map(memory, outputs))
        return output

    def is_unread(self, x: Tensor, *others: Tensor) -> bool:
        """Whether x, a whole buffer, was computed just now, and is none of the `others`."""
        is_latest = bool(self.done) and memory(self.done[-1][1]) == memory(x)
        is_whole = x.numel() == len(whole_buffer(x))
        return is_latest and is_whole and all(memory(x) != memory(other) for other in others)

    def plan(self, outputs: Any) -> tuple[dict[str, Any], list[Tensor]]:
        """What ops.js needs to compute these tensors, with the constants, flat.

        Raises AbortError if it lacks an operation.
        """
        needed, ops = set(map(memory, tree_leaves(outputs))), []
        for op in reversed(self.done):
            if memory(op[1]) in needed:
                needed.update(memory(x) for x in tree_leaves(op[2]) if torch.is_tensor(x))
                ops.insert(0, op)
        unknown = sorted({name for name, *_ in ops} - KNOWN)
        if unknown:
            raise AbortError(
                f"the page cannot compute {', '.join(unknown)}, which this network uses. Add it to "
                f"OPS in {OPS}."
            )
        buffers: dict[int, int] = {}  # memory, number
        sizes, constants = [], []

        def encode(x: Any) -> Any:
            if torch.is_tensor(x):
                if memory(x) not in buffers:
                    buffers[memory(x)] = len(sizes)
                    is_live = memory(x) in self.live
                    sizes.append(len(whole_buffer(x)) if is_live else None)
                    constants.extend([] if is_live else [whole_buffer(x)])
                place = (buffers[memory(x)], x.storage_offset(), list(x.shape), list(x.stride()))
                return dict(zip(("buffer", "offset", "shape", "strides"), place, strict=True))
            if isinstance(x, list | tuple):
                return [encode(item) for item in x]
            if isinstance(x, float) and not math.isfinite(x):
                return str(x).replace("inf", "Infinity")
            return x

        plan = {
            "ids": encode(self.ids_BT),
            "isPure": self.is_pure,
            "outputs": {name: encode(x) for name, x in outputs.items()},
            "ops": [encode(op) for op in ops],
        }
        return plan | {"sizes": sizes}, constants
