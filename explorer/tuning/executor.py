"""What executes evaluations: one thread, in order, while others are proposed and compiled."""

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from explorer.config import Config
from explorer.evaluator import Evaluator
from explorer.outcome import Outcome

LONGEST_TURN_S = 1e-4
"""How long one thread may keep Python's interpreter from the others while evaluations run, for
kernels are proposed, compiled and stored meanwhile. On an H200's host 200 kernels took 7.9 s so,
and 8.7 s with Python's own 5 ms, as means of two runs each."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What became of a config, and when."""

    outcome: Outcome
    started: datetime
    """In local time, as Optuna has it."""
    seconds: float


class _ShortTurns:
    """Lets Python's threads take turns quickly, as long as anybody asks for it.

    The interval is one for the whole program. Of searches that overlap, in threads of one program,
    the first keeps what it was before, and the last restores that.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = 0
        self._before_s = 0.0

    def begin(self) -> None:
        """Let threads take turns quickly."""
        with self._lock:
            if self._asked == 0:
                self._before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(LONGEST_TURN_S, self._before_s))
            self._asked += 1

    def end(self) -> None:
        """Restore what was before, once nobody else asks for quick turns."""
        with self._lock:
            self._asked -= 1
            if self._asked == 0:
                sys.setswitchinterval(self._before_s)


_short_turns = _ShortTurns()


class Evaluations:
    """Evaluates configs one after the other, in the order in which they are begun.

    On an H200's host a proposal takes 30 ms of Python and a kernel 20 ms of the GPU: one after the
    other, 200 kernels took 10.8 s, two thirds of which the GPU had nothing to do.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluations")

    def begin(self, config: Config) -> Future[Evaluation]:
        """Have a config evaluated once those that were begun before are done."""
        return self._thread.submit(self._evaluate, config)

    def _evaluate(self, config: Config) -> Evaluation:
        started, clock = datetime.now(), time.monotonic()
        outcome = self._evaluator.evaluate(config)
        return Evaluation(outcome, started, time.monotonic() - clock)

    def __enter__(self) -> "Evaluations":
        """Let threads take turns quickly, until the end of the block."""
        _short_turns.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the evaluation that is under way; what has not begun is dropped."""
        try:
            self._thread.shutdown(wait=True, cancel_futures=True)
        finally:  # also by Ctrl-C, or no later search would restore it
            _short_turns.end()
