"""How far a run is: its losses and times, and the clock that measures the times."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from configs.settings import TrainConfig
from model.system.processes import Processes

SAVE_SECONDS = 600  # the longest time between two saves of last.pt


@dataclass
class RunState:
    """The numbers that describe the progress of a run. Losses are in nats per character."""

    # The training loop writes these numbers:
    step: int = 0  # the number of training steps that are done
    train_loss: float | None = None  # the last point of the training curve
    # `record_evaluation` writes these:
    val_loss: float | None = None  # the loss in the last evaluation, which was at val_step
    val_step: int | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    # The clock writes these:
    chars_per_second: float = 0.0  # the speed of the training steps before the last evaluation
    eval_seconds: float = 0.0  # how long the last evaluation took
    start_seconds: float = 0.0  # how long the run took before its first step
    seconds: float = 0.0  # how long all commands of the run have taken

    def record_evaluation(self, loss: float, is_guess: bool) -> bool:
        """Note the validation loss. Return whether the model of this step is the best so far.

        A guess before any training is never the best.
        """
        self.val_loss, self.val_step = loss, self.step
        is_best = not is_guess and (self.best_val_loss is None or loss < self.best_val_loss)
        if is_best:
            self.best_val_loss, self.best_step = loss, self.step
        return is_best


class Clock:
    """Measures the time of a run, and says what is due. It says the same in all processes.

    With --minutes, the time ends the steps. The end leaves time for the last evaluation, which
    takes as long as the evaluation before. The learning rate follows `progress`, so it reaches zero
    at this end.
    """

    def __init__(self, config: TrainConfig, state: RunState, processes: Processes) -> None:
        self.config, self.state, self.processes = config, state, processes
        self.earlier_seconds = state.seconds  # the time of earlier commands
        self.progress = 0.0  # how much of the run is done, from 0 to 1
        self.update()
        self.lap_step, self.lap_seconds = state.step, state.seconds  # to measure the speed

    def now(self) -> float:
        """Return how long the run has taken in this process, including earlier commands."""
        return self.earlier_seconds + self.processes.seconds()

    def update(self, signals: Sequence[int] = ()) -> None:
        """Measure the time and the progress. Note the signal that ends the run, or 0."""
        state, before = self.state, self.state.seconds
        # The clock and the signals of the main process count for all processes.
        state.seconds, signal = self.processes.from_main((self.now(), max(signals, default=0)))
        # The progress never falls, even if an evaluation is faster than the evaluation before.
        self.progress = max(self.progress, self.progress_at(state.seconds))
        self.signal = 0 if self.is_over else signal
        # Every ten minutes, save. Then a crash costs no more than ten minutes.
        self.is_save_due = state.seconds // SAVE_SECONDS > before // SAVE_SECONDS

    def progress_at(self, seconds: float) -> float:
        """Return the share of the steps or of the time, whichever is larger, up to 1."""
        state, share = self.state, self.state.step / self.config.max_iters
        if self.config.minutes and state.step > 0:  # one step is always made
            start, end = state.start_seconds, 60 * self.config.minutes - state.eval_seconds
            share = max(share, (seconds - start) / (end - start)) if seconds < end else 1.0
        return min(share, 1.0)

    @property
    def is_over(self) -> bool:
        """Whether the run has made all its steps and is evaluated after the last one."""
        return self.progress >= 1 and self.state.step == self.state.val_step

    @property
    def is_evaluation_due(self) -> bool:
        """Whether to evaluate now: every eval_interval steps, and after the last step.

        An evaluation that would leave no time for more steps waits for the end of the run.
        """
        state = self.state
        has_time = self.progress_at(state.seconds + state.eval_seconds) < 1
        is_regular = state.step % self.config.eval_interval == 0 and has_time
        return (is_regular or self.progress >= 1) and state.step != state.val_step

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Measure how long the evaluation inside `with` takes, and the speed of earlier steps."""
        self.update()
        state, start_seconds = self.state, self.state.seconds
        if steps := state.step - self.lap_step:
            chars = steps * self.config.batch_size * self.config.block_size
            state.chars_per_second = chars / (start_seconds - self.lap_seconds)
        yield
        self.update()
        state.eval_seconds = state.seconds - start_seconds
        self.lap_step, self.lap_seconds = state.step, state.seconds
        if state.step == 0:
            state.start_seconds = state.seconds
