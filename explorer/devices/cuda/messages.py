"""Messages between the process that searches and the worker that owns a GPU, and their order."""

import fcntl
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from explorer.devices.device import Job, Setting
from explorer.model.gpu_spec import GpuSpec
from explorer.model.peer import PeerName


@dataclass(frozen=True, slots=True)
class Open:
    """Prepare buffers and tools for a problem; answered by Facts."""

    setting: Setting
    tools_cubins: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    """Prepare and verify a peer, to be timed by the next Compare; Entered or NotEntered."""

    peer: PeerName


@dataclass(frozen=True, slots=True)
class Compare:
    """Verify contenders again; time them, peers and the limit in turn, `rounds` samples each.

    Answered by Compared; a Job is a request as well, and answered by an Outcome.
    """

    contenders: tuple[Job, ...]
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True)
class Described:
    """The GPU's limits; the worker's first message."""

    gpu: GpuSpec
    uuid: str
    """Hexadecimal digits of the GPU's UUID, the same in every process."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request failed in the worker, and why."""

    reason: str
    context_lost: bool
    """Whether the GPU's context is unusable, so that the worker ends."""


@dataclass(frozen=True, slots=True)
class Bug:
    """An unforeseen error in the worker, which stops the search; its study stays intact."""

    traceback: str


# ------------------------------------------------------------------ requests, in turns with others


LONGEST_TURN_S = 0.2
"""After so long no request follows another within one turn, so that other processes have theirs."""


@contextmanager
def turn_on(uuid: str) -> Iterator[None]:
    """Wait until no other process of this host is in such a block for the same GPU."""
    held = None
    with suppress(OSError):  # a folder without locks: the GPU is shared without turns
        held = _opened(Path(tempfile.gettempdir()) / f"softmax-explorer-gpu-{uuid}.lock")
        fcntl.flock(held, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _opened(path: Path) -> int:
    """Open a lock's file; it may be another user's, who alone may then create or write it."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)


class Requests:
    """What was sent to a GPU's process, and its replies, in the same order.

    Two requests at most are under way, so that nothing lies between them. A turn on the GPU lasts
    from the first of them to the reply to the last.
    """

    def __init__(self, connection: Connection, process: BaseProcess) -> None:
        self.turns_on = ""
        """The GPU that this process takes turns on, by its UUID; empty: it asks when it likes."""
        self._connection = connection
        self._process = process
        self._begun: deque[Any] = deque()
        """Requests that wait until the process can take them, in order."""
        self._sent: deque[Any] = deque()
        """Those that were not answered."""
        self._turn = ExitStack()
        self._turn_began_s = 0.0

    def begin(self, request: Any) -> None:
        """Send a request that `ask` will be called for, once the process can take it.

        It cannot where two are under way, or where the turn has lasted long. Requests are sent in
        the order in which they were begun: one that overtook another would be answered first, and
        its answer dropped.
        """
        if not (self._is_in(self._begun, request) or self._is_in(self._sent, request)):
            self._begun.append(request)
        while self._begun and len(self._sent) < 2:
            if self._sent and time.monotonic() - self._turn_began_s >= LONGEST_TURN_S:
                return
            if not self._send(self._begun.popleft()):
                return

    def ask(self, request: Any, limit_s: float) -> Any:
        """Return the reply; None if none came in time, Failed if the process ended.

        The time counts from the reply to the request before. What was begun, and is not asked for,
        is answered first. Raises RuntimeError for a bug in that process.
        """
        if not self._is_in(self._sent, request):
            while self._is_in(self._begun, request):
                self._send(self._begun.popleft())
            if not self._is_in(self._sent, request) and not self._send(request):
                return Failed("the worker ended unexpectedly", context_lost=True)
        while True:
            try:
                reply = self.receive(limit_s)
            finally:
                answered = self._sent.popleft()
                if not self._sent:
                    self._turn.close()
            if answered is request:
                return reply

    def receive(self, limit_s: float) -> Any:
        """Return what the process says next, as `ask` does."""
        try:
            if not self._connection.poll(limit_s):
                return None
            reply = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.exitcode
            return Failed(f"the worker ended unexpectedly (exit code {code})", context_lost=True)
        if isinstance(reply, Bug):
            raise RuntimeError(f"in the GPU's worker:\n{reply.traceback}")
        return reply

    def close(self) -> None:
        """Say no more, and end the turn."""
        self._connection.close()
        self._begun.clear()
        self._sent.clear()
        self._turn.close()

    @staticmethod
    def _is_in(requests: deque[Any], request: Any) -> bool:
        return any(one is request for one in requests)

    def _send(self, request: Any) -> bool:
        """Send a request, in a turn on the GPU; return False if the process has ended."""
        if not self._sent:
            if self.turns_on:
                self._turn.enter_context(turn_on(self.turns_on))
            self._turn_began_s = time.monotonic()
        try:
            self._connection.send(request)
        except OSError:
            if not self._sent:
                self._turn.close()
            return False
        self._sent.append(request)
        return True
