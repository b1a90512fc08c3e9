"""The live line of a running search: redrawn on a terminal, a line now and then elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from explorer.outcome import Stage
from explorer.problem import Problem
from explorer.report.text import (
    microseconds,
    percent,
    rejected_by_stage,
    seconds,
    share_of_copy,
)
from explorer.tuning.results import Progress

REDRAWS_A_SECOND = 8
SECONDS_BETWEEN_LINES = 10.0
"""Where there is no terminal to redraw."""


class ProgressLine:
    """Shows each Progress it is called with; a context manager, so that the line is cleared."""

    def __init__(self, problem: Problem, console: Console) -> None:
        self.problem = problem
        self.console = console
        self.last: Progress | None = None
        self._printed_at = float("-inf")
        self._printed_phase = ""
        self._live = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __call__(self, progress: Progress) -> None:
        """Show where the search stands, unless the last showing is too recent."""
        self.last = progress
        now = time.monotonic()
        pause = 1 / REDRAWS_A_SECOND if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if progress.phase == self._printed_phase and now - self._printed_at < pause:
            return
        self._printed_at, self._printed_phase = now, progress.phase
        text = Text(progress_text(progress, self.problem), no_wrap=True, overflow="ellipsis")
        if self.console.is_terminal:
            self._live.start()  # not before: until now notices may have been printed
            self._live.update(text, refresh=True)
        else:
            self.console.print(text.plain, soft_wrap=True)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()


def progress_text(progress: Progress, problem: Problem) -> str:
    """`312/400 kernels · best 61.42 µs · 4371 GB/s · 98.1 % of copy · rejected … · 18 s left`."""
    parts = [_count(progress)]
    if progress.best_us is not None:
        parts += [f"best {microseconds(progress.best_us)} µs"]
        parts += [f"{problem.gbps(progress.best_us):.0f} GB/s"]
        share = share_of_copy(progress.best_us, progress.copy_us)
        parts += [f"{percent(share)} of copy"] if share is not None else []
    rejected = rejected_by_stage(progress.rejected)
    parts += [f"rejected {rejected}"] if rejected else []
    parts += [_time_left(progress)]
    return " · ".join(parts)


def _count(progress: Progress) -> str:
    done = _evaluated(progress)
    if progress.phase == "finals":
        return f"{_kernels(done)}, now the finals"
    if progress.remaining_trials is None:
        return _kernels(done)
    return f"{done}/{_kernels(done + progress.remaining_trials)}"


def _kernels(number: int) -> str:
    """Without thin groups of digits: they would part the number after a slash."""
    return "1 kernel" if number == 1 else f"{number} kernels"


def _evaluated(progress: Progress) -> int:
    """Kernels that cost time: not what a rule excludes, nor code that was known."""
    invalid = progress.rejected.get(Stage.INVALID, 0)
    return progress.measured + sum(progress.rejected.values()) - invalid


def _time_left(progress: Progress) -> str:
    """By the budget where there is one, else by the pace of the kernels so far."""
    left, done = progress.remaining_s, _evaluated(progress)
    if left is None and progress.remaining_trials is not None and done:
        left = progress.elapsed_s / done * progress.remaining_trials
    if left is None or progress.phase == "finals":
        return f"{seconds(progress.elapsed_s)} so far"
    return f"{seconds(max(left, 0.0))} left"
