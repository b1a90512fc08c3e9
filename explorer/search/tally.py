"""Counts of a run, and the kernels that it may choose from."""

from collections import Counter

from explorer.config import Config
from explorer.outcome import Measured, Outcome, Stage
from explorer.search.budget import Budget
from explorer.search.results import Progress, TrialRecord


class Tally:
    """What a run has seen: its own trials, and the measured ones of earlier runs."""

    def __init__(self) -> None:
        self.told = 0
        self.measured_now = 0
        self.rejected: Counter[Stage] = Counter()
        self.records: list[TrialRecord] = []
        self._best: TrialRecord | None = None

    def recall(self, record: TrialRecord) -> None:
        """Count in a kernel that an earlier run measured."""
        self.records.append(record)
        if self._best is None or record.outcome.time_us < self._best.outcome.time_us:
            self._best = record

    def count(self, number: int, config: Config, outcome: Outcome) -> None:
        """Count a trial of this run."""
        self.told += 1
        if isinstance(outcome, Measured):
            self.measured_now += 1
            self.recall(TrialRecord(number, config, outcome))
        else:
            self.rejected[outcome.stage] += 1

    def progress(self, budget: Budget, duplicates: int, copy_us: float, phase: str) -> Progress:
        """A snapshot for whoever watches."""
        return Progress(
            trials=self.told + duplicates,
            measured=self.measured_now,
            rejected=dict(self.rejected),
            best_trial=self._best.number if self._best else None,
            best_us=self._best.outcome.time_us if self._best else None,
            copy_us=copy_us,
            elapsed_s=budget.elapsed_s,
            remaining_s=budget.remaining_s,
            remaining_trials=budget.remaining_trials,
            phase=phase,
        )
