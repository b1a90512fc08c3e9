"""Processes that compile kernels, for the threads of this one that wait for them.

NVRTC has a lock that all threads of a process share, and holds it for 25 ms of each compilation: in
16 threads of one process on an H200's host a text took 45 ms, and in one thread 200 ms, so that 16
cores did the work of five. Each process has a lock of its own.
"""

import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue

from explorer.compile.compiler import CompileFailure, Compiler, Kernel, nvrtc_version
from explorer.model.errors import ExplorerError
from explorer.system.processes import (
    CORES_TO_SHARE,
    FRESH,
    leave_interrupts,
    talking_to,
    usable_cores,
)

CLOSED = "error: it was not compiled, since the search has ended"

CLOSE_LIMIT_S = 5.0
"""How long the processes may take to end; it takes 4 ms once they have started."""

Answer = Kernel | str | None
"""A kernel, or the log of what could not be compiled; None where a process cannot tell."""


class CompileProcesses:
    """As many processes as this one may use cores; none where these are few. A context manager.

    One process is started afresh and loads NVRTC; those that compile are its copies, which take
    some milliseconds each, where a new process takes a quarter of a second.
    """

    def __init__(self, number: int | None = None) -> None:
        """Have `number` of them at most, where this process is not alone on its machine."""
        self._number = number
        self._idle: SimpleQueue[Connection | None] = SimpleQueue()
        """Our ends of those that have nothing to do; None stands for one that has ended."""
        self._original: tuple[Connection, BaseProcess] | None = None
        self._is_closed = False

    def start(self) -> None:
        """Start them, without waiting until they are ready."""
        cores = usable_cores()
        if cores < CORES_TO_SHARE:
            return
        with suppress(OSError):  # there may be no memory for them
            pairs = [FRESH.Pipe() for _ in range(min(cores, self._number or cores))]
            self._original = talking_to(_copy_itself, *(theirs for _, theirs in pairs))
            for ours, theirs in pairs:
                theirs.close()
                self._idle.put(ours)

    def compiler(self, arch: str) -> Compiler:
        """Return what compiles for `arch` in these processes; threads may share it."""
        return _CompilerElsewhere(arch, self) if self._original else Compiler(arch)

    def ask(self, arch: str, source: str) -> Answer:
        """Have a source compiled as soon as a process is idle, and return what it answers.

        One that gives no answer is not asked again.
        """
        connection = self._idle.get()
        answer, answering = None, None
        try:
            with suppress(Exception):  # it has ended, or its answer cannot be read
                if connection is not None:
                    connection.send((arch, source))
                    answer, answering = connection.recv(), connection
        finally:
            self._idle.put(answering)
        return CLOSED if answer is None and self._is_closed else answer

    def end(self) -> None:
        """Have them end, whatever they are at, without waiting for that.

        A thread that waits for one is told `CLOSED`.
        """
        self._is_closed = True
        if self._original is None:
            return
        for _ in range(self._idle.qsize()):
            with suppress(Empty):  # a thread has taken it, and learns that the process has ended
                idle = self._idle.get_nowait()
                self._idle.put(None)
                if idle is not None:
                    idle.close()
        self._original[0].close()  # by which it learns that it is to end those that are at work

    def close(self) -> None:
        """End them, and wait until they have."""
        self.end()
        if self._original is None:
            return
        _, process = self._original
        process.join(CLOSE_LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()

    def __enter__(self) -> "CompileProcesses":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _CompilerElsewhere(Compiler):
    """Compiles in other processes, which keep what they made on disk as any compiler does."""

    def __init__(self, arch: str, processes: CompileProcesses) -> None:
        super().__init__(arch)
        self._processes = processes

    def compile(self, source: str) -> Kernel:
        """As `Compiler.compile`: what lies on disk waits for no process, and where one has ended,
        or cannot tell, this process compiles.
        """
        kernel = self.cache.load(self.key(source))
        if kernel is not None:
            return kernel
        answer = self._processes.ask(self.arch, source)
        if isinstance(answer, str):
            raise CompileFailure(answer)
        return answer or super().compile(source)


# ------------------------------------------------------------------ in those processes


def _copy_itself(until: Connection, *connections: Connection) -> None:
    """Have a copy of this process answer at each connection until the other end of `until` closes.

    If there is no memory for another copy, there are fewer.
    """
    leave_interrupts()
    with suppress(ExplorerError):  # whoever has something compiled is told of it
        nvrtc_version()
    copies = []
    with suppress(OSError):
        for theirs in connections:
            copy = os.fork()
            if copy == 0:
                _answer_and_end(theirs, (until, *connections))
            copies.append(copy)
    for theirs in connections:
        theirs.close()
    with suppress(EOFError, OSError):
        until.recv()
    for copy in copies:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)


def _answer_and_end(theirs: Connection, inherited: tuple[Connection, ...]) -> None:
    """Answer until the other end is closed, and end this copy; other connections are not its."""
    try:
        for connection in inherited:
            if connection is not theirs:
                connection.close()
        compilers: dict[str, Compiler] = {}
        while True:
            arch, source = theirs.recv()
            if arch not in compilers:
                compilers[arch] = Compiler(arch)
            theirs.send(_answer(compilers[arch], source))
    finally:
        os._exit(0)  # what the original process was started with is not for a copy to end


def _answer(compiler: Compiler, source: str) -> Answer:
    try:
        return compiler.compile(source)
    except CompileFailure as failure:
        return failure.log
    except Exception:  # the process that asks tries it itself, and says what is raised
        return None
