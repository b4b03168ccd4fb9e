"""Write text with a trained model: python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"""

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Literal, TextIO

from configs import TrainConfig, config_keys, make_config, make_parser, parse_flags
from data.text import read_text
from data.tokenizer import CharTokenizer
from model import checkpoint
from model.attention_page import attention_page
from model.csampler import CSampler, make_csampler
from model.device import DeviceConfig, autocast, choose_device, choose_dtype
from model.errors import (
    RunError,
    UserError,
    escape_control_chars,
    out_of_memory_hint,
    print_line,
    redirect_to_devnull,
    report_errors,
)
from model.generate import SamplingConfig, start_character, stream, total_nll
from model.gpt import GPT

USAGE = "python sample.py [RUN_DIR | CHECKPOINT.pt] [--key value ...]"
SEPARATOR = "\n" + "-" * 20 + "\n"


@dataclass(frozen=True)
class TextConfig:
    """What to continue, where to stop, where to write."""

    prompt: Annotated[str, "the text to continue; default: a newline"] = ""
    prompt_file: Annotated[
        str | None, "a file with the prompt, in the corpus's encoding; - is standard input, UTF-8"
    ] = None
    stop: Annotated[str, "end a text after this"] = ""
    out: Annotated[str | None, "write to this file, in the corpus's encoding"] = None
    which: Annotated[Literal["best", "last"], "checkpoint of the run"] = "best"
    interactive: Annotated[bool, "continue one prompt after another; Ctrl-C ends a text"] = False
    score: Annotated[str | None, "print the loss of this file, per character, and exit"] = None
    attention: Annotated[str | None, "write an HTML page: what each head looked at"] = None

    def __post_init__(self) -> None:
        exclusive = ("prompt", "prompt_file", "interactive", "score")
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        conflicting = [name for name in given if name in exclusive]
        if len(conflicting) > 1:
            raise UserError(f"{' and '.join(conflicting)} exclude each other. Give one of them.")
        if self.interactive and self.attention is not None:
            raise UserError("interactive and attention exclude each other. Give one of them.")


@dataclass(frozen=True)
class SampleConfig:
    """Everything that sample.py can be told."""

    text: TextConfig = field(default_factory=TextConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
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
    model: GPT,
    csampler: CSampler | None,
    tokenizer: CharTokenizer,
    prompt: str,
    config: SampleConfig,
) -> Iterator[tuple[int, str]]:
    """All texts in pieces (i, piece of text i), each after the prompt and a separator."""
    vocab, stop = tokenizer.vocab, config.text.stop
    start = tokenizer.encode(prompt or start_character(vocab), "the prompt").tolist()
    yield 0, prompt
    for i, piece in stream(model, vocab, start, config.sampling, stop, csampler):
        yield i, piece if i == 0 else SEPARATOR + prompt + piece


def write(text: str, out: TextIO) -> None:
    """Write a piece of text at once."""
    out.write(escape_control_chars(text, out))
    out.flush()


def run_interactive(
    model: GPT,
    csampler: CSampler | None,
    tokenizer: CharTokenizer,
    config: SampleConfig,
    out: TextIO,
) -> None:
    """Continue each line of standard input until it ends."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415  (arrow keys and history for input())
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    on_terminal = sys.stdin.isatty() and out.isatty()
    for turn in itertools.count():
        try:
            prompt = input("> " if on_terminal else "")
            tokenizer.encode(prompt, "the prompt")
        except UserError as error:
            print_line(f"error: {error}", sys.stderr)
            continue
        except EOFError:
            if on_terminal:
                write("\n", out)
            return
        # A new seed each turn: the same prompt gets another continuation.
        sampling = replace(config.sampling, seed=config.sampling.seed + turn)
        turn_config = replace(config, sampling=sampling)
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C ends this text
            for _, piece in sample_texts(model, csampler, tokenizer, prompt, turn_config):
                write(piece, out)
        write("\n", out)


def check_output(name: str | None, others: Iterable[Path | str | None]) -> None:
    """Raise UserError if a file cannot be written, is a checkpoint or one of the `others`."""
    if name is None:
        return
    path = Path(name)
    taken = [Path(other) for other in others if other is not None]
    try:
        exists = bool(path.stat())
    except FileNotFoundError:
        exists = False
    except OSError as error:  # such as a name that is too long
        raise UserError(f"{name} cannot be written: {error.strerror}.") from None
    is_taken = exists and any(os.path.exists(other) and path.samefile(other) for other in taken)
    if is_taken or path.absolute() in map(Path.absolute, taken) or path.suffix.lower() == ".pt":
        raise UserError(f"{name} is an input or a checkpoint. Choose another name for the output.")
    if os.path.isdir(path) or not os.access(path if exists else path.parent, os.W_OK):
        raise UserError(f"{name} cannot be written: it is a folder, or there is no access.")


@contextlib.contextmanager
def report_write_errors(target: str) -> Iterator[None]:
    """A full disk raises RunError. If the reader, such as head, is gone, the rest is discarded."""
    try:
        yield
    except BrokenPipeError:
        redirect_to_devnull(sys.stdout)
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror}.") from None


@report_errors
def main(argv: list[str]) -> int:
    """The command line. Returns the exit status."""
    parser = make_parser(SampleConfig, USAGE, "Write text with a trained model.")
    parser.add_argument(
        "checkpoint", nargs="?", metavar="RUN_DIR | CHECKPOINT.pt", help="default: the newest run"
    )
    flags = parse_flags(parser, argv, config_keys(SampleConfig))
    name = flags.pop("checkpoint", None)
    config = make_config(SampleConfig, flags)
    device = choose_device(config.system.device)
    # float32 unless asked for: a small network samples no faster in less precision.
    dtype = choose_dtype(config.system.dtype.replace("auto", "float32"), device)

    # The checkpoint, and what is to be done with it
    path = checkpoint.resolve(name, config.text.which)
    saved = checkpoint.load(path)
    train_config = make_config(TrainConfig, saved.config)
    encoding = train_config.data.encoding
    tokenizer = CharTokenizer(saved.vocab)
    prompt = read_prompt(config.text, encoding)
    tokenizer.encode(prompt, "the prompt")
    tokenizer.encode(config.text.stop, "stop")
    score = config.text.score
    start = start_character(saved.vocab)
    if score is not None:
        scored = start + read_text(Path(score), encoding)
        scored_ids = tokenizer.encode(scored, score)
        if len(scored_ids) == 1:
            raise UserError(f"{score} is empty.")

    model = GPT(train_config.model, vocab_size=len(saved.vocab))
    checkpoint.restore(saved, model)
    model.to(device).eval()

    hint = "Use a smaller --num_samples or a shorter text."
    inputs = (path, score, config.text.prompt_file)
    check_output(config.text.out, inputs)
    check_output(config.text.attention, (*inputs, config.text.out))
    about = f"{path}, step {saved.step}, on {device}"
    print_line(about, sys.stderr)
    with out_of_memory_hint(hint):
        shown = []  # on the attention page: the first text, or the one that is scored
        target = config.text.out or "standard output"
        with report_write_errors(target), contextlib.ExitStack() as stack:
            out = sys.stdout
            if config.text.out is not None:
                out = stack.enter_context(open(target, "w", encoding=encoding, newline=""))
            stack.enter_context(autocast(device, dtype))
            if score is not None:
                shown.append(scored)
                nats = total_nll(model, scored_ids) / (len(scored_ids) - 1)
                bits = nats / math.log(2)
                chars = f"{len(scored_ids) - 1:,} characters"
                write(f"{nats:.4f} nats, {bits:.4f} bits per character, over {chars}\n", out)
            elif config.text.interactive:
                run_interactive(model, make_csampler(model), tokenizer, config, out)
            else:
                if not prompt:
                    shown.append(start)
                csampler = make_csampler(model)
                for i, piece in sample_texts(model, csampler, tokenizer, prompt, config):
                    if i == 0:
                        shown.append(piece)
                    write(piece, out)
                if out.isatty():
                    write("\n", out)
        if config.text.attention is not None:
            ids = tokenizer.encode("".join(shown)).tolist()
            page = attention_page(model, saved.vocab, ids, about)
            with report_write_errors(config.text.attention):
                Path(config.text.attention).write_text(page, "utf-8", "replace")
    return 0


if __name__ == "__main__":
    sys.exit(main())
