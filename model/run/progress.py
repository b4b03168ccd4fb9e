"""How far a run is: its losses and times, and the clock that measures them."""

from collections.abc import Sequence
from dataclasses import dataclass

from configs.settings import TrainConfig
from model.system.console import require_finite
from model.system.processes import Processes

SAVE_SECONDS = 600  # the longest time between two saves of last.pt


@dataclass
class RunState:
    """The numbers that describe the progress of a run. Losses are in nats per character."""

    step: int = 0  # the number of training steps that are done
    loss_sum: float = 0.0  # the sum of the training losses since the last point of the curve
    train_loss: float | None = None  # the last point of the training curve
    val_loss: float | None = None  # the loss in the last evaluation, which was at val_step
    val_step: int | None = None
    best_val_loss: float | None = None
    best_step: int | None = None
    chars_per_second: float = 0.0  # the speed of the training steps before the last evaluation
    eval_seconds: float = 0.0  # how long the last evaluation took
    start_seconds: float = 0.0  # how long the run took before its first step
    seconds: float = 0.0  # how long all commands of the run took until this save

    @property
    def is_best(self) -> bool:
        """Whether the model of this step is the best so far."""
        return self.step == self.best_step and self.val_loss == self.best_val_loss

    def record_evaluation(self, loss: float, is_guess: bool) -> None:
        """Note the validation loss. A guess before any training is never the best.

        Raises AbortError if the loss is nan.
        """
        require_finite("validation loss", loss, self.step)
        self.val_loss, self.val_step = loss, self.step
        if not is_guess and (self.best_val_loss is None or loss < self.best_val_loss):
            self.best_val_loss, self.best_step = loss, self.step


class Clock:
    """The time of a run. `update` sets the same numbers in all processes."""

    def __init__(self, config: TrainConfig, state: RunState, processes: Processes) -> None:
        self.config, self.state, self.processes = config, state, processes
        self.earlier_seconds = state.seconds  # the time of earlier commands
        self.progress = 0.0  # how much of the run is done, from 0 to 1
        self.update()
        self.lap_step, self.lap_seconds = state.step, self.seconds  # to measure the speed

    def now(self) -> float:
        """Return how long the run has taken in this process, including earlier commands."""
        return self.earlier_seconds + self.processes.seconds()

    def update(self, signals: Sequence[int] = ()) -> None:
        """Measure the time and the progress. Note the signal that ends the run, or 0.

        The processes have started apart, so their clocks differ. The largest numbers decide.
        """
        self.seconds, signal = self.processes.max(self.now(), max(signals, default=0))
        # The progress never falls, even if an evaluation is faster than the evaluation before.
        self.progress = max(self.progress, self.progress_at(self.seconds))
        self.signal = 0 if self.is_over() else int(signal)

    def progress_at(self, seconds: float) -> float:
        """Return the share of the steps or of the time, whichever is larger, up to 1.

        --minutes includes the last evaluation, so the steps end before it. One step is always made.
        """
        state, share = self.state, self.state.step / self.config.max_iters
        if self.config.minutes and state.step > 0:
            start, end = state.start_seconds, 60 * self.config.minutes - state.eval_seconds
            share = max(share, (seconds - start) / (end - start)) if seconds < end else 1.0
        return min(share, 1.0)

    def is_over(self) -> bool:
        """Return whether the run has made all its steps and is evaluated after the last one."""
        return self.progress >= 1 and self.state.step == self.state.val_step

    def is_save_due(self) -> bool:
        """Return whether the last save is so long ago that a crash would cost much time."""
        return self.seconds - self.state.seconds > SAVE_SECONDS

    def is_evaluation_due(self) -> bool:
        """Return whether to evaluate now: every eval_interval steps, and after the last step.

        An evaluation that would leave no time for more steps waits for the end of the run.
        """
        has_time = self.progress_at(self.seconds + self.state.eval_seconds) < 1
        is_regular = self.state.step % self.config.eval_interval == 0 and has_time
        return (is_regular or self.progress >= 1) and self.state.step != self.state.val_step

    def start_evaluation(self) -> None:
        """Note the time, and the speed of the steps since the last evaluation."""
        self.update()
        if steps := self.state.step - self.lap_step:
            chars = steps * self.config.batch_size * self.config.block_size
            self.state.chars_per_second = chars / (self.seconds - self.lap_seconds)

    def end_evaluation(self) -> None:
        """Note how long the evaluation took, because --minutes leaves time for the last one."""
        start_seconds = self.seconds
        self.update()
        self.state.eval_seconds = self.seconds - start_seconds
        self.lap_step, self.lap_seconds = self.state.step, self.seconds
        if self.state.step == 0:
            self.state.start_seconds = self.seconds

    def __str__(self) -> str:
        """Return words for the time so far and, after the first step, for the time that is left."""
        seconds = self.now()
        if not 0 < self.progress < 1:
            return show_time(seconds)
        left = (seconds - self.state.start_seconds) * (1 / self.progress - 1)
        return f"{show_time(seconds)}, {show_time(left)} left"


def show_time(seconds: float) -> str:
    """Return words for a time, in seconds or in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
