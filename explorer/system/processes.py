"""Processes that do not import the caller's main program, and the cores that they may use.

A new process of `multiprocessing` imports the caller's main program again. A script without
`if __name__ == "__main__":` would thus begin its work again in each process, and fail to start
further ones. The processes of this package run only its own functions, which are found by the names
of their modules, so they are started without the main program.
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
"""Fewest cores with which helper processes are started: on fewer they would delay the processes
that time launches, and compiling threads keep all cores busy anyway."""

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File in which Linux states a container's share of the cores (cgroup v2): microseconds of each
period, or `max`, and the period."""


def usable_cores() -> int:
    """Return how many cores this process may use, at least one.

    These are the cores that it may run on, limited by the quota of its container: in `docker run
    --cpus=4` it sees all cores of the host. A limit that a host sets otherwise is not known.
    """
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no such file, or `max`
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, math.ceil(quota / period))
    return max(1, cores)


_STARTING = threading.Lock()
"""Only one thread may start a process at a time: a second one would take the first one's stand-in
for the main program, and leave it in place."""


@contextmanager
def _without_main() -> Iterator[None]:
    """Replace the main program, while a process starts, by one without a file to import."""
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
"""The context that starts every process of this package."""


def talking_to(target: Callable[..., None], *arguments: Any) -> tuple[Connection, BaseProcess]:
    """Start a process of `target(connection, *arguments)`; return our end of the pipe, and it.

    The process ends with the program, and must call `leave_interrupts` first. Until then Ctrl-C is
    blocked in it, because Python would print a traceback while it starts.
    """
    ours, theirs = FRESH.Pipe()
    process = FRESH.Process(target=target, args=(theirs, *arguments), daemon=True)
    with interrupts_blocked():
        process.start()
    theirs.close()
    return ours, process


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in what is started within the block: threads, processes, and those of theirs."""
    ensure_running()  # as it starts, it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts() -> None:
    """Ignore Ctrl-C in this process: it reaches the whole group, and the caller handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
