"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_

from configs.flags import make_config
from configs.settings import TrainConfig
from model.check import find_mistake
from model.loss import evaluate, training_loss
from model.networks import make_network
from model.optim import AVERAGE_FROM, learning_rate, make_average, make_optimizers, update_average
from model.run import checkpoint, setup
from model.run.log import Log
from model.run.progress import Clock
from model.system.console import print_line, report_errors, require_finite
from model.system.device import seed_all, training_machine
from model.system.processes import Processes, catch_signals


@report_errors
def main(argv: list[str]) -> None:
    """Start a run, or resume one, as the command line says."""
    given = setup.parse_train_command(argv)
    with Processes(os.environ) as processes, setup.open_run_dir(given, processes) as run_dir:
        if signal_number := train(given, run_dir, processes):
            sys.exit(128 + signal_number)


def train(given: dict[str, Any], run_dir: Path, processes: Processes) -> int:
    """Train from the start to the end. Return the signal that ended the run, or 0."""
    # -------------------------------------------------------- Checkpoint, machine, text, settings
    saved, given = setup.load_start(given, run_dir)  # empty without --resume and --init_from
    machine = training_machine(make_config(TrainConfig, given), processes)
    corpus = setup.open_text(given, saved)
    config = setup.full_config(given, saved, corpus, machine)  # the recipe fills it up
    n_parts = config.gradient_accumulation_steps  # micro-batches in a batch
    rows = processes.batch_rows(config.batch_size, n_parts)  # this process's share of each batch

    # ------------------------------------------------------------- Network, optimizers, resuming
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    average = make_average(model, config.ema_decay)  # average of the weights, or `model` itself
    optimizers = make_optimizers(model, config, machine.dtype, machine.uses_cuda_graph(config))
    scaler = machine.make_scaler()  # for float16; with another dtype it does nothing
    parts = {"model": average, "trained": model, "optimizers": optimizers, "scaler": scaler}
    state = checkpoint.restore(saved, parts)  # step, losses, times
    loss_sum = torch.tensor(state.loss_sum, device=machine.device)  # since the last log
    log = Log(config, corpus, machine, run_dir, average, state)
    if processes.is_main and (mistake := find_mistake(model)):
        print_line(f"warning: the network {config.network} {mistake}", sys.stderr)
    forward = machine.prepare(config, model)  # `model`, perhaps compiled or as a CUDA graph
    forward_average = forward if average is model else machine.prepare(config, average)
    val_batches = setup.validation_batches(config, corpus, machine)
    clock = Clock(config, state, processes)  # measures the progress, which --minutes may limit

    def save() -> None:
        """Write last.pt. If the model is the best so far, also write best.pt."""
        state.seconds, state.loss_sum = clock.seconds, processes.average_number(loss_sum)
        if processes.is_main:
            log.flush()  # before last.pt, because no resumed run logs these steps again
            checkpoint.save_run(run_dir, state, config, corpus, parts)

    # ----------------------------------------------------------------------------------- The loop
    with closing(log), catch_signals() as signals:
        while True:
            clock.update(signals)  # all processes get the same answers
            log.show_progress(clock.progress)
            if clock.is_over():  # max_iters or minutes is reached, and the last evaluation is done
                break
            if clock.signal or clock.is_save_due():  # ten minutes after the last save
                save()
            if clock.signal:  # Ctrl-C, SIGTERM or SIGHUP
                break

            # Evaluate every eval_interval steps and at the end, and save. A loss of nan, here or
            # in training, ends the run with an error before it is saved.
            if clock.is_evaluation_due():
                machine.synchronize()  # a GPU may still be computing earlier steps
                clock.start_evaluation()
                average.eval()
                with machine.autocast():
                    nats, chars = processes.sum(*evaluate(average, val_batches))
                is_guess = state.step == 0 and config.init_from is None  # nothing is learned yet
                state.record_evaluation(nats / chars, is_guess)
                log.report_evaluation(clock)
                clock.end_evaluation()
                save()
                model.train()
                continue  # look at the clock and for signals again

            lr = learning_rate(state.step, clock.progress, config)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr

            # Forward and backward pass. Each micro-batch adds to the gradients.
            seed_all(config.seed, state.step, processes.rank)  # for all random numbers of this step
            x, y = machine.to_device(*corpus.batch(config, state.step, rows))
            for x_BT, y_BT in zip(x.chunk(n_parts), y.chunk(n_parts), strict=True):
                logits_BTV = forward(x_BT)
                has_teacher = average is not model and state.step >= AVERAGE_FROM
                average_BTV = forward_average(x_BT) if has_teacher else None
                loss, nats = training_loss(logits_BTV, y_BT, config.train_temperature, average_BTV)
                scaler.scale(loss / n_parts).backward()
                loss_sum += nats / n_parts
            processes.average_gradients(model)

            # Clip the gradients, update the weights. If float16 gradients overflow, no optimizer
            # makes a step. (GradScaler would decide this for each optimizer separately.)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            grad_norm = clip_grad_norm_(model.parameters(), config.grad_clip or torch.inf)
            if not scaler.is_enabled() or grad_norm.isfinite():
                for optimizer in optimizers:
                    scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            if average is not model:
                update_average(average, model, config.ema_decay, state.step)

            # Count the step. Every log_interval steps, add their mean loss to the training curve.
            state.step += 1
            if state.step % config.log_interval == 0:
                state.train_loss = processes.average_number(loss_sum) / config.log_interval
                require_finite("training loss", state.train_loss, state.step)
                log.report_training(grad_norm, lr)
                loss_sum.zero_()
        log.report_result(is_stopped=clock.signal > 0)
    return clock.signal


if __name__ == "__main__":
    sys.exit(main())
