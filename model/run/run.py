"""The work of a run around its training steps (see train.py): evaluate, save, log, end."""

import copy
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from textwrap import indent

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from configs.flags import to_dict, to_toml
from configs.settings import TrainConfig
from data.corpus import Corpus
from model.generate import GenerationConfig, first_character, generate
from model.inspect.maps import MAP_CHARS, draw_weights
from model.inspect.record import record_attention
from model.loss import evaluate
from model.networks import count_parameters
from model.run import checkpoint
from model.run.checkpoint import Checkpoint, RunState
from model.system.device import Machine
from model.system.errors import UserError, print_line, quote, require_finite
from model.system.files import atomic_write

SAVE_SECONDS = 600  # the longest time between two saves of last.pt
SAMPLE_CHARS = 80  # the length of the sample after an evaluation


@dataclass
class Run:
    """A training run. Each process has a Run, but only the main process prints and writes files."""

    config: TrainConfig
    corpus: Corpus
    machine: Machine
    run_dir: Path
    model: nn.Module  # the network that is trained
    average: nn.Module  # for evaluation, saving, sampling: an average of `model`, or `model` itself
    optimizers: list[Optimizer]
    scaler: GradScaler
    state: RunState = field(default_factory=RunState)
    signals: Sequence[int] = ()  # the numbers of all signals received so far
    signal: int = 0  # the number of the signal that ends the run, or 0
    progress: float = 0.0  # how much of the run is done, from 0 to 1
    logs: dict[str, SummaryWriter] = field(default_factory=dict)  # TensorBoard's "train" and "val"

    def start(self, saved: Checkpoint) -> None:
        """Begin with the data of `saved`: a whole run, only weights (--init_from), or nothing."""
        self.restore(saved)
        self.is_main = self.machine.processes.is_main
        self.loss_sum = torch.tensor(self.state.loss_sum, device=self.machine.device)
        # The step and the time at the end of earlier commands
        self.first_step, self.earlier_seconds = self.state.step, self.state.seconds
        if self.is_main:
            self.print_header()
            self.open_logs()
        is_hidden = None if self.is_main else True  # None hides the bar if there is no terminal
        self.bar = tqdm(initial=self.state.step, unit="step", dynamic_ncols=True, disable=is_hidden)

    def print_header(self) -> None:
        """Print the device, the text, the network, the steps and the run directory."""
        config, corpus = self.config, self.corpus
        size = f"n_layer {config.n_layer}, n_head {config.n_head}, n_embd {config.n_embd}"
        batch = f"batch_size {config.batch_size}, block_size {config.block_size}"
        times = config.max_iters * config.batch_size * config.block_size / corpus.train_chars
        lines = [
            f"device  {self.machine}",
            f"corpus  {corpus}",
            *[f"warning: {sentence}" for sentence in corpus.warnings],
            f"model   {config.network}, {size}: {count_parameters(self.model):,} parameters",
            f"train   max_iters {config.max_iters}, {batch}: up to {times:.1f} times the text",
            f"run     {quote(self.run_dir)}; config.toml there has all settings",
        ]
        print_line("\n".join(lines), sys.stdout)

    def open_logs(self) -> None:
        """Open TensorBoard's files, "train" and "val". TensorBoard draws both in one chart."""
        (self.run_dir / "summary.json").unlink(missing_ok=True)  # the result of an earlier command
        # A killed run may have logged more steps than it has saved. The resumed run logs these
        # steps again. Therefore TensorBoard drops the old points, from purge_step on.
        step, val_step = self.state.step, self.state.val_step
        next_val = step + 1 if step == val_step else step
        for split, next_step in {"train": step + 1, "val": next_val}.items():
            self.logs[split] = SummaryWriter(str(self.run_dir / split), purge_step=next_step)

    def log(self, split: str) -> SummaryWriter:
        """Return TensorBoard's writer. If somebody has deleted its folder, open a new one."""
        if not (self.run_dir / split).exists():
            self.logs[split] = SummaryWriter(str(self.run_dir / split))
        return self.logs[split]

    def steps(self) -> Iterator[int]:
        """Yield the number of each training step. Between the steps, evaluate and save."""
        self.lap_step, self.lap_time = self.state.step, time.perf_counter()  # to measure speed
        self.update()
        while True:
            step = self.state.step
            # If an evaluation would leave no time for more steps, it waits for the end of the run.
            is_due = step % self.config.eval_interval == 0 and self.progress_after < 1
            if (is_due or self.progress >= 1) and step != self.state.val_step and not self.signal:
                self.evaluate()
                self.update()
            if self.progress >= 1 or self.signal:
                return
            yield step
            self.state.step += 1
            self.update()
            if self.unsaved_seconds > SAVE_SECONDS:
                self.save()
                if self.is_main and self.bar.disable:  # in a log file or a notebook
                    print_line(f"step {self.state.step:>6}  saved  {self.clock()}", sys.stdout)

    def seconds(self) -> float:
        """Return how long the run has taken, including earlier commands."""
        return self.earlier_seconds + self.machine.processes.seconds()

    def clock(self) -> str:
        """Return words for the time so far and, after the first step, for the time that is left."""
        seconds = self.seconds()
        if not 0 < self.progress < 1:
            return show_time(seconds)
        left = (seconds - self.state.start_seconds) * (1 / self.progress - 1)
        return f"{show_time(seconds)}, {show_time(left)} left"

    def update(self) -> None:
        """Look at the clock and for signals. All processes get the same answer."""
        state = self.state
        progress = after = state.step / self.config.max_iters  # `after`: with one more evaluation
        if self.config.minutes and state.step > 0:  # a run always makes its first step
            seconds = self.seconds() - state.start_seconds
            available = 60 * self.config.minutes - state.start_seconds - state.eval_seconds
            progress = max(progress, seconds / max(available, 1e-9))
            after = max(after, (seconds + state.eval_seconds) / max(available, 1e-9))
        unsaved_seconds, received = self.seconds() - state.seconds, max(self.signals, default=0)
        reached = self.machine.processes.max(min(progress, 1), after, unsaved_seconds, received)
        progress, self.progress_after, self.unsaved_seconds, signal = reached
        if self.progress < 1:  # a signal during the last evaluation has no effect
            self.signal = int(signal)
        # The progress never falls, even if an evaluation is faster than the evaluation before.
        self.progress = max(self.progress, progress)
        self.bar.total = round(state.step / self.progress) if state.step else self.config.max_iters
        self.bar.update(state.step - self.bar.n)

    def evaluate(self) -> None:
        """Measure the validation loss, report it, and save."""
        self.average.eval()
        state, config = self.state, self.config
        self.machine.synchronize()  # a GPU may still be computing earlier steps
        start_time = time.perf_counter()
        if steps := state.step - self.lap_step:
            chars = steps * config.batch_size * config.block_size
            state.chars_per_second = chars / (start_time - self.lap_time)
        batch_chars = self.machine.eval_batch_chars(len(self.corpus.tokenizer.vocab))
        batches = self.corpus.eval_batches(config.block_size, batch_chars, self.machine.processes)
        state.val_loss, state.val_step = evaluate(self.average, batches, self.machine), state.step
        require_finite("validation loss", state.val_loss, state.step)
        is_guess = state.step == 0 and config.init_from is None  # a new network knows nothing
        is_lowest = state.best_val_loss is None or state.val_loss < state.best_val_loss
        is_best = is_lowest and not is_guess
        if is_best:
            state.best_val_loss, state.best_step = state.val_loss, state.step
        if self.is_main:
            self.log_evaluation(is_best)
        state.eval_seconds = time.perf_counter() - start_time
        if state.step == 0:
            state.start_seconds = self.seconds()
        self.save(is_best)
        self.model.train()
        self.lap_step, self.lap_time = state.step, time.perf_counter()

    def log_evaluation(self, is_best: bool) -> None:
        """Print the losses. Add the validation loss, a sample and attention maps to TensorBoard."""
        state = self.state
        line = f"step {state.step:>6}"
        if state.train_loss is not None:
            line += f"  train loss {state.train_loss:.4f}"
        line += f"  val loss {state.val_loss:.4f}"
        if state.chars_per_second > 0:
            line += f"  {state.chars_per_second:,.0f} characters/s"
        line += f"  {self.clock()}"
        if is_best:
            line += "  best so far"
        print_line(line, sys.stdout)
        self.log("val").add_scalar("loss", state.val_loss, state.step)
        self.log_sample()
        self.log_maps()

    def log_sample(self) -> None:
        """Add a text that the model writes to TensorBoard, and show its start on a terminal."""
        model, vocab = self.average, self.corpus.tokenizer.vocab
        if self.machine.device.type == "cuda":  # a GPU starts about 200 kernels for each character
            model = copy.deepcopy(model).cpu()
        prompt, config = [vocab.index(first_character(vocab))], GenerationConfig(SAMPLE_CHARS)
        sample = "".join(piece for _, piece in generate(model, vocab, prompt, config))
        code = indent(sample, "    ", lambda line: True)  # Markdown shows indented text as it is
        self.log("val").add_text("sample", code, self.state.step)
        if sys.stdout.isatty():
            print_line(f"     {' '.join(sample.split())[:70]}", sys.stdout)

    @torch.no_grad()
    def log_maps(self) -> None:
        """Draw each head's attention weights for the first characters of the validation text."""
        length = min(self.config.block_size, MAP_CHARS)
        ids_T = self.corpus.ids_N[self.corpus.train_chars :][:length].astype(np.int64)
        text = self.corpus.tokenizer.decode(ids_T)
        with record_attention(self.average) as calls:
            self.average(torch.from_numpy(ids_T)[None].to(self.machine.device))
        for block, call in calls:
            for head, weights_TT in enumerate(call.weights_BHTS[0].float().cpu(), start=1):
                image_HWC = draw_weights(weights_TT, text)
                tag = f"map/block {block}, head {head}"
                self.log("val").add_image(tag, image_HWC, self.state.step, dataformats="HWC")

    def log_training(self, grad_norm: Tensor, lr: float) -> None:
        """Count a step. Every log_interval steps, add their mean loss to the training curve."""
        state, step = self.state, self.state.step + 1
        state.loss_steps += 1
        if step % self.config.log_interval > 0:
            return
        self.share_loss_sum()
        loss = state.train_loss = state.loss_sum / state.loss_steps
        self.loss_sum.zero_()
        state.loss_steps = 0
        require_finite("training loss", loss, step)
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        if self.is_main:
            self.log("train").add_scalar("loss", loss, step)
            self.log("train").add_scalar("optimizer/learning_rate", lr, step)
            self.log("train").add_scalar("optimizer/grad_norm", grad_norm.item(), step)

    def share_loss_sum(self) -> None:
        """Set loss_sum to its mean over all processes, which a resumed run begins with."""
        processes = self.machine.processes
        self.loss_sum.fill_(processes.sum(self.loss_sum.item()) / processes.world_size)
        self.state.loss_sum = self.loss_sum.item()

    def save(self, is_best: bool = False) -> None:
        """Write config.toml and last.pt. If this is the best model so far, write best.pt first."""
        self.state.seconds = self.seconds()
        self.share_loss_sum()
        if not self.is_main:
            return
        weights = [*self.model.parameters(), *self.average.parameters()]
        total = sum(weight.sum().item() for weight in weights)  # nan if one weight is nan
        require_finite("sum of the weights", total, self.state.step)
        for split in self.logs:  # before last.pt, because no resumed run logs these steps again
            self.log(split).flush()
        with atomic_write(self.run_dir / "config.toml") as file:
            file.write(to_toml(replace(self.config, device=self.machine.device.type)).encode())
        names = ("best.pt", "last.pt") if is_best else ("last.pt",)
        saved = Checkpoint(
            **vars(self.state),
            config=to_dict(self.config),
            vocab=self.corpus.tokenizer.vocab,
            data_sha256=self.corpus.sha256,
            model=self.average.state_dict(),
            trained={} if self.average is self.model else self.model.state_dict(),
            optimizers=[optimizer.state_dict() for optimizer in self.optimizers],
            scaler=self.scaler.state_dict(),
        )
        checkpoint.save(saved, *(self.run_dir / name for name in names))

    def restore(self, saved: Checkpoint) -> None:
        """Load the weights, the state of the optimizers and the numbers that `saved` holds."""
        if saved.model:
            checkpoint.load_weights(saved, self.average)
        self.model.load_state_dict(saved.trained or self.average.state_dict())
        if saved.optimizers:
            for optimizer, values in zip(self.optimizers, saved.optimizers, strict=True):
                # PyTorch matches parameters by their order. After an edit of the network, it could
                # swap two parameters of equal shape without an error.
                groups = zip(optimizer.param_groups, values["param_groups"], strict=True)
                if any(ours["param_names"] != theirs["param_names"] for ours, theirs in groups):
                    raise UserError("the checkpoint has its layers in another order than model/.")
                optimizer.load_state_dict(values)
        if saved.scaler:
            self.scaler.load_state_dict(saved.scaler)
        self.state = RunState(**{f.name: getattr(saved, f.name) for f in fields(RunState)})

    def finish(self) -> None:
        """Save a run that a signal has stopped. Report the result and the commands to type next."""
        if self.signal:
            self.save()
        if not self.is_main:
            return
        self.bar.close()
        state, best, run = self.state, self.state.best_val_loss, quote(self.run_dir)
        summary = vars(state) | {
            "iters": state.step,
            "best_iter": state.best_step,
            "bits_per_char": None if best is None else best / math.log(2),
            "params": count_parameters(self.model),
            "vocab_size": len(self.corpus.tokenizer.vocab),
            "train_chars": self.corpus.train_chars,
            "val_chars": self.corpus.val_chars,
            "device": str(self.machine.device),
            "dtype": self.machine.dtype_name,
            "torch": torch.__version__,
        }
        with atomic_write(self.run_dir / "summary.json") as file:
            file.write(json.dumps(summary, indent=2).encode() + b"\n")
        lines = []
        if best is not None:
            lines.append(f"best    val loss {best:.4f} at step {state.best_step}")
            if state.val_loss > best + 0.01:
                lines.append(f"risen   to {state.val_loss:.4f} since: docs/guide.md, Overfitting")
        if state.step == self.first_step and not self.signal:
            limit = "max_iters" if state.step >= self.config.max_iters else "minutes"
            lines.append(f"nothing to do: --{limit} {getattr(self.config, limit)} is reached")
        if self.signal:
            lines.append(f"stopped at step {state.step} by a signal; the checkpoint is saved")
            lines.append(f"resume  python train.py --resume {run}")
        lines.append(f"sample  python sample.py {run}")
        lines.append(f"page    python sample.py {run} --attention page.html")
        lines.append(f"watch   tensorboard --logdir {quote(self.run_dir.parent)}")
        print_line("\n".join(lines), sys.stdout)

    def close(self) -> None:
        """Close the progress bar and TensorBoard's files."""
        self.bar.close()
        for log in self.logs.values():
            log.close()


def show_time(seconds: float) -> str:
    """Return words for a time, in seconds or in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
