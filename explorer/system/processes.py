"""Processes that are started afresh, and leave the program that starts them alone; and the cores
that they may use.

A new process of `multiprocessing` imports the caller's main program again. A script without
`if __name__ == "__main__":` would so begin its own work once more in each of them, and starting a
process from there fails. The processes of this package run its own functions alone, which are found
by the names of their modules, so they are started without the program.
"""

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from types import ModuleType
from typing import Any

CORES_TO_SHARE = 4
"""This process may use so many cores, at least, where others work beside it: on fewer, they would
take turns with those that time launches, and threads that compile keep all cores busy."""

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much of all cores a container may use (cgroup v2): microseconds of each
period, or `max`, and the period."""


def usable_cores() -> int:
    """Return how many cores this process may use, at least one.

    Those that it may run on, as far as its container has a share of them: in `docker run --cpus=4`
    all cores of the host are seen. A limit that a host sets otherwise is not known.
    """
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no such file, or `max`
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


_STARTING = threading.Lock()
"""Of two threads that start processes at once, the second would take the first one's stand-in for
the main program, and leave it there."""


@contextmanager
def _without_main() -> Iterator[None]:
    """While a process starts, the main program is one without a file, which nothing imports."""
    with _STARTING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class _Process(SpawnProcess):
    """A process that does not import the caller's main program."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Any:  # noqa: N802 (multiprocessing's name)
        with _without_main():
            return SpawnProcess._Popen(process_obj)


class FreshContext(SpawnContext):
    """A context of `multiprocessing` whose processes need no main guard in the caller's script."""

    Process = _Process


FRESH = FreshContext()
"""What every process of this package is started by."""


def talking_to(target: Callable[..., None], *arguments: Any) -> tuple[Connection, BaseProcess]:
    """Start a process that runs `target` of its end of a pipe and `arguments`; give our end and it.

    It ends with the program, and is to call `leave_interrupts` first. Ctrl-C is held back from it
    until then: while Python starts, it would print a traceback.
    """
    ours, theirs = FRESH.Pipe()
    process = FRESH.Process(target=target, args=(theirs, *arguments), daemon=True)
    ensure_running()  # as it starts, it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return ours, process


def leave_interrupts() -> None:
    """Ignore Ctrl-C in this process: it reaches the whole group, and is the caller's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
