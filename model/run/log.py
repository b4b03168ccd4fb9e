"""Reports a run: on the console, in TensorBoard and in summary.json."""

import copy
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent

import torch
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from configs.settings import TrainConfig
from data.corpus import Corpus
from model.check import find_mistake
from model.generate import GenerationConfig, first_character, generate
from model.networks import count_parameters
from model.run.progress import Clock, RunState
from model.system.console import print_line, quote
from model.system.device import Machine
from model.system.files import atomic_write

SAMPLE_CHARS = 80  # the length of the sample after an evaluation
# The header names these settings, because they often differ from run to run.
OPTIM = ("learning_rate", "weight_decay", "ema_decay", "train_temperature")


@dataclass
class Log:
    """Reports a run. Each process has a Log, but only the main process prints and writes files."""

    config: TrainConfig
    corpus: Corpus
    machine: Machine
    run_dir: Path
    model: nn.Module  # the network that is evaluated
    state: RunState

    def __post_init__(self) -> None:
        """Print the header and open TensorBoard's files."""
        state, self.first_step = self.state, self.state.step
        self.is_main = self.machine.processes.is_main
        self.writers: dict[str, SummaryWriter] = {}  # one for each curve of the loss
        if self.is_main:
            (self.run_dir / "summary.json").unlink(missing_ok=True)  # of an earlier command
            print_line("\n".join(self.header()), sys.stdout)
            # A killed run may have logged more steps than it has saved. The resumed run logs these
            # steps again. Therefore TensorBoard drops the old points, from purge_step on.
            next_val = state.step + (state.step == state.val_step)
            for name, next_step in {"train": state.step + 1, "val": next_val}.items():
                self.writers[name] = SummaryWriter(str(self.run_dir / name), purge_step=next_step)
        is_hidden = None if self.is_main else True  # None hides the bar if there is no terminal
        self.bar = tqdm(initial=state.step, unit="step", dynamic_ncols=True, disable=is_hidden)

    def header(self) -> list[str]:
        """Return lines with the device, the text, the network, the steps and the run directory."""
        config, corpus = self.config, self.corpus
        size = f"n_layer {config.n_layer}, n_head {config.n_head}, n_embd {config.n_embd}"
        size += f", dropout {config.dropout:g}"
        batch = f"batch_size {config.batch_size}, block_size {config.block_size}"
        times = config.max_iters * config.batch_size * config.block_size / corpus.train_chars
        warnings = list(corpus.warnings)
        if mistake := find_mistake(self.model):
            warnings.append(f"the network {config.network} {mistake}")
        return [
            f"device  {self.machine}",
            f"corpus  {corpus}",
            *[f"warning: {sentence}" for sentence in warnings],
            f"model   {config.network}, {size}: {count_parameters(self.model):,} parameters",
            f"train   max_iters {config.max_iters}, {batch}: up to {times:.1f} times the text",
            "optim   " + ", ".join(f"{name} {getattr(config, name):g}" for name in OPTIM),
            f"run     {quote(self.run_dir)}; config.toml there has all settings",
        ]

    def show_progress(self, progress: float) -> None:
        """Move the progress bar. With --minutes, its total is an estimate."""
        step = self.state.step
        self.bar.total = round(step / progress) if step else self.config.max_iters
        self.bar.update(step - self.bar.n)

    def report_training(self, grad_norm: Tensor, lr: float) -> None:
        """Add a point to the training curves."""
        state = self.state
        self.bar.set_postfix_str(f"loss {state.train_loss:.3f}", refresh=False)
        if self.is_main:
            self.writers["train"].add_scalar("loss", state.train_loss, state.step)
            self.writers["train"].add_scalar("optimizer/learning_rate", lr, state.step)
            self.writers["train"].add_scalar("optimizer/grad_norm", grad_norm.item(), state.step)

    def report_evaluation(self, clock: Clock, is_best: bool) -> None:
        """Print the losses and the time. Add the validation loss and a sample to TensorBoard."""
        if not self.is_main:
            return
        state = self.state
        line = f"step {state.step:>6}"
        if state.train_loss is not None:
            line += f"  train loss {state.train_loss:.4f}"
        line += f"  val loss {state.val_loss:.4f}"
        if state.chars_per_second > 0:
            line += f"  {state.chars_per_second:,.0f} characters/s"
        seconds = clock.now()
        line += f"  {tqdm.format_interval(seconds)}"
        if 0 < clock.progress < 1:
            left = (seconds - state.start_seconds) * (1 / clock.progress - 1)
            line += f", {tqdm.format_interval(left)} left"
        if is_best:
            line += "  best so far"
        print_line(line, sys.stdout)
        self.writers["val"].add_scalar("loss", state.val_loss, state.step)
        self.add_sample()

    def add_sample(self) -> None:
        """Add a text that the model writes to TensorBoard, and show its start on a terminal."""
        model = self.model
        if self.machine.device.type == "cuda":  # a GPU starts about 200 kernels for each character
            model = copy.deepcopy(model).cpu()
        vocab, config = self.corpus.tokenizer.vocab, GenerationConfig(SAMPLE_CHARS)
        prompt = [vocab.index(first_character(vocab))]
        sample = "".join(piece for _, piece in generate(model, vocab, prompt, config))
        code = indent(sample, "    ", lambda line: True)  # Markdown shows indented text as it is
        self.writers["val"].add_text("sample", code, self.state.step)
        if sys.stdout.isatty():
            print_line(f"     {' '.join(sample.split())[:70]}", sys.stdout)

    def flush(self) -> None:
        """Write all points of the curves to TensorBoard's files."""
        for writer in self.writers.values():
            writer.flush()

    def report_result(self, is_stopped: bool) -> None:
        """Write summary.json. Print the result and the commands to type next."""
        self.bar.close()
        if not self.is_main:
            return
        state, best, run = self.state, self.state.best_val_loss, quote(self.run_dir)
        summary = vars(state) | {
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
        if state.step == self.first_step and not is_stopped:
            limit = "max_iters" if state.step >= self.config.max_iters else "minutes"
            lines.append(f"nothing to do: --{limit} {getattr(self.config, limit)} is reached")
        if is_stopped:
            lines.append(f"stopped at step {state.step} by a signal; the checkpoint is saved")
            lines.append(f"resume  python train.py --resume {run}")
        lines.append(f"sample  python sample.py {run}")
        lines.append(f"page    python sample.py {run} --attention page.html")
        lines.append(f"watch   tensorboard --logdir {quote(self.run_dir.parent)}")
        print_line("\n".join(lines), sys.stdout)

    def close(self) -> None:
        """Close the progress bar and TensorBoard's files."""
        self.bar.close()
        for writer in self.writers.values():
            writer.close()
