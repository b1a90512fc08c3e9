"""Processes that compile kernels, for the threads of this one that wait for them.

NVRTC has a lock that all threads of a process share, and holds it for a quarter of the time that a
kernel takes: in 16 threads of one process on an H200's host a text took 44 ms, and in one thread
200 ms, so that 16 cores did the work of five. Each process has a lock of its own.
"""

import ctypes
import os
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from types import TracebackType

from explorer.compile import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.errors import ExplorerError
from explorer.processes import FRESH, leave_interrupts

LEAST_CORES = 4
"""Cores that this process may use from which others compile: on fewer, threads keep all busy."""

NICENESS = 5
"""How far these processes stand back behind those that propose kernels and launch them."""

ENDED = "error: the process that compiled it ended"

_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG, of prctl(2)."""


class CompileProcesses:
    """As many processes as this one may use cores; none where these are few. A context manager.

    One process is started afresh and loads NVRTC; the others are its copies, which takes some
    milliseconds each where a new one would take a quarter of a second.
    """

    def __init__(self) -> None:
        self._idle: SimpleQueue[Connection | None] = SimpleQueue()
        """Our ends of those that have nothing to do; None stands for one that has ended."""
        self._process: BaseProcess | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start them, without waiting until they are ready."""
        cores = len(os.sched_getaffinity(0))
        if cores >= LEAST_CORES:
            with suppress(OSError):  # there may be no memory for them
                self._start(cores)

    def _start(self, count: int) -> None:
        pairs = [FRESH.Pipe() for _ in range(count)]
        process = FRESH.Process(target=_serve, args=[theirs for _, theirs in pairs], daemon=True)
        process.start()
        self._process = process
        for ours, theirs in pairs:
            theirs.close()
            self._idle.put(ours)

    def compiler(self, arch: str) -> Compiler:
        """What compiles for `arch` in these processes; threads may share it."""
        return _CompilerElsewhere(arch, self) if self._process else Compiler(arch)

    def compile(self, compiler: Compiler, source: str) -> Kernel:
        """Have a source compiled as soon as a process is idle; raises CompileFailure.

        In this process, if that one has ended before.
        """
        connection = self._idle.get()
        if connection is None:
            self._idle.put(None)
            if self._is_closed:
                raise CompileFailure(ENDED)
            return compiler.compile(source)
        answer = _asked(connection, (compiler.arch, source))
        if answer is None:
            connection.close()
        self._idle.put(connection if answer else None)
        kernel, failure, error = answer or (None, ENDED, None)
        if error is not None:
            raise error
        if kernel is None:
            raise CompileFailure(failure)
        return kernel

    def close(self) -> None:
        """End them, whatever they are at."""
        if self._process is None:
            return
        self._is_closed = True
        self._process.kill()  # its copies end with it, and whoever waits for one learns of that
        self._process.join()
        idle = [self._idle.get_nowait() for _ in range(self._idle.qsize())]
        for connection in idle:
            if connection is not None:
                connection.close()
            self._idle.put(None)

    def __enter__(self) -> "CompileProcesses":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _CompilerElsewhere(Compiler):
    """Compiles in another process, which keeps what it made on disk as any compiler does."""

    def __init__(self, arch: str, processes: CompileProcesses) -> None:
        super().__init__(arch)
        self._here = Compiler(arch)
        self._processes = processes

    def compile(self, source: str) -> Kernel:
        return self._processes.compile(self._here, source)


Answer = tuple[Kernel | None, str, Exception | None]
"""A kernel, or the log of what could not be compiled, or what was raised else."""


def _asked(connection: Connection, request: tuple[str, str]) -> Answer | None:
    """What a process answers; None if it has ended."""
    try:
        connection.send(request)
        answer: Answer = connection.recv()
    except (EOFError, OSError):
        return None
    return answer


# ------------------------------------------------------------------ in those processes


def _serve(*connections: Connection) -> None:
    """Answer at the first connection, and in a copy of this process at each of the others."""
    leave_interrupts()
    os.nice(NICENESS)
    with suppress(ExplorerError):  # whoever has something compiled is told of it
        nvrtc_version()
    mine, *others = connections
    for theirs in others:
        if os.fork() == 0:
            try:
                _become_copy()
                _answer_alone(theirs, connections)
            finally:
                os._exit(0)  # what this process was started with is not the copy's to end
    _answer_alone(mine, connections)


def _become_copy() -> None:
    """End when the process that was copied does, which is at once if it has ended by now."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _answer_alone(mine: Connection, connections: tuple[Connection, ...]) -> None:
    """Answer until the other end is closed; the connections of the copies are theirs."""
    for other in connections:
        if other is not mine:
            other.close()
    compilers: dict[str, Compiler] = {}
    with suppress(EOFError, OSError):
        while True:
            arch, source = mine.recv()
            if arch not in compilers:
                compilers[arch] = Compiler(arch)
            mine.send(_answer(compilers[arch], source))


def _answer(compiler: Compiler, source: str) -> Answer:
    try:
        return compiler.compile(source), "", None
    except CompileFailure as failure:
        return None, failure.log, None
    except ExplorerError as error:
        return None, "", error
    except Exception:
        return None, "", RuntimeError(f"in a process that compiles:\n{traceback.format_exc()}")
