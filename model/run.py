"""What a training run does beside training: its directory, clock, evaluations, saving, logs, end.

The loop is in train.py. A corpus is an argument, as data/corpus.py makes it; model/ does not import
data/.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from configs.flags import Command, UserError, make_config, to_dict, to_toml
from configs.settings import TrainConfig
from model import checkpoint
from model.checkpoint import Checkpoint, Learner, RunState
from model.inspect import report
from model.loss import evaluate
from model.schedule import run_progress
from model.system.device import Machine
from model.system.errors import require_finite
from model.system.files import atomic_write, lock_run_dir, new_run_dir
from model.system.logger import Logger
from model.system.processes import Processes
from model.system.signals import catch_signals
from model.system.terminal import print_line, quote

SAVE_SECONDS = 600  # last.pt is saved at least so often
CONFIG_HEAD = """\
# python train.py THIS_FILE trains the same again. --resume reads last.pt instead of this file: what
# it may change are flags.

"""
EXIT_SECONDS = 0.8  # that Python takes to end after PyTorch was used; --minutes counts them


@contextmanager
def open_run_dir(command: Command, processes: Processes) -> Iterator[Path]:
    """The run directory, that of --resume or a new one. The main process locks it."""
    if command.resume is None:
        out_dir = command.given.get("out_dir")
        with new_run_dir(out_dir) if processes.is_main else nullcontext() as run_dir:
            yield processes.broadcast(run_dir)
        return
    path = checkpoint.resolve(command.resume, "last")
    if os.path.isfile(path) and not os.access(path.parent, os.W_OK):
        raise UserError(
            f"{path.parent} cannot be written. Copy the run with cp -r, or start a new one "
            f"with --init_from {quote(path.parent)}"
        )
    with lock_run_dir(path.parent) if processes.is_main else nullcontext():
        yield path.parent


def load_saved(command: Command) -> Checkpoint:
    """The checkpoint of --resume or --init_from, or an empty one."""
    if command.resume is not None:
        path = checkpoint.resolve(command.resume, "last")
        saved = checkpoint.load_to_resume(path)
        max_iters = command.given.get("max_iters", saved.config["max_iters"])
        if max_iters < saved.step:
            raise UserError(f"max_iters is {max_iters}, but the run has made {saved.step} steps.")
        if path.name != "last.pt":  # which may be newer, so it is not replaced for nothing
            if max_iters == saved.step:
                raise UserError(
                    f"{path} has reached its max_iters, {max_iters}. To go on from it, which "
                    "replaces last.pt, give a larger --max_iters."
                )
            print_line(f"note: from step {saved.step} on, last.pt is replaced", sys.stderr)
        return saved
    if "init_from" in command.given:
        return checkpoint.load(checkpoint.resolve(command.given["init_from"], "best"))
    return Checkpoint()


def require_same_text(command: Command, saved: Checkpoint, corpus: Any) -> None:
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


@contextmanager
def start_run(
    config: TrainConfig,
    state: RunState,
    learner: Learner,
    run_dir: Path,
    corpus: Any,
    machine: Machine,
) -> Iterator["Run"]:
    """A run that begins, or goes on, at `state.step`.

    Inside, it can be resumed, and a signal ends it once it is saved.
    """
    with ExitStack() as stack:
        signals, logger = stack.enter_context(catch_signals()), None
        if machine.processes.is_main:
            is_evaluated = state.val_step == state.step
            logger = stack.enter_context(
                closing(Logger(run_dir, vars(config), state.step, is_evaluated))
            )
            with atomic_write(run_dir / "config.toml") as file:
                file.write((CONFIG_HEAD + to_toml(config)).encode())
            if state.step == 0:
                report.warn_of_mistake(config, len(corpus.tokenizer.vocab))
        run = Run(config, state, learner, run_dir, corpus, machine, signals, logger)
        run.save()
        if config.minutes:
            run.estimate_eval_seconds()
        run.update()
        yield run


class Run:
    """What a run does between its training steps: evaluate, save, log, end.

    Each process has one; that of the main process writes and prints. `update`, `evaluate` and `log`
    exchange values, so all processes call them together.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: RunState,
        learner: Learner,
        run_dir: Path,
        corpus: Any,
        machine: Machine,
        signals: Sequence[int],
        logger: Logger | None,
    ) -> None:
        """`signals` are those received so far; only the main process has a `logger`."""
        self.config, self.state, self.learner = config, state, learner
        self.run_dir, self.corpus, self.machine = run_dir, corpus, machine
        self.processes, self.signals, self.logger = machine.processes, signals, logger
        self.progress = 0.0  # how much of the run is done, up to 1
        self.signal = 0  # the number of the signal that ends the run
        self.first_step = state.step
        self.earlier_seconds = state.seconds  # before this command
        # Of the latest evaluation; before the first one, with --minutes, an estimate
        self.eval_seconds = 0.0
        self.speed_step, self.speed_time = state.step, time.perf_counter()  # measured from here on
        chars = machine.eval_batch_chars(learner.model.vocab_size)
        windows = corpus.eval_windows(config.block_size, chars)
        self.eval_windows = windows[self.processes.rank :: self.processes.world_size]

    def seconds(self) -> float:
        """How long the run has taken, earlier commands included."""
        return self.earlier_seconds + self.processes.seconds()

    def update(self) -> None:
        """Look at the clock and for signals: the same in all processes. Save every ten minutes."""
        state, seconds = self.state, self.seconds()
        if state.step > 0 and not state.start_seconds:
            state.start_seconds = seconds  # the first step may take long: it does not count
        end = 60 * self.config.minutes - EXIT_SECONDS - self.eval_seconds
        passed = seconds - state.start_seconds
        progress = run_progress(state.step, self.config, passed, end - state.start_seconds)
        # Never less than before, although the time that an evaluation takes is an estimate
        progress = max(progress, self.progress)
        self.progress, signal = self.processes.max(progress, max(self.signals, default=0))
        self.signal = int(signal)
        if self.logger:
            self.logger.show_progress(state.step, self.progress)
        if seconds - state.seconds > SAVE_SECONDS:
            self.save()

    def is_over(self) -> bool:
        """Whether max_iters, --minutes or a signal ends the run before the next step."""
        return self.progress >= 1 or self.signal > 0

    def evaluation_is_due(self) -> bool:
        """Whether this step ends an interval, or the run, and is not evaluated yet."""
        step = self.state.step
        is_boundary = self.progress >= 1 or (step > 0 and step % self.config.eval_interval == 0)
        return is_boundary and step != self.state.val_step and not self.signal

    def evaluate(self) -> None:
        """Measure the validation loss, report it with a sample and attention maps, save."""
        state, eval_model = self.state, self.learner.eval_model
        self.machine.synchronize()  # a GPU may have steps to do
        eval_start = time.perf_counter()
        if steps := state.step - self.speed_step:
            chars = steps * self.config.batch_size * self.config.block_size
            state.chars_per_second = chars / max(eval_start - self.speed_time, 1e-9)
        self.save()  # if the run is killed before the end, resuming begins with this evaluation
        val_loss = self.measure_loss(self.eval_windows)
        require_finite("validation loss", val_loss, state.step)
        is_best = state.record_evaluation(val_loss)
        if self.logger:
            report.log_evaluation(self.logger, state)
            report.log_sample(self.logger, eval_model, self.corpus, state.step)
            report.log_maps(self.logger, eval_model, self.corpus, state.step)
        self.save(is_best)
        self.speed_step, self.speed_time = state.step, time.perf_counter()
        self.eval_seconds = self.speed_time - eval_start
        if self.progress < 1:  # a complete run does not end because of a signal
            self.update()

    def estimate_eval_seconds(self) -> None:
        """From a sample and the median of three batches, of which the first is slow."""
        seconds = []
        for _ in range(3):
            batch_start = time.perf_counter()
            self.measure_loss(self.eval_windows[:1])
            seconds.append(time.perf_counter() - batch_start)
        self.eval_seconds = len(self.eval_windows) * median(seconds)
        if self.logger:
            sample_start = time.perf_counter()
            report.write_sample(self.learner.eval_model, self.corpus)
            self.eval_seconds += time.perf_counter() - sample_start
        left = 60 * self.config.minutes - self.seconds()
        if self.logger and self.state.step == 0 and self.eval_seconds > left:
            report.warn_of_little_time(self.eval_seconds, left)

    def measure_loss(self, windows: Sequence) -> float:
        """The mean loss of windows of the validation text, over all processes."""
        batches = (self.corpus.gather_examples(*window) for window in windows)
        return evaluate(self.learner.eval_model, batches, self.machine)

    def log(self, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Add a point to the training curves. Reading a value waits for the device."""
        mean_loss = self.processes.sum(loss.item()) / self.processes.world_size
        require_finite("training loss", mean_loss, self.state.step)
        if not self.learner.scaler.is_enabled():  # in float16 it may overflow
            require_finite("gradient norm", grad_norm.item(), self.state.step)
        if self.logger:
            optimizer = {"optimizer/learning_rate": lr, "optimizer/grad_norm": grad_norm.item()}
            self.logger.add_scalars("train", self.state.step, {"loss": mean_loss} | optimizer)
            self.logger.show_loss(mean_loss)

    def save(self, is_best: bool = False) -> None:
        """Write last.pt; if this is the best model so far, before it best.pt."""
        self.state.seconds = self.seconds()
        if self.logger:
            saved = checkpoint.capture(
                self.learner,
                self.state,
                config=to_dict(self.config),
                vocab=self.corpus.tokenizer.vocab,
                data_sha256=self.corpus.sha256,
            )
            self.logger.flush()  # first: a resumed run does not log these steps again
            names = ("best.pt", "last.pt") if is_best else ("last.pt",)
            checkpoint.save(saved, *(self.run_dir / name for name in names))

    def finish(self) -> None:
        """Save what a signal has stopped; write and print what came of the run."""
        if self.signal:
            self.save()
        if self.logger:
            state, corpus = self.state, self.corpus
            model, seconds = self.learner.model, self.seconds()
            self.logger.write_summary(report.summarize(state, seconds, corpus, self.machine, model))
            report.print_result(
                state, self.config, corpus, self.run_dir, self.signal, self.first_step
            )
