"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

START_TIME = time.perf_counter()  # so that `seconds` includes the imports

import math
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from configs.prepare import (
    build,
    choose_settings,
    load_teacher,
    new_state,
    open_run,
    require_same_split,
)
from configs.recipe import TEACHER_SHARE, TEACHER_STEPS
from configs.report import (
    log_evaluation,
    log_sample_and_maps,
    print_corpus,
    print_new_characters,
    print_result,
    print_settings,
    summarize,
)
from configs.schema import make_config, make_groups, to_dict
from configs.training import TrainConfig, known_values, parse_train_command
from data.corpus import Corpus, open_corpus
from data.reader import is_stream
from model import checkpoint
from model.checkpoint import Checkpoint
from model.optim import learning_rate
from model.system.device import Machine, seed_all, training_machine
from model.system.errors import (
    UserError,
    catch_signals,
    out_of_memory_hint,
    report_errors,
    require_finite,
)
from model.system.files import lock_run_dir
from model.system.logger import Logger, SilentLogger
from model.system.processes import Processes
from model.system.terminal import print_line, quote

MAX_TIMED_EVALUATIONS = 10  # of a run with --minutes
SAVE_SECONDS = 600  # last.pt is saved at least so often
SAMPLE_CHARS = 150  # written after each evaluation
GPU_SAMPLE_CHARS = 50  # on a GPU, where sampling one text is slow; SAMPLE_CHARS at the end


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one.

    Read the flags; make and lock the run's directory; choose the device; read the text; let the
    recipe choose the settings; build the network and save step 0; train the teacher, if there is
    one; train. (docs/attention.md, "What happens when you type python train.py")
    """
    command = parse_train_command(argv)
    with Processes() as processes, ExitStack() as stack:
        state, run_dir = open_run(command, processes, stack)
        values = known_values(command, state.config)
        groups = make_groups(TrainConfig, values)
        machine = training_machine(groups["system"], processes)
        if processes.world_size > 1 and any(map(is_stream, groups["corpus"].data or ())):
            raise UserError(
                "several processes cannot read the same stream. Name files with --data."
            )
        with out_of_memory_hint(
            "A larger --gradient_accumulation_steps needs less, and in a new run a smaller "
            "--batch_size, --block_size, --n_layer or --n_embd."
        ):
            with processes.main_first():  # it may download the text
                corpus = open_corpus(groups["corpus"], state.vocab)
            corpus.require_length(groups["model"].block_size)
            if command.uses_recipe:
                values = choose_settings(values, corpus, machine, START_TIME) | values
            config = make_config(TrainConfig, values | {"out_dir": None})
            if command.resume is None:
                require_same_split(state, config.run.init_from, corpus)
                if state.vocab and processes.is_main:
                    print_new_characters(corpus.tokenizer.vocab[len(state.vocab) :], config)
                state = new_state(config, corpus, machine, run_dir, state)
            elif state.data_sha256 != corpus.sha256:
                raise UserError(
                    f"{corpus.name} is not the text of this run. "
                    f"For another text, start a new run with --init_from {quote(run_dir)}"
                )
            if processes.is_main:
                print_corpus(corpus, machine, config.model.block_size)
            clock_start = START_TIME - state.seconds
            if config.run.teacher == "own" and processes.is_main:
                (run_dir / "teacher").mkdir(exist_ok=True)
                stack.enter_context(lock_run_dir(run_dir / "teacher"))
            if config.run.teacher == "own" and state.step == 0:
                clock_start = train_teacher(config, corpus, machine, run_dir, state, clock_start)
            train(config, corpus, machine, run_dir, state, clock_start)


def train(
    config: TrainConfig,
    corpus: Corpus,
    machine: Machine,
    run_dir: Path,
    state: Checkpoint,
    clock_start: float,
    resume_dir: Path | None = None,
) -> None:
    """Train from `state` to the end. The main process writes to `run_dir`.

    `time.perf_counter() - clock_start` is how long the run has taken, earlier parts included.
    After signal n, the state is saved, and the program exits with status 128 + n. Then `resume_dir`
    is the run to resume, if that is another one.
    """
    # ------------------------------------------------------------------------------------- Prepare
    optim_config, run_config = config.optim, config.run
    block_size, batch_size = config.model.block_size, optim_config.batch_size
    accumulation_steps = optim_config.gradient_accumulation_steps
    processes = machine.processes
    rows = processes.batch_rows(batch_size, accumulation_steps)
    vocab = corpus.tokenizer.vocab

    model, optimizers, scaler = build(config, machine, len(vocab))
    teacher, teacher_sha256 = load_teacher(config, corpus, machine, run_dir)
    if state.teacher_sha256 != teacher_sha256 and (state.teacher_sha256 or state.step > 0):
        raise UserError(f"the teacher of {run_dir} is not the one that it began with.")
    state.config, state.teacher_sha256 = to_dict(config), teacher_sha256

    if processes.is_main:
        print_settings(config, corpus, model, run_dir)

    # Only training steps use compiled networks; evaluation, saving and sampling use `model`.
    training_model = processes.wrap(model)
    example_BT = torch.zeros(
        (rows.stop - rows.start) // accumulation_steps, block_size, dtype=torch.int64
    ).to(machine.device)
    compile_mode, steps = config.system.compile, optim_config.max_iters
    compiled_model = machine.compile(training_model, compile_mode, steps, example_BT)
    if teacher is not None:
        teacher = machine.compile(teacher, compile_mode, steps, example_BT)
    checkpoint.restore(state, model, optimizers, scaler)
    state.model, state.optimizers = {}, []  # until they are saved: frees the memory

    def seconds() -> float:
        return time.perf_counter() - clock_start

    def save(*names: str) -> None:
        if processes.is_main:
            state.seconds = seconds()
            checkpoint.capture(state, model, optimizers, scaler)
            logger.train.flush()  # first: a resumed run does not log these steps again
            logger.val.flush()
            checkpoint.save(state, *(run_dir / name for name in names))

    def signal_number() -> int:
        """That of a signal that any process received, or 0."""
        return int(processes.max(max(signals, default=0)))

    logger = SilentLogger()
    if processes.is_main:
        logger = Logger(run_dir, state.config, state.step)
    progress = run_progress(state, config, corpus, state.seconds)
    with catch_signals() as signals, closing(logger):
        while True:
            # ------------------------------------------------- Evaluate and save, if it is time to
            step, last_progress = state.step, progress
            progress = max(progress, run_progress(state, config, corpus, seconds()))
            if run_config.minutes:
                progress = processes.broadcast(progress)
            logger.show_progress(step, progress)
            finished, stopped = progress >= 1, signal_number()
            # After a resume, evaluate again: if the run was killed, the pictures may be missing.
            evaluation_due = finished or step == state.val_step
            evaluation_due |= evaluations(progress, config) > evaluations(last_progress, config)
            if evaluation_due or stopped:
                # The steps that a GPU has queued are part of the training time.
                waiting_start = time.perf_counter()
                machine.synchronize()
                state.train_seconds += time.perf_counter() - waiting_start
            if evaluation_due:
                eval_start = time.perf_counter()
                val_loss = evaluate(model, corpus, machine)
                require_finite("validation loss", val_loss, step)
                is_best = state.record_evaluation(val_loss)
                log_evaluation(logger, state)
                save(*(["best.pt"] if is_best else []), "last.pt")
                if processes.is_main:
                    chars = SAMPLE_CHARS if finished or machine.is_cpu else GPU_SAMPLE_CHARS
                    log_sample_and_maps(logger, model, corpus, step, chars)
                state.eval_seconds = time.perf_counter() - eval_start
            elif stopped or seconds() - state.seconds > SAVE_SECONDS:
                save("last.pt")
            out_of_patience = 0 < run_config.patience <= state.evals_since_best
            if finished or stopped or out_of_patience:
                break

            # -------------------------------------------------------------------- Forward, backward
            step_start = time.perf_counter()
            if step == 0:
                state.first_step_seconds = seconds()
            logs = step % run_config.log_interval == 0
            step_loss = torch.zeros((), device=machine.device)
            seed_all(run_config.seed, step, processes.rank)  # for dropout
            batch = corpus.batch(block_size, batch_size, run_config.seed, step, rows)
            micro_batches = zip(
                *(x.chunk(accumulation_steps) for x in machine.to_device(*batch)), strict=True
            )
            for i, (x_BT, y_BT) in enumerate(micro_batches, start=1):
                training_model.require_backward_grad_sync = i == accumulation_steps
                with machine.autocast():
                    teacher_logits_BTV = None if teacher is None else teacher(x_BT)
                    logits_BTV = compiled_model(x_BT)
                    loss = training_loss(
                        logits_BTV, y_BT, optim_config.train_temperature, teacher_logits_BTV
                    )
                scaler.scale(loss / accumulation_steps).backward()
                if logs:  # without temperature and teacher
                    step_loss += cross_entropy(logits_BTV.detach(), y_BT) / accumulation_steps

            # --------------------------------------------------------- Clip the gradients, update
            lr = learning_rate(step, progress, optim_config)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
                for group in optimizer.param_groups:
                    group["lr"] = lr
            grad_norm = clip_grad_norm_(model.parameters(), optim_config.grad_clip or math.inf)
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
                curves = {
                    "loss": mean_loss,
                    "optimizer/learning_rate": lr,
                    "optimizer/grad_norm": grad_norm.item(),
                }
                if step > 0:
                    curves["speed/chars_per_second"] = state.chars_per_second
                for tag, value in curves.items():
                    logger.train.add_scalar(tag, value, step)
                logger.bar.set_postfix_str(f"loss {mean_loss:.3f}", refresh=False)
            state.train_seconds += time.perf_counter() - step_start
            state.step += 1

        # --------------------------------------------------------------------------------- The end
        stopped = stopped or signal_number()  # also one that came in the last evaluation
        if processes.is_main:
            logger.write_summary(summarize(state, corpus, machine, model))
            reason = "signal" if stopped else "finished" if finished else "patience"
            print_result(state, config, corpus, reason, run_dir, resume_dir or run_dir)
    if stopped:
        sys.exit(128 + stopped)


def train_teacher(
    config: TrainConfig,
    corpus: Corpus,
    machine: Machine,
    run_dir: Path,
    student: Checkpoint,
    clock_start: float,
) -> float:
    """Train `run_dir`/teacher, or finish it. Returns the clock_start of both runs.

    The teacher is an ordinary run, with another seed and its share of the steps or of the time.
    """
    processes, teacher_dir = machine.processes, run_dir / "teacher"
    if processes.is_main:
        print_line(f"teacher {teacher_dir} is trained first", sys.stdout)
    if processes.broadcast((teacher_dir / "last.pt").exists()):
        state = checkpoint.load_to_resume(teacher_dir / "last.pt")
        saved = make_config(TrainConfig, state.config)
        parts = config.optim.gradient_accumulation_steps
        optim = replace(saved.optim, gradient_accumulation_steps=parts)
        config = replace(saved, corpus=config.corpus, optim=optim, system=config.system)
        clock_start = START_TIME - state.seconds
    else:
        so_far, minutes = (time.perf_counter() - clock_start) / 60, config.run.minutes
        if minutes:
            minutes = so_far + TEACHER_SHARE * max(minutes - so_far, 0.0)
        config = replace(
            config,
            optim=replace(
                config.optim,
                max_iters=max(1, round(TEACHER_STEPS * config.optim.max_iters)),
                lr_decay_iters=round(TEACHER_STEPS * config.optim.lr_decay_iters),
            ),
            run=replace(
                config.run,
                teacher="none",
                seed=config.run.seed + 10**6,  # not the seed of somebody's next run
                minutes=processes.broadcast(minutes),
            ),
        )
        other = student if config.run.init_from is not None else Checkpoint()
        state = new_state(config, corpus, machine, teacher_dir, other)
    train(config, corpus, machine, teacher_dir, state, clock_start, resume_dir=run_dir)
    return clock_start


def run_progress(state: Checkpoint, config: TrainConfig, corpus: Corpus, seconds: float) -> float:
    """How much of the run is done, from 0 to 1: of its steps or of its time, whichever is more.

    The time begins with the first step. It ends early enough for a last evaluation.
    """
    progress = min(1.0, state.step / config.optim.max_iters)
    if not config.run.minutes or state.step == 0:  # make at least one step
        return progress
    eval_seconds = state.eval_seconds
    if not eval_seconds:
        # An estimate: a step takes three times as long for each character. The first steps take
        # still longer, so no more than a quarter of the time.
        eval_chars = corpus.eval_chars(config.model.block_size)
        eval_seconds = min(eval_chars / (3 * state.chars_per_second), 15 * config.run.minutes)
    deadline = 60 * config.run.minutes - 1.3 * eval_seconds
    training_seconds = max(deadline - state.first_step_seconds, 1e-9)
    return min(1.0, max(progress, (seconds - state.first_step_seconds) / training_seconds))


def evaluations(progress: float, config: TrainConfig) -> int:
    """How many evaluations are due until this progress."""
    count = config.optim.max_iters / config.run.eval_interval
    if config.run.minutes:  # then max_iters may be far away
        count = min(count, MAX_TIMED_EVALUATIONS)
    return math.floor(progress * count + 1e-9)


def training_loss(
    logits_BTV: Tensor, y_BT: Tensor, temperature: float, teacher_logits_BTV: Tensor | None = None
) -> Tensor:
    """Mean loss in nats per character.

    With the logits of a teacher, it is the average of the losses against the text and against the
    teacher's predictions. A temperature below 1 sharpens the predictions in training only.
    Evaluation and sampling are then less confident, as they should be after many epochs. (Guo et
    al. 2017, "On calibration", fit a temperature after training.)
    """
    logits_BTV = logits_BTV / temperature
    loss = cross_entropy(logits_BTV, y_BT)
    if teacher_logits_BTV is None:
        return loss
    probs_BTV = teacher_logits_BTV.float().softmax(dim=-1)  # without the temperature
    return (loss + cross_entropy(logits_BTV, probs_BTV)) / 2


def cross_entropy(logits_BTV: Tensor, target: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats per character.

    The target is the characters y_BT, or their probabilities, of shape (B, T, V).
    """
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), target.flatten(0, 1))


@torch.no_grad()  # inference_mode would spoil tensors that an edited network keeps for training
def evaluate(model: nn.Module, corpus: Corpus, machine: Machine) -> float:
    """Mean loss over the validation split, in nats per character. Deterministic."""
    seed_all(0)  # for a network that draws random numbers here, too
    model.eval()
    processes = machine.processes
    batches = corpus.eval_batches(
        model.config.block_size, machine.eval_batch_chars(model.vocab_size)
    )[processes.rank :: processes.world_size]
    nats = torch.zeros(len(batches), device=machine.device)
    for i, (starts_B, T) in enumerate(batches):
        x_BT, y_BT = machine.to_device(*corpus.gather_examples(starts_B, T))
        with machine.autocast():
            nats[i] = cross_entropy(model(x_BT), y_BT) * y_BT.numel()
    model.train()
    total = sum(nats.tolist())  # read at the end: each reading would wait for the device
    return processes.sum(total) / corpus.eval_chars(model.config.block_size)


if __name__ == "__main__":
    sys.exit(main())
