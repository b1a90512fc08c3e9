"""How long a search may go on: by kernels, by seconds, with the finals' share kept back."""

import time

FINALS_SHARE = 0.1
"""Of the time budget at least kept back for the finals."""

FINALS_SHARE_MAX = 0.4

EVALUATIONS_OF_FINALS = 16.0
"""What finals cost, in evaluations: a dozen contenders, the best again, copy, and some margin."""


class Budget:
    """Counts evaluated kernels and the time they take."""

    def __init__(self, trials: int | None, budget_s: float | None) -> None:
        self._start = time.monotonic()
        self._trials = trials
        self._budget_s = budget_s
        self._evaluated = 0
        self._evaluating_s = 0.0

    @property
    def elapsed_s(self) -> float:
        """Since the search began."""
        return time.monotonic() - self._start

    @property
    def remaining_s(self) -> float | None:
        """Of the whole budget, finals included; None without one."""
        return None if self._budget_s is None else max(0.0, self._budget_s - self.elapsed_s)

    @property
    def remaining_trials(self) -> int | None:
        """Kernels that may still be evaluated; None without a limit."""
        return None if self._trials is None else max(0, self._trials - self._evaluated)

    def spend(self, seconds: float) -> None:
        """Count one evaluated kernel."""
        self._evaluated += 1
        self._evaluating_s += seconds

    def allows_another(self) -> bool:
        """Whether one more kernel may be evaluated now."""
        if self.remaining_trials == 0:
            return False
        return self.remaining_s is None or self.remaining_s > self._finals_s()

    def room(self, pending: int) -> bool:
        """Whether a proposal beyond the `pending` ones would still be evaluated."""
        return self.remaining_trials is None or pending < self.remaining_trials

    def _finals_s(self) -> float:
        budget_s = self._budget_s or 0.0
        mean_s = self._evaluating_s / self._evaluated if self._evaluated else 0.0
        estimate_s = max(FINALS_SHARE * budget_s, EVALUATIONS_OF_FINALS * mean_s)
        return min(FINALS_SHARE_MAX * budget_s, estimate_s)
