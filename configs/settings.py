"""Every setting of train.py, and its default. Each field is a flag and a TOML key.

One line declares a setting: a type, a help text, the limit of a number, marks such as PATH, and a
default. The type is int, float, bool, str, `str | None`, `tuple[str, ...] | None` or a Literal of
strings. The docstring of a class is the title of its group in --help and in config.toml. In each
new run, the recipe replaces some defaults, which are its values for Tiny Shakespeare on a CPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from configs.errors import UserError

PATH = "path"  # the value becomes an absolute path, so that --resume works in any folder
RESUMABLE = "resumable"  # a resumed run may change the value
# A run with --init_from keeps the value, because it shaped the weights or chose their text.
INHERITED = "inherited"
OPTIONAL = "optional"  # only some networks have the setting; they name it in `settings`


class Limit(NamedTuple):
    """Which values a setting allows. --help and messages show the words."""

    words: str
    allows: Callable[[Any], bool]


def between(low: float, high: float) -> Limit:
    """Return a Limit to the numbers from low to high."""
    return Limit(f"from {low:,} to {high:,}", lambda x: low <= x <= high)


INTEGER = Limit("an integer of 64 bits", lambda x: isinstance(x, Integral) and abs(x) < 2**63)
NUMBER = Limit("a finite float32 number", lambda x: isinstance(x, Real) and abs(x) < 3.4e38)
ONE_OR_MORE = Limit("1 or more", lambda x: x >= 1)
ZERO_OR_MORE = Limit("0 or more", lambda x: x >= 0)
BELOW_ONE = Limit("from 0 to below 1", lambda x: 0 <= x < 1)
UP_TO_ONE = Limit("above 0 and at most 1", lambda x: 0 < x <= 1)
SHARE = Limit("above 0 and below 1", lambda x: 0 < x < 1)


class Config:
    """Settings. A wrong value raises UserError, whether a flag, a preset or Python gives it."""

    def __post_init__(self) -> None:
        """Check each value."""
        for field in fields(self):
            kind, _, *marks = get_args(field.type)
            value, choices = getattr(self, field.name), get_args(kind)
            if get_origin(kind) is Literal and value not in choices:
                raise UserError(f"{field.name} is {value!r}. Choose from {', '.join(choices)}.")
            for limit in ({int: INTEGER, float: NUMBER}.get(kind), *marks):
                if isinstance(limit, Limit) and not limit.allows(value):
                    raise UserError(f"{field.name} is {value!r}. It must be {limit.words}.")


def marked(config_class: type, mark: str) -> list[str]:
    """Return the names of the settings that have this mark."""
    return [field.name for field in fields(config_class) if mark in get_args(field.type)]


Texts = tuple[str, ...] | None  # None means Tiny Shakespeare
DType = Literal["auto", "float32", "bfloat16", "float16"]
Mode = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class DataConfig(Config):
    """The text, and how much of it is for validation."""

    data: Annotated[Texts, "files, folders, -; none: Tiny Shakespeare", PATH, RESUMABLE] = None
    encoding: Annotated[str, "encoding of the text"] = "utf-8"
    val_fraction: Annotated[float, "share of the text for validation", SHARE, INHERITED] = 0.1
    val_split: Annotated[Literal["end", "spread"], "place of validation text", INHERITED] = "end"


@dataclass(frozen=True)
class GPTConfig(Config):
    """The network and its size."""

    network: Annotated[str, "file in model/networks/; gpt: the textbook GPT", INHERITED] = "quill"
    n_layer: Annotated[int, "number of blocks", between(1, 1000), INHERITED] = 2
    n_head: Annotated[int, "attention heads per block; 0: n_embd / 64", ZERO_OR_MORE, INHERITED] = 0
    n_embd: Annotated[int, "channels of the residual stream", between(1, 10**5), INHERITED] = 128
    block_size: Annotated[int, "context: how many characters attention sees", ONE_OR_MORE] = 256
    dropout: Annotated[float, "dropout probability", BELOW_ONE] = 0.0
    bias: Annotated[bool, "biases in the layers (only gpt)", INHERITED, OPTIONAL] = False


@dataclass(frozen=True)
class OptimConfig(Config):
    """Batches, optimizers, learning-rate schedule, loss."""

    batch_size: Annotated[int, "examples a step, in all processes together", between(1, 10**6)] = 8
    gradient_accumulation_steps: Annotated[int, "parts of a batch", ONE_OR_MORE, RESUMABLE] = 1
    max_iters: Annotated[int, "number of optimizer steps", ONE_OR_MORE, RESUMABLE] = 1100
    optimizer: Annotated[Literal["muon", "adamw"], "updates the matrices in the blocks"] = "muon"
    learning_rate: Annotated[float, "peak learning rate of AdamW and Muon", ZERO_OR_MORE] = 7e-3
    min_lr: Annotated[float, "final value of a cosine schedule; 0: linear to 0", ZERO_OR_MORE] = 0.0
    warmup_iters: Annotated[int, "steps in which the learning rate rises", ZERO_OR_MORE] = 20
    beta1: Annotated[float, "AdamW's decay of the mean gradient", BELOW_ONE] = 0.9
    beta2: Annotated[float, "AdamW's decay of the mean squared gradient", BELOW_ONE] = 0.95
    weight_decay: Annotated[float, "of matrices; muon: only in the blocks", ZERO_OR_MORE] = 0.5
    grad_clip: Annotated[float, "clip the gradient norm to this; 0: never", ZERO_OR_MORE] = 1.0
    ema_decay: Annotated[float, "decay of the average of the weights; 0: none", BELOW_ONE] = 0.0
    train_temperature: Annotated[float, "softmax temperature in training", between(0.1, 10)] = 1.0


@dataclass(frozen=True)
class RunConfig(Config):
    """How long to train, where to start and to save, how often to evaluate, how to compile."""

    minutes: Annotated[float, "time limit of the run; 0: no limit", ZERO_OR_MORE, RESUMABLE] = 0.0
    init_from: Annotated[str | None, "start with the weights of a run or checkpoint", PATH] = None
    out_dir: Annotated[str | None, "run directory; default: runs/<date>-<time>", PATH] = None
    seed: Annotated[int, "the same seed gives the same result on one machine", ZERO_OR_MORE] = 1337
    eval_interval: Annotated[int, "steps between evaluations", ONE_OR_MORE, RESUMABLE] = 138
    log_interval: Annotated[int, "steps between points of the training curve", ONE_OR_MORE] = 10
    compile: Annotated[Mode, "on: torch.compile; auto: CUDA graph on one GPU", RESUMABLE] = "auto"


@dataclass(frozen=True)
class DeviceConfig(Config):
    """Device and number format."""

    device: Annotated[str, "auto (cuda or cpu), cpu, cuda, cuda:N or mps", RESUMABLE] = "auto"
    dtype: Annotated[DType, "auto: fastest in training, float32 in sampling", RESUMABLE] = "auto"


@dataclass(frozen=True)
class TrainConfig(DataConfig, GPTConfig, OptimConfig, RunConfig, DeviceConfig):
    """All settings of train.py."""
