"""Write text with a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import nn

from configs.schema import ConfigParser, make_config
from configs.training import TrainConfig
from data.reader import read_text
from data.tokenizer import CharTokenizer
from model import checkpoint
from model.generate import GenerationConfig, first_character, stream, total_nll
from model.inspect.page import attention_page
from model.network import make_network
from model.system.device import DeviceConfig, sampling_machine
from model.system.errors import (
    UserError,
    escape_control_chars,
    out_of_memory_hint,
    print_line,
    report_errors,
)
from model.system.files import atomic_write

USAGE = "python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"
SEPARATOR = "\n" + "-" * 20 + "\n"


@dataclass(frozen=True)
class TextConfig:
    """What to continue, where to stop, what to show."""

    prompt: Annotated[str, "the text to continue; default: a newline"] = ""
    prompt_file: Annotated[
        str | None, "a file with the prompt, in the corpus's encoding; - is standard input, UTF-8"
    ] = None
    stop: Annotated[str, "end a text after this"] = ""
    which: Annotated[Literal["best", "last"], "checkpoint of the run"] = "best"
    interactive: Annotated[bool, "continue one prompt after another; Ctrl-C ends a text"] = False
    score: Annotated[str | None, "print the loss of this file, per character, and exit"] = None
    attention: Annotated[str | None, "write an HTML page: what each head looked at"] = None

    def __post_init__(self) -> None:
        for names in (
            ("prompt", "prompt_file", "interactive", "score"),
            ("interactive", "attention"),
        ):
            given = [name for name in names if getattr(self, name)]
            if len(given) > 1:
                raise UserError(f"{' and '.join(given)} are mutually exclusive. Give one of them.")
        if self.attention is not None:
            path = Path(self.attention)
            if path.suffix != ".html" or not os.path.isdir(path.parent):
                raise UserError(
                    f"attention is {self.attention!r}. Name an .html file in a folder that exists."
                )


@dataclass(frozen=True)
class SampleConfig:
    """Everything that sample.py can be told."""

    text: TextConfig = field(default_factory=TextConfig)
    sampling: GenerationConfig = field(default_factory=GenerationConfig)
    system: DeviceConfig = field(default_factory=DeviceConfig)


def read_prompt(config: TextConfig, encoding: str) -> str:
    """The text to continue; it may be empty."""
    if config.prompt_file is None:
        return config.prompt
    if config.prompt_file != "-":
        return read_text(Path(config.prompt_file), encoding)
    try:
        return sys.stdin.buffer.read().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input is not utf-8: byte offset {error.start}.") from None


def sample_texts(
    model: nn.Module, tokenizer: CharTokenizer, prompt: str, config: SampleConfig
) -> Iterator[tuple[int, str]]:
    """All texts in pieces: (i, piece of text i).

    Each text begins with the prompt; SEPARATOR stands before all but the first.
    """
    vocab, stop = tokenizer.vocab, config.text.stop
    prompt_ids = tokenizer.encode(prompt or first_character(vocab), "the prompt").tolist()
    yield 0, prompt
    for i, piece in stream(model, vocab, prompt_ids, config.sampling, stop):
        yield i, piece if i == 0 else SEPARATOR + prompt + piece


def write(text: str) -> None:
    """Write a piece of text to standard output at once."""
    print(escape_control_chars(text, sys.stdout), end="", flush=True)


def run_interactive(model: nn.Module, tokenizer: CharTokenizer, config: SampleConfig) -> None:
    """Continue each line of standard input until it ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history for input())
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    for turn in itertools.count():
        try:
            prompt = input("> " if on_terminal else "")
            tokenizer.encode(prompt, "the prompt")
        except UserError as error:
            print_line(f"error: {error}", sys.stderr)
            continue
        except EOFError:
            if on_terminal:
                write("\n")
            return
        # A new seed each turn: the same prompt gets another continuation.
        sampling = replace(config.sampling, seed=config.sampling.seed + turn)
        turn_config = replace(config, sampling=sampling)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends this text
            for _, piece in sample_texts(model, tokenizer, prompt, turn_config):
                write(piece)
        write("\n")


@report_errors
def main(argv: list[str]) -> None:
    """The command line."""
    parser = ConfigParser(SampleConfig, USAGE, "Write text with a trained model.")
    metavar = "RUN_DIR | CHECKPOINT.pt"
    parser.add_argument("checkpoint", nargs="?", metavar=metavar, help="default: the newest run")
    flags = parser.parse(argv)
    name = flags.pop("checkpoint", None)
    config = make_config(SampleConfig, flags)
    machine = sampling_machine(config.system)

    # The checkpoint, and what is to be done with it
    path = checkpoint.resolve(name, config.text.which)
    saved = checkpoint.load(path)
    train_config = make_config(TrainConfig, saved.config)
    encoding = train_config.corpus.encoding
    tokenizer = CharTokenizer(saved.vocab)
    prompt = read_prompt(config.text, encoding)
    tokenizer.encode(prompt, "the prompt")
    tokenizer.encode(config.text.stop, "stop")
    score = config.text.score
    start = first_character(saved.vocab)
    if score is not None:
        scored = start + read_text(Path(score), encoding)
        scored_ids = tokenizer.encode(scored, score)
        if len(scored_ids) == 1:
            raise UserError(f"{score} is empty.")

    model = make_network(train_config.model, vocab_size=len(saved.vocab))
    checkpoint.restore(saved, model)
    model.to(machine.device).eval()

    about = f"{path}, step {saved.step}, on {machine.device}"
    print_line(about, sys.stderr)
    with out_of_memory_hint("Use a smaller --num_samples or a shorter text."):
        shown = "" if prompt else start  # on the attention page; the first text is added
        with torch.inference_mode(), machine.autocast():
            if score is not None:
                shown = scored
                nats = total_nll(model, scored_ids) / (len(scored_ids) - 1)
                bits = nats / math.log(2)
                chars = f"{len(scored_ids) - 1:,} characters"
                write(f"{nats:.4f} nats, {bits:.4f} bits per character, over {chars}\n")
            elif config.text.interactive:
                run_interactive(model, tokenizer, config)
            else:
                for i, piece in sample_texts(model, tokenizer, prompt, config):
                    if i == 0:
                        shown += piece
                    write(piece)
                if sys.stdout.isatty():
                    write("\n")
        if config.text.attention is not None:
            ids = tokenizer.encode(shown).tolist()
            page = attention_page(model, saved.vocab, ids, about)
            with atomic_write(Path(config.text.attention)) as file:
                file.write(page.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
