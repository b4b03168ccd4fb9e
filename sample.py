"""Write text from a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TextIO

from configs import TrainConfig
from configs.schema import build, read_flags
from data.text import read_text
from data.tokenizer import CharTokenizer
from model import checkpoint
from model.ending import exit_status, say, silence
from model.generate import SamplingConfig, first_character, generate
from model.gpt import GPT
from model.runtime import DeviceConfig, autocast, choose_device, choose_dtype

USAGE = """\
python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]  without either, the newest run under runs/"""
SEPARATOR = "\n" + "-" * 20 + "\n"


@dataclass(frozen=True)
class TextConfig:
    """What to begin with, where to end, where it goes."""

    prompt: Annotated[str, "the text to continue; left out: a new line"] = ""
    prompt_file: Annotated[str | None, "a file that holds it, encoded as the corpus; -: standard input, UTF-8"] = None
    stop: Annotated[str, "end a text once it has written this"] = ""
    out: Annotated[str | None, "a file to write to instead of standard output, in the corpus's encoding"] = None
    which: Annotated[Literal["best", "last"], "of a run's two checkpoints"] = "best"

    def __post_init__(self) -> None:
        if self.prompt and self.prompt_file is not None:
            raise ValueError("prompt and prompt_file are both given; leave one out")


@dataclass(frozen=True)
class SampleConfig:
    """All that sample.py can be told."""

    text: TextConfig = field(default_factory=TextConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    system: DeviceConfig = field(default_factory=DeviceConfig)


def find_checkpoint(named: str | None, which: str) -> Path:
    """The checkpoint meant. Raises ValueError where there is none."""
    if named is None:
        runs = sorted(filter(os.path.isfile, Path("runs").glob("*/*.pt")), key=os.path.getmtime)
        if not runs:
            raise ValueError("there is no run under runs/ yet; train one with python train.py, or name a checkpoint")
        named = str(runs[-1].parent)
    path = Path(named)
    if os.path.isdir(path):
        path = path / f"{which}.pt"
        if not os.path.exists(path):
            others = sorted(other.stem for other in path.parent.glob("*.pt"))
            raise ValueError(f"{path} does not exist" + (f"; --which {others[0]} does" if others else ""))
    return path


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


def stream_texts(model: GPT, vocab: str, start: list[int], prompt: str, config: SampleConfig) -> Iterator[str]:
    """All texts as one stream, the prompt before each: the first as it is made, the others when it is done."""
    stop = list(config.text.stop)
    texts: list[list[str]] = [[] for _ in range(config.sampling.num_samples)]
    unfinished = set(range(config.sampling.num_samples))
    yield prompt
    for ids_B in generate(model, start, config.sampling):
        for i in sorted(unfinished):
            texts[i].append(vocab[ids_B[i]])
            if i == 0:
                yield vocab[ids_B[i]]
            if stop and texts[i][-len(stop) :] == stop:
                unfinished.remove(i)
        if not unfinished:
            break
    for text in texts[1:]:
        yield SEPARATOR + prompt + "".join(text)


def open_out(out: str | None, encoding: str) -> contextlib.AbstractContextManager[TextIO]:
    """Where the text goes: a file, or standard output."""
    if out is None:
        return contextlib.nullcontext(sys.stdout)
    try:
        return open(out, "w", encoding=encoding, newline="")
    except OSError as error:
        raise ValueError(f"out {out} cannot be written: {error.strerror}") from None


def sample(argv: list[str]) -> int:
    """The command. Returns the exit status."""
    named, given = read_flags(argv, SampleConfig, USAGE)
    config = build(SampleConfig, given)
    device = choose_device(config.system.device)
    dtype = choose_dtype("float32" if config.system.dtype == "auto" else config.system.dtype, device)
    path = find_checkpoint(named, config.text.which)
    saved = checkpoint.load(path)
    trained = build(TrainConfig, saved.config)
    tokenizer = CharTokenizer(saved.vocab)
    prompt = read_prompt(config.text, trained.data.encoding)
    for name, text in (("prompt", prompt), ("stop", config.text.stop)):  # such a stop would never come
        try:
            tokenizer.encode(text)
        except ValueError as error:
            raise ValueError(f"the {name} has characters the model never saw: {error}") from None
    start = tokenizer.encode(prompt or first_character(saved.vocab)).tolist()
    model = GPT(trained.model, len(saved.vocab))
    checkpoint.restore(saved, model)
    model.to(device).eval()

    out = open_out(config.text.out, trained.data.encoding)
    say(f"{path}, step {saved.step}, on {device}", sys.stderr)
    try:
        with out as stream, autocast(device, dtype):
            for piece in stream_texts(model, saved.vocab, start, prompt, config):
                stream.write(piece)
                stream.flush()
            if stream.isatty():
                stream.write("\n")
    except BrokenPipeError:  # head, perhaps, has had enough
        silence(sys.stdout)
    except OSError as error:
        where = config.text.out or "standard output"
        raise OSError(f"{where} cannot be written: {error.strerror}; make room, or name another --out") from None
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command line as a function: returns the exit status."""
    return exit_status(lambda: sample(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
