"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

START_TIME = time.perf_counter()  # so that `seconds` includes the imports

import math
import sys
from contextlib import closing
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from configs import report
from configs.prepare import build, choose_settings, open_run, require_same_text
from configs.schedule import evaluations, learning_rate, run_progress
from configs.schema import make_config, to_dict, to_toml
from configs.teacher import load_teacher, teacher_command
from configs.training import Command, TrainConfig, known_values, parse_train_command
from data.corpus import Corpus, open_corpus
from model import checkpoint
from model.checkpoint import Checkpoint
from model.network import require_consistent
from model.system.device import Machine, seed_all, training_machine
from model.system.errors import catch_signals, out_of_memory_hint, report_errors, require_finite
from model.system.logger import Logger, SilentLogger
from model.system.processes import Processes

SAVE_SECONDS = 600  # last.pt is saved at least so often
SAMPLE_CHARS = 150  # written after each evaluation
LESS_MEMORY = "Use a larger --gradient_accumulation_steps, or start anew with a smaller network."


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    command = parse_train_command(argv)
    with (
        Processes() as processes,
        open_run(command, processes) as (saved, run_dir),
        out_of_memory_hint(LESS_MEMORY),
    ):
        train(command, saved, run_dir, processes)


def train(command: Command, saved: Checkpoint, run_dir: Path, processes: Processes) -> float:
    """The whole run, from top to bottom. The main process writes to `run_dir`.

    `saved` is the checkpoint to resume, or to take weights from, or empty. After signal n, the
    state is saved, and the program exits with status 128 + n. Returns when the clock started.
    """
    # ------------------------------------------------------------- Machine, text, settings, network
    values = known_values(command, saved.config)
    config = make_config(TrainConfig, values)  # before the recipe: for machine and text
    machine = training_machine(config, processes)
    corpus = open_corpus(config, saved.vocab)
    require_same_text(command, saved, corpus)
    corpus.require_length(config.block_size)  # which the recipe leaves as it is
    if command.uses_recipe:
        values = choose_settings(config, corpus, machine, START_TIME) | values
    config = make_config(TrainConfig, values | {"out_dir": None})
    require_consistent(config)
    parts = config.gradient_accumulation_steps
    rows = processes.batch_rows(config.batch_size, parts)
    model, optimizers, scaler = build(config, machine, len(corpus.tokenizer.vocab))
    if processes.is_main:
        report.print_header(config, corpus, machine, model, run_dir)

    # ------------------------------------------- The state, which is all that a checkpoint holds
    # Only training steps use the compiled network; evaluation, saving and sampling use `model`.
    training_model = processes.wrap(model)
    shape = (rows.stop - rows.start) // parts, config.block_size
    example_BT = torch.zeros(shape, dtype=torch.int64, device=machine.device)
    compiled_model = machine.compile(training_model, config.compile, config.max_iters, example_BT)
    is_new, state = command.resume is None, saved
    if saved.model:  # --init_from gives weights, --resume everything
        checkpoint.restore(saved, model, () if is_new else optimizers, scaler)
        saved.model, saved.optimizers = {}, []  # frees the memory
    if is_new:
        state = Checkpoint(vocab=corpus.tokenizer.vocab, data_sha256=corpus.sha256)
    state.config = to_dict(config)
    logger, clock_start = SilentLogger(), START_TIME - state.seconds
    if processes.is_main and is_new:
        (run_dir / "config.toml").write_text(to_toml(config), "utf-8")

    def seconds() -> float:
        """How long the run has taken, earlier parts included."""
        return time.perf_counter() - clock_start

    def save(*names: str) -> None:
        if processes.is_main:
            state.seconds = seconds()
            checkpoint.capture(state, model, optimizers, scaler)
            logger.flush()  # first: a resumed run does not log these steps again
            checkpoint.save(state, *(run_dir / name for name in names))

    def signal_number() -> int:
        """That of a signal that any process received, or 0."""
        return int(processes.max(max(signals, default=0)))

    if is_new:
        save("last.pt")  # from now on the run can be resumed
    teacher = None
    if config.teacher:
        if state.step == 0:  # the same command, with other settings, comes first
            first = teacher_command(config, run_dir, machine, seconds())
            with open_run(first, processes) as (of_teacher, teacher_dir):
                clock_start = train(first, of_teacher, teacher_dir, processes)
        teacher = load_teacher(config, run_dir, machine)
    if processes.is_main:
        logger = Logger(run_dir, state.config, state.step)
    eval_chars = corpus.eval_chars(config.block_size)
    progress = run_progress(state, config, eval_chars, state.seconds)
    with catch_signals() as signals, closing(logger):
        while True:
            # ------------------------------------------------- Evaluate and save, if it is time
            step, last_progress = state.step, progress
            progress = max(progress, run_progress(state, config, eval_chars, seconds()))
            if config.minutes:
                progress = processes.broadcast(progress)
            logger.show_progress(step, progress)
            finished, stopped = progress >= 1, signal_number()
            # After a resume, evaluate again: if the run was killed, the pictures may be missing.
            evaluation_due = finished or step == state.val_step
            evaluation_due |= evaluations(progress, config) > evaluations(last_progress, config)
            if evaluation_due or stopped:  # the steps that a GPU has queued are training time
                state.train_seconds += machine.synchronize()
            if evaluation_due:
                eval_start = time.perf_counter()
                val_loss = evaluate(model, corpus, machine)
                require_finite("validation loss", val_loss, step)
                is_best = state.record_evaluation(val_loss)
                report.log_evaluation(logger, state)
                save(*(["best.pt"] if is_best else []), "last.pt")
                if processes.is_main:
                    report.log_sample_and_maps(logger, model, corpus, step, SAMPLE_CHARS)
                state.eval_seconds = time.perf_counter() - eval_start
            elif stopped or seconds() - state.seconds > SAVE_SECONDS:
                save("last.pt")
            if finished or stopped:
                break

            # -------------------------------------------------------------------- Forward, backward
            step_start = time.perf_counter()
            if step == 0:
                state.first_step_seconds = seconds()
            logs = step % config.log_interval == 0
            step_loss = torch.zeros((), device=machine.device)
            seed_all(config.seed, step, processes.rank)  # for dropout
            batch = corpus.batch(config.block_size, config.batch_size, config.seed, step, rows)
            micro_batches = zip(*(x.chunk(parts) for x in machine.to_device(*batch)), strict=True)
            for i, (x_BT, y_BT) in enumerate(micro_batches, start=1):
                training_model.require_backward_grad_sync = i == parts
                with machine.autocast():
                    logits_BTV = compiled_model(x_BT)
                    taught_BTV = None if teacher is None else teacher(x_BT)
                    loss = training_loss(logits_BTV, y_BT, config.train_temperature, taught_BTV)
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

            # ------------------------------------------------------------------------------- Log
            if logs:  # Reading a value waits for the device: this is part of the step's time.
                mean_loss = processes.sum(step_loss.item()) / processes.world_size
                require_finite("training loss", mean_loss, step)
                # float16 gradients may overflow: GradScaler skips the step and halves its scale.
                if not scaler.is_enabled() or scaler.get_scale() < 1 / 8:
                    require_finite("gradient norm", grad_norm.item(), step)
                curves = {"loss": mean_loss, "optimizer/learning_rate": lr}
                curves["optimizer/grad_norm"] = grad_norm.item()
                logger.log_step(step, curves)
            state.train_seconds += time.perf_counter() - step_start
            state.step += 1

        # --------------------------------------------------------------------------------- The end
        stopped = stopped or signal_number()  # also one that came in the last evaluation
        if processes.is_main:
            logger.write_summary(report.summarize(state, corpus, machine, model))
            report.print_result(state, config, run_dir, stopped)
    if stopped:
        sys.exit(128 + stopped)
    return clock_start


def training_loss(
    logits_BTV: Tensor, y_BT: Tensor, temperature: float, taught_BTV: Tensor | None = None
) -> Tensor:
    """Mean loss in nats per character. A temperature below 1 sharpens predictions in training only.

    Evaluation and sampling are then less confident, as they should be after many epochs. (Guo et
    al. 2017, "On calibration", fit a temperature after training.)
    """
    logits_BTV = logits_BTV / temperature
    loss = cross_entropy(logits_BTV, y_BT)
    if taught_BTV is None:
        return loss
    probs_BTV = taught_BTV.float().softmax(dim=-1)  # without the temperature
    return (loss + cross_entropy(logits_BTV, probs_BTV)) / 2


def cross_entropy(logits_BTV: Tensor, target: Tensor) -> Tensor:
    """Mean negative log-likelihood of characters y_BT, or of their probabilities of (B, T, V)."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), target.flatten(0, 1))


@torch.no_grad()  # inference_mode would spoil tensors that an edited network keeps for training
def evaluate(model: nn.Module, corpus: Corpus, machine: Machine) -> float:
    """Mean loss over the validation split, in nats per character. Deterministic."""
    seed_all(0)  # for a network that draws random numbers here, too
    model.eval()
    processes, block_size = machine.processes, model.config.block_size
    batches = corpus.eval_batches(block_size, machine.eval_batch_chars(model.vocab_size))
    nats = []
    for starts_B, T in batches[processes.rank :: processes.world_size]:
        x_BT, y_BT = machine.to_device(*corpus.gather_examples(starts_B, T))
        with machine.autocast():
            nats.append(cross_entropy(model(x_BT), y_BT) * y_BT.numel())
    model.train()
    # Read at the end: each reading would wait for the device.
    return processes.sum(sum(map(float, nats))) / corpus.eval_chars(block_size)


if __name__ == "__main__":
    sys.exit(main())
