"""Train a character-level GPT on a text: python train.py [PRESET.toml] [--key value ...]"""

import time

BEGAN = time.perf_counter()  # what a person waits for begins here, before the imports

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from configs import Command, read_command
from configs.schema import flat, to_toml
from data.corpus import Corpus, open_corpus
from data.tokenizer import CharTokenizer
from model import checkpoint, optim
from model.checkpoint import Checkpoint
from model.ending import exit_status, memory_for, remembered_signals, say
from model.generate import SamplingConfig, first_character, generate
from model.gpt import GPT
from model.record import Record, hold, new_run_dir, require_free
from model.runtime import Runtime, autocast


def loss_of(model: nn.Module, x_BT: Tensor, y_BT: Tensor) -> Tensor:
    """The mean cross-entropy of the characters y_BT that follow x_BT, in nats per character."""
    return F.cross_entropy(model(x_BT).flatten(0, 1).float(), y_BT.flatten())


@torch.inference_mode()
def evaluate(model: GPT, corpus: Corpus, runtime: Runtime) -> float:
    """The loss over the validation split, in nats per character: the same number each time."""
    nats, count = 0.0, 0
    for starts_B, T in corpus.windows(model.config.block_size)[runtime.rank :: runtime.world]:
        x_BT, y_BT = (ids_BT.to(runtime.device) for ids_BT in corpus.pairs(corpus.val, starts_B, T))
        with autocast(runtime.device, runtime.dtype):
            nats += loss_of(model, x_BT, y_BT).item() * y_BT.numel()
        count += y_BT.numel()
    return runtime.sum(nats) / runtime.sum(count)


def write_sample(model: GPT, tokenizer: CharTokenizer) -> str:
    """What the model writes without a prompt."""
    start = tokenizer.encode(first_character(tokenizer.vocab)).tolist()
    ids = generate(model, start, SamplingConfig(max_new_tokens=300))
    return tokenizer.decode([ids_B[0] for ids_B in ids])


def train(argv: list[str], began: float) -> int:
    """From the command line to the experiment. Returns the exit status."""
    command = read_command(argv)
    if not command.saved:
        require_free(command.config.run.out_dir)
    size, plan = command.config.model, command.config.optim
    what = (
        f"batch_size {plan.batch_size} x block_size {size.block_size}, n_layer {size.n_layer}, n_embd {size.n_embd}; "
        "double gradient_accumulation_steps, which changes no result, or halve one of these"
    )
    with Runtime(command.config.system) as runtime, memory_for(what), ExitStack() as held:
        if command.saved:
            if runtime.rank == 0:
                held.enter_context(hold(command.run_dir))
            runtime.sum(0)  # all wait for that
            command = read_command(argv)  # once more: until here another process may have been at it
        return experiment(command, runtime, began, held)


def experiment(command: Command, runtime: Runtime, began: float, held: ExitStack) -> int:
    """The experiment, top to bottom; what is `held` is its run's folder. Returns the exit status."""
    config, saved, run_dir, given = command
    size, plan, run = config.model, config.optim, config.run
    leader = runtime.rank == 0  # of several processes, the one that prints and writes
    rows = runtime.rows(plan.batch_size, plan.gradient_accumulation_steps)
    corpus = open_corpus(config.data, size.block_size, saved.vocab if saved else None)
    if saved and saved.data_sha256 != corpus.sha256 and "data" not in given:
        raise ValueError(f"{corpus.name} is not what it was when this run began; to go on even so, name it by --data")

    runtime.seed(run.seed)
    model = GPT(size, len(corpus.tokenizer.vocab)).to(runtime.device)
    optimizers, scaler = optim.optimizers(model, plan, runtime.dtype), runtime.scaler()
    watch = optim.Watch(plan, runtime.dtype, scaler)
    state = saved or Checkpoint(vocab=corpus.tokenizer.vocab)
    if saved:
        checkpoint.restore(state, model, optimizers, scaler)
        if state.data_sha256 != corpus.sha256 or not (run_dir / "best.pt").exists():
            state.best_val_loss = state.best_iter = None  # so that the next evaluation writes best.pt
    elif leader:
        run_dir = new_run_dir(run.out_dir)
        held.enter_context(hold(run_dir))
        require_free(run.out_dir)  # two may have looked before either was there
    config = replace(config, run=replace(run, out_dir=None))  # out_dir is not saved: elsewhere it is the same run
    state.config, state.data_sha256, earlier = flat(config), corpus.sha256, state.seconds
    params = sum(weight.numel() for weight in model.parameters())
    if leader:
        say(
            f"device  {runtime}\n"
            f"corpus  {corpus.describe(size.block_size)}\n"
            f"model   {size.n_layer} layers, {size.n_head} heads, {size.n_embd} wide: {params:,} parameters\n"
            f"plan    {plan.max_iters:,} steps of {plan.batch_size} x {size.block_size} characters\n"
            f"run     {run_dir}",
            sys.stdout,
        )

    def batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's windows of a step, in gradient_accumulation_steps parts."""
        ids_BT = corpus.batch(size.block_size, plan.batch_size, run.seed, step, rows)
        parts = (x_or_y.to(runtime.device).chunk(plan.gradient_accumulation_steps) for x_or_y in ids_BT)
        return zip(*parts, strict=True)

    def save(*names: str) -> None:
        state.seconds = earlier + time.perf_counter() - began
        checkpoint.capture(state, model, optimizers, scaler)
        record.save(state, *names)

    record = Record(run_dir if leader else None, to_toml(config), state, plan)
    with remembered_signals() as signals, record:
        # Two handles on one network: `model` evaluates, saves and samples; `step_loss`, perhaps compiled, only trains.
        step_loss = runtime.compile(partial(loss_of, model), *next(batches(0)))
        model.zero_grad()
        while True:
            rate = optim.learning_rate(state.step, plan)
            finished = state.step >= plan.max_iters
            # Resumed where it had evaluated, a run does so again: that point of the curve was dropped.
            due = finished or state.step == state.val_iter or (state.step > 0 and state.step % run.eval_interval == 0)
            if due:
                watch.look()
                model.eval()
                state.val_loss, state.val_iter = evaluate(model, corpus, runtime), state.step
                watch.require_finite("validation loss", state.val_loss, state.step)
                is_best = state.best_val_loss is None or state.val_loss < state.best_val_loss
                if is_best:
                    state.best_val_loss, state.best_iter = state.val_loss, state.step
                record.evaluated(state, is_best, write_sample(model, corpus.tokenizer) if leader else "")
                model.train()
                save("best.pt", "last.pt") if is_best else save("last.pt")
                if run.patience and state.step - state.best_iter >= run.patience * run.eval_interval:
                    finished = True
            if finished or runtime.sum(len(signals)) > 0:  # a signal to any process stops all
                break

            begun = time.perf_counter()
            runtime.seed(run.seed, state.step, runtime.rank)
            loss = torch.zeros((), device=runtime.device)
            for x_BT, y_BT in batches(state.step):
                with autocast(runtime.device, runtime.dtype):
                    part = step_loss(x_BT, y_BT) / plan.gradient_accumulation_steps
                scaler.scale(part).backward()
                loss += part.detach()
            runtime.average(loss, *(weight.grad for weight in model.parameters()))
            norm = optim.update(model, optimizers, scaler, rate, plan.grad_clip)
            watch.note(state.step, loss, norm)
            if state.step % run.log_interval == 0:
                watch.look()
                record.trained(state, loss.item(), norm.item(), rate)
            state.train_seconds += time.perf_counter() - begun
            state.step += 1
            record.bar.update()
        if not due:
            watch.look()
            save("last.pt")
    record.outcome(
        {
            "params": params,
            "vocab_size": len(state.vocab),
            "train_chars": len(corpus.train),
            "val_chars": len(corpus.val),
            "iters": state.step,
            "chars_per_second": record.chars_per_second(state),
            **{key: getattr(state, key) for key in ("seconds", "val_loss", "best_val_loss", "best_iter")},
            "bits_per_char": None if state.best_val_loss is None else state.best_val_loss / math.log(2),
            "device": str(runtime.device),
            "dtype": str(runtime.dtype).removeprefix("torch."),
            "torch": torch.__version__,
        },
        finished,
    )
    return 0 if finished or not signals else 128 + signals[0]


def main(argv: list[str] | None = None, began: float | None = None) -> int:
    """The command line as a function: returns the exit status."""
    return exit_status(lambda: train(sys.argv[1:] if argv is None else argv, began or time.perf_counter()))


if __name__ == "__main__":
    sys.exit(main(began=BEGAN))
