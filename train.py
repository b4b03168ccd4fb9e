"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

START_TIME = time.perf_counter()  # so that `seconds` includes the imports

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from configs import TrainConfig, init_from, load_config, parse_train_command, to_dict, to_toml
from data.corpus import Corpus, open_corpus
from model import checkpoint
from model.checkpoint import Checkpoint
from model.csampler import make_csampler
from model.device import (
    Processes,
    autocast,
    choose_device,
    choose_dtype,
    configure_torch,
    describe,
    dtype_name,
    make_scaler,
    maybe_compile,
    seed_all,
    to_device,
)
from model.errors import (
    DivergenceCheck,
    UserError,
    catch_signals,
    out_of_memory_hint,
    print_line,
    report_errors,
    require_finite,
)
from model.generate import SamplingConfig, start_character, stream
from model.gpt import GPT
from model.logger import RunLogger, lock_run_dir, new_run_dir
from model.optim import copy_parameters, learning_rate, make_optimizers, update_ratio
from model.pictures import attention_maps


def cross_entropy(logits_BTV: Tensor, y_BT: Tensor) -> Tensor:
    """Mean negative log-likelihood of the characters y_BT, in nats per character."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), y_BT.flatten())


@torch.no_grad()  # inference_mode would spoil tensors that an edited network keeps for training
def evaluate(
    model: GPT, corpus: Corpus, device: torch.device, dtype: torch.dtype, processes: Processes
) -> float:
    """Mean loss over the validation split, in nats per character. Deterministic."""
    model.eval()
    windows = corpus.eval_windows(model.config.block_size)[processes.rank :: processes.world_size]
    losses, counts = torch.zeros(len(windows), device=device), []
    for i, (starts_B, T) in enumerate(windows):
        x_BT, y_BT = corpus.gather_windows(starts_B, T)
        x_BT, y_BT = to_device(x_BT, device), to_device(y_BT, device)
        with autocast(device, dtype):
            losses[i] = cross_entropy(model(x_BT), y_BT)
        counts.append(y_BT.numel())
    model.train()
    # Read at the end: each reading would wait for the device.
    nats = sum(loss * count for loss, count in zip(losses.tolist(), counts, strict=True))
    return processes.sum(nats) / processes.sum(sum(counts))


def write_sample(model: GPT, corpus: Corpus) -> str:
    """300 characters written by the model, without a prompt."""
    vocab = corpus.tokenizer.vocab
    prompt = corpus.tokenizer.encode(start_character(vocab)).tolist()
    config = SamplingConfig(max_new_tokens=300)
    pieces = stream(model, vocab, prompt, config, csampler=make_csampler(model))
    return "".join(piece for _, piece in pieces)


def draw_attention_maps(model: GPT, corpus: Corpus) -> dict[str, np.ndarray]:
    """Images of what each head looks at in the first characters of the validation split."""
    x_BT, _ = corpus.gather_windows(np.array([corpus.train_chars]), model.config.block_size)
    return attention_maps(model, corpus.tokenizer.vocab, x_BT[0].tolist())


@report_errors
def main(argv: list[str]) -> int:
    """The command line: start a run, or resume one. Returns the exit status."""
    command = parse_train_command(argv)
    saved = base = run_dir = None
    with Processes() as processes, ExitStack() as stack:
        if command.resume is None:
            if (base_run := init_from(command)) is not None:
                base = checkpoint.load(checkpoint.resolve(base_run, "best"))
            config = load_config(command, base=base.config if base else None)
            if processes.is_main:
                run_dir = stack.enter_context(new_run_dir(config.run.out_dir))
        else:
            path = checkpoint.resolve(command.resume, "last")
            run_dir = path.parent
            if processes.is_main and run_dir.is_dir():
                stack.enter_context(lock_run_dir(run_dir))
            processes.wait_for_all()  # read the checkpoint only when nobody can write it
            saved = checkpoint.load(path)
            config = load_config(command, saved=saved.config)
        hint = (
            f"batch_size is {config.optim.batch_size}, block_size {config.model.block_size}, "
            f"n_layer {config.model.n_layer}, n_embd {config.model.n_embd}. A new run with half of "
            "one of these, twice the --gradient_accumulation_steps, or --activation_checkpointing "
            "needs less."
        )
        with out_of_memory_hint(hint):
            return train(config, processes, run_dir, saved, base, "data" in command.flags)


def train(
    config: TrainConfig,
    processes: Processes,
    run_dir: Path | None,
    saved: Checkpoint | None = None,
    base: Checkpoint | None = None,
    allow_other_data: bool = False,
) -> int:
    """Train to the end, and write to `run_dir`.

    The run goes on from the `saved` state, or starts with the weights of `base`, or from scratch.

    Returns the exit status: 0, or 128 + n after signal n. Raises UserError if the text is not that
    of the `saved` state, unless `allow_other_data`.
    """
    model_config, optim_config, run_config = config.model, config.optim, config.run
    block_size, batch_size = model_config.block_size, optim_config.batch_size
    accumulation_steps = optim_config.gradient_accumulation_steps
    device = processes.local_device(choose_device(config.system.device))
    dtype = choose_dtype(config.system.dtype, device)
    configure_torch(device)
    rows = processes.batch_rows(batch_size, accumulation_steps)

    # Data
    origin = saved or base
    known_vocab = origin.vocab if origin else ""
    with processes.main_first():
        corpus = open_corpus(config.data, block_size, known_vocab, extend=saved is None)
    digest = int(corpus.text.sha256[:12], 16)  # as many digits as a float64 holds
    if processes.max(digest) != -processes.max(-digest):  # max != min
        raise UserError(f"{corpus.name} is not the same text in all processes of this run.")
    data_changed = saved is not None and saved.data_sha256 != corpus.text.sha256
    if data_changed and not allow_other_data:
        raise UserError(
            f"{corpus.name} has changed since this run started. Pass --data to continue anyway."
        )

    # Model and optimizers
    seed_all(run_config.seed)
    model = GPT(model_config, vocab_size=len(corpus.tokenizer.vocab)).to(device)
    optimizers = make_optimizers(model, optim_config, muon_dtype=dtype)
    scaler = make_scaler(device, dtype)
    # Each overflow halves GradScaler's scale, 2^16 at first. After 19 in a row it is 1/8: then the
    # gradients themselves are not finite.
    divergence = DivergenceCheck(tolerated=19 if scaler.is_enabled() else 0)

    # State: fresh, from other weights, or that of the checkpoint
    if base is not None:
        checkpoint.restore_larger(base, model)
    state = Checkpoint(vocab=corpus.tokenizer.vocab) if saved is None else saved
    if saved is not None:
        checkpoint.restore(state, model, optimizers, scaler)
        if data_changed or not (run_dir / "best.pt").exists():
            state.best_val_loss = state.best_iter = None  # the next evaluation writes best.pt
    config = replace(config, run=replace(run_config, out_dir=None))  # chosen anew if repeated
    state.config, state.data_sha256 = to_dict(config), corpus.text.sha256
    earlier_seconds = state.seconds

    def micro_batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's x_BT and y_BT of a step, in gradient_accumulation_steps parts."""
        x_BT, y_BT = corpus.batch(block_size, batch_size, run_config.seed, step, rows)
        x_parts = to_device(x_BT, device).chunk(accumulation_steps)
        y_parts = to_device(y_BT, device).chunk(accumulation_steps)
        return zip(x_parts, y_parts, strict=True)

    training_model = processes.wrap(model)

    def model_loss(x_BT: Tensor, y_BT: Tensor) -> Tensor:
        # A temperature below 1 sharpens the predictions in training only. Evaluation and sampling
        # are then less confident, as they should be after many epochs. (Guo et al. 2017, "On
        # calibration", fit a temperature after training.)
        return cross_entropy(training_model(x_BT) / optim_config.train_temperature, y_BT)

    def save(*names: str) -> None:
        if processes.is_main:
            state.seconds = earlier_seconds + time.perf_counter() - START_TIME
            checkpoint.capture(state, model, optimizers, scaler)
            logger.flush()  # first: a resumed run does not log these steps again
            checkpoint.save(state, *(run_dir / name for name in names))

    logger = RunLogger(
        run_dir if processes.is_main else None,
        config_toml=to_toml(config),
        state=state,
        max_iters=optim_config.max_iters,
        chars_per_step=batch_size * block_size,
    )
    with catch_signals() as signals, closing(logger):
        n_params = sum(parameter.numel() for parameter in model.parameters())
        if processes.is_main:
            lines = [
                f"device  {describe(device, dtype, processes.world_size)}",
                f"corpus  {corpus.describe(block_size)}",
                f"model   {model_config.n_layer} blocks, {model_config.n_head} heads, "
                f"{model_config.n_embd} channels: {n_params:,} parameters",
                f"train   {optim_config.max_iters:,} steps of {batch_size} x {block_size} "
                "characters",
                f"run     {run_dir}",
            ]
            if base is not None:
                new = " ".join(map(repr, state.vocab[len(known_vocab) :])) or "none"
                lines.append(f"start   {run_config.init_from}, step {base.step:,}")
                lines.append(f"        characters that it has never seen: {new}")
            print_line("\n".join(lines), sys.stdout)
        # Only the training loss may be compiled; evaluation, saving and sampling use `model`.
        # No gradients are averaged meanwhile: compiling may fail in one process, and the others
        # would wait for it.
        training_model.require_backward_grad_sync = False
        loss_fn = maybe_compile(
            model_loss, config.system.compile, device, dtype, next(micro_batches(0))
        )
        model.zero_grad()  # compiling makes a forward and a backward pass
        if saved is not None:
            model.load_state_dict(saved.model)  # an edited network may have buffers

        # The training loop
        while True:
            step = state.step
            finished = step >= optim_config.max_iters

            # Evaluate, and save the checkpoints. If the run was killed at this evaluation, last.pt
            # may be written, but not best.pt or the sample, so a resumed run evaluates again. (The
            # logger drops that point and all later ones.)
            is_interval = step > 0 and step % run_config.eval_interval == 0
            evaluation_due = finished or is_interval or step == state.val_iter
            if evaluation_due:
                divergence.check()
                last_lr = learning_rate(max(step - 1, 0), optim_config)
                val_loss = evaluate(model, corpus, device, dtype, processes)
                require_finite("validation loss", val_loss, step, last_lr)
                state.val_loss, state.val_iter = val_loss, step
                is_best = state.best_val_loss is None or val_loss < state.best_val_loss
                is_best = is_best or step == state.best_iter  # the same evaluation again
                if is_best:
                    state.best_val_loss, state.best_iter = val_loss, step
                logger.log_evaluation(step, val_loss, is_best)
                save("last.pt", *(["best.pt"] if is_best else []))
                if processes.is_main:
                    model.eval()
                    logger.log_sample(step, write_sample(model, corpus))
                    logger.log_attention_maps(step, draw_attention_maps(model, corpus))
                    model.train()
                patience = run_config.patience * run_config.eval_interval
                if patience and step - state.best_iter >= patience:
                    finished = True

            # Stop at the end, or when any process received a signal.
            signal_number = int(processes.max(max(signals, default=0)))
            if finished or signal_number:
                if not evaluation_due:
                    divergence.check()
                    save("last.pt")
                break

            # Forward and backward pass
            step_start = time.perf_counter()
            lr = learning_rate(step, optim_config)
            seed_all(run_config.seed, step, processes.rank)  # for dropout
            step_loss = torch.zeros((), device=device)
            for i, (x_BT, y_BT) in enumerate(micro_batches(step), start=1):
                training_model.require_backward_grad_sync = i == accumulation_steps
                with autocast(device, dtype):
                    loss = loss_fn(x_BT, y_BT) / accumulation_steps
                scaler.scale(loss).backward()
                step_loss += loss.detach()

            is_logged = step % run_config.log_interval == 0
            if is_logged:
                processes.average(step_loss)
                before = [copy_parameters(optimizer) for optimizer in optimizers]

            # Clip the gradients, update the weights
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

            # Log
            divergence.add(step, lr, step_loss, grad_norm)
            if is_logged:
                divergence.check()
                values = {"grad_norm": grad_norm.item(), "learning_rate": lr}
                for optimizer, old in zip(optimizers, before, strict=True):
                    name = f"update_ratio {type(optimizer).__name__}"
                    values[name] = update_ratio(optimizer, old)
                logger.log_step(step, step_loss.item(), values)
            state.train_seconds += time.perf_counter() - step_start
            state.step += 1
            logger.bar.update()

        best = state.best_val_loss
        summary = {
            "params": n_params,
            "vocab_size": len(state.vocab),
            "train_chars": corpus.train_chars,
            "val_chars": corpus.val_chars,
            "iters": state.step,
            "seconds": state.seconds,
            "chars_per_second": logger.chars_per_second(),
            "val_loss": state.val_loss,
            "best_val_loss": best,
            "best_iter": state.best_iter,
            "bits_per_char": None if best is None else best / math.log(2),
            "device": str(device),
            "dtype": dtype_name(dtype),
            "torch": torch.__version__,
        }
        if finished and processes.is_main:
            logger.log_embedding(model, state.vocab)
        logger.write_summary(summary, finished)
    return 0 if finished else 128 + signal_number


if __name__ == "__main__":
    sys.exit(main())
