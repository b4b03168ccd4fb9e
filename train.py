"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

START_TIME = time.perf_counter()  # so that `seconds` includes the imports

import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from configs.minutes import choose_config
from configs.schema import to_dict, to_toml
from configs.training import Command, TrainConfig, load_config, parse_train_command
from data.corpus import Corpus, open_corpus
from data.shakespeare import tiny_shakespeare
from model import checkpoint
from model.checkpoint import Checkpoint
from model.generate import GenerationConfig, first_character, stream
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.network import count_heads, make_network
from model.optim import learning_rate, make_optimizers
from model.system.device import Machine, seed_all, training_machine
from model.system.errors import (
    UserError,
    catch_signals,
    out_of_memory_hint,
    print_line,
    report_errors,
    require_finite,
)
from model.system.files import lock_run_dir, new_run_dir
from model.system.logger import Logger, SilentLogger
from model.system.processes import Processes

SAVE_SECONDS = 600  # last.pt is saved at least so often
SAMPLE_CHARS = 300  # written at the end; a third of them at each evaluation before


@report_errors
def main(argv: list[str]) -> None:
    """The command line: start a run, or resume one."""
    command = parse_train_command(argv)
    with Processes() as processes, ExitStack() as stack:
        start, config, run_dir = find_start(command, processes, stack)
        machine = training_machine(config.system, processes)
        with out_of_memory_hint(
            "A larger --gradient_accumulation_steps needs less, and in a new run a smaller "
            "--batch_size, --block_size, --n_layer or --n_embd."
        ):
            if config.data.data is None:
                with processes.main_first():
                    tiny_shakespeare()  # downloads it
            corpus = open_corpus(config.data, config.model.block_size, start.vocab)
            if start.is_resumed and start.data_sha256 != corpus.sha256:
                raise UserError(
                    f"{corpus.name} is not the text of this run. "
                    f"For another text, start a new run with --init_from {command.resume}."
                )
            run = partial(train, machine=machine, start=start)
            if command.uses_recipe:
                config = choose_config(command, start.config, corpus, processes, START_TIME, run)
            run(config, corpus, run_dir=run_dir)


def find_start(
    command: Command, processes: Processes, stack: ExitStack
) -> tuple[Checkpoint, TrainConfig, Path | None]:
    """The state to begin with, the config, and the main process's run directory, locked.

    The config of a run without a preset is provisional: that of Tiny Shakespeare.
    """
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        if processes.is_main and path.parent.is_dir():
            stack.enter_context(lock_run_dir(path.parent))
        processes.wait_for_all()  # read the checkpoint only when nobody can write it
        start = checkpoint.load_to_resume(path)
        return start, load_config(command, start.config), path.parent if processes.is_main else None
    start = Checkpoint()
    if (other_run := command.given.get("init_from")) is not None:
        other = checkpoint.load(checkpoint.resolve(other_run, "best"))
        start = Checkpoint(config=other.config, vocab=other.vocab, model=other.model)
    config = load_config(command, start.config)
    if not processes.is_main:
        return start, config, None
    return start, config, stack.enter_context(new_run_dir(config.run.out_dir))


def train(
    config: TrainConfig,
    corpus: Corpus,
    machine: Machine,
    start: Checkpoint,
    run_dir: Path | None = None,
) -> Checkpoint:
    """Train from `start` to the end, and return the last state.

    The main process writes to `run_dir`; the others, and a trial run, have none. After signal n,
    the state is saved there, and the program exits with status 128 + n.
    """
    # ------------------------------------------------------------------------------- Preparation
    model_config, optim_config, run_config = config.model, config.optim, config.run
    block_size, batch_size = model_config.block_size, optim_config.batch_size
    accumulation_steps = optim_config.gradient_accumulation_steps
    processes = machine.processes
    rows = processes.batch_rows(batch_size, accumulation_steps)

    # Model and optimizers
    vocab = corpus.tokenizer.vocab
    seed_all(run_config.seed)
    model = make_network(model_config, vocab_size=len(vocab)).to(machine.device)
    teacher = None
    if optim_config.teacher_iters:
        teacher = make_network(model_config, vocab_size=len(vocab)).to(machine.device)
        teacher.eval().requires_grad_(False)
    optimizers = make_optimizers(model, optim_config, muon_dtype=machine.dtype)
    scaler = machine.make_scaler()

    # State
    if start.model:
        checkpoint.restore(start, model, optimizers, scaler)
    if start.teacher:
        teacher.load_state_dict(start.teacher)
    config = replace(config, run=replace(run_config, out_dir=None))  # a repeated run gets its own
    state = replace(start, config=to_dict(config), vocab=vocab, data_sha256=corpus.sha256)
    logger = SilentLogger()
    if run_dir is not None:
        logger = Logger(run_dir, state.config, to_toml(config), state.step, optim_config.max_iters)

    def micro_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's x_BT and y_BT of a step, in gradient_accumulation_steps parts."""
        batch = corpus.batch(block_size, batch_size, run_config.seed, step, rows)
        x_BT, y_BT = machine.to_device(*batch)
        return zip(x_BT.chunk(accumulation_steps), y_BT.chunk(accumulation_steps), strict=True)

    def forward_backward(step: int) -> Tensor:
        """Add up the gradients of a step.

        Returns its loss without temperature and teacher if it is logged, otherwise 0.
        """
        seed_all(run_config.seed, step, processes.rank)  # for dropout
        step_loss = torch.zeros((), device=machine.device)
        for i, (x_BT, y_BT) in enumerate(micro_batches(step), start=1):
            training_model.require_backward_grad_sync = i == accumulation_steps
            with machine.autocast():
                teacher_logits_BTV = teacher_logits(x_BT) if state.teacher else None
                logits_BTV = training_logits(x_BT)
                loss = training_loss(
                    logits_BTV, y_BT, optim_config.train_temperature, teacher_logits_BTV
                )
            scaler.scale(loss / accumulation_steps).backward()
            if step % run_config.log_interval == 0:
                step_loss += cross_entropy(logits_BTV.detach(), y_BT) / accumulation_steps
        return step_loss

    def seconds() -> float:
        return start.seconds + time.perf_counter() - START_TIME

    def save(*names: str) -> None:
        if run_dir is not None:
            state.seconds = seconds()
            state.teacher = teacher.state_dict() if state.teacher else {}
            checkpoint.capture(state, model, optimizers, scaler)
            logger.train.flush()  # first: a resumed run does not log these steps again
            logger.val.flush()
            checkpoint.save(state, *(run_dir / name for name in names))

    # Only training steps use compiled networks; evaluation, saving and sampling use `model`.
    training_model = processes.wrap(model)
    training_logits = machine.compile(training_model, config.system.compile)
    teacher_logits = machine.compile(teacher, config.system.compile) if teacher else None
    is_compiled = training_logits is not training_model

    with catch_signals() as signals, closing(logger):
        n_params = sum(parameter.numel() for parameter in model.parameters())
        if run_dir is not None:
            print_header(config, corpus, machine, n_params, run_dir)
            if start.model and not start.is_resumed:
                new_chars = " ".join(map(repr, vocab[len(start.vocab) :])) or "none"
                print_line(
                    f"start   {run_config.init_from}\n"
                    f"        characters that it has never seen: {new_chars}",
                    sys.stdout,
                )

        # ------------------------------------------------------------------------ The training loop
        def any_signal() -> int:
            """The number of a signal that any process received, or 0."""
            return int(processes.max(max(signals, default=0)))

        while True:
            step = state.step
            finished = step >= optim_config.max_iters
            is_interval = step > 0 and step % run_config.eval_interval == 0
            evaluation_due = is_interval or step == state.val_step or finished
            signal_number = any_signal()
            if evaluation_due or signal_number:
                # The steps that a GPU has queued are part of the training time.
                waiting_start = time.perf_counter()
                machine.synchronize()
                state.train_seconds += time.perf_counter() - waiting_start

            # Evaluate, and save the checkpoints. If the run was killed after that, the pictures may
            # be missing, so a resumed run evaluates again. (The logger drops that point.)
            if evaluation_due:
                eval_start = time.perf_counter()
                val_loss = evaluate(model, corpus, machine)
                require_finite("validation loss", val_loss, step)
                state.val_loss, state.val_step = val_loss, step
                is_best = state.best_val_loss is None or val_loss < state.best_val_loss
                if is_best:
                    state.best_val_loss, state.best_step = val_loss, step
                logger.val.add_scalar("loss", val_loss, step)
                logger.val.add_scalar("loss_best", state.best_val_loss, step)
                speed = f"{state.chars_per_second:>9,.0f} characters/s"
                note = "  best so far" if state.best_step == step else ""
                logger.print(f"step {step:>6}  validation loss {val_loss:.4f} {speed}{note}")
                save(*(["best.pt"] if is_best else []), "last.pt")
                if processes.is_main:  # also in a trial run, which measures the time
                    chars = SAMPLE_CHARS if finished else SAMPLE_CHARS // 3
                    log_sample_and_maps(logger, model, corpus, step, chars)
                state.eval_seconds += time.perf_counter() - eval_start
                patience = run_config.patience * run_config.eval_interval
                waited = step - max(state.best_step, optim_config.teacher_iters)
                finished = finished or 0 < patience <= waited
            elif signal_number or seconds() - state.seconds > SAVE_SECONDS:
                save("last.pt")
            if finished or signal_number:
                break

            # The first network becomes the teacher of a second one, which starts anew. (Hinton et
            # al. 2015, "Distilling"; Furlanello et al. 2018, "Born-again neural networks".)
            if step > 0 and step == optim_config.teacher_iters:
                logger.print(f"step {step:>6}  a second network starts, and learns from the first")
                teacher.load_state_dict(model.state_dict())
                state.teacher = teacher.state_dict()
                state.best_val_loss = state.best_step = None
                seed_all(run_config.seed, step)
                model.load_state_dict(make_network(model_config, len(vocab)).state_dict())
                optimizers = make_optimizers(model, optim_config, muon_dtype=machine.dtype)

            # Forward and backward pass. The first step of a network compiles it.
            step_start = time.perf_counter()
            compiles = is_compiled and step in (start.step, optim_config.teacher_iters)
            buffers = {name: x.clone() for name, x in model.named_buffers()} if compiles else {}
            try:
                step_loss = forward_backward(step)
            except Exception as error:  # the compiler raises exceptions of many types
                if not compiles:
                    raise
                if processes.world_size > 1:  # the others wait for this one
                    print_line("note: --compile off trains without the compiler.", sys.stderr)
                    raise
                problem = str(error).strip().partition("\n")[0][:200]
                logger.print(f"warning: training goes on without torch.compile: {problem}")
                is_compiled, training_logits, teacher_logits = False, model, teacher
                model.zero_grad()
                model.load_state_dict(buffers, strict=False)
                step_start, compiles = time.perf_counter(), False
                step_loss = forward_backward(step)

            # Clip the gradients, update the weights
            lr = learning_rate(step, optim_config)
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

            # Log. Reading a value waits for the device, so this belongs to the time of the step.
            if step % run_config.log_interval == 0:
                mean_loss = processes.sum(step_loss.item()) / processes.world_size
                require_finite("training loss", mean_loss, step)
                # float16 gradients may overflow: GradScaler skips the step and halves its scale.
                if not scaler.is_enabled() or scaler.get_scale() < 1 / 8:
                    require_finite("gradient norm", grad_norm.item(), step)
                values = {
                    "loss": mean_loss,
                    "optimizer/learning_rate": lr,
                    "optimizer/grad_norm": grad_norm.item(),
                    "speed/chars_per_second": state.chars_per_second,
                }
                for tag, value in values.items():
                    logger.train.add_scalar(tag, value, step)
                logger.bar.set_postfix_str(f"loss {mean_loss:.3f}", refresh=False)
            if not compiles:
                state.train_seconds += time.perf_counter() - step_start
                state.timed_steps += 1
            state.step += 1
            logger.bar.update()

        # --------------------------------------------------------------------------------- The end
        logger.write_summary(summarize(state, corpus, machine, n_params), finished)
        signal_number = any_signal()  # also one that came in the last step
    if signal_number:
        sys.exit(128 + signal_number)
    return state


def print_header(
    config: TrainConfig, corpus: Corpus, machine: Machine, n_params: int, run_dir: Path
) -> None:
    """What is trained, on what, and where the results go."""
    model_config, optim_config = config.model, config.optim
    print_line(
        f"device  {machine}\n"
        f"corpus  {corpus.describe(model_config.block_size)}\n"
        f"model   {model_config.network}, {model_config.n_layer} blocks, "
        f"{count_heads(model_config)} heads, {model_config.n_embd} channels: "
        f"{n_params:,} parameters\n"
        f"train   {optim_config.max_iters:,} steps of {optim_config.batch_size} x "
        f"{model_config.block_size} characters\n"
        f"run     {run_dir}",
        sys.stdout,
    )


def summarize(state: Checkpoint, corpus: Corpus, machine: Machine, n_params: int) -> dict[str, Any]:
    """What summary.json holds."""
    best = state.best_val_loss
    return {
        "params": n_params,
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
