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
from model.optim import TEACHER_FROM, learning_rate, make_average, make_optimizers, update_average
from model.run import checkpoint, setup
from model.run.log import Log
from model.run.progress import Clock
from model.system.console import report_errors, require_finite
from model.system.device import seed_all, training_machine
from model.system.processes import Processes, catch_signals


@report_errors  # calls it with sys.argv[1:]
def main(argv: list[str]) -> int:
    """Start a run, or resume one, as the command line says. Return the exit status."""
    given = setup.parse_train_command(argv)  # the values of the preset and the flags
    with Processes(os.environ) as processes, setup.open_run_dir(given, processes) as run_dir:
        signal_number = train(given, run_dir, processes)
    return 128 + signal_number if signal_number else 0


def train(given: setup.Values, run_dir: Path, processes: Processes) -> int:
    """Train from the start to the end. Return the signal that ended the run, or 0."""
    # --------------------- Settings: flags replace a preset's, those a checkpoint's, the recipe's
    saved, known = setup.load_start(given, run_dir)  # checkpoint of --resume or --init_from, if any
    draft = make_config(TrainConfig, known)  # enough to find the device and the text
    machine = training_machine(draft, processes)
    corpus = setup.open_text(draft, saved, processes)
    config = setup.full_config(draft, known, saved, corpus, machine)  # the recipe chooses the rest

    # --------------------------------------------------------------------------- What is trained
    seed_all(config.seed)
    model = make_network(config, len(corpus.tokenizer.vocab)).to(machine.device)
    ema = make_average(model, config.ema_decay)  # running average of the weights, or None
    evaluated = model if ema is None else ema  # the network to evaluate and to sample
    optimizers = make_optimizers(model, config, machine.dtype, machine.uses_cuda_graph(config))
    scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.dtype == torch.float16)
    parts = (evaluated, model, optimizers, scaler)  # what a checkpoint stores, except numbers
    state = checkpoint.restore(saved, parts)  # the numbers: step, losses, times

    # ------------------------------------------------------------------- What the loop also needs
    n_micro_batches = config.gradient_accumulation_steps  # batch_size counts all of them together
    rows = processes.batch_rows(config.batch_size, n_micro_batches)  # this process's part
    log = Log(config, corpus, machine, run_dir, evaluated, state)
    forward = machine.prepare(config, model)  # `model` in autocast, compiled or as a CUDA graph
    forward_ema = None if ema is None else machine.prepare(config, ema)
    val_batches = setup.validation_batches(config, corpus, machine)
    recent_nats = []  # losses since the last point of the training curve; a resumed run has none
    clock = Clock(config, state, processes)

    def validate() -> bool:
        """Measure and report the validation loss. Return whether it is the best so far."""
        evaluated.eval()
        with machine.autocast():
            total, chars = processes.average(*evaluate(evaluated, val_batches))
        require_finite("validation loss", total / chars, state.step)
        is_guess = state.step == 0 and config.init_from is None  # random weights are never the best
        is_best = state.record_evaluation(total / chars, is_guess)
        log.report_evaluation(clock, is_best)
        model.train()  # an average stays in eval mode
        return is_best

    def save(is_best: bool = False) -> None:
        """Write last.pt, and best.pt if the model is the best so far. Raise if a weight is nan."""
        if processes.is_main:
            log.flush()  # before last.pt, because a resumed run logs only later steps
            checkpoint.save_run(run_dir, state, config, corpus, parts, is_best)

    # ----------------------------------------------------------------------------------- The loop
    with closing(log), catch_signals() as signals:
        while True:
            clock.update(signals)  # the progress from 0 to 1, by steps or by --minutes
            log.show_progress(clock.progress)
            if clock.is_over:  # the progress is 1, and the last evaluation is done
                break
            if clock.signal:  # Ctrl-C, SIGTERM or SIGHUP
                save()
                break
            if clock.is_evaluation_due:  # at step 0, every eval_interval steps and at the end
                machine.synchronize()  # a GPU may still be computing steps, which count as training
                with clock.evaluation():
                    is_best = validate()
                save(is_best)
                continue  # this step is now evaluated; look for the end and for signals again
            if clock.is_save_due:  # every ten minutes
                save()

            lr = learning_rate(state.step, clock.progress, config)
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = lr

            # Forward and backward pass. Each micro-batch adds to the gradients.
            model.zero_grad()
            seed_all(config.seed, state.step, processes.rank)  # a resumed run draws equal numbers
            has_teacher = ema is not None and state.step >= TEACHER_FROM
            x, y = machine.to_device(*corpus.batch(config, state.step, rows))
            for x_BT, y_BT in zip(x.chunk(n_micro_batches), y.chunk(n_micro_batches), strict=True):
                logits_BTV = forward(x_BT)
                teacher_BTV = forward_ema(x_BT) if has_teacher else None  # without gradients
                loss, nats = training_loss(logits_BTV, y_BT, config.train_temperature, teacher_BTV)
                scaler.scale(loss / n_micro_batches).backward()
                recent_nats.append(nats)  # per character, without temperature and teacher
            processes.average_gradients(model)

            # Clip the gradients, update the weights. In float16, gradients may overflow. Then all
            # optimizers skip the step. (GradScaler would decide for each optimizer separately.)
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
                [state.train_loss] = processes.average(sum(recent_nats).item() / len(recent_nats))
                require_finite("training loss", state.train_loss, state.step)
                log.report_training(grad_norm, lr)
                recent_nats.clear()
        log.report_result(is_stopped=clock.signal > 0)
    return clock.signal


if __name__ == "__main__":
    sys.exit(main())
