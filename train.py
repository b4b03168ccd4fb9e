"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

IMPORT_TIME = time.perf_counter()  # when this program started, if it was started by its name

import copy
import math
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from configs.flags import (
    Command,
    UserError,
    known_values,
    make_config,
    parse_train_command,
    to_dict,
    to_toml,
)
from configs.recipe import Budget, block_parameters, default_flops, recipe, step_flops
from configs.settings import TrainConfig
from data.corpus import Corpus, open_corpus
from data.reader import is_stream
from model import checkpoint
from model.checkpoint import Checkpoint
from model.inspect import report
from model.loss import cross_entropy, evaluate, training_loss
from model.network import eval_mode, make_network, network_class, require_consistent
from model.optim import AVERAGE_FROM, make_optimizers, update_average
from model.schedule import evaluations, learning_rate, run_progress
from model.system.device import Machine, device_kind, seed_all, training_machine
from model.system.errors import out_of_memory_hint, report_errors, require_finite
from model.system.files import atomic_write, lock_run_dir, new_run_dir
from model.system.logger import Logger
from model.system.processes import Processes
from model.system.signals import catch_signals
from model.system.terminal import quote

SAVE_SECONDS = 600  # last.pt is saved at least so often
LESS_MEMORY = "Use a larger --gradient_accumulation_steps, or start anew with a smaller network."


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    start_time = IMPORT_TIME if __name__ == "__main__" else time.perf_counter()
    command, processes = parse_train_command(argv), Processes()
    if processes.world_size > 1 and any(map(is_stream, command.given.get("data", ()))):
        raise UserError("several processes cannot read the same stream. Name files with --data.")
    with (
        processes,
        open_run(command, processes) as (saved, run_dir),
        out_of_memory_hint(LESS_MEMORY),
    ):
        train(command, saved, run_dir, processes, start_time)


def train(
    command: Command, saved: Checkpoint, run_dir: Path, processes: Processes, start_time: float
) -> None:
    """The whole run, from top to bottom. The main process writes to `run_dir`.

    `saved` is the checkpoint to resume, or to take weights from, or empty. The clock of --minutes
    began at `start_time`. After signal n, the state is saved, and the program exits with status
    128 + n.
    """
    # ------------------------------------------------------------- Machine, text, settings, network
    values = known_values(command, saved.config)
    config = make_config(TrainConfig, values)  # what is known before the text is read
    network_class(config.network)  # an unknown name is refused before the text is read
    machine = training_machine(config, processes)
    corpus = open_corpus(config, saved.vocab)
    require_same_text(command, saved, corpus)
    corpus.require_length(config.block_size)  # the recipe does not change this one
    if command.uses_recipe:
        values = choose_settings(config, saved, corpus, machine, start_time) | values
    config = make_config(TrainConfig, values | {"out_dir": None})  # a run may be moved
    require_consistent(config)
    parts = config.gradient_accumulation_steps
    rows = processes.batch_rows(config.batch_size, parts)
    model, optimizers, scaler = build(config, machine, len(corpus.tokenizer.vocab))

    # ------------------------------------------- The state, which is all that a checkpoint holds
    is_new, state = command.resume is None, saved
    if saved.model:  # --init_from gives weights, --resume everything
        checkpoint.restore(saved, model, () if is_new else optimizers, scaler)
    # The average is what is evaluated, saved, sampled and shown; without one, that is the network.
    average = model
    if config.ema_decay:
        average = copy.deepcopy(model).eval().requires_grad_(False)
        if not is_new:
            model.load_state_dict(saved.trained)
    saved.model, saved.trained, saved.optimizers = {}, {}, []  # frees the memory
    if is_new:
        state = Checkpoint(vocab=corpus.tokenizer.vocab, data_sha256=corpus.sha256)
    state.config = to_dict(config)
    if processes.is_main:
        report.print_header(config, corpus, machine, model, run_dir)

    # Only training steps use the fast networks; evaluation, saving and sampling use `average`.
    training_model = processes.wrap(model)
    shape = (rows.stop - rows.start) // parts, config.block_size
    example_BT = torch.zeros(shape, dtype=torch.int64, device=machine.device)
    fast_model = machine.prepare(training_model, config.compile, parts, example_BT)
    if config.ema_decay:
        fast_average = machine.prepare(average, config.compile, parts, example_BT)

    clock_start = start_time - state.seconds
    logger = None

    def seconds() -> float:
        """How long the run has taken, earlier parts included."""
        return time.perf_counter() - clock_start

    def micro_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """x_BT and y_BT of each part of this process's batch.

        DDP exchanges gradients in the backward pass of the last part.
        """
        batch = corpus.batch(config.block_size, config.batch_size, config.seed, step, rows)
        chunks = (x.chunk(parts) for x in machine.to_device(*batch))
        for i, part in enumerate(zip(*chunks, strict=True), start=1):
            training_model.require_backward_grad_sync = i == parts
            yield part

    def save(*names: str) -> None:
        state.seconds = seconds()
        if processes.is_main:
            checkpoint.capture(state, model, average, optimizers, scaler)
            if logger:
                logger.flush()  # first: a resumed run does not log these steps again
            checkpoint.save(state, *(run_dir / name for name in names))

    def signal_number() -> int:
        """That of a signal that any process received, or 0."""
        return int(processes.max(max(signals, default=0)))

    if is_new or command.given:
        save("last.pt")  # from now on the run can be resumed, with these settings
    if processes.is_main:
        with atomic_write(run_dir / "config.toml") as file:
            file.write(to_toml(config).encode())

    # ------------------------------------------------------------------------------------ The loop
    if processes.is_main:
        logger = Logger(run_dir, state.config, state.step)
    eval_windows = corpus.eval_windows(
        config.block_size, machine.eval_batch_chars(model.vocab_size)
    )
    eval_windows = eval_windows[processes.rank :: processes.world_size]
    eval_chars = corpus.eval_chars(config.block_size)
    progress = run_progress(state, config, eval_chars, state.seconds)
    is_first_evaluation, first_step = True, state.step
    timed_step, train_start = state.step, time.perf_counter()
    with catch_signals() as signals, closing(logger) if logger else nullcontext():
        while True:
            # ------------------------------------------------- Evaluate and save, if it is time
            step, last_progress = state.step, progress
            # Never less than before, although the time that an evaluation takes is an estimate
            progress = max(progress, run_progress(state, config, eval_chars, seconds()))
            is_soon = False
            if config.minutes:  # an evaluation takes at most a quarter of the time
                is_soon = time.perf_counter() - train_start < 3 * state.eval_seconds
                progress, is_soon = processes.broadcast((progress, is_soon))
            finished, stopped = progress >= 1, signal_number()
            evaluation_due = evaluations(progress, config) > evaluations(last_progress, config)
            evaluation_due = finished or (evaluation_due and not is_soon)
            # After a resume, evaluate again: the logger drops the points and pictures of this step.
            evaluation_due |= step == state.val_step
            if logger:
                logger.show_progress(step, progress)
            save_due = stopped or seconds() - state.seconds > SAVE_SECONDS
            if evaluation_due or save_due:
                machine.synchronize()  # a GPU may have steps to do
                pause_start = time.perf_counter()
                state.record_speed(step - timed_step, pause_start - train_start)
            if evaluation_due:
                batches = (corpus.gather_examples(*window) for window in eval_windows)
                val_loss = evaluate(average, batches, machine)
                require_finite("validation loss", val_loss, step)
                is_best = state.record_evaluation(val_loss)
                if logger:
                    report.log_evaluation(logger, state)
                save(*(["best.pt"] if is_best else []), "last.pt")
                if logger:
                    with eval_mode(average):
                        report.log_sample(logger, average, corpus, step)
                        report.log_maps(logger, average, corpus, step)
                        if is_first_evaluation:
                            report.warn_if_it_looks_ahead(average)
                is_first_evaluation = False
                state.eval_seconds = time.perf_counter() - pause_start
            elif save_due:
                save("last.pt")
            if evaluation_due or save_due:
                timed_step, train_start = step, time.perf_counter()
            if finished or stopped:
                break

            # -------------------------------------------------------------------- Forward, backward
            if step == 0:
                state.first_step_seconds = seconds()
            logs = step % config.log_interval == 0
            learns_from_average = config.ema_decay > 0 and step >= AVERAGE_FROM
            step_loss = torch.zeros((), device=machine.device)
            seed_all(config.seed, step, processes.rank)  # for dropout
            for x_BT, y_BT in micro_batches(step):
                logits_BTV = fast_model(x_BT)
                average_BTV = fast_average(x_BT) if learns_from_average else None
                loss = training_loss(logits_BTV, y_BT, config.train_temperature, average_BTV)
                scaler.scale(loss / parts).backward()
                if logs:  # at temperature 1, as in evaluation
                    step_loss += cross_entropy(logits_BTV.detach(), y_BT) / parts

            # --------------------------------------------------------- Clip the gradients, update
            lr = learning_rate(step, progress, config)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
                for group in optimizer.param_groups:
                    group["lr"] = lr
            grad_norm = clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
            # After a float16 overflow, skip all optimizers: GradScaler skips only the one whose
            # gradients overflowed. (In float16, this and Muon's scaler.step wait for the GPU.)
            if not scaler.is_enabled() or grad_norm.isfinite():
                for optimizer in optimizers:
                    scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            if config.ema_decay:
                update_average(average, model, config.ema_decay, step)

            # ------------------------------------------------------------------------------- Log
            if logs:  # reading a value waits for the device
                mean_loss = processes.sum(step_loss.item()) / processes.world_size
                require_finite("training loss", mean_loss, step)
                if not scaler.is_enabled():  # in float16 it may overflow, see above
                    require_finite("gradient norm", grad_norm.item(), step)
                if logger:
                    curves = {
                        "loss": mean_loss,
                        "optimizer/learning_rate": lr,
                        "optimizer/grad_norm": grad_norm.item(),
                    }
                    logger.add_scalars("train", step, curves)
                    logger.show_loss(mean_loss)
            state.step += 1

        # --------------------------------------------------------------------------------- The end
        stopped = stopped or signal_number()  # also one that came in the last evaluation
        if logger:
            logger.write_summary(report.summarize(state, corpus, machine, model))
            report.print_result(state, config, corpus, run_dir, stopped, first_step)
    if stopped:
        sys.exit(128 + stopped)


# ------------------------------------------------------------------------- What a run begins with
@contextmanager
def open_run(command: Command, processes: Processes) -> Iterator[tuple[Checkpoint, Path]]:
    """The checkpoint of --resume or --init_from, or an empty one; the run directory.

    The main process locks it, before it reads what another one might be writing.
    """
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        if os.path.isfile(path) and not os.access(path.parent, os.W_OK):
            raise UserError(
                f"{path.parent} cannot be written. Copy the run with cp -r, or start a new one "
                f"with --init_from {quote(path.parent)}"
            )
        with lock_run_dir(path.parent) if processes.is_main else nullcontext():
            saved = checkpoint.load_to_resume(path)
            if (max_iters := command.given.get("max_iters", saved.step)) < saved.step:
                raise UserError(
                    f"max_iters is {max_iters}, but the run has made {saved.step} steps."
                )
            yield saved, path.parent
        return
    saved = Checkpoint()
    if "init_from" in command.given:
        saved = checkpoint.load(checkpoint.resolve(command.given["init_from"], "best"))
    out_dir = command.given.get("out_dir")
    with new_run_dir(out_dir) if processes.is_main else nullcontext() as run_dir:
        yield saved, processes.broadcast(run_dir)


def require_same_text(command: Command, saved: Checkpoint, corpus: Corpus) -> None:
    """Raise UserError if a resumed run has another text, or a new one validates on what it knows.

    `saved` is the checkpoint that it begins with.
    """
    is_same = saved.data_sha256 == corpus.sha256
    if command.resume is not None and not is_same:
        raise UserError(
            f"{corpus.name} is not the text of this run. For another text, start a new run with "
            f"--init_from {quote(Path(command.resume))}; for a changed version of the same text, "
            "start one without: these weights may know its validation text."
        )
    theirs = make_config(TrainConfig, saved.config)
    split = (theirs.val_fraction, theirs.val_split)
    if command.resume is None and is_same and split != (corpus.val_fraction, corpus.val_split):
        raise UserError(
            f"{command.given['init_from']} was trained on this text, but with other validation "
            f"text. Use the same: --val_fraction {split[0]} --val_split {split[1]}."
        )


def choose_settings(
    config: TrainConfig, saved: Checkpoint, corpus: Corpus, machine: Machine, start_time: float
) -> dict[str, Any]:
    """What the recipe says for this text, machine and time, and for the weights to start with."""
    kind = device_kind(machine.device)
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - config.val_fraction)),  # for every val_split
        flops=default_flops(kind),
        minutes=config.minutes,
        device=kind,
    )
    if saved.model:
        weights = (x for name, x in saved.model.items() if name.startswith("blocks."))
        parameters = max(1, sum(x.numel() for x in weights))
        block_size = saved.config["block_size"]
        budget = replace(budget, parameters=parameters, block_size=block_size)
    if config.minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        seconds = 60 * config.minutes - machine.processes.max(time.perf_counter() - start_time)
        budget = replace(budget, flops=speed * max(seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=default_flops(kind), device=kind)))
    model, optimizers, _ = build(config, machine, vocab_size)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
    fast_model = machine.prepare(model, config.compile, 1, x_BT)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 10 and sum(seconds) < 1):
        step_start = time.perf_counter()
        loss = cross_entropy(fast_model(x_BT), x_BT)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    parameters = block_parameters(config.n_layer, config.n_embd)
    flops = step_flops(parameters, config.batch_size * config.block_size)
    return processes.world_size * flops / processes.max(float(np.median(seconds)))


def build(
    config: TrainConfig, machine: Machine, vocab_size: int
) -> tuple[nn.Module, list[Optimizer], GradScaler]:
    """The network with new weights, its optimizers, its gradient scaler."""
    seed_all(config.seed)
    model = make_network(config, vocab_size).to(machine.device)
    return model, make_optimizers(model, config, muon_dtype=machine.dtype), machine.make_scaler()


if __name__ == "__main__":
    sys.exit(main())
