"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import sys
import time

if sys.version_info < (3, 11):
    sys.exit(f"error: Quill needs Python 3.11 or newer; this is {sys.version.split()[0]}")
START_TIME = time.perf_counter()  # of the program; its imports take a second or two

import math
import os
from pathlib import Path
from signal import default_int_handler

import torch
from torch.nn.utils import clip_grad_norm_

from model.loss import cross_entropy, training_loss
from model.networks import make_network
from model.optim import AVERAGE_FROM, learning_rate, make_average, make_optimizers, update_average
from model.run import checkpoint, report
from model.run.checkpoint import Learner
from model.run.run import start_run
from model.run.setup import Command, load_saved, open_run_dir, parse_train_command, set_up
from model.system.device import deterministic, seed_all
from model.system.errors import report_errors
from model.system.processes import Processes, handle_signals


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    start_time = START_TIME if __name__ == "__main__" else time.perf_counter()
    command = parse_train_command(argv)
    with (
        handle_signals(default_int_handler, "SIGTERM", "SIGHUP"),  # as Ctrl-C, until it is saved
        deterministic(),
        Processes(start_time, os.environ) as processes,
        open_run_dir(command, processes) as run_dir,
    ):
        signal = train(command, run_dir, processes)
    if signal:
        sys.exit(128 + signal)


def train(command: Command, run_dir: Path, processes: Processes) -> int:
    """The whole run, from top to bottom; what it does beside training is in model/run/run.py.

    Returns the number of the signal that ended the run, or 0.
    """
    saved = load_saved(command)
    config, corpus, machine = set_up(command, saved, processes)
    parts = config.gradient_accumulation_steps  # micro-batches of a batch
    rows = processes.batch_rows(config.batch_size, parts)  # this process's share of each batch

    # ------------------------------------------------------------------------ Network, optimizers
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    average = make_average(model, config.ema_decay)  # is evaluated and saved; or the model itself
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    scaler = machine.make_scaler()  # of float16; in another dtype it does nothing
    learner = Learner(model, average, optimizers, scaler)
    state = checkpoint.restore(saved, learner, resumes=command.resume is not None)
    del saved  # its memory
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if processes.is_main:
        report.print_header(config, corpus, machine, model, run_dir)
    machine.prepare(config, model, average)  # perhaps compiles them, for machine.forward

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
            learns_from_average = average is not model and step >= AVERAGE_FROM
            train_loss = torch.zeros((), device=machine.device)
            seed_all(config.seed, step, processes.rank)  # all that is random in this step
            x, y = machine.to_device(*corpus.batch(config, step, rows))
            for x_BT, y_BT in zip(x.chunk(parts), y.chunk(parts), strict=True):
                logits_BTV = machine.forward(model, x_BT)
                average_BTV = machine.forward(average, x_BT) if learns_from_average else None
                loss = training_loss(logits_BTV, y_BT, config.train_temperature, average_BTV)
                scaler.scale(loss / parts).backward()
                if is_logged:  # at temperature 1, as in evaluation
                    train_loss += cross_entropy(logits_BTV.detach(), y_BT) / parts
            processes.average_gradients(model)

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
            if average is not model:
                update_average(average, model, config.ema_decay, step)

            if is_logged:
                run.log(train_loss, grad_norm, lr)
            state.step += 1
            run.update()  # looks at the clock and for signals
            run.save_if_due()  # every ten minutes
        run.finish(command.uses_recipe)
    return run.signal


if __name__ == "__main__":
    sys.exit(main())
