"""Every setting of train.py, and its default. Each field is a flag and a TOML key.

A field is its type, its help, for a number the interval of its values, and marks:

    n_layer: Annotated[int, "number of blocks", "[1, 1000]", INHERITED] = 2

The type is int, float, bool, str, `str | None`, `tuple[str, ...] | None` or a Literal of strings.
The docstring of a class is the title of its group in --help and in config.toml.

The defaults are those of runs with a preset. In other runs configs/recipe.py chooses most of them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args, get_type_hints

# Marks
PATH = "path"  # the value becomes an absolute path, so that --resume works in another folder
RESUMABLE = "resumable"  # --resume may change the value
INHERITED = "inherited"  # --init_from keeps the value: weights would not fit, or know other text
OPTIONAL = "optional"  # not every network has it; one that has it names it in `settings`


@dataclass(frozen=True)
class DataConfig:
    """Which text, and how much of it is for validation."""

    data: Annotated[
        tuple[str, ...] | None, "files, folders, or -; default: Tiny Shakespeare", PATH, RESUMABLE
    ] = None
    encoding: Annotated[str, "encoding of the text"] = "utf-8"
    val_fraction: Annotated[float, "share of the text for validation", "(0, 1)", INHERITED] = 0.1
    val_split: Annotated[
        Literal["end", "spread"], "validation text: the end, or from everywhere", INHERITED
    ] = "end"


@dataclass(frozen=True)
class GPTConfig:
    """Which network, and its size."""

    network: Annotated[str, "file in model/networks/; gpt: the textbook GPT", INHERITED] = "quill"
    n_layer: Annotated[int, "number of blocks", "[1, 1000]", INHERITED] = 2
    n_head: Annotated[int, "attention heads per block; 0: n_embd / 64", "[0, 1000]", INHERITED] = 0
    n_embd: Annotated[int, "channels of the residual stream", "[1, 100000]", INHERITED] = 128
    block_size: Annotated[int, "context: how many characters attention sees", "[1, 1000000]"] = 256
    dropout: Annotated[float, "dropout probability", "[0, 1)"] = 0.0
    bias: Annotated[bool, "gpt: biases in its layers", INHERITED, OPTIONAL] = False


@dataclass(frozen=True)
class OptimConfig:
    """Batches, optimizers, learning-rate schedule, loss."""

    batch_size: Annotated[int, "examples per step, over all processes", "[1, 1000000]"] = 8
    gradient_accumulation_steps: Annotated[
        int, "parts of a batch, to save memory", "[1, 1e6]", RESUMABLE
    ] = 1
    max_iters: Annotated[int, "optimizer steps", "[1, 1e15]", RESUMABLE] = 1100
    optimizer: Annotated[
        Literal["muon", "adamw"], "of the matrices in the blocks; all else is AdamW's"
    ] = "muon"
    learning_rate: Annotated[float, "peak learning rate, of AdamW and Muon", "[0, 1e30]"] = 7e-3
    min_lr: Annotated[float, "where a cosine ends (0: linear to zero)", "[0, 1e30]"] = 0.0
    warmup_iters: Annotated[int, "steps in which the learning rate rises", "[0, 1e15]"] = 20
    beta1: Annotated[float, "AdamW's decay of the mean gradient", "[0, 1)"] = 0.9
    beta2: Annotated[float, "AdamW's decay of the mean squared gradient", "[0, 1)"] = 0.95
    weight_decay: Annotated[float, "of matrices; with muon of those in blocks", "[0, 1e30]"] = 0.5
    grad_clip: Annotated[float, "clip the gradient norm to this (0: never)", "[0, inf)"] = 1.0
    ema_decay: Annotated[
        float, "decay of a running average of the weights, which is used and learned from", "[0, 1)"
    ] = 0.0
    train_temperature: Annotated[
        float, "softmax temperature in training only; below 1 against overconfidence", "[0.1, 10]"
    ] = 1.0


@dataclass(frozen=True)
class RunConfig:
    """How long, from what, where the results go, how often to evaluate and log."""

    minutes: Annotated[float, "end after this time (0: no limit)", "[0, 1e6]", RESUMABLE] = 0.0
    init_from: Annotated[str | None, "run or checkpoint whose weights to start with", PATH] = None
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>", PATH] = None
    seed: Annotated[int, "same seed, same machine: same result", "[0, 1e15]"] = 1337
    eval_interval: Annotated[int, "steps between evaluations", "[1, 1e15]", RESUMABLE] = 138
    log_interval: Annotated[int, "steps between points of the training curve", "[1, 1e15]"] = 10


@dataclass(frozen=True)
class DeviceConfig:
    """What to compute on."""

    device: Annotated[str, "auto (cuda or cpu), cpu, cuda, cuda:N or mps", RESUMABLE] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], "auto: the fastest one", RESUMABLE
    ] = "auto"


@dataclass(frozen=True)
class CompileConfig(DeviceConfig):
    """What to train on."""

    compile: Annotated[
        Literal["auto", "on", "off"], "on: torch.compile; auto: a CUDA graph, on one GPU", RESUMABLE
    ] = "auto"


@dataclass(frozen=True)
class TrainConfig(DataConfig, GPTConfig, OptimConfig, RunConfig, CompileConfig):
    """Everything that train.py can be told."""


def marked(config_class: type, mark: str) -> list[str]:
    """Return the names of the settings that have a mark."""
    hints = get_type_hints(config_class, include_extras=True)
    return [name for name, hint in hints.items() if mark in get_args(hint)]
