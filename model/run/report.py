"""What a training run tells a person: its header, evaluations, samples, attention maps, result."""

import copy
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from configs.recipe import block_parameters
from configs.settings import TrainConfig
from data.corpus import Corpus
from model.generate import GenerationConfig, first_character, generate
from model.inspect.check import find_mistake
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.networks import count_parameters, eval_mode
from model.run.checkpoint import RunState
from model.run.logger import Logger
from model.system.device import Machine
from model.system.terminal import print_line, quote, shorten

SAMPLE_CHARS = 80  # written after each evaluation
MAX_MAPS = 64  # pictures of heads after each evaluation


def print_header(
    config: TrainConfig, corpus: Corpus, machine: Machine, model: nn.Module, run_dir: Path
) -> None:
    """What is trained, on what, how, and where the results go."""
    epochs = config.max_iters * config.batch_size * config.block_size / corpus.train_chars
    limit, readings = "", f", which read the text {epochs:.1f} times"
    if config.minutes:  # nobody knows yet how many steps there will be
        limit, readings = f"{config.minutes:.3g} minutes, at most ", ""
    keys = ("learning_rate", "weight_decay", "dropout", "train_temperature", "ema_decay")
    values = {key: getattr(config, key) for key in keys}
    off = dict.fromkeys(keys, 0) | {"train_temperature": 1}
    settings = [f"{key} {value:g}" for key, value in values.items() if value != off[key]]
    lines = [f"device  {machine}", f"corpus  {corpus.describe(config.block_size)}"]
    lines += [f"warning: {sentence}" for sentence in corpus.warnings]
    if config.init_from is not None:
        lines.append(f"init    {shorten(config.init_from)}")
        if corpus.new_characters:
            lines.append(f"        characters that it has never seen: {corpus.new_characters}")
    lines += [
        f"model   {config.network}, {config.n_layer} block{'s' * (config.n_layer > 1)}, each with "
        f"{config.n_head} head{'s' * (config.n_head > 1)}, {config.n_embd} channels: "
        f"{count_parameters(model):,} parameters",
        f"train   {limit}{config.max_iters:,} steps of {config.batch_size} x {config.block_size} "
        f"characters{readings}",
        f"        {', '.join(settings)}",
        f"run     {shorten(run_dir)}",
    ]
    print_line("\n".join(lines), sys.stdout)


def log_step(logger: Logger, step: int, loss: float, grad_norm: float, lr: float) -> None:
    """A point of the training curves."""
    optimizer = {"optimizer/learning_rate": lr, "optimizer/grad_norm": grad_norm}
    logger.add_scalars("train", step, {"loss": loss} | optimizer)
    logger.show_loss(loss)


def log_evaluation(logger: Logger, state: RunState) -> None:
    """The validation loss, as a point of its curve and as a line."""
    logger.add_scalars("val", state.step, {"loss": state.val_loss})
    line = f"step {state.step:>6}  validation loss {state.val_loss:.4f}"
    if speed := state.chars_per_second:  # none at step 0
        logger.add_scalars("val", state.step, {"speed/chars_per_second": speed})
        line += f" {speed:>9,.0f} characters/s"
    print_line(line + "  best so far" * (state.best_step == state.step), sys.stdout)


def warn_of_mistake(config: TrainConfig, vocab_size: int) -> None:
    """Warn if losses of an edited network mean nothing. One that looks ahead has the lowest."""
    if mistake := find_mistake(config, vocab_size):
        print_line(f"warning: the network {config.network} {mistake}.", sys.stderr)


def log_sample(logger: Logger, model: nn.Module, corpus: Corpus, step: int) -> None:
    """A text that the model writes, for TensorBoard and on a terminal."""
    if next(model.parameters()).is_cuda:  # a GPU starts about 200 kernels for each character
        model = copy.deepcopy(model).cpu()
    vocab = corpus.tokenizer.vocab
    prompt = corpus.tokenizer.encode(first_character(vocab)).tolist()
    config = GenerationConfig(max_new_tokens=SAMPLE_CHARS)
    sample = "".join(piece for _, piece in generate(model, vocab, prompt, config))
    logger.add_text("sample", step, sample)
    if sys.stdout.isatty():
        print_line(f"     {' '.join(sample.split())[:70]}", sys.stdout)


@torch.no_grad()
def log_maps(logger: Logger, model: nn.Module, corpus: Corpus, step: int) -> None:
    """What each head looks at in the first characters of the validation text."""
    length = min(model.config.block_size, MAP_CHARS)
    x_BT, _ = corpus.gather_examples(np.array([corpus.train_chars]), length)
    with eval_mode(model), record_attention(model) as calls:
        model(x_BT.to(next(model.parameters()).device))
    text = "".join(corpus.tokenizer.vocab[id_] for id_ in x_BT[0])
    heads = [
        (f"map/block {block}, head {head}", weights_TT)
        for block, call in calls
        for head, weights_TT in enumerate(call.weights_BHTS[0].float().cpu(), start=1)
    ]
    for tag, weights_TT in heads[:MAX_MAPS]:
        logger.add_image(tag, step, draw_weights(weights_TT, text))


def summarize(
    state: RunState, seconds: float, corpus: Corpus, machine: Machine, model: nn.Module
) -> dict[str, Any]:
    """What summary.json holds. The run has taken `seconds`."""
    best = state.best_val_loss
    return {
        "params": count_parameters(model),
        "vocab_size": len(corpus.tokenizer.vocab),
        "train_chars": corpus.train_chars,
        "val_chars": corpus.val_chars,
        "iters": state.step,
        "seconds": seconds,
        "chars_per_second": state.chars_per_second,  # as in the last evaluation
        "val_loss": state.val_loss,
        "best_val_loss": best,
        "best_iter": state.best_step,
        "bits_per_char": None if best is None else best / math.log(2),
        "device": str(machine.device),
        "dtype": machine.dtype_name,
        "torch": torch.__version__,
    }


def print_result(
    state: RunState, config: TrainConfig, corpus: Corpus, run_dir: Path, is_new: bool, signal: int
) -> None:
    """What came of the run, which a signal may have stopped, and what one may type next.

    It `is_new` if this command began it, with the recipe.
    """
    best, lines, has_risen = state.best_val_loss, [], False
    if best is not None:
        bits = best / math.log(2)
        lines.append(
            f"best    {best:.4f} nats per character ({bits:.3f} bits), step {state.best_step:,}"
        )
        if has_risen := state.val_loss > best + 0.01:
            advice = "docs/guide.md, Overfitting"
            if state.val_loss > math.log(len(corpus.tokenizer.vocab)) + 0.1:  # worse than a guess
                advice = "try a smaller --learning_rate, then docs/guide.md, The validation text"
            lines.append(f"        The loss has risen to {state.val_loss:.4f} since: {advice}")
    run, file = quote(run_dir), " --data FILE" if corpus.is_pipe else ""  # with the same text
    minutes = f" --minutes {max(2 * config.minutes or 10, state.seconds / 40):.4g}"
    if signal:
        lines.append(f"stopped at step {state.step:,} by a signal; the checkpoint is saved")
    which = " --which last" if signal and not state.best_step else ""  # that has learned nothing
    lines.append(f"sample  python sample.py {run}{which}")
    lines.append(f"page    python sample.py {run}{which} --attention page.html")
    readings = state.step * config.batch_size * config.block_size / corpus.train_chars
    per_char = block_parameters(config.n_layer, config.n_embd) / corpus.train_chars
    if signal:
        lines.append(f"resume  python train.py --resume {run}{file}")
    elif is_new and readings > 14 and (config.init_from or per_char > 7):  # the recipe's most
        lines.append(f"longer  is of no use: the text was read {readings:.0f} times")
    elif is_new and not corpus.is_pipe and not has_risen:
        lines.append(f"longer  python train.py{same_text(config)}{minutes}")
    elif not has_risen:
        more = f" --max_iters {2 * state.step}" if state.step >= config.max_iters else ""
        more += minutes if config.minutes else ""
        lines.append(f"longer  python train.py --resume {run}{more}{file}")
    lines.append(f"watch   tensorboard --logdir {quote(run_dir.parent)}")
    print_line("\n".join(lines), sys.stdout)


def same_text(config: TrainConfig) -> str:
    """The flags that say which text a network of which kind learns, and from which weights."""
    flags = ""
    for key in ("data", "encoding", "val_fraction", "val_split", "network", "init_from"):
        if (value := getattr(config, key)) != getattr(TrainConfig, key):
            values = value if key == "data" else [str(value)]
            flags += f" --{key} {' '.join(map(quote, values))}"
    return flags
