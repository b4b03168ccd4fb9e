"""Write text with a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import sys

if sys.version_info < (3, 11):
    sys.exit(f"error: Quill needs Python 3.11 or newer; this is {sys.version.split()[0]}")

import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from configs.flags import ConfigParser, UserError, make_config
from configs.settings import DeviceConfig
from data.corpus import cut_windows
from data.reader import read_text
from data.tokenizer import ESCAPE_HINT, CharTokenizer, describe_unknown
from model import checkpoint
from model.generate import GenerationConfig, first_character, stream
from model.inspect.page import attention_page
from model.loss import evaluate
from model.network import count_parameters
from model.system.device import sampling_machine
from model.system.errors import disk_errors, out_of_memory_hint, report_errors
from model.system.files import atomic_write
from model.system.terminal import escape_control_chars, print_line

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
class SampleConfig(TextConfig, GenerationConfig, DeviceConfig):
    """Everything that sample.py can be told."""


def read_input(name: str, encoding: str) -> str:
    """The text of a file, or of standard input, which is UTF-8."""
    return read_text(Path(name), "utf-8" if name == "-" else encoding)


def known_characters(text: str, vocab: str, name: str) -> str:
    """`text` without the characters that are not in the vocabulary, which standard error names.

    Raises UserError if fewer than two are left.
    """
    known = "".join(filter(set(vocab).__contains__, text))
    if len(text) < 2:
        raise UserError(f"{name} is empty or has one character; the first one is not scored.")
    if len(known) < 2:
        raise UserError(f"{name} has only {describe_unknown(text, vocab)}")
    if len(known) < len(text):
        print_line(f"warning: left out of {name}: {describe_unknown(text, vocab)}", sys.stderr)
    return known


def text_batches(ids_N: Tensor, block_size: int, chars: int) -> Iterator[tuple[Tensor, Tensor]]:
    """x_BT and y_BT of windows that cover a text, as in an evaluation during training."""
    for starts_B, T in cut_windows(len(ids_N), block_size, chars):
        positions_BT = torch.from_numpy(starts_B)[:, None] + torch.arange(T)
        yield ids_N[positions_BT], ids_N[positions_BT + 1]


def sample_texts(
    model: nn.Module, tokenizer: CharTokenizer, prompt: str, config: SampleConfig
) -> Iterator[tuple[int, str]]:
    """All texts in pieces: (i, piece of text i).

    Each text begins with the prompt. SEPARATOR precedes all but the first; but if texts stop
    at a line end, each is a line.
    """
    vocab, stop = tokenizer.vocab, config.stop
    prompt_ids = tokenizer.encode(prompt or first_character(vocab), "the prompt").tolist()
    yield 0, prompt
    before = ""
    for i, piece in stream(model, vocab, prompt_ids, config, stop):
        if i == 0:
            yield 0, piece
            before = (before + piece)[-len(stop) :] if stop else ""
            continue
        separator = SEPARATOR
        if stop == "\n":
            separator = "" if before.endswith(stop) else stop
        yield i, separator + prompt + piece
        before = piece


def write(pieces: Iterable[tuple[int, str]]) -> str:
    """Write pieces of texts to standard output at once. Returns the first text."""
    first = ""
    for i, piece in pieces:
        if i == 0:
            first += piece
        with disk_errors("standard output"):
            print(escape_control_chars(piece, sys.stdout), end="", flush=True)
    return first


def run_interactive(model: nn.Module, tokenizer: CharTokenizer, config: SampleConfig) -> None:
    """Continue each line of standard input until it ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history for input())
    if hasattr(sys.stdin, "reconfigure"):
        # On Linux, standard input does not translate line ends by itself.
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline=None)
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
                print(flush=True)
            return
        # A new seed each turn: the same prompt gets another continuation.
        turn_config = replace(config, seed=config.seed + turn)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends this text
            write(sample_texts(model, tokenizer, prompt, turn_config))
        print(flush=True)


@report_errors
def main(argv: list[str]) -> None:
    """The command line."""
    parser = ConfigParser(SampleConfig, USAGE, "Write text with a trained model.")
    metavar = "RUN_DIR | CHECKPOINT.pt"
    parser.add_argument("checkpoint", nargs="?", metavar=metavar, help="default: the newest run")
    flags = parser.parse(argv)
    name = flags.pop("checkpoint", None)
    config = make_config(SampleConfig, flags)

    # The checkpoint, and what is to be done with it
    path = checkpoint.resolve(name, config.which)
    saved = checkpoint.load(path)
    model = checkpoint.load_model(saved)
    encoding, block_size = model.config.encoding, model.config.block_size
    tokenizer = CharTokenizer(saved.vocab)
    prompt = config.prompt
    if config.prompt_file is not None:
        prompt = read_input(config.prompt_file, encoding)
    for text, name in ((prompt, "the prompt"), (config.stop, "stop")):
        tokenizer.encode(text, name)
        if re.search(r"\\[nrt]$", text):
            print_line(f"note: {name} ends with {text[-2:]!r}. {ESCAPE_HINT}", sys.stderr)
    scored, left_out = "", 0
    if config.score is not None:
        text = read_input(config.score, encoding)
        name = "standard input" if config.score == "-" else config.score
        scored = known_characters(text, saved.vocab, name)
        left_out = len(text) - len(scored)

    machine = sampling_machine(config, count_parameters(model), config.num_samples)
    model.to(machine.device)

    about = f"{path}, step {saved.step}, on {machine.device}"
    print_line(about, sys.stderr)
    with out_of_memory_hint("Use a smaller --num_samples or a shorter text."):
        # On the attention page; the first text is added.
        shown = "" if prompt else first_character(saved.vocab)
        with torch.inference_mode(), machine.autocast():
            if scored:
                shown = scored
                ids_N = torch.from_numpy(tokenizer.encode(scored))
                chars = machine.eval_batch_chars(model.vocab_size)
                batches = text_batches(ids_N, block_size, chars)
                nats = evaluate(model, batches, machine)
                others = f"; {left_out:,} others are not in the vocabulary" if left_out else ""
                print(
                    f"{nats:.4f} nats, {nats / math.log(2):.4f} bits per character, "
                    f"over {len(scored) - 1:,} characters, at temperature 1{others}",
                    flush=True,
                )
            elif config.interactive:
                run_interactive(model, tokenizer, config)
            else:
                shown += write(sample_texts(model, tokenizer, prompt, config))
                if sys.stdout.isatty():
                    print(flush=True)
        if config.attention is not None:
            ids = tokenizer.encode(shown).tolist()
            page = attention_page(model, saved.vocab, ids, about)
            with atomic_write(Path(config.attention)) as file:
                file.write(page.encode("utf-8", "replace"))


if __name__ == "__main__":
    sys.exit(main())
