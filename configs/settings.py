"""Every setting of train.py, and its default. Each field is a flag and a TOML key.

One line declares a setting: a type, a help text, the interval of a number, marks, a default.

    n_layer: Annotated[int, "number of blocks", "[1, 1000]", INHERITED] = 2

The type is int, float, bool, str, `str | None`, `tuple[str, ...] | None` or a Literal of strings.
The docstring of a class is the title of its group in --help and in config.toml. In each new run,
the recipe replaces some defaults, which are its values for Tiny Shakespeare on a CPU.
"""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

from configs.errors import UserError

# Marks
PATH = "path"  # the value becomes an absolute path, so that --resume works in any folder
RESUMABLE = "resumable"  # a resumed run may change the value
# A run with --init_from keeps the value. With another value, the weights would not fit, or would
# have been trained on text that now is for validation.
INHERITED = "inherited"
OPTIONAL = "optional"  # only some networks have the setting; they name it in `settings`

NUMBERS = {int: "an integer", float: "a number"}


@dataclass(frozen=True)
class Config:
    """Settings. A wrong value raises UserError, whether a flag, a preset or Python gives it."""

    def __post_init__(self) -> None:
        """Check that each value is one of the choices or in the interval of its setting."""
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            kind, _, *marks = get_args(hint)
            value, choices = getattr(self, name), get_args(kind)
            interval = next((mark for mark in marks if mark[0] in "[("), "(-inf, inf)")
            if get_origin(kind) is Literal and value not in choices:
                raise UserError(f"{name} is {value!r}. Choose from {', '.join(choices)}.")
            if kind in NUMBERS and not is_inside(value, kind, interval):
                raise UserError(f"{name} is {value!r}. It must be {NUMBERS[kind]} in {interval}.")


def is_inside(value: object, kind: type, interval: str) -> bool:
    """Return whether a value is a number of this kind. "[0, 1)" means from 0 to 1, without 1."""
    low, high = map(float, interval[1:-1].split(","))
    if not isinstance(value, Integral if kind is int else Real):
        return False
    is_end = (value == low and interval[0] == "(") or (value == high and interval[-1] == ")")
    return low <= value <= high and not is_end


def marked(config_class: type, mark: str) -> list[str]:
    """Return the names of the settings that have this mark."""
    hints = get_type_hints(config_class, include_extras=True)
    return [name for name, hint in hints.items() if mark in get_args(hint)]


Texts = tuple[str, ...] | None  # None means Tiny Shakespeare
Split = Literal["end", "spread"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Mode = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class DataConfig(Config):
    """The text, and how much of it is for validation."""

    data: Annotated[Texts, "files, folders, -; none: Tiny Shakespeare", PATH, RESUMABLE] = None
    encoding: Annotated[str, "encoding of the text"] = "utf-8"
    val_fraction: Annotated[float, "share of the text for validation", "(0, 1)", INHERITED] = 0.1
    val_split: Annotated[Split, "place of the validation text", INHERITED] = "end"


@dataclass(frozen=True)
class GPTConfig(Config):
    """The network and its size."""

    network: Annotated[str, "file in model/networks/; gpt: the textbook GPT", INHERITED] = "quill"
    n_layer: Annotated[int, "number of blocks", "[1, 1000]", INHERITED] = 2
    n_head: Annotated[int, "attention heads per block; 0: n_embd / 64", "[0, 1000]", INHERITED] = 0
    n_embd: Annotated[int, "channels of the residual stream", "[1, 100000]", INHERITED] = 128
    block_size: Annotated[int, "context: how many characters attention sees", "[1, 1000000]"] = 256
    dropout: Annotated[float, "dropout probability", "[0, 1)"] = 0.0
    bias: Annotated[bool, "biases in the layers (only gpt)", INHERITED, OPTIONAL] = False


@dataclass(frozen=True)
class OptimConfig(Config):
    """Batches, optimizers, learning-rate schedule, loss."""

    batch_size: Annotated[int, "examples per step, in all processes together", "[1, 1000000]"] = 8
    gradient_accumulation_steps: Annotated[int, "parts of a batch", "[1, 1e6]", RESUMABLE] = 1
    max_iters: Annotated[int, "number of optimizer steps", "[1, 1e15]", RESUMABLE] = 1100
    optimizer: Annotated[Literal["muon", "adamw"], "updates the matrices in the blocks"] = "muon"
    learning_rate: Annotated[float, "peak learning rate of AdamW and Muon", "[0, 1e30]"] = 7e-3
    min_lr: Annotated[float, "final value of a cosine schedule; 0: linear to 0", "[0, 1e30]"] = 0.0
    warmup_iters: Annotated[int, "steps in which the learning rate rises", "[0, 1e15]"] = 20
    beta1: Annotated[float, "AdamW's decay of the mean gradient", "[0, 1)"] = 0.9
    beta2: Annotated[float, "AdamW's decay of the mean squared gradient", "[0, 1)"] = 0.95
    weight_decay: Annotated[float, "of matrices; muon: only in the blocks", "[0, 1e30]"] = 0.5
    grad_clip: Annotated[float, "clip the gradient norm to this value (0: never)", "[0, inf)"] = 1.0
    ema_decay: Annotated[float, "decay of the average of the weights (0: none)", "[0, 1)"] = 0.0
    train_temperature: Annotated[float, "softmax temperature in training only", "[0.1, 10]"] = 1.0


@dataclass(frozen=True)
class RunConfig(Config):
    """How long to train, where to start and to save, how often to evaluate, how to compile."""

    minutes: Annotated[float, "time limit of the run (0: no limit)", "[0, 1e6]", RESUMABLE] = 0.0
    init_from: Annotated[str | None, "start with the weights of a run or checkpoint", PATH] = None
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>", PATH] = None
    seed: Annotated[int, "the same seed gives the same result on one machine", "[0, 1e15]"] = 1337
    eval_interval: Annotated[int, "steps between evaluations", "[1, 1e15]", RESUMABLE] = 138
    log_interval: Annotated[int, "steps between points of the training curve", "[1, 1e15]"] = 10
    compile: Annotated[Mode, "on: torch.compile; auto: CUDA graph on one GPU", RESUMABLE] = "auto"


@dataclass(frozen=True)
class DeviceConfig(Config):
    """Device and number format."""

    device: Annotated[str, "auto (cuda or cpu), cpu, cuda, cuda:N or mps", RESUMABLE] = "auto"
    dtype: Annotated[DType, "auto: fastest in training, float32 in sampling", RESUMABLE] = "auto"


@dataclass(frozen=True)
class TrainConfig(DataConfig, GPTConfig, OptimConfig, RunConfig, DeviceConfig):
    """All settings of train.py."""
