"""What a training run does beside training: its clock, evaluations, saving, logs, its end.

The loop is in train.py.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from configs.flags import to_dict, to_toml
from configs.settings import TrainConfig
from data.corpus import Corpus
from model.loss import evaluate
from model.run import checkpoint, report
from model.run.checkpoint import Learner, RunState
from model.run.logger import Logger
from model.system.device import Machine, seed_all
from model.system.errors import require_finite
from model.system.files import atomic_write
from model.system.processes import Processes, catch_signals

SAVE_SECONDS = 600  # last.pt is saved at least so often
LONG_EVALUATION = 10  # seconds; before one that takes longer, last.pt is saved
CONFIG_HEAD = "# python train.py THIS_FILE uses these settings. --resume reads last.pt instead.\n\n"


class Clock:
    """The time of a run, which --minutes limits, and its speed."""

    def __init__(self, config: TrainConfig, state: RunState, processes: Processes) -> None:
        self.config, self.state = config, state
        self.processes, self.earlier_seconds = processes, state.seconds
        self.lap_step, self.lap_time = state.step, time.perf_counter()  # of the latest evaluation

    def seconds(self) -> float:
        """How long the run has taken, earlier commands included."""
        return self.earlier_seconds + self.processes.seconds()

    def chars_per_second(self) -> float:
        """The speed of the steps since the latest evaluation; if there are none, that of before."""
        seconds = max(time.perf_counter() - self.lap_time, 1e-9)
        chars = (self.state.step - self.lap_step) * self.config.batch_size * self.config.block_size
        return chars / seconds if chars else self.state.chars_per_second

    def progress(self) -> float:
        """How much of the run is done, up to 1: of its steps or of its time, whichever is more.

        Time is left for the last evaluation. The first step is always made.
        """
        state, start = self.state, self.state.start_seconds
        progress = state.step / self.config.max_iters
        if self.config.minutes and state.step > 0:
            available = 60 * self.config.minutes - state.eval_seconds - start
            passed = self.seconds() - start
            progress = max(progress, passed / available if available > 0 else 1.0)
        return min(progress, 1.0)

    def end_evaluation(self, start_time: float) -> None:
        """Note how long it took; the speed is measured from here on."""
        state = self.state
        self.lap_step, self.lap_time = state.step, time.perf_counter()
        state.eval_seconds = self.lap_time - start_time
        if state.step == 0:
            state.start_seconds = self.seconds()


@dataclass
class Run:
    """What a run does between its training steps: evaluate, save, log, end.

    Each process has one; that of the main process writes and prints. `update`, `evaluate` and `log`
    exchange values, so all processes call them together.
    """

    config: TrainConfig
    state: RunState
    learner: Learner
    run_dir: Path
    corpus: Corpus
    machine: Machine
    clock: Clock
    signals: Sequence[int]  # those received so far
    logger: Logger | None = None  # only the main process has one
    progress: float = 0.0  # how much of the run is done, up to 1
    signal: int = 0  # the number of the signal that ends the run

    def update(self) -> None:
        """Look at the clock and for signals: the same in all processes."""
        received = max(self.signals, default=0)
        progress, signal = self.machine.processes.max(self.clock.progress(), received)
        # It never falls, although evaluations may take longer and longer.
        self.progress, self.signal = max(self.progress, progress), int(signal)
        if self.logger:
            self.logger.show_progress(self.state.step, self.progress)

    def is_over(self) -> bool:
        """Whether max_iters, --minutes or a signal ends the run before the next step."""
        return self.progress >= 1 or self.signal > 0

    def evaluation_is_due(self) -> bool:
        """Whether the run is at its start, the end of an interval or its end, not evaluated yet."""
        step = self.state.step
        is_boundary = self.progress >= 1 or step % self.config.eval_interval == 0
        return is_boundary and step != self.state.val_step and not self.signal

    def evaluate(self) -> None:
        """Measure the validation loss, report it with a sample and attention maps, save."""
        state, average = self.state, self.learner.average
        self.machine.synchronize()  # a GPU may have steps to do
        start_time = time.perf_counter()
        if state.eval_seconds > LONG_EVALUATION:
            self.save()
        state.chars_per_second = self.clock.chars_per_second()
        chars = self.machine.eval_batch_chars(average.vocab_size)
        batches = self.corpus.eval_batches(self.config.block_size, chars, self.machine.processes)
        seed_all(0)  # for a network that draws random numbers here, too
        val_loss = evaluate(average, batches, self.machine)
        require_finite("validation loss", val_loss, state.step)
        is_best = state.record_evaluation(val_loss)
        if self.logger:
            report.log_evaluation(self.logger, state)
            report.log_sample(self.logger, average, self.corpus, state.step)
            report.log_maps(self.logger, average, self.corpus, state.step)
        self.clock.end_evaluation(start_time)  # so that last.pt knows it
        self.save(is_best)
        self.clock.end_evaluation(start_time)  # saving included
        if self.progress < 1:  # a complete run does not end because of a signal
            self.update()

    def log(self, loss: Tensor, grad_norm: Tensor, lr: float) -> None:
        """Add a point to the training curves. Reading a value waits for the device."""
        processes = self.machine.processes
        mean_loss = processes.sum(loss.item()) / processes.world_size
        require_finite("training loss", mean_loss, self.state.step)
        if not self.learner.scaler.is_enabled():  # in float16 it may overflow
            require_finite("gradient norm", grad_norm.item(), self.state.step)
        if self.logger:
            report.log_step(self.logger, self.state.step, mean_loss, grad_norm.item(), lr)

    def save_if_due(self) -> None:
        """Write last.pt every ten minutes."""
        if self.clock.seconds() - self.state.seconds > SAVE_SECONDS:
            self.save()

    def save(self, is_best: bool = False) -> None:
        """Write last.pt; if this is the best model so far, before it best.pt."""
        self.state.seconds = self.clock.seconds()
        if not self.machine.processes.is_main:
            return
        saved = checkpoint.capture(
            self.learner,
            self.state,
            config=to_dict(self.config),
            vocab=self.corpus.tokenizer.vocab,
            data_sha256=self.corpus.sha256,
        )
        if self.logger:
            self.logger.flush()  # first: a resumed run does not log these steps again
        names = ("best.pt", "last.pt") if is_best else ("last.pt",)
        checkpoint.save(saved, *(self.run_dir / name for name in names))

    def finish(self, is_new: bool) -> None:
        """Save what a signal has stopped; write and print what came of the run."""
        if self.signal:
            self.save()
        if self.logger:
            state, corpus, seconds = self.state, self.corpus, self.clock.seconds()
            summary = report.summarize(state, seconds, corpus, self.machine, self.learner.model)
            self.logger.write_summary(summary)
            report.print_result(state, self.config, corpus, self.run_dir, is_new, self.signal)


@contextmanager
def start_run(
    config: TrainConfig,
    state: RunState,
    learner: Learner,
    run_dir: Path,
    corpus: Corpus,
    machine: Machine,
) -> Iterator[Run]:
    """A run that begins, or goes on, at `state.step`.

    Inside, it can be resumed, and a signal ends it once it is saved.
    """
    clock = Clock(config, state, machine.processes)
    with catch_signals() as signals:
        run = Run(config, state, learner, run_dir, corpus, machine, clock, signals)
        run.save()
        logger = Logger(run_dir, config, state) if machine.processes.is_main else None
        with closing(logger) if logger else nullcontext():
            run.logger = logger
            if logger:
                (run_dir / "summary.json").unlink(missing_ok=True)  # of an earlier command
                settings = to_toml(replace(config, device=machine.device.type))
                with atomic_write(run_dir / "config.toml") as file:
                    file.write((CONFIG_HEAD + settings).encode())
                logger.add_text("settings", state.step, settings)
                if state.step == 0:
                    report.warn_of_mistake(config, len(corpus.tokenizer.vocab))
            run.update()
            yield run
