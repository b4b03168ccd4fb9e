"""What a training run tells a person: its header, evaluations, samples, attention maps, result."""

import math
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch
from torch import nn

from configs.training import TrainConfig
from data.corpus import Corpus
from data.reader import is_stream
from data.tokenizer import list_some
from model.checkpoint import Checkpoint
from model.generate import GenerationConfig, first_character, stream
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.network import count_heads, count_parameters
from model.system.device import Machine
from model.system.logger import Logger
from model.system.terminal import print_line, quote, unify_line_ends


def print_header(
    config: TrainConfig, corpus: Corpus, machine: Machine, model: nn.Module, run_dir: Path
) -> None:
    """What is trained, on what, how, and where the results go."""
    chars = config.max_iters * config.batch_size * config.block_size
    limit = f"{config.minutes:.3g} minutes, at most " if config.minutes else ""
    lines = [f"device  {machine}", f"corpus  {corpus.describe(config.block_size)}"]
    if corpus.warning:
        lines.append(f"warning: {corpus.warning}")
    if config.init_from is not None:
        never_seen = corpus.tokenizer.vocab[corpus.known_chars :]
        lines.append(f"init    {config.init_from}; characters that it has never seen: ")
        lines[-1] += list_some(never_seen) or "none"
    lines += [
        f"model   {config.network}, {config.n_layer} blocks, {count_heads(config)} heads, "
        f"{config.n_embd} channels: {count_parameters(model):,} parameters",
        f"train   {limit}{config.max_iters:,} steps of {config.batch_size} x {config.block_size} "
        f"characters, which read the text {chars / corpus.train_chars:.1f} times",
        f"        learning rate {config.learning_rate:g}, dropout {config.dropout:g}, weight decay "
        f"{config.weight_decay:g}, temperature {config.train_temperature:g}, teacher "
        f"{config.teacher}",
        f"run     {run_dir}",
    ]
    print_line("\n".join(lines), sys.stdout)


def log_evaluation(logger: Logger, state: Checkpoint) -> None:
    """The validation loss, as a point of its curve and as a line."""
    logger.val.add_scalar("loss", state.val_loss, state.step)
    logger.val.add_scalar("loss_best", state.best_val_loss, state.step)
    logger.val.add_scalar("speed/chars_per_second", state.chars_per_second, state.step)
    note = "  best so far" if state.best_step == state.step else ""
    logger.print(
        f"step {state.step:>6}  validation loss {state.val_loss:.4f} "
        f"{state.chars_per_second:>9,.0f} characters/s{note}"
    )


def log_sample_and_maps(
    logger: Logger, model: nn.Module, corpus: Corpus, step: int, chars: int
) -> None:
    """What a person looks at after each evaluation: a sampled text, and what each head looks at."""
    vocab = corpus.tokenizer.vocab
    model.eval()
    prompt = corpus.tokenizer.encode(first_character(vocab)).tolist()
    pieces = stream(model, vocab, prompt, GenerationConfig(max_new_tokens=chars))
    sample = unify_line_ends("".join(piece for _, piece in pieces))
    # Indented, it is code in Markdown, which TensorBoard shows as it is.
    logger.val.add_text("sample", indent(sample, "    ", lambda line: True), step)
    if sys.stdout.isatty():
        logger.print(f"     {' '.join(sample.split())[:70]}")
    length = min(model.config.block_size, MAP_CHARS)
    x_BT, _ = corpus.gather_examples(np.array([corpus.train_chars]), length)
    with record_attention(model) as calls, torch.no_grad():
        model(x_BT.to(next(model.parameters()).device))
    for block, call in calls:
        for head, weights_TT in enumerate(call.weights_BHTS[0].float().cpu(), start=1):
            tag = f"map/block {block}, head {head}"
            logger.val.add_image(tag, draw_weights(weights_TT), step, dataformats="HWC")
    model.train()


def summarize(
    state: Checkpoint, corpus: Corpus, machine: Machine, model: nn.Module
) -> dict[str, Any]:
    """What summary.json holds."""
    best = state.best_val_loss
    return {
        "params": count_parameters(model),
        "vocab_size": len(state.vocab),
        "train_chars": corpus.train_chars,
        "val_chars": corpus.val_chars,
        "iters": state.step,
        "seconds": state.seconds,
        "chars_per_second": state.chars_per_second,
        "val_loss": state.val_loss,
        "best_val_loss": best,
        "best_iter": state.best_step,
        "bits_per_char": None if best is None else best / math.log(2),
        "device": str(machine.device),
        "dtype": machine.dtype_name,
        "torch": torch.__version__,
    }


def print_result(state: Checkpoint, config: TrainConfig, run_dir: Path, stopped: int) -> None:
    """What came of the run, which a signal may have stopped, and the commands to go on with."""
    best, directory, more, lines = state.best_val_loss, quote(run_dir), "", []
    has_student = (run_dir.parent / "last.pt").exists()  # then that is to be resumed
    if best is not None:
        bits = best / math.log(2)
        lines.append(
            f"best    {best:.4f} nats per character ({bits:.3f} bits), step {state.best_step:,}"
        )
        if state.val_loss > best + 0.01:
            lines.append(f"        The validation loss has risen to {state.val_loss:.4f} since.")
    if stopped:
        lines.append(f"stopped at step {state.step:,} by a signal; the checkpoint is saved")
    else:
        more += f" --minutes {2 * config.minutes:g}" if config.minutes else ""
        more += f" --max_iters {2 * state.step}" if state.step >= config.max_iters else ""
    # A stream cannot be read again: FILE has the same text.
    more += " --data FILE" if any(map(is_stream, config.data or ())) else ""
    if has_student and not stopped:
        print_line("\n".join(lines), sys.stdout)
        return
    resumed = run_dir.parent if has_student else run_dir
    lines.append(f"sample  python sample.py {directory}{' --which last' if best is None else ''}")
    lines.append(f"resume  python train.py --resume {quote(resumed)}{more}")
    lines.append(f"watch   tensorboard --logdir {quote(resumed.parent)}")
    print_line("\n".join(lines), sys.stdout)
