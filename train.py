"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import signal
import sys
import time

START_TIME = time.perf_counter()  # before the imports, which take a second or two
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback

import math
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from torch.nn.utils import clip_grad_norm_

from model.loss import cross_entropy, training_loss
from model.networks import make_network
from model.optim import AVERAGE_FROM, learning_rate, make_average, make_optimizers, update_average
from model.run.run import Run
from model.run.setup import open_run_dir, parse_train_command, set_up
from model.system.device import seed_all
from model.system.errors import report_errors
from model.system.processes import Processes, catch_signals


@report_errors
def main(argv: list[str]) -> None:
    """Start a run, or resume one, as the command line says."""
    given = parse_train_command(argv)
    with (
        Processes(START_TIME if __name__ == "__main__" else None, os.environ) as processes,
        open_run_dir(given, processes) as run_dir,
    ):
        number = train(given, run_dir, processes)
    if number:
        sys.exit(128 + number)


def train(given: dict[str, Any], run_dir: Path, processes: Processes) -> int:
    """Train from the start to the end. Return the signal that ended the run, or 0."""
    config, saved, corpus, machine = set_up(given, run_dir, processes)
    parts = config.gradient_accumulation_steps  # micro-batches in a batch
    rows = processes.batch_rows(config.batch_size, parts)  # this process's share of each batch

    # ------------------------------------------------------------------------ Network, optimizers
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    average = make_average(model, config.ema_decay)  # to evaluate and save; perhaps `model` itself
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    scaler = machine.make_scaler()  # for float16; with another dtype it does nothing
    run = Run(config, corpus, machine, run_dir, model, average, optimizers, scaler)
    run.start(saved)
    machine.prepare(config, model, average)  # may make machine.forward faster

    # ----------------------------------------------------------------------------------- The loop
    with closing(run), catch_signals() as run.signals:
        for step in run.steps():  # between the steps, it evaluates and saves (model/run/run.py)
            lr = learning_rate(step, run.progress, config)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr

            # Forward and backward pass. Each micro-batch adds to the gradients.
            seed_all(config.seed, step, processes.rank)  # for all random numbers of this step
            x, y = machine.to_device(*corpus.batch(config, step, rows))
            for x_BT, y_BT in zip(x.chunk(parts), y.chunk(parts), strict=True):
                logits_BTV = machine.forward(model, x_BT)
                average_BTV = None
                if average is not model and step >= AVERAGE_FROM:  # learn from the average, too
                    average_BTV = machine.forward(average, x_BT)
                loss = training_loss(logits_BTV, y_BT, config.train_temperature, average_BTV)
                scaler.scale(loss / parts).backward()
                run.loss_sum += cross_entropy(logits_BTV.detach(), y_BT) / parts  # for the log
            processes.average_gradients(model)

            # Clip the gradients, update the weights. If float16 gradients overflow, no optimizer
            # makes a step. (GradScaler would decide this for each optimizer separately.)
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
            run.log_training(grad_norm, lr)
        run.finish()
    return run.signal


if __name__ == "__main__":
    sys.exit(main())
