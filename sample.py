"""Write text from a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import contextlib
import itertools
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

import numpy as np
import torch

from configs import TrainConfig
from configs.schema import build, read_flags
from data.text import read_text
from data.tokenizer import CharTokenizer
from model import checkpoint
from model.checkpoint import Checkpoint
from model.ending import exit_status, keep_within_memory, memory_for, say, shown, silence
from model.generate import SamplingConfig, first_character, stream, surprise
from model.gpt import GPT
from model.runtime import DeviceConfig, autocast, choose_device, choose_dtype

USAGE = "python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]  without either, the newest run under runs/"
SEPARATOR = "\n" + "-" * 20 + "\n"


@dataclass(frozen=True)
class TextConfig:
    """What to begin with, where to end, where it goes."""

    prompt: Annotated[str, "the text to continue; left out: a new line"] = ""
    prompt_file: Annotated[str | None, "a file that holds it, encoded as the corpus; -: standard input, UTF-8"] = None
    stop: Annotated[str, "end a text once it has written this"] = ""
    out: Annotated[str | None, "a file to write to instead of standard output, in the corpus's encoding"] = None
    which: Annotated[Literal["best", "last"], "of a run's two checkpoints"] = "best"
    interactive: Annotated[bool, "continue one prompt after another; Ctrl-C ends a text, and then the session"] = False
    score: Annotated[
        str | None,
        "a file: write its nats and bits per character; a little less than validation's, whose windows forget",
    ] = None

    def __post_init__(self) -> None:
        only_one = ("prompt", "prompt_file", "interactive", "score")
        given = [f.name for f in fields(self) if f.name in only_one and getattr(self, f.name) != f.default]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; leave all but one out")


@dataclass(frozen=True)
class SampleConfig:
    """All that sample.py can be told."""

    text: TextConfig = field(default_factory=TextConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    system: DeviceConfig = field(default_factory=DeviceConfig)


def read_prompt(config: TextConfig, encoding: str) -> str:
    """The text to continue, which may be empty."""
    if config.prompt_file == "-":
        if not hasattr(sys.stdin, "buffer"):  # a notebook's or a test's
            return sys.stdin.read()
        try:
            return sys.stdin.buffer.read().decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise ValueError(f"standard input is not utf-8: byte offset {error.start}") from None
    return config.prompt if config.prompt_file is None else read_text(Path(config.prompt_file), encoding)


def texts(model: GPT, tokenizer: CharTokenizer, prompt: str, config: SampleConfig) -> Iterator[str]:
    """All texts as one stream, the prompt before each."""
    vocab, start = tokenizer.vocab, tokenizer.encode(prompt or first_character(tokenizer.vocab), "the prompt")
    yield prompt
    for i, piece in stream(model, vocab, start.tolist(), config.sampling, config.text.stop):
        yield piece if i == 0 else SEPARATOR + prompt + piece


def write(pieces: Iterable[str], to: TextIO) -> None:
    """Each piece as soon as it is there."""
    for piece in pieces:
        to.write(shown(piece, to))
        to.flush()


def converse(model: GPT, tokenizer: CharTokenizer, config: SampleConfig, to: TextIO) -> None:
    """A prompt from standard input, its continuation, and again, until the input ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (arrow keys and earlier prompts where one is typed)
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    mark = "> " if sys.stdin.isatty() and to.isatty() else ""
    for turn in itertools.count():
        try:
            prompt = input(mark)
            tokenizer.encode(prompt, "the prompt")
        except ValueError as error:
            say(f"error: {error}", sys.stderr)
            continue
        except EOFError:
            return write("\n" if mark else "", to)
        sampling = replace(config.sampling, seed=config.sampling.seed + turn)  # asked again, it answers anew
        with contextlib.suppress(KeyboardInterrupt):  # enough of this one
            write(texts(model, tokenizer, prompt, replace(config, sampling=sampling)), to)
        write("\n", to)


def score(model: GPT, vocab: str, ids_N: np.ndarray) -> str:
    """A line with the model's mean surprise at the characters of a text."""
    nats = surprise(model, vocab.index(first_character(vocab)), ids_N) / len(ids_N)
    return f"{nats:.4f} nats, {nats / math.log(2):.4f} bits per character, over {len(ids_N):,} characters\n"


def open_out(out: str | None, encoding: str, source: Path) -> contextlib.AbstractContextManager[TextIO]:
    """Where the text goes: a file, or standard output."""
    if out is None:
        return contextlib.nullcontext(sys.stdout)
    if Path(out).resolve() == source.resolve() or Path(out).suffix.lower() == ".pt":
        raise ValueError(f"out {out} is a checkpoint's name; name another")
    try:
        return open(out, "w", encoding=encoding, newline="")
    except OSError as error:
        raise ValueError(f"out {out} cannot be written: {error.strerror}") from None


def sample(argv: list[str]) -> int:
    """The command. Returns the exit status."""
    named, given = read_flags(argv, SampleConfig, USAGE)
    config = build(SampleConfig, given)
    device = choose_device(config.system.device)
    if device.type == "cpu":
        keep_within_memory()
    dtype = choose_dtype("float32" if config.system.dtype == "auto" else config.system.dtype, device)
    path = checkpoint.find(named, config.text.which)
    saved = checkpoint.load(path)
    what = f"num_samples {config.sampling.num_samples} of {path}; halve it, or score less at a time"
    with memory_for(what), autocast(device, dtype):
        answer(config, saved, path, device)
    return 0


def answer(config: SampleConfig, saved: Checkpoint, path: Path, device: torch.device) -> None:
    """What `config` asks of the model saved at `path`."""
    trained = build(TrainConfig, saved.config)
    tokenizer = CharTokenizer(saved.vocab)
    prompt = read_prompt(config.text, trained.data.encoding)
    tokenizer.encode(prompt, "the prompt")
    tokenizer.encode(config.text.stop, "the stop")  # such a stop would never come
    if (scored := config.text.score) is not None:
        scored_N = tokenizer.encode(read_text(Path(scored), trained.data.encoding), scored)
        if not len(scored_N):
            raise ValueError(f"{scored} is empty")
    model = GPT(trained.model, len(saved.vocab))
    checkpoint.restore(saved, model)
    model.to(device).eval()

    out = open_out(config.text.out, trained.data.encoding, path)
    say(f"{path}, step {saved.step}, on {device}", sys.stderr)
    try:
        with out as to:
            if scored is not None:
                write(score(model, saved.vocab, scored_N), to)
            elif config.text.interactive:
                converse(model, tokenizer, config, to)
            else:
                write(texts(model, tokenizer, prompt, config), to)
                write("\n" if to.isatty() else "", to)
    except BrokenPipeError:  # head, perhaps, has had enough
        silence(sys.stdout)
    except OSError as error:
        where = config.text.out or "standard output"
        raise OSError(f"{where} cannot be written: {error.strerror}; make room, or name another --out") from None


def main(argv: list[str] | None = None) -> int:
    """The command line as a function: returns the exit status."""
    return exit_status(lambda: sample(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
