"""Counts of a run, and the kernels that it may choose from."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass

from explorer.config import Config
from explorer.outcome import Measured, Outcome, Stage
from explorer.tuning.budget import Budget
from explorer.tuning.results import Progress, TrialRecord


@dataclass(frozen=True, slots=True)
class _Entry:
    """A measured trial, whose number is known once it is stored."""

    number: Future[int]
    config: Config
    outcome: Measured
    time_us: float


class Tally:
    """What a run has seen: its own trials, and the measured ones of earlier runs."""

    def __init__(self) -> None:
        self.told = 0
        self.measured_now = 0
        self.rejected: Counter[Stage] = Counter()
        self._entries: list[_Entry] = []
        self._best: _Entry | None = None

    @property
    def records(self) -> list[TrialRecord]:
        """The measured kernels, of this run and earlier ones."""
        return [TrialRecord(e.number.result(), e.config, e.outcome) for e in self._entries]

    def recall(self, number: int, config: Config, outcome: Outcome) -> None:
        """Count in a trial of an earlier run."""
        if isinstance(outcome, Measured):
            stored: Future[int] = Future()
            stored.set_result(number)
            self._enter(_Entry(stored, config, outcome, outcome.time_us))

    def count(self, number: Future[int], config: Config, outcome: Outcome) -> None:
        """Count a trial of this run."""
        self.told += 1
        if isinstance(outcome, Measured):
            self.measured_now += 1
            self._enter(_Entry(number, config, outcome, outcome.time_us))
        else:
            self.rejected[outcome.stage] += 1

    def progress(self, budget: Budget, duplicates: int, copy_us: float, phase: str) -> Progress:
        """A snapshot for whoever watches; waits for the best to be stored."""
        return Progress(
            trials=self.told + duplicates,
            measured=self.measured_now,
            rejected=dict(self.rejected),
            best_trial=self._best.number.result() if self._best else None,
            best_us=self._best.time_us if self._best else None,
            copy_us=copy_us,
            elapsed_s=budget.elapsed_s,
            remaining_s=budget.remaining_s,
            remaining_trials=budget.remaining_trials,
            phase=phase,
        )

    def _enter(self, entry: _Entry) -> None:
        self._entries.append(entry)
        if self._best is None or entry.time_us < self._best.time_us:
            self._best = entry
