"""What executes evaluations: one thread, in order, while others are proposed and compiled.

It also changes settings of Python's interpreter meanwhile, which all threads of the program share.
"""

import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Protocol, runtime_checkable

from explorer.model.config import Config
from explorer.model.evaluator import Evaluator
from explorer.model.outcome import Outcome

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


class _Setting:
    """A setting of Python's interpreter, changed as long as any search asks for that.

    It is one for the whole program. Of searches that overlap, in threads of one program, the first
    changes it, and the last restores what it was before.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        """`change` returns what restores the setting."""
        self._change = change
        self._restore: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._asked = 0

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Have the setting changed until the end of the block."""
        with self._lock:
            if self._asked == 0:
                self._restore = self._change()
            self._asked += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked -= 1
                if self._asked == 0:
                    self._restore()


def _take_short_turns() -> Callable[[], None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(LONGEST_TURN_S, before_s))
    return partial(sys.setswitchinterval, before_s)


MOST_UNLOOKED = 100_000
"""Objects that are made, beyond those that are freed, before Python looks for cycles of them that
nobody uses: with its own 700 to 2000, that took 9 % of a replay of 200 kernels. To emit a kernel
leaves 84 objects in cycles, of 28 KB, so that some 30 MB of them come together between two looks.
"""


def _look_rarely() -> Callable[[], None]:
    before = gc.get_threshold()
    if before[0]:  # it is 0 where the program wants none
        gc.set_threshold(max(MOST_UNLOOKED, before[0]), *before[1:])
    return partial(gc.set_threshold, *before)


_short_turns = _Setting(_take_short_turns)
_rare_looks = _Setting(_look_rarely)


@contextmanager
def threads_of_a_search() -> Iterator[None]:
    """Have threads take turns quickly, and cycles of unused objects looked for less often."""
    with _short_turns.changed(), _rare_looks.changed():
        yield


@runtime_checkable
class WorksAhead(Protocol):
    """What an Evaluator has besides, whose GPU goes from one kernel to the next by itself."""

    def start(self, config: Config) -> None:
        """Begin what `evaluate` then waits for, once the config is compiled."""

    def follow(self, config: Config) -> None:
        """Have a config begun after the one that was started, without waiting for anything."""


@dataclass(slots=True)
class _Waiting:
    """A config that is to be evaluated."""

    config: Config
    evaluation: Future[Evaluation]
    is_taken: bool = False

    def take(self) -> bool:
        """From now on it cannot be cancelled; return False if it was."""
        future = self.evaluation
        if not self.is_taken and not future.cancelled():
            self.is_taken = future.set_running_or_notify_cancel()
        return self.is_taken


class Evaluations:
    """Evaluates configs one after the other, in the order in which they are begun.

    On an H200's host a proposal takes 30 ms of Python and a kernel 20 ms of the GPU: one after the
    other, 200 kernels took 10.8 s, two thirds of which the GPU had nothing to do.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._ahead = evaluator if isinstance(evaluator, WorksAhead) else None
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evaluations")
        self._settings = ExitStack()

    def begin(self, config: Config) -> Future[Evaluation]:
        """Have a config evaluated once those that were begun before are done.

        Until it is the next one it can be cancelled.
        """
        waiting = _Waiting(config, Future())
        with self._lock:
            self._waiting.append(waiting)
            self._thread.submit(self._evaluate_first)
        self._let_next_follow()
        return waiting.evaluation

    def _let_next_follow(self) -> None:
        """What waits first is sent to where the one before it is evaluated, if there is one."""
        if self._ahead is None:
            return
        with self._lock:
            following = next((one for one in self._waiting if one.take()), None)
            if following is not None:
                self._ahead.follow(following.config)

    def _evaluate_first(self) -> None:
        with self._lock:
            first = self._waiting.popleft()
            if not first.take():
                return
        try:
            first.evaluation.set_result(self._evaluated(first.config))
        except BaseException as error:
            first.evaluation.set_exception(error)

    def _evaluated(self, config: Config) -> Evaluation:
        started, clock = datetime.now(), time.monotonic()
        if self._ahead is not None:
            self._ahead.start(config)
            self._let_next_follow()
        outcome = self._evaluator.evaluate(config)
        return Evaluation(outcome, started, time.monotonic() - clock)

    def __enter__(self) -> "Evaluations":
        """Change the interpreter's settings until the end of the block."""
        self._settings.enter_context(threads_of_a_search())
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
            for one in self._waiting:
                if not one.evaluation.cancel():
                    one.evaluation.set_exception(CancelledError())
        finally:  # also by Ctrl-C, or no later search would restore it
            self._settings.close()
