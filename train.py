"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

START_TIME = time.perf_counter()  # so that `seconds` includes the imports

import math
import shlex
import shutil
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from configs.recipe import TEACHER_SHARE, TEACHER_STEPS, Budget, default_flops, recipe, step_flops
from configs.schema import make_config, make_groups, to_dict, to_toml
from configs.training import Command, TrainConfig, known_values, parse_train_command
from data.corpus import Corpus, open_corpus
from data.shakespeare import tiny_shakespeare
from model import checkpoint
from model.checkpoint import Checkpoint
from model.generate import GenerationConfig, first_character, stream
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.network import count_heads, make_network
from model.optim import learning_rate, make_optimizers
from model.system.device import Machine, device_kind, seed_all, training_machine
from model.system.errors import (
    UserError,
    catch_signals,
    out_of_memory_hint,
    print_line,
    report_errors,
    require_finite,
)
from model.system.files import atomic_write, lock_run_dir, new_run_dir
from model.system.logger import Logger, SilentLogger
from model.system.processes import Processes

SAVE_SECONDS = 600  # last.pt is saved at least so often
SAMPLE_CHARS = 300  # written at the end; a third of them at each evaluation before


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    command = parse_train_command(argv)
    with Processes() as processes, ExitStack() as stack:
        saved, run_dir = open_run(command, processes, stack)
        values = known_values(command, saved.config)
        groups = make_groups(TrainConfig, values)
        machine = training_machine(groups["system"], processes)
        with out_of_memory_hint(
            "A larger --gradient_accumulation_steps needs less, and in a new run a smaller "
            "--batch_size, --block_size, --n_layer or --n_embd."
        ):
            if groups["corpus"].data is None:
                with processes.main_first():
                    tiny_shakespeare()  # downloads it
            corpus = open_corpus(groups["corpus"], saved.vocab)
            if command.uses_recipe:
                values = choose_settings(values, corpus, machine) | values
            config = make_config(TrainConfig, values | {"out_dir": None})
            corpus.require_length(config.model.block_size)
            if command.resume is None:
                state = new_state(config, corpus, machine, run_dir, saved)
                if saved.vocab and processes.is_main:
                    new_chars = " ".join(map(repr, state.vocab[len(saved.vocab) :])) or "none"
                    print_line(
                        f"init    {config.run.init_from}\n"
                        f"        characters that it has never seen: {new_chars}",
                        sys.stdout,
                    )
            elif saved.data_sha256 == corpus.sha256:
                state = saved
            else:
                raise UserError(
                    f"{corpus.name} is not the text of this run. "
                    f"For another text, start a new run with --init_from {command.resume}."
                )
            clock_start = START_TIME - state.seconds
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
    checkpoint.restore(state, model, optimizers, scaler)
    teacher, teacher_sha256 = load_teacher(config, corpus, machine, run_dir)
    if state.teacher_sha256 != teacher_sha256 and (state.teacher_sha256 or state.step > 0):
        raise UserError(f"the teacher of {run_dir} is not the one that it began with.")
    state.config, state.teacher_sha256 = to_dict(config), teacher_sha256
    state.model, state.optimizers = {}, []  # until they are saved: frees the memory

    # Only training steps use compiled networks; evaluation, saving and sampling use `model`.
    training_model = processes.wrap(model)
    x_BT = torch.zeros(
        (rows.stop - rows.start) // accumulation_steps,
        block_size,
        dtype=torch.int64,
        device=machine.device,
    )
    training_logits = machine.compile(training_model, config.system.compile, x_BT)
    teacher_logits = machine.compile(teacher, config.system.compile, x_BT) if teacher else None

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
        print_header(config, corpus, machine, model, run_dir)
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
            evaluation_due |= intervals(progress, config) > intervals(last_progress, config)
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
                    chars = SAMPLE_CHARS if finished else SAMPLE_CHARS // 3
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
                    logits_BTV = training_logits(x_BT)
                    loss = training_loss(
                        logits_BTV,
                        y_BT,
                        optim_config.train_temperature,
                        teacher_logits(x_BT) if teacher else None,
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
            # gradients overflowed.
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
                    "speed/chars_per_second": state.chars_per_second,
                }
                for tag, value in curves.items():
                    logger.train.add_scalar(tag, value, step)
                logger.bar.set_postfix_str(f"loss {mean_loss:.3f}", refresh=False)
            state.train_seconds += time.perf_counter() - step_start
            state.step += 1

        # --------------------------------------------------------------------------------- The end
        if processes.is_main:
            summary = summarize(state, corpus, machine, model)
            logger.write_summary(summary)
            reason = "signal" if stopped else "finished" if finished else "patience"
            print_result(summary, config, reason, run_dir, resume_dir or run_dir)
        stopped = signal_number()  # also one that came in the last step
    if stopped:
        sys.exit(128 + stopped)


def open_run(command: Command, processes: Processes, stack: ExitStack) -> tuple[Checkpoint, Path]:
    """The run directory, which is locked, and the checkpoint to begin with.

    The checkpoint is that of --resume or --init_from, or empty.
    """
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        if processes.is_main and path.parent.is_dir():
            stack.enter_context(lock_run_dir(path.parent))
        processes.wait_for_all()  # read the checkpoint only when nobody can write it
        return checkpoint.load_to_resume(path), path.parent
    other, given = Checkpoint(), command.given
    if given.get("init_from") is not None:
        other = checkpoint.load(checkpoint.resolve(given["init_from"], "best"))
    if given.get("teacher", "none") not in ("none", "own"):
        checkpoint.load(checkpoint.resolve(given["teacher"], "best"))  # to refuse a wrong one early
    run_dir = None
    if processes.is_main:
        run_dir = stack.enter_context(new_run_dir(given.get("out_dir")))
    return other, processes.broadcast(run_dir)


def choose_settings(values: dict[str, Any], corpus: Corpus, machine: Machine) -> dict[str, Any]:
    """What the recipe says for this text, machine and time."""
    minutes = values.get("minutes", 0.0)
    budget = Budget(
        train_chars=corpus.train_chars,
        flops=default_flops(device_kind(machine.device)),
        minutes=minutes,
        device=device_kind(machine.device),
        has_weights="init_from" in values,
    )
    if minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        seconds = 60 * minutes - machine.processes.max(time.perf_counter() - START_TIME)
        budget = replace(budget, flops=speed * max(seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=default_flops(kind), device=kind)))
    model, optimizers, _ = build(config, machine, vocab_size)
    shape = (config.optim.batch_size, config.model.block_size)
    x_BT = torch.randint(vocab_size, shape, device=machine.device)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 10 and sum(seconds) < 1):
        step_start = time.perf_counter()
        with machine.autocast():
            loss = cross_entropy(model(x_BT), x_BT)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    flops = step_flops(config.model.n_layer, config.model.n_embd, config.optim.batch_size)
    return processes.world_size * flops / processes.max(float(np.median(seconds)))


def build(
    config: TrainConfig, machine: Machine, vocab_size: int
) -> tuple[nn.Module, list[Optimizer], GradScaler]:
    """The network with new weights, its optimizers, its gradient scaler."""
    seed_all(config.run.seed)
    model = make_network(config.model, vocab_size).to(machine.device)
    optimizers = make_optimizers(model, config.optim, muon_dtype=machine.dtype)
    return model, optimizers, machine.make_scaler()


def new_state(
    config: TrainConfig, corpus: Corpus, machine: Machine, run_dir: Path, other: Checkpoint
) -> Checkpoint:
    """The state of a run at step 0, with new weights or those of `other`. It is saved, too."""
    vocab = corpus.tokenizer.vocab
    # Raises before anything is written.
    machine.processes.batch_rows(config.optim.batch_size, config.optim.gradient_accumulation_steps)
    model, optimizers, scaler = build(config, machine, len(vocab))
    if other.model:
        checkpoint.restore(other, model)
    state = Checkpoint(to_dict(config), vocab, corpus.sha256)
    checkpoint.capture(state, model, optimizers, scaler)
    if machine.processes.is_main:
        with atomic_write(run_dir / "config.toml") as file:
            file.write(to_toml(config).encode())
        checkpoint.save(state, run_dir / "last.pt")
    return state


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
    with ExitStack() as stack:
        if processes.is_main:
            teacher_dir.mkdir(exist_ok=True)
            stack.enter_context(lock_run_dir(teacher_dir))
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
            steps = max(1, round(TEACHER_STEPS * config.optim.max_iters))
            config = replace(
                config,
                optim=replace(config.optim, max_iters=steps),
                run=replace(config.run, teacher="none", seed=config.run.seed + 1, minutes=minutes),
            )
            other = student if config.run.init_from else Checkpoint()
            state = new_state(config, corpus, machine, teacher_dir, other)
        train(config, corpus, machine, teacher_dir, state, clock_start, resume_dir=run_dir)
    return clock_start


def load_teacher(
    config: TrainConfig, corpus: Corpus, machine: Machine, run_dir: Path
) -> tuple[nn.Module | None, str]:
    """The network that the run learns from, and the SHA-256 of its weights."""
    name = config.run.teacher
    if name == "none":
        return None, ""
    path = checkpoint.resolve(str(run_dir / "teacher") if name == "own" else name, "best")
    saved = checkpoint.load(path)
    if saved.vocab != corpus.tokenizer.vocab:
        raise UserError(
            f"the teacher {path} has another vocabulary than {corpus.name}. Name a run on the same "
            "text."
        )
    model_config = make_config(TrainConfig, saved.config).model
    teacher = make_network(model_config, len(saved.vocab))
    if config.model.block_size > (teacher.max_length or math.inf):
        raise UserError(
            f"the teacher {path} reads at most {teacher.max_length} characters; block_size is "
            f"{config.model.block_size}."
        )
    checkpoint.restore(saved, teacher)
    teacher.to(machine.device).eval().requires_grad_(False)
    return teacher, checkpoint.weights_sha256(saved.model)


def run_progress(state: Checkpoint, config: TrainConfig, corpus: Corpus, seconds: float) -> float:
    """How much of the run is done, from 0 to 1: of its steps or of its time, whichever is more.

    The time begins with the first step. It ends early enough for a last evaluation.
    """
    progress = min(1.0, state.step / config.optim.max_iters)
    if not config.run.minutes or state.step == 0:  # make at least one step
        return progress
    eval_seconds = state.eval_seconds
    if not eval_seconds:  # an estimate: a step takes three times as long for each character
        eval_chars = corpus.eval_chars(config.model.block_size)
        eval_seconds = eval_chars / (3 * state.chars_per_second)
    deadline = 60 * config.run.minutes - 1.3 * eval_seconds
    training_seconds = max(deadline - state.first_step_seconds, 1e-9)
    return min(1.0, max(progress, (seconds - state.first_step_seconds) / training_seconds))


def intervals(progress: float, config: TrainConfig) -> int:
    """How many whole eval_intervals of max_iters are done."""
    return math.floor(progress * config.optim.max_iters / config.run.eval_interval + 1e-9)


def print_header(
    config: TrainConfig, corpus: Corpus, machine: Machine, model: nn.Module, run_dir: Path
) -> None:
    """What is trained, on what, how, and where the results go."""
    model_config, optim_config, run_config = config.model, config.optim, config.run
    chars = optim_config.max_iters * optim_config.batch_size * model_config.block_size
    limit = f"{run_config.minutes:.3g} minutes, at most " if run_config.minutes else ""
    print_line(
        f"device  {machine}\n"
        f"corpus  {corpus.describe(model_config.block_size)}\n"
        f"model   {model_config.network}, {model_config.n_layer} blocks, "
        f"{count_heads(model_config)} heads, {model_config.n_embd} channels: "
        f"{count_parameters(model):,} parameters\n"
        f"train   {limit}{optim_config.max_iters:,} steps of {optim_config.batch_size} x "
        f"{model_config.block_size} characters, which read the text "
        f"{chars / corpus.train_chars:.1f} times\n"
        f"        learning rate {optim_config.learning_rate:g}, dropout {model_config.dropout:g}, "
        f"weight decay {optim_config.weight_decay:g}, "
        f"temperature {optim_config.train_temperature:g}, teacher {run_config.teacher}\n"
        f"run     {run_dir}",
        sys.stdout,
    )


def print_result(
    summary: dict[str, Any], config: TrainConfig, reason: str, run_dir: Path, resume_dir: Path
) -> None:
    """What came of the run, and the commands to go on with.

    `reason` is why it ended: signal, patience, or finished. The run to resume is another one if
    this is its teacher.
    """
    step, best_step, minutes = summary["iters"], summary["best_iter"], config.run.minutes
    directory, more, lines = shlex.quote(str(run_dir)), "", []
    if best_step is not None:
        loss, bits = summary["best_val_loss"], summary["bits_per_char"]
        lines.append(f"best    {loss:.4f} nats per character ({bits:.3f} bits), step {best_step:,}")
        if (last := summary["val_loss"]) > loss + 0.01:
            lines.append(
                f"        The validation loss has risen to {last:.4f} since then. If the "
                "training loss\n        still falls, the model overfits: a longer text, more "
                "--dropout or\n        --weight_decay, or a smaller --max_iters helps."
            )
    if reason == "signal":
        lines.append(f"stopped at step {step:,} by a signal; the checkpoint is saved")
    elif reason == "patience":
        more = " --patience 0"
        lines.append(f"stopped at step {step:,}: the validation loss no longer falls (patience)")
    else:
        more += f" --minutes {2 * minutes:g}" if minutes else ""
        more += f" --max_iters {2 * step}" if step >= config.optim.max_iters else ""
    if resume_dir == run_dir or reason == "signal":
        lines.append(f"sample  python sample.py {directory}{'' if best_step else ' --which last'}")
        lines.append(f"resume  python train.py --resume {shlex.quote(str(resume_dir))}{more}")
        if minutes and reason == "finished":
            interval = math.ceil(step * config.run.eval_interval / config.optim.max_iters)
            lines.append(
                f"repeat  python train.py {directory}/config.toml --minutes 0 --max_iters {step} "
                f"--eval_interval {interval}\n"
                "        trains a similar network; its result does not depend on the clock"
            )
        lines.append(f"watch   tensorboard --logdir {shlex.quote(str(resume_dir.parent))}")
        lines.append("        http://localhost:6006/?smoothing=0 shows the points themselves")
    print_line("\n".join(lines), sys.stdout)


def count_parameters(model: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


def summarize(
    state: Checkpoint, corpus: Corpus, machine: Machine, model: nn.Module
) -> dict[str, Any]:
    """What summary.json holds."""
    best = state.best_val_loss
    return {
        "params": count_parameters(model),
        "vocab_size": len(state.vocab),
        "train_chars": corpus.train_chars,
        "val_chars": corpus.val_chars,
        "iters": state.step,
        "seconds": state.seconds,
        "chars_per_second": state.chars_per_second,
        "val_loss": state.val_loss,
        "best_val_loss": best,
        "best_iter": state.best_step,
        "bits_per_char": None if best is None else best / math.log(2),
        "device": str(machine.device),
        "dtype": machine.dtype_name,
        "torch": torch.__version__,
    }


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
    batches = corpus.eval_batches(model.config.block_size)[processes.rank :: processes.world_size]
    nats = torch.zeros(len(batches), device=machine.device)
    for i, (starts_B, T) in enumerate(batches):
        x_BT, y_BT = machine.to_device(*corpus.gather_examples(starts_B, T))
        with machine.autocast():
            nats[i] = cross_entropy(model(x_BT), y_BT) * y_BT.numel()
    model.train()
    total = sum(nats.tolist())  # read at the end: each reading would wait for the device
    return processes.sum(total) / corpus.eval_chars(model.config.block_size)


def log_evaluation(logger: Logger, state: Checkpoint) -> None:
    """The validation loss, as a point of its curve and as a line."""
    logger.val.add_scalar("loss", state.val_loss, state.step)
    logger.val.add_scalar("loss_best", state.best_val_loss, state.step)
    note = "  best so far" if state.best_step == state.step else ""
    logger.print(
        f"step {state.step:>6}  validation loss {state.val_loss:.4f} "
        f"{state.chars_per_second:>9,.0f} characters/s{note}"
    )


def log_sample_and_maps(
    logger: Logger, model: nn.Module, corpus: Corpus, step: int, chars: int
) -> None:
    """What a person looks at after each evaluation: a sampled text, and what each head looks at."""
    vocab = corpus.tokenizer.vocab
    model.eval()
    prompt = corpus.tokenizer.encode(first_character(vocab)).tolist()
    pieces = stream(model, vocab, prompt, GenerationConfig(max_new_tokens=chars))
    sample = "".join(piece for _, piece in pieces)
    # Indented, it is code in Markdown, which TensorBoard shows as it is.
    logger.val.add_text("sample", indent(sample, "    ", lambda line: True), step)
    if sys.stdout.isatty() and sys.stderr.isatty():
        width = max(0, shutil.get_terminal_size().columns - 6)
        logger.print(f"     {' '.join(sample.split())[:width]}")
    length = min(model.config.block_size, MAP_CHARS)
    x_BT, _ = corpus.gather_examples(np.array([corpus.train_chars]), length)
    with record_attention(model) as calls, torch.no_grad():
        model(x_BT.to(next(model.parameters()).device))
    for block, call in calls:
        for head, weights_TT in enumerate(call.weights_BHTS[0].float().cpu(), start=1):
            image_HWC = draw_weights(weights_TT, vocab, x_BT[0].tolist())
            tag = f"map/block {block}, head {head}"
            logger.val.add_image(tag, image_HWC, step, dataformats="HWC")
    model.train()


if __name__ == "__main__":
    sys.exit(main())
