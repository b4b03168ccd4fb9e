"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import sys
import time

if sys.version_info < (3, 11):
    sys.exit(f"error: Quill needs Python 3.11 or newer; this is {sys.version.split()[0]}")
IMPORT_TIME = time.perf_counter()  # when the program started, unless it is imported

import math
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from configs.flags import Command, UserError, merge_settings, parse_train_command
from configs.settings import TrainConfig
from data.corpus import Corpus, open_corpus
from data.reader import is_stream
from model import checkpoint
from model.checkpoint import Checkpoint, Learner, RunState
from model.inspect import report
from model.loss import cross_entropy, training_loss
from model.network import make_network, network_class, require_consistent
from model.optim import AVERAGE_FROM, make_optimizers, update_average
from model.recipe_inputs import choose_settings
from model.run import load_saved, open_run_dir, require_same_text, start_run
from model.schedule import learning_rate
from model.system.device import Machine, seed_all, training_machine
from model.system.errors import out_of_memory_hint, report_errors
from model.system.processes import Processes

LESS_MEMORY = "Use a larger --gradient_accumulation_steps, or start anew with a smaller network."


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    start_time = IMPORT_TIME if __name__ == "__main__" else time.perf_counter()
    command, processes = parse_train_command(argv), Processes(start_time)
    if processes.world_size > 1 and any(map(is_stream, command.given.get("data", ()))):
        raise UserError("several processes cannot read the same stream. Name files with --data.")
    with (
        processes,
        open_run_dir(command, processes) as run_dir,
        out_of_memory_hint(LESS_MEMORY),
    ):
        signal = train(command, run_dir, processes)
    if signal:
        sys.exit(128 + signal)


def set_up(
    command: Command, saved: Checkpoint, processes: Processes
) -> tuple[TrainConfig, Corpus, Machine]:
    """The settings, the text, the machine. Raises UserError if they do not fit together.

    `saved` is the checkpoint of --resume or --init_from, or empty.
    """
    config = merge_settings(command, saved.config)
    network_class(config.network)  # an unknown name is refused before the text is read
    machine = training_machine(config, processes)
    corpus = open_corpus(config, saved.vocab)
    require_same_text(command, saved, corpus)
    corpus.require_length(config.block_size)
    if command.uses_recipe:
        chosen = choose_settings(config, saved, corpus, machine)
        config = merge_settings(command, saved.config, chosen)
    require_consistent(config)
    if config.min_lr > config.learning_rate:
        raise UserError(
            f"min_lr is {config.min_lr:g}, above learning_rate, which is {config.learning_rate:g}."
        )
    return config, corpus, machine


def train(command: Command, run_dir: Path, processes: Processes) -> int:
    """The whole run, from top to bottom; what it does beside training is in model/run.py.

    Returns the number of the signal that ended the run, or 0.
    """
    saved = load_saved(command)
    config, corpus, machine = set_up(command, saved, processes)
    parts = config.gradient_accumulation_steps  # micro-batches of a batch
    rows = processes.batch_rows(config.batch_size, parts)  # this process's share of each batch

    # ------------------------------------------------------------------------ Network, optimizers
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    scaler = machine.make_scaler()  # of float16; in another dtype it does nothing
    # What is evaluated, saved and sampled: a running average of the model, or the model itself.
    has_average, eval_model = config.ema_decay > 0, model
    if has_average:
        eval_model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
        eval_model.load_state_dict(model.state_dict())
        eval_model.eval().requires_grad_(False)
    learner, state = Learner(model, eval_model, optimizers, scaler), RunState()
    if command.resume is not None:
        state = checkpoint.restore_run(saved, learner)
    elif config.init_from is not None:
        checkpoint.restore(saved, model)
        checkpoint.restore(saved, eval_model)
    del saved  # its memory
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if processes.is_main:
        report.print_header(config, corpus, machine, model, run_dir)

    # What training steps call: these networks under autocast, perhaps compiled or as CUDA graphs.
    training_model = processes.wrap(model)  # in DDP, if there are several processes
    fast_model = machine.prepare(training_model, config)
    fast_average = machine.prepare(eval_model, config) if has_average else None

    # ----------------------------------------------------------------------------------- The loop
    with start_run(config, state, learner, run_dir, corpus, machine) as run:
        while True:
            if run.evaluation_is_due():
                run.evaluate()  # and save
            if run.is_over():  # by max_iters, --minutes or a signal
                break

            step = state.step
            lr = learning_rate(step, run.progress, config)
            for group in groups:
                group["lr"] = lr

            # Forward, backward: each micro-batch adds to the gradients.
            is_logged = step % config.log_interval == 0
            learns_from_average = has_average and step >= AVERAGE_FROM
            train_loss = torch.zeros((), device=machine.device)
            seed_all(config.seed, step, processes.rank)  # all that is random in this step
            x, y = machine.to_device(*corpus.batch(config, step, rows))
            for i, (x_BT, y_BT) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
                training_model.require_backward_grad_sync = i == parts - 1  # DDP: once a step
                logits_BTV = fast_model(x_BT)
                average_BTV = fast_average(x_BT) if learns_from_average else None
                loss = training_loss(logits_BTV, y_BT, config.train_temperature, average_BTV)
                scaler.scale(loss / parts).backward()
                if is_logged:  # at temperature 1, as in evaluation
                    train_loss += cross_entropy(logits_BTV.detach(), y_BT) / parts

            # Clip the gradients, update the weights. If float16 gradients overflow, no optimizer
            # makes its step. (GradScaler would decide that for each optimizer separately.)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            grad_norm = clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
            if not scaler.is_enabled() or grad_norm.isfinite():
                for optimizer in optimizers:
                    scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            if has_average:
                update_average(eval_model, model, config.ema_decay, step)

            if is_logged:
                run.log(train_loss, grad_norm, lr)
            state.step += 1
            run.update()  # looks at the clock and for signals, saves every ten minutes
        run.finish()
    return run.signal


if __name__ == "__main__":
    sys.exit(main())
