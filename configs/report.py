"""What a training run tells a person: its header, evaluations, samples, attention maps, result."""

import math
import shutil
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
from model.generate import GenerationConfig, first_character, looks_ahead, stream
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.network import count_heads, count_parameters
from model.system.device import Machine
from model.system.logger import Logger
from model.system.terminal import cut_to_width, print_line, quote, unify_line_ends


def print_corpus(corpus: Corpus, machine: Machine, block_size: int) -> None:
    """The device, the text, and why its validation loss may mislead."""
    lines = [f"device  {machine}", f"corpus  {corpus.describe(block_size)}"]
    lines += [f"warning: {sentence}" for sentence in corpus.findings if sentence]
    if corpus.findings.unlike and corpus.split_advice:
        lines.append(f"         {corpus.split_advice}")
    print_line("\n".join(lines), sys.stdout)


def print_settings(config: TrainConfig, corpus: Corpus, model: nn.Module, run_dir: Path) -> None:
    """What is trained, how, and where the results go."""
    model_config, optim_config, run_config = config.model, config.optim, config.run
    chars = optim_config.max_iters * optim_config.batch_size * model_config.block_size
    limit = f"{run_config.minutes:.3g} minutes, at most " if run_config.minutes else ""
    print_line(
        f"model   {model_config.network}, {model_config.n_layer} blocks, "
        f"{count_heads(model_config)} heads, {model_config.n_embd} channels: "
        f"{count_parameters(model):,} parameters\n"
        f"train   {limit}{optim_config.max_iters:,} steps of {optim_config.batch_size} x "
        f"{model_config.block_size} characters, which read the text "
        f"{chars / corpus.train_chars:.1f} times\n"
        f"        learning rate {optim_config.learning_rate:g}, dropout {model_config.dropout:g}, "
        f"weight decay {optim_config.weight_decay:g}, "
        f"temperature {optim_config.train_temperature:g}, teacher {run_config.teacher}\n"
        f"run     {run_dir}",
        sys.stdout,
    )


def print_new_characters(characters: str, config: TrainConfig) -> None:
    """Characters of the text that the initial model has never seen."""
    print_line(
        f"init    {config.run.init_from}\n"
        f"        characters that it has never seen: {list_some(characters) or 'none'}",
        sys.stdout,
    )


def log_evaluation(logger: Logger, state: Checkpoint) -> None:
    """The validation loss, as a point of its curve and as a line."""
    logger.val.add_scalar("loss", state.val_loss, state.step)
    logger.val.add_scalar("loss_best", state.best_val_loss, state.step)
    note = "  best so far" if state.best_step == state.step else ""
    logger.print(
        f"step {state.step:>6}  validation loss {state.val_loss:.4f} "
        f"{state.chars_per_second:>9,.0f} characters/s{note}"
    )


def log_sample_and_maps(
    logger: Logger, model: nn.Module, corpus: Corpus, step: int, chars: int
) -> None:
    """What a person looks at after each evaluation: a sampled text, and what each head looks at.

    Warns if the network looks ahead.
    """
    vocab = corpus.tokenizer.vocab
    model.eval()
    if looks_ahead(model):
        print_line(
            f"warning: the network {model.config.network} looks ahead: its logits depend on later "
            "characters, so its loss means nothing.",
            sys.stderr,
        )
    prompt = corpus.tokenizer.encode(first_character(vocab)).tolist()
    pieces = stream(model, vocab, prompt, GenerationConfig(max_new_tokens=chars))
    sample = "".join(piece for _, piece in pieces)
    # Indented, it is code in Markdown, which TensorBoard shows as it is.
    shown = indent(unify_line_ends(sample), "    ", lambda line: True)
    logger.val.add_text("sample", shown, step)
    if sys.stdout.isatty():
        width = max(0, shutil.get_terminal_size().columns - 6)
        logger.print(f"     {cut_to_width(' '.join(sample.split()), width)}")
    length = min(model.config.block_size, MAP_CHARS)
    x_BT, _ = corpus.gather_examples(np.array([corpus.train_chars]), length)
    with record_attention(model) as calls, torch.no_grad():
        model(x_BT.to(next(model.parameters()).device))
    for block, call in calls:
        for head, weights_TT in enumerate(call.weights_BHTS[0].float().cpu(), start=1):
            image_HWC = draw_weights(weights_TT, vocab, x_BT[0].tolist())
            tag = f"map/block {block}, head {head}"
            logger.val.add_image(tag, image_HWC, step, dataformats="HWC")
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


def print_result(
    state: Checkpoint,
    config: TrainConfig,
    corpus: Corpus,
    reason: str,
    run_dir: Path,
    resume_dir: Path,
) -> None:
    """What came of the run, and the commands to go on with.

    `reason` is why it ended: signal, patience, or finished. The run to resume is another one if
    this is its teacher.
    """
    step, best, minutes = state.step, state.best_val_loss, config.run.minutes
    directory, more, lines = quote(run_dir), "", []
    if best is not None:
        bits = best / math.log(2)
        lines.append(
            f"best    {best:.4f} nats per character ({bits:.3f} bits), step {state.best_step:,}"
        )
        lines += explain_loss(state, corpus)
    if reason == "signal":
        lines.append(f"stopped at step {step:,} by a signal; the checkpoint is saved")
    elif reason == "patience":
        more = " --patience 0"
        lines.append(f"stopped at step {step:,}: the validation loss no longer falls (patience)")
    else:
        more += f" --minutes {2 * minutes:g}" if minutes else ""
        more += f" --max_iters {2 * step}" if step >= config.optim.max_iters else ""
    # A stream cannot be read again: FILE has the same text.
    data = " --data FILE" if any(map(is_stream, config.corpus.data or ())) else ""
    if resume_dir == run_dir or reason == "signal":
        lines.append(
            f"sample  python sample.py {directory}{' --which last' if best is None else ''}"
        )
        lines.append(f"resume  python train.py --resume {quote(resume_dir)}{more}{data}")
        if minutes and reason == "finished":
            interval = math.ceil(step * config.run.eval_interval / config.optim.max_iters)
            lines.append(
                f"repeat  python train.py {directory}/config.toml --minutes 0 --max_iters {step} "
                f"--eval_interval {interval}{data}\n"
                "        trains a similar network; its result does not depend on the clock"
            )
        lines.append(f"watch   tensorboard --logdir {quote(resume_dir.parent)}")
        lines.append("        http://localhost:6006/?smoothing=0 shows the points themselves")
    print_line("\n".join(lines), sys.stdout)


def explain_loss(state: Checkpoint, corpus: Corpus) -> list[str]:
    """Why the validation loss is high or has risen, as far as one can tell; empty if it is fine."""
    uniform = math.log(len(state.vocab))
    place = "end of the text" if corpus.pieces == 1 else "validation text"
    advice = f"\n        {corpus.split_advice}" if corpus.split_advice else ""
    if corpus.findings.unlike:
        return [f"        The {place} differs from the rest (see the warning).{advice}"]
    first_loss = state.first_val_loss or 0.0  # None in an older checkpoint
    if first_loss > uniform + 0.1:  # that of a new network may be a little above
        return [
            f"        The first validation loss, {first_loss:.4f}, is above that of a "
            f"uniform guess,\n        {uniform:.4f}. If the training loss is lower, the {place} "
            f"differs from the rest.{advice}"
        ]
    if state.val_loss > state.best_val_loss + 0.01:
        return [
            f"        The validation loss has risen to {state.val_loss:.4f} since then. If the "
            "training loss\n        still falls, the model overfits. What helps most: a longer "
            "text, or --init_from\n        a model of a similar one; then more --dropout."
        ]
    return []
