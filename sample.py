"""Write text with a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: Quill needs Python 3.11 or newer; this is {sys.version.split()[0]}")

import contextlib
import itertools
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from configs.flags import ConfigParser, make_config
from configs.settings import DeviceConfig
from data.reader import read_text
from data.tokenizer import describe_unknown
from model import load
from model.generate import GenerationConfig, first_character
from model.system.errors import UserError, report_errors
from model.system.files import atomic_write
from model.system.terminal import escape_control_chars, print_line
from model.trained import TrainedModel

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
    score: Annotated[
        str | None, "print the loss of this file (- as for prompt_file) as in training, and exit"
    ] = None
    attention: Annotated[str | None, "write an HTML page of the model and its heads"] = None


@dataclass(frozen=True)
class SampleConfig(TextConfig, GenerationConfig, DeviceConfig):
    """Everything that sample.py can be told."""


@report_errors
def main(argv: list[str]) -> None:
    """The command line."""
    parser = ConfigParser(SampleConfig, USAGE, "Write text with a trained model.")
    metavar = "RUN_DIR | CHECKPOINT.pt"
    parser.add_argument("checkpoint", nargs="?", metavar=metavar, help="default: the newest run")
    flags = parser.parse(argv)
    name = flags.pop("checkpoint", None)
    config = make_config(SampleConfig, flags)
    require_consistent(config)
    options = {"device": config.device, "dtype": config.dtype, "texts": config.num_samples}
    model = load(name, config.which, **options)
    model.tokenizer.encode(config.stop, "stop")
    if config.interactive:
        converse(model, config)
        return
    text = score(model, config) if config.score is not None else write(model, config)
    if config.attention is not None:
        with atomic_write(Path(os.path.expanduser(config.attention))) as file:
            file.write(model.attention_page(text).encode("utf-8", "replace"))


def require_consistent(config: SampleConfig) -> None:
    """Raise UserError if flags exclude each other, or the page cannot be written."""
    for names in (("prompt", "prompt_file", "interactive", "score"), ("interactive", "attention")):
        given = [name for name in names if getattr(config, name)]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} are mutually exclusive. Give one of them.")
    if config.attention is not None:
        path = Path(os.path.expanduser(config.attention))
        if path.suffix != ".html" or not os.path.isdir(path.parent):
            raise UserError(
                f"attention is {config.attention!r}. Name an .html file in a folder that exists."
            )


def write(model: TrainedModel, config: SampleConfig) -> str:
    """Continue a prompt. Returns the first text, with what stands in for an empty prompt."""
    prompt = config.prompt
    if config.prompt_file is not None:
        prompt = read_input(config.prompt_file, model)
    model.tokenizer.encode(prompt, "the prompt")
    print_line(model.about, sys.stderr)
    first = write_texts(model, prompt, config)
    if sys.stdout.isatty():
        print(flush=True)
    return first if prompt else first_character(model.vocab) + first


def write_texts(model: TrainedModel, prompt: str, config: SampleConfig) -> str:
    """Write to standard output, the first text while it is made, then the others. Returns it.

    A line of dashes precedes all but the first; but if texts stop at a line end, each is a line.
    """
    first = last = prompt
    show(prompt)
    for i, piece in model.generate(prompt, config, config.stop):
        if i == 0:
            show(piece)
            first = last = first + piece
            continue
        separator = SEPARATOR
        if config.stop == "\n":
            separator = "" if last.endswith("\n") else "\n"
        show(separator + prompt + piece)
        last = piece
    return first


def show(text: str) -> None:
    """Write to standard output at once."""
    print(escape_control_chars(text, sys.stdout), end="", flush=True)


def converse(model: TrainedModel, config: SampleConfig) -> None:
    """Continue each line of standard input until it ends."""
    print_line(model.about, sys.stderr)
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history for input())
    if hasattr(sys.stdin, "reconfigure"):
        # On Linux, standard input does not translate line ends by itself.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline=None)
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    for turn in itertools.count():
        try:
            prompt = input("> " if on_terminal else "")
            model.tokenizer.encode(prompt, "the prompt")
        except UserError as error:
            print_line(f"error: {error}", sys.stderr)
            continue
        except EOFError:
            if on_terminal:
                print(flush=True)
            return
        # A new seed each turn: the same prompt gets another continuation.
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends this text
            write_texts(model, prompt, replace(config, seed=config.seed + turn))
        print(flush=True)


def score(model: TrainedModel, config: SampleConfig) -> str:
    """Print the loss of a file. Returns what was scored: the characters that the model knows."""
    name = "standard input" if config.score == "-" else config.score
    text = read_input(config.score, model)
    known = "".join(filter(set(model.vocab).__contains__, text))
    if len(text) < 2:
        raise UserError(f"{name} is empty or has one character; the first one is not scored.")
    if len(known) < 2:
        raise UserError(f"{name} has only {describe_unknown(text, model.vocab)}")
    others = ""
    if left_out := len(text) - len(known):
        others = f"; {left_out:,} others are not in the vocabulary"
        unknown = describe_unknown(text, model.vocab)
        print_line(f"warning: left out of {name}: {unknown}", sys.stderr)
    print_line(model.about, sys.stderr)
    nats = model.loss(known)
    print(
        f"{nats:.4f} nats, {nats / math.log(2):.4f} bits per character, "
        f"over {len(known) - 1:,} characters, at temperature 1{others}",
        flush=True,
    )
    return known


def read_input(name: str, model: TrainedModel) -> str:
    """The text of a file in the corpus's encoding, or of standard input, which is UTF-8."""
    return read_text(Path(os.path.expanduser(name)), "utf-8" if name == "-" else model.encoding)


if __name__ == "__main__":
    sys.exit(main())
