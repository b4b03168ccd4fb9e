"""The time of a run, which --minutes limits."""

import time

from configs.settings import TrainConfig
from model.run.checkpoint import RunState
from model.schedule import run_progress
from model.system.processes import Processes


class Clock:
    """How long a run has taken, how fast it trains, how much of it is done."""

    def __init__(
        self, config: TrainConfig, state: RunState, eval_chars: int, processes: Processes
    ) -> None:
        """An evaluation reads `eval_chars` characters."""
        self.config, self.state, self.eval_chars = config, state, eval_chars
        self.processes, self.earlier_seconds = processes, state.seconds
        self.progress = 0.0  # up to 1, when the run is done
        self.eval_seconds: float | None = None  # of the latest evaluation
        self.lap_step, self.lap_time = state.step, time.perf_counter()  # when it ended
        if state.step == 0:
            state.start_seconds = self.seconds()  # what comes before the first step does not count

    def seconds(self) -> float:
        """How long the run has taken, earlier commands included."""
        return self.earlier_seconds + self.processes.seconds()

    def chars_per_second(self) -> float:
        """The speed of the steps since the latest evaluation; if there are none, that of before."""
        seconds = max(time.perf_counter() - self.lap_time, 1e-9)
        chars = (self.state.step - self.lap_step) * self.config.batch_size * self.config.block_size
        return chars / seconds if chars else self.state.chars_per_second

    def update(self) -> None:
        """Measure the progress. It never falls, although --minutes keep time for an evaluation."""
        state, end = self.state, 60 * self.config.minutes
        if self.eval_seconds is not None:
            end -= self.eval_seconds
        elif speed := self.chars_per_second():
            end -= self.eval_chars / (3 * speed)  # a guess: without the backward pass
        passed = self.seconds() - state.start_seconds
        progress = run_progress(state.step, self.config, passed, end - state.start_seconds)
        self.progress = max(progress, self.progress)

    def end_evaluation(self, start_time: float) -> None:
        """Note how long it took; the speed is measured from here on."""
        self.lap_step, self.lap_time = self.state.step, time.perf_counter()
        self.eval_seconds = self.lap_time - start_time
