"""The live line of a running search: redrawn on a terminal, a line now and then elsewhere."""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from explorer.model.outcome import Stage
from explorer.model.problem import Problem
from explorer.report.text import counted, microseconds, rejections, seconds
from explorer.tuning.results import Progress
from explorer.tuning.runs import RunProgress

REDRAWS_A_SECOND = 8
SECONDS_BETWEEN_LINES = 10.0
"""Where there is no terminal to redraw."""


class LiveLine:
    """A line that is redrawn on a terminal; a context manager, so that it is cleared."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._printed_at = float("-inf")
        self._printed_phase = ""
        self._live = Live(
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, text: str, phase: str = "") -> None:
        """Show a text, unless the last one of that phase is too recent."""
        now = time.monotonic()
        pause = 1 / REDRAWS_A_SECOND if self.console.is_terminal else SECONDS_BETWEEN_LINES
        if phase == self._printed_phase and now - self._printed_at < pause:
            return
        self._printed_at, self._printed_phase = now, phase
        line = Text(text, no_wrap=True, overflow="ellipsis")
        if self.console.is_terminal:
            self._live.start()  # not before: until now notices may have been printed
            self._live.update(line, refresh=True)
        else:
            self.console.print(line.plain, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()


class ProgressLine(LiveLine):
    """Shows each Progress of a search or a recording that it is called with."""

    def __init__(self, problem: Problem, console: Console) -> None:
        super().__init__(console)
        self.problem = problem
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Show where the search stands."""
        self.last = progress
        lines = [progress_text(progress, self.problem), *progress.workers]
        self.show("\n".join(lines), progress.phase)


class JourneyLine(LiveLine):
    """Shows each kernel of a journey that it is called with, before it is measured."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._started = time.monotonic()

    def __call__(self, name: str, number: int, total: int) -> None:
        """Show that kernel `number`, from 1, of `total` is next."""
        if number == 1:  # the search before it is over
            self._started = time.monotonic()
        self.show(journey_text(name, number, total, time.monotonic() - self._started))


def journey_text(name: str, number: int, total: int, elapsed_s: float) -> str:
    """Return `12/28 kernels · oneflow-warp · 2.5 kernels/s · 7 s left`."""
    done = number - 1
    parts = [f"{number}/{_kernels(total)}", name]
    if done and elapsed_s:
        left_s = elapsed_s / done * (total - done)
        parts += [pace(done, elapsed_s), f"{seconds(left_s)} left"]
    return " · ".join(parts)


class RunLine(LiveLine):
    """Shows each RunProgress of a list of problems that it is called with."""

    def __call__(self, progress: RunProgress) -> None:
        """Show where the run stands."""
        self.show("\n".join([run_text(progress), *progress.workers]))


def run_text(progress: RunProgress) -> str:
    """Return `12/40 problems · 530 kernels · softmax f32 8x64 · 4.2 s each · 80 s left`."""
    parts = [f"{progress.done}/{counted(progress.total, 'problem')}"]
    parts += [counted(progress.kernels, "kernel")] if progress.kernels else []
    parts += [str(progress.problem)]
    parts += [progress.doing] if progress.doing else []
    parts += [f"{progress.each_s:.1f} s each"] if progress.each_s is not None else []
    if progress.remaining_s is not None:
        parts += [f"{seconds(progress.remaining_s)} left"]
    return " · ".join(parts)


def pace(kernels: int, elapsed_s: float) -> str:
    """Return `2.5 kernels/s`, or `4.2 s a kernel` where they are slow."""
    if kernels >= elapsed_s:
        return f"{kernels / elapsed_s:.3g} kernels/s"
    return f"{elapsed_s / kernels:.3g} s a kernel"


def progress_text(progress: Progress, problem: Problem) -> str:
    """Return `312/400 kernels · best 61.42 µs · … · 3 rejected by verification · 5 s left`."""
    parts = [_count(progress)]
    if progress.best_us is not None:
        parts += [f"best {microseconds(progress.best_us)} µs"]
        parts += [f"{problem.gbps(progress.best_us):.0f} GB/s"]
        parts += filter(None, [problem.of_limit(progress.best_us, progress.limit_us)])
    rejected = rejections(progress.rejected)
    parts += [rejected] if rejected else []
    done = _evaluated(progress)
    if done and progress.elapsed_s and progress.phase == "search":
        parts += [pace(done, progress.elapsed_s)]
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
    """Return a count without thin groups of digits: they would part the number after a slash."""
    return "1 kernel" if number == 1 else f"{number} kernels"


def _evaluated(progress: Progress) -> int:
    """Count the kernels that cost time: not what a rule excludes, nor code that was known."""
    invalid = progress.rejected.get(Stage.INVALID, 0)
    return progress.measured + sum(progress.rejected.values()) - invalid


def _time_left(progress: Progress) -> str:
    """Return the time left by the budget; without one by the pace of the kernels so far."""
    left, done = progress.remaining_s, _evaluated(progress)
    if left is None and progress.remaining_trials is not None and done:
        left = progress.elapsed_s / done * progress.remaining_trials
    if left is None or progress.phase == "finals":
        return f"{seconds(progress.elapsed_s)} so far"
    return f"{seconds(max(left, 0.0))} left"
