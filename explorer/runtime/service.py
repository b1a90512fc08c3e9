"""The kernels of a process: a call gets a loaded one; missing ones are made in the background."""

import atexit
import logging
import math
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from explorer.compile.compiler import CompileFailure
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.model.tuned_table import check_table, table_file
from explorer.runtime.kernels import find, make, problem_of_kernel
from explorer.runtime.launcher import LoadedKernel, gpu
from explorer.runtime.shapes import read_shapes
from explorer.system.plain_data import shown, whole_of
from explorer.system.processes import usable_cores
from explorer.system.user_files import StrPath, named_file

log = logging.getLogger("explorer")


@dataclass(slots=True)
class Options:
    """The options of all calls of a process."""

    wait: bool = False
    """Whether a call waits for its kernel, instead of being served by the framework meanwhile."""
    batch_invariant: bool = False
    """Whether a row's bits do not depend on the number of rows."""
    tuned: tuple[Path, ...] | None = None
    """Files of tuned tables, which serve exactly the problems that they have; None: the GPU's."""
    compiled_calls: bool = True
    """Whether plain calls on PyTorch's tensors are served by a compiled function."""


def _from_environment() -> Options:
    def is_set(name: str, *, unset: bool = False) -> bool:
        value = os.environ.get(name, "").lower()
        return value not in ("0", "false", "no", "off") if value else unset

    tables = os.environ.get("EXPLORER_TUNED")
    paths = None if tables is None else (one for one in tables.split(os.pathsep) if one)
    return Options(
        is_set("EXPLORER_WAIT"),
        is_set("EXPLORER_BATCH_INVARIANT"),
        None if paths is None else tuple(Path(path).absolute() for path in paths),
        is_set("EXPLORER_COMPILED_CALLS", unset=True),
    )


options = _from_environment()


def set_options(
    *,
    wait: bool | None = None,
    batch_invariant: bool | None = None,
    tuned: StrPath | Iterable[StrPath] | None = None,
    compiled_calls: bool | None = None,
) -> None:
    """Change what holds for all calls of this process, from the next on.

    `wait`: whether a call waits until its kernel is compiled, 0.1 to 2 s, instead of being served
    by the framework's own function meanwhile; from the start where EXPLORER_WAIT=1 is set.
    `batch_invariant`: whether a row's bits do not depend on the number of rows. Kernels
    are then chosen without regard to it, and calls wait for them, as the framework's function would
    give other bits; from the start where EXPLORER_BATCH_INVARIANT=1 is set. Say so before the first
    call: a kernel that has been loaded stays. One row alone counts as dense: of an array with gaps
    between its rows it may have other bits than within the array.
    `tuned`: one or several files that `explorer tune` wrote, or names that `explorer table list`
    shows, such as "nvidia-h200", in place of the tables that are found for the GPU: the one that
    `explorer tune` wrote on it, and the one that comes with the package. A problem that a table of
    this GPU has, with the same rows, columns, type, op and layout, is served by the kernel that was
    the fastest there, if it was measured with this version's templates; all others are, and with
    `batch_invariant` all are, served by the heuristic's. The logger `explorer` says which of the
    two at level DEBUG. From the start where EXPLORER_TUNED names files, with a colon between them.
    An empty sequence takes no tables. Say so before the first call, too. Raises InvalidInput for
    what names no file, for a file that is no tuned table of this version, and for a switch that is
    neither True nor False.
    `compiled_calls`: whether plain calls on PyTorch's tensors (without gradient, mask and lengths)
    are served by a function in C instead of Python, which takes half of the host's time. This is
    on by default; EXPLORER_COMPILED_CALLS=0 turns it off from the start. A C compiler builds the
    function once for the Python in use, in the background, from the first call on; if True is given
    here together with `wait`, here and now. Without a compiler, Python's headers or a PyTorch with
    DLPack's C exchange API, Python serves the calls, and the logger `explorer` says why at level
    DEBUG.

    None makes a kernel while a graph is being captured, into which nothing can be loaded: what
    is captured is then the framework's function. Call `explorer.warm_up` before.
    """
    switches = {
        "wait": wait,
        "batch_invariant": batch_invariant,
        "compiled_calls": compiled_calls,
    }
    for name, value in switches.items():
        if value is not None and not isinstance(value, bool):
            raise InvalidInput(f"{name} is {shown(value)}; it must be True or False")
    tables = None if tuned is None else _tables(tuned)
    for path in tables or ():
        check_table(path)
    given: dict[str, Any] = {**switches, "tuned": tables}
    for name, value in given.items():
        if value is not None:
            setattr(options, name, value)
    if compiled_calls is not None:
        for change in _on_compiled_calls:
            change()


def _tables(tuned: Any) -> tuple[Path, ...]:
    """Return the paths of the tables in an argument of `set_options`. Raises InvalidInput."""
    is_one = isinstance(tuned, str | bytes | os.PathLike) or not isinstance(tuned, Iterable)
    return tuple(
        table_file(named_file("tuned", one, _TABLE)).absolute()
        for one in ([tuned] if is_one else tuned)
    )


_TABLE = "a file that explorer tune wrote, or a name that explorer table list shows"

_on_compiled_calls: list[Callable[[], None]] = []
"""Functions to call when that option changes; modules of frameworks add to them."""


def on_compiled_calls(change: Callable[[], None]) -> None:
    """Call a function whenever the option `compiled_calls` is set."""
    _on_compiled_calls.append(change)


class Asked(NamedTuple):
    """What a call asks of its kernel, beside what the options say of all."""

    batch_invariant: bool = False
    splits: int | None = None
    """Parts that attention divides a sequence's keys into."""


USUAL = Asked()

_Key = tuple[Problem, int, Asked]
"""A problem, the number of a GPU, and what is asked of the kernel."""


class _Choice(TypedDict):
    """What `find` and `make` choose a kernel by, beside its problem and its GPU."""

    batch_invariant: bool
    splits: int | None
    tables: tuple[Path, ...] | None


def _choice(asked: Asked) -> _Choice:
    """Return what the options say of all kernels, and a call of its own."""
    return {
        "batch_invariant": options.batch_invariant or asked.batch_invariant,
        "splits": asked.splits,
        "tables": options.tuned,
    }


# ------------------------------------------------------------------ service


MOST_PENDING = 64
"""Most problems that wait for their kernel, the newest first. A later call of another one requests
it again."""

MOST_LOADED = 4096
"""Most kernels of a process, which each take 10 to 20 KB of a GPU's memory. If a program has more
problems, such as every length of a sentence, the framework computes the rest."""

RETRY_S = 10.0
"""Seconds after which a kernel that a GPU refused, for instance because its memory is full, is
tried again."""

FINISH_S = 10.0
"""Longest time that an ending process waits for a compilation, which takes at most 2 s."""

MAKERS = 2
"""Threads that compile in the background: more would take cores from the program itself."""


class Service:
    """The kernels of a process, by problem and GPU. Safe to use from several threads.

    A kernel stays once it is loaded, so that the bits of a problem's results do not change.
    """

    def __init__(self) -> None:
        self._hooks: list[Callable[[], None]] = []
        self.forget()

    def when_forgotten(self, forget: Callable[[], None]) -> None:
        """Call a function whenever kernels are forgotten, for caches of their launches."""
        self._hooks.append(forget)

    def forget(self) -> None:
        """Begin anew, as a forked process must, which cannot use its parent's context."""
        self._loaded: dict[_Key, LoadedKernel] = {}
        self._refused: dict[_Key, float] = {}
        """The time by `time.monotonic` until which there is no kernel."""
        self._pending: set[_Key] = set()
        self._making: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()
        self._wanted: queue.LifoQueue[Callable[[], object] | None] = queue.LifoQueue()
        self._makers: list[threading.Thread] = []
        gpu.cache_clear()
        for hook in self._hooks:
            hook()

    def get(
        self, problem: Problem, device: int, asked: Asked = USUAL, *, may_load: bool = True
    ) -> LoadedKernel | None:
        """Return a problem's kernel; None if it is not made yet, or cannot be.

        If `may_load` is false, as while a graph is captured, only loaded kernels are returned.
        """
        key = (problem, device, asked)
        loaded = self._loaded.get(key)
        if loaded is not None:
            return loaded
        if self._is_refused(key):
            return None
        if not may_load:
            warnings.warn(
                f"a graph is captured without our kernel for {problem}, which is not loaded: the "
                "framework computes it, in each replay too; call it once before, or "
                "explorer.warm_up",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        batch_invariant = options.batch_invariant or asked.batch_invariant
        if len(self._loaded) >= MOST_LOADED and not batch_invariant:
            log_once(f"{MOST_LOADED} kernels are loaded, which is the most that a process keeps")
            return None
        if options.wait or batch_invariant:
            return self._make(key)
        if key in self._pending:
            return None
        try:
            loaded = self._find(key)
        except Exception as error:  # a lost GPU, for instance: the framework raises its own error
            self._refuse(key, error)
            return None
        if loaded is None:
            self._make_later(key)
        return loaded

    def warm_up(self, problems: Sequence[Problem], device: int) -> None:
        """Compile and load the kernels of problems in parallel; raises ExplorerError."""

        def make_one(problem: Problem) -> None:
            try:
                self._make((problem, device, USUAL), strict=True)
            except Exception as error:  # the driver and the compiler may raise anything
                raise ExplorerError(f"no kernel for {problem} on GPU {device}: {error}") from error

        distinct = dict.fromkeys(map(problem_of_kernel, problems))
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(make_one, distinct))

    def _find(self, key: _Key) -> LoadedKernel | None:
        problem, device, asked = key
        on = gpu(device)
        ready = find(problem, on.spec, **_choice(asked))
        if ready is None:
            return None
        return self._loaded.setdefault(key, on.load(problem, ready))

    def _make(self, key: _Key, *, strict: bool = False) -> LoadedKernel | None:
        # A refusal is recorded under the lock, so that a thread that waits does not try once more.
        with self._making.setdefault(key, threading.Lock()):
            try:
                loaded = self._loaded.get(key) or self._find(key)
                if loaded is None and (strict or not self._is_refused(key)):
                    loaded = self._made(key)
            except Exception as error:
                if strict:
                    raise
                self._refuse(key, error)
                return None
            finally:
                self._pending.discard(key)
        return loaded

    def _made(self, key: _Key) -> LoadedKernel:
        problem, device, asked = key
        on = gpu(device)
        try:
            ready = make(problem, on.spec, **_choice(asked))
        except InvalidInput as error:  # of a tuned table, which nobody has read yet
            if options.tuned == ():
                raise
            log.warning("%s; no tuned table is read", error)
            options.tuned = ()
            ready = make(problem, on.spec, **_choice(asked))
        return self._loaded.setdefault(key, on.load(problem, ready))

    def _make_later(self, key: _Key) -> None:
        log_once("a kernel that is not compiled yet")
        with self._lock:
            if key in self._pending or len(self._pending) >= MOST_PENDING:
                return
            self._pending.add(key)
        self.do_later(partial(self._make, key))

    def do_later(self, work: Callable[[], object]) -> None:
        """Do some long work that raises nothing, such as compiling, in another thread."""
        with self._lock:
            self._wanted.put(work)
            if len(self._makers) < MAKERS:
                maker = threading.Thread(target=self._make_all, name="explorer", daemon=True)
                self._makers.append(maker)
                maker.start()

    def _make_all(self) -> None:
        """Do the work in the queue until it holds None: the body of each thread."""
        wanted = self._wanted
        while (work := wanted.get()) is not None:
            work()

    def finish(self) -> None:
        """End the threads after their current work.

        A process that ends while they are inside the compiler may crash.
        """
        for _ in self._makers:
            self._wanted.put(None)  # the last in is the first out
        for maker in self._makers:
            maker.join(FINISH_S)

    def _refuse(self, key: _Key, error: Exception) -> None:
        for_good = isinstance(error, ExplorerError | CompileFailure)
        self._refused[key] = math.inf if for_good else time.monotonic() + RETRY_S
        log_once(f"no kernel for {key[0]}: {error}")

    def _is_refused(self, key: _Key) -> bool:
        return self._refused.get(key, 0.0) > time.monotonic()


service = Service()
os.register_at_fork(after_in_child=service.forget)
atexit.register(service.finish)


MOST_REASONS = 1000
"""Most reasons that are logged."""

_logged: set[str] = set()


def log_once(reason: str) -> None:
    """Log at level DEBUG, to the logger `explorer`, why a framework's function serves a call.

    A reason counts as logged only if that level is enabled.
    """
    if reason not in _logged and len(_logged) < MOST_REASONS and log.isEnabledFor(logging.DEBUG):
        _logged.add(reason)
        log.debug("served by the framework: %s", reason)


def warm_up(problems: Iterable[Problem] | Problem | StrPath, device: int = 0) -> None:
    """Compile and load kernels on GPU `device` before the calls that need them.

    `problems` are `explorer.Problem` objects, or one of them, or the name of a file that
    `explorer.log_shapes` wrote. A kernel in the cache is only loaded. Raises ExplorerError if a
    problem has no kernel, and InvalidInput for a file that cannot be read and for a value that is
    no problem.
    """
    index = whole_of(device)
    if index is None:
        raise InvalidInput(f"device is {shown(device)}; it must be the number of a GPU, such as 0")
    if isinstance(problems, Problem):
        problems = [problems]
    if isinstance(problems, str | bytes | os.PathLike) or not isinstance(problems, Iterable):
        problems = read_shapes(named_file("problems", problems, _SHAPES))
    listed = list(problems)
    for problem in listed:
        if not isinstance(problem, Problem):
            raise InvalidInput(f"warm_up wants explorer.Problem objects; one is {shown(problem)}")
    service.warm_up(listed, index)


_SHAPES = "explorer.Problem objects, or a file that explorer.log_shapes wrote"
