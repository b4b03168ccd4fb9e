"""Write text with a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import contextlib
import itertools
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from configs.errors import UserError
from configs.flags import ConfigParser, make_config
from configs.settings import PATH, DeviceConfig
from data.reader import read_text
from data.tokenizer import describe_unknown
from model import load
from model.generate import GenerationConfig, first_character
from model.system.console import report_errors
from model.system.files import atomic_write
from model.trained import TrainedModel

USAGE = "python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"
SEPARATOR = "\n" + "-" * 20 + "\n"  # between two texts


@dataclass(frozen=True)
class TextConfig:
    """The text to continue, where to stop, what to show."""

    prompt: Annotated[str, "the text to continue; default: a newline"] = ""
    prompt_file: Annotated[str | None, "a file with the prompt; - is standard input", PATH] = None
    stop: Annotated[str, "end a text after these characters"] = ""
    which: Annotated[Literal["best", "last"], "which checkpoint of the run to use"] = "best"
    interactive: Annotated[bool, "continue one prompt after another; Ctrl-C ends a text"] = False
    score: Annotated[str | None, "print the loss of this file (- is standard input)", PATH] = None
    attention: Annotated[str | None, "write an HTML page of the model to this file", PATH] = None


@dataclass(frozen=True)
class SampleConfig(TextConfig, GenerationConfig, DeviceConfig):
    """All settings of sample.py."""


@report_errors
def main(argv: list[str]) -> None:
    """Load a model. Continue one or more prompts, or score a file. Write the page."""
    parser = ConfigParser(SampleConfig, USAGE, "Write text with a trained model.")
    parser.add_argument("checkpoint", nargs="?", help="RUN_DIR or a file; default: the newest run")
    flags = parser.parse(argv)
    name = flags.pop("checkpoint", None)
    config = make_config(SampleConfig, flags)
    for names in (("prompt", "prompt_file", "interactive", "score"), ("interactive", "attention")):
        if sum(bool(getattr(config, key)) for key in names) > 1:
            raise UserError(f"give only one of {', '.join(names)}.")
    page = config.attention and Path(config.attention)
    if page and (page.suffix != ".html" or not page.parent.is_dir()):
        raise UserError(f"attention is '{page}'. Name an .html file in a folder that exists.")
    model = load(name, config.which, device=config.device, dtype=config.dtype)
    if "\\" not in model.vocab:  # so \n and \t can only mean a line end and a tab
        for key in ("prompt", "stop"):
            text = getattr(config, key).replace(r"\n", "\n").replace(r"\t", "\t")
            config = replace(config, **{key: text})
    model.tokenizer.encode(config.stop, "stop")
    prompt = config.prompt
    if config.prompt_file is not None:
        prompt = read_text(Path(config.prompt_file), "utf-8")
    model.tokenizer.encode(prompt, "the prompt")

    if config.interactive:
        converse(model, config)
        return
    if config.score is not None:
        text, n_typed = score(model, config.score), None
    else:
        print(model.about, file=sys.stderr, flush=True)
        text = write(model, prompt, config)
        n_typed = len(model.tokenizer.encode(prompt or first_character(model.vocab)))
        if sys.stdout.isatty():
            print(flush=True)
    if page:
        with atomic_write(page) as file:
            file.write(model.attention_page(text, n_typed).encode("utf-8", "replace"))


def write(model: TrainedModel, prompt: str, config: SampleConfig) -> str:
    """Print the first text while it is written, then the others. Return the first text."""
    first = prompt or first_character(model.vocab)
    print(prompt, end="", flush=True)
    line_end = "\n" if config.stop == "\n" else ""  # then each text is a line
    for i, piece in model.generate(prompt, config, config.stop):
        first += piece if i == 0 else ""
        before = "" if i == 0 else (line_end or SEPARATOR) + prompt
        print(before + piece.removesuffix(line_end), end="", flush=True)
    print(end=line_end, flush=True)
    return first


def converse(model: TrainedModel, config: SampleConfig) -> None:
    """Read lines from standard input and continue each of them."""
    print(model.about, file=sys.stderr, flush=True)
    with contextlib.suppress(ImportError):  # Windows has no readline
        import readline  # noqa: F401  (arrow keys and history for input())
    for turn in itertools.count():
        try:
            prompt = input("> " if sys.stdin.isatty() else "")
            model.tokenizer.encode(prompt, "the prompt")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            continue
        except EOFError:
            return
        # Each turn has a new seed, so that the same prompt gets another continuation.
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends this text
            write(model, prompt, replace(config, seed=config.seed + turn))
        print(flush=True)


def score(model: TrainedModel, name: str) -> str:
    """Print the loss of the characters of a file that the model knows. Return these characters."""
    text = model.tokenizer.known_form(read_text(Path(name), "utf-8"))
    vocab = set(model.vocab)
    known = "".join(character for character in text if character in vocab)
    if len(known) < len(text):
        unknown = describe_unknown(text, model.vocab)
        print(f"warning: the text has {unknown}", file=sys.stderr, flush=True)
    nats = model.loss(known)
    print(model.about, file=sys.stderr, flush=True)
    print(
        f"{nats:.4f} nats, {nats / math.log(2):.4f} bits per character, "
        f"over {len(known) - 1:,} characters, at temperature 1",
        flush=True,
    )
    return known


if __name__ == "__main__":
    sys.exit(main())
