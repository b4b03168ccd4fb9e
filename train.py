"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import os
import sys
from contextlib import closing
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_

from configs.flags import make_config
from configs.settings import TrainConfig
from model.loss import evaluate, training_loss
from model.networks import make_network
from model.optim import AVERAGE_FROM, learning_rate, make_average, make_optimizers, update_average
from model.run import checkpoint, setup
from model.run.log import Log
from model.run.progress import Clock
from model.system.console import report_errors, require_finite
from model.system.device import seed_all, training_machine
from model.system.processes import Processes, catch_signals


@report_errors
def main(argv: list[str]) -> None:
    """Start a run, or resume one, as the command line says."""
    given = setup.parse_train_command(argv)  # the values of the preset and the flags
    with Processes(os.environ) as processes, setup.open_run_dir(given, processes) as run_dir:
        if signal_number := train(given, run_dir, processes):
            sys.exit(128 + signal_number)


def train(given: setup.Values, run_dir: Path, processes: Processes) -> int:
    """Train from the start to the end. Return the signal that ended the run, or 0."""
    # ----------------------------------------------- Settings: the recipe fills in what is missing
    saved, given = setup.load_start(given, run_dir)  # empty without --resume and --init_from
    draft = make_config(TrainConfig, given)
    machine = training_machine(draft, processes)
    corpus = setup.open_text(draft, saved, processes)
    config = setup.full_config(draft, given, saved, corpus, machine)
    n_micro_batches = config.gradient_accumulation_steps
    rows = processes.batch_rows(config.batch_size, n_micro_batches)  # this process's share

    # --------------------------------------------------------------------------- What is trained
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    ema = make_average(model, config.ema_decay)  # a running average of the weights, or None
    evaluated = model if ema is None else ema  # the network to evaluate, to save and to sample
    optimizers = make_optimizers(model, config, machine.dtype, machine.uses_cuda_graph(config))
    scaler = machine.make_scaler()  # for float16; with another dtype it does nothing
    training = (evaluated, model, optimizers, scaler)
    state = checkpoint.restore(saved, training)  # step, losses, times

    # ------------------------------------------------------------------- What the loop also needs
    log = Log(config, corpus, machine, run_dir, evaluated, state)
    forward = machine.prepare(config, model)  # `model`, perhaps compiled or as a CUDA graph
    forward_ema = None if ema is None else machine.prepare(config, ema)
    val_batches = setup.validation_batches(config, corpus, machine)
    losses = []  # since the last point of the training curve
    clock = Clock(config, state, processes)  # measures the progress, which --minutes may limit

    def validate() -> bool:
        """Measure and report the validation loss. Return whether it is the best so far."""
        evaluated.eval()
        with machine.autocast():
            total, chars = processes.sum(*evaluate(evaluated, val_batches))
        is_guess = state.step == 0 and config.init_from is None  # nothing is learned yet
        is_best = state.record_evaluation(total / chars, is_guess)
        log.report_evaluation(clock, is_best)
        model.train()  # `ema` stays in eval mode
        return is_best

    def save(is_best: bool = False) -> None:
        """Write last.pt. If the model is the best so far, also write best.pt."""
        if processes.is_main:
            log.flush()  # before last.pt, because no resumed run logs these steps again
            checkpoint.save_run(run_dir, state, config, corpus, training, is_best)

    # ----------------------------------------------------------------------------------- The loop
    with closing(log), catch_signals() as signals:
        while True:
            clock.update(signals)
            log.show_progress(clock.progress)
            if clock.is_over():  # max_iters or minutes is reached, and the last evaluation is done
                break
            if clock.signal:  # Ctrl-C, SIGTERM or SIGHUP
                save()
                break
            if clock.is_evaluation_due():  # every eval_interval steps and at the end
                machine.synchronize()  # a GPU may still be computing earlier steps
                with clock.evaluation():
                    is_best = validate()  # a loss of nan ends the run before it is saved
                save(is_best)
                continue  # look at the clock and for signals again
            if clock.is_save_due:  # every ten minutes
                save()

            lr = learning_rate(state.step, clock.progress, config)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr

            # Forward and backward pass. Each micro-batch adds to the gradients.
            model.zero_grad()
            seed_all(config.seed, state.step, processes.rank)  # for all random numbers of this step
            has_teacher = ema is not None and state.step >= AVERAGE_FROM
            x, y = machine.to_device(*corpus.batch(config, state.step, rows))
            for x_BT, y_BT in zip(x.chunk(n_micro_batches), y.chunk(n_micro_batches), strict=True):
                logits_BTV = forward(x_BT)
                ema_BTV = forward_ema(x_BT) if has_teacher else None
                loss, nats = training_loss(logits_BTV, y_BT, config.train_temperature, ema_BTV)
                scaler.scale(loss / n_micro_batches).backward()
                losses.append(nats)  # per character
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
            update_average(ema, model, config.ema_decay, state.step)

            # Count the step. Every log_interval steps, add their mean loss to the training curve.
            state.step += 1
            if state.step % config.log_interval == 0:
                total, count = processes.sum(torch.stack(losses).sum().item(), len(losses))
                state.train_loss = total / count
                require_finite("training loss", state.train_loss, state.step)
                log.report_training(grad_norm, lr)
                losses.clear()
        log.report_result(is_stopped=clock.signal > 0)
    return clock.signal


if __name__ == "__main__":
    sys.exit(main())
