"""What verifications compare with, made by processes of their own before it is needed.

Nearly every kernel has inputs of its own, made for the way in which it cuts rows. In the process
that owns the GPU they took 4.5 ms of the 18 ms that a kernel took there on an H200's host, and of
64 x 151936 bf16 some 100 ms, in which the GPU had nothing to do. A thread of that process would not
do: it could hold Python's interpreter between the two events that time a launch.
"""

import mmap
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from math import prod
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Problem
from explorer.reference import Case, keep_rows_up_to, truth_of, verification_inputs
from explorer.system.processes import FRESH, leave_interrupts, talking_to, usable_cores

MOST_PROCESSES, CORES_PER_PROCESS = 3, 4
"""Processes that make arrays, at most, and usable cores for each of them: others compile."""

MEMORY_BYTES = 2**27
"""Of arrays that one of them has made and that are not used yet, at most. Memory that nothing was
written to takes no room."""

MOST_BYTES = MEMORY_BYTES // 2
"""Of the arrays of one case, at most; those of larger ones are made when they are needed."""

KEPT_BYTES = 2**26
"""Of rows that each of the processes keeps for the cases that follow, as far as it can."""

ALIGNMENT = 64
"""Bytes that the address of each array is a multiple of: a line of the processor's cache."""

MOST_UNUSED = 64
"""Cases that one has made and that are not used, at most: to tell of them all takes less than a
pipe holds, so that neither process ever waits for the other to read."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CheckedTruth:
    """A problem whose inputs and truth the GPU's own reference is to be compared with."""

    problem: Problem

    def arrays(self, seed: int) -> dict[str, Array]:
        """Return the inputs, and `values` and `magnitude` of the truth (`Truth`)."""
        arrays = verification_inputs(self.problem, seed)
        truth = truth_of(self.problem, arrays)
        return {**arrays, "values": truth.values, "magnitude": truth.magnitude}


Wanted = Case | CheckedTruth
"""What arrays are made of."""


class SharedMemory:
    """Bytes that this process shares with those that it starts with them as an argument."""

    def __init__(self, size: int, handle: int | None = None) -> None:
        """Without a `handle`, a file descriptor, of new memory, all of zeros."""
        self._handle = os.memfd_create("explorer-inputs") if handle is None else handle
        if handle is None:
            os.ftruncate(self._handle, size)
        self.bytes = mmap.mmap(self._handle, size)

    def close(self) -> None:
        """Give up this process's share of it."""
        self.bytes.close()
        os.close(self._handle)

    def __reduce__(self) -> Any:
        return _received, (len(self.bytes), DupFd(self._handle))


def _received(size: int, handle: Any) -> SharedMemory:
    return SharedMemory(size, handle.detach())


@dataclass(frozen=True, slots=True)
class _Place:
    """An array in the shared memory."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class _Made:
    """What was made, and where it lies."""

    wanted: Wanted
    seed: int
    start: int
    size: int
    places: tuple[_Place, ...]


# ------------------------------------------------------------------ the process that asks for them


Source = tuple[Connection, SharedMemory]
"""By what a process takes arrays that one other process has made."""


class _Maker:
    """A process that makes arrays, as the one that asks for them has it."""

    def __init__(self) -> None:
        self._memory = SharedMemory(MEMORY_BYTES)
        self._user, self._theirs = FRESH.Pipe()
        self._connection: Connection | None = None
        self._process: BaseProcess | None = None

    @property
    def source(self) -> Source:
        return self._user, self._memory

    def start(self) -> None:
        self._connection, self._process = talking_to(_make, self._theirs, self._memory)
        self._user.close()
        self._theirs.close()

    def send(self, wanted: Wanted, seed: int) -> None:
        """Have arrays made of a seed."""
        if self._connection is not None:
            with suppress(OSError):  # what it would have made is made where it is needed
                self._connection.send((wanted, seed))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._process is not None:
            connection.close()
            self._process.kill()
            self._process.join()
        self._memory.close()


class InputsAhead:
    """Processes that make arrays, and what another process takes them by."""

    def __init__(self) -> None:
        count = max(1, min(MOST_PROCESSES, usable_cores() // CORES_PER_PROCESS))
        self._makers = [_Maker() for _ in range(count)]
        self._turns = cycle(self._makers)
        self._asked: set[tuple[Wanted, int]] = set()
        self._lock = Lock()

    @property
    def sources(self) -> tuple[Source, ...]:
        """For `MadeInputs` in the one process that uses the arrays, which starts first."""
        return tuple(maker.source for maker in self._makers)

    def start(self) -> None:
        """Start to make what is asked for, once the process that uses it has the `sources`."""
        for maker in self._makers:
            maker.start()

    def ask(self, wanted: Iterable[Wanted], seed: int) -> None:
        """Have arrays made, each once, by and by. Nothing comes of it if the processes ended."""
        with self._lock:
            for one in wanted:
                if (one, seed) not in self._asked:
                    self._asked.add((one, seed))
                    next(self._turns).send(one, seed)

    def close(self) -> None:
        """End the processes, and give the memory back."""
        with self._lock:
            for maker in self._makers:
                maker.close()


# ------------------------------------------------------------------ a process that makes them


def _make(requests: Connection, user: Connection, memory: SharedMemory) -> None:
    """Make what is asked for, in turn, until a process at the other ends has ended."""
    leave_interrupts()
    keep_rows_up_to(KEPT_BYTES)
    work = Work(user, memory)
    while True:
        ready = wait([requests, user], 0 if work.can_go_on else None)
        try:
            if requests in ready:
                work.add(*requests.recv())
            if user in ready:
                work.free(user.recv())
            if not ready:
                work.make_next()
        except (EOFError, OSError):
            return


class Work:
    """Puts arrays into the shared memory as long as there is room, and tells of them."""

    def __init__(self, user: Connection, memory: SharedMemory) -> None:
        self._user, self._memory = user, memory
        self._waiting: deque[tuple[Wanted, int]] = deque()
        self._taken: dict[int, int] = {}
        """Bytes of what lies in the memory, by where it starts."""
        self._is_full = False
        """Whether what was made last waits for room."""
        self._last: tuple[Wanted, int, dict[str, Array]] | None = None

    @property
    def can_go_on(self) -> bool:
        """Whether something can be made, or put into the memory, now."""
        return not self._is_full and bool(self._waiting or self._last)

    def add(self, wanted: Wanted, seed: int) -> None:
        """Remember what is asked for, unless it is too large."""
        if wanted.problem.read_bytes <= MOST_BYTES:
            self._waiting.append((wanted, seed))

    def free(self, start: int) -> None:
        """The arrays that start there are used."""
        del self._taken[start]
        self._is_full = False

    def make_next(self) -> None:
        """Make what was asked for first, and put it into the memory, or keep it for later."""
        if self._last is None:
            wanted, seed = self._waiting.popleft()
            self._last = wanted, seed, wanted.arrays(seed)
        wanted, seed, arrays = self._last
        size = sum(_rounded(array.nbytes) for array in arrays.values())
        start = self._room(size)
        if size <= MOST_BYTES and start is None:
            self._is_full = True
            return
        self._last = None
        if start is not None and size <= MOST_BYTES:
            self._taken[start] = size
            places = tuple(self._put(arrays, start))
            self._user.send(_Made(wanted, seed, start, size, places))

    def _room(self, size: int) -> int | None:
        """Return where so many bytes are free first; None where there is no room, for now."""
        if len(self._taken) >= MOST_UNUSED:
            return None
        end = 0
        for start, taken in sorted(self._taken.items()):
            if start - end >= size:
                return end
            end = start + taken
        return end if len(self._memory.bytes) - end >= size else None

    def _put(self, arrays: dict[str, Array], start: int) -> Iterator[_Place]:
        for name, array in arrays.items():
            place = _Place(name, array.dtype, array.shape, start)
            _at(place, self._memory)[...] = array
            yield place
            start += _rounded(array.nbytes)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _at(place: _Place, memory: SharedMemory) -> Array:
    count = prod(place.shape)
    flat = np.frombuffer(memory.bytes, place.dtype, count, place.start)
    return flat.reshape(place.shape)


# ------------------------------------------------------------------ the process that uses them


class MadeInputs:
    """Arrays by what they are made of: those that lie in shared memory, or made now."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Of `InputsAhead.sources`; without any everything is made now."""
        self._memories = dict(sources)
        self._made: OrderedDict[tuple[Wanted, int], tuple[Connection, _Made]] = OrderedDict()
        self._made_here: set[tuple[Wanted, int]] = set()

    @contextmanager
    def arrays(self, wanted: Wanted, seed: int, wait_s: float = 0.0) -> Iterator[dict[str, Array]]:
        """Give the arrays until the end of the block, by the names that `wanted.arrays` has.

        Waits up to `wait_s` seconds for them, if other processes make any.
        """
        key = (wanted, seed)
        self._hear(key, wait_s)
        source, made = self._made.pop(key, (None, None))
        if source is None or made is None:
            self._give_up_some()
            if self._memories:
                self._made_here.add(key)
            yield wanted.arrays(seed)
            return
        memory = self._memories[source]
        try:
            yield {place.name: _at(place, memory) for place in made.places}
        finally:
            self._free(source, made)

    def _hear(self, awaited: tuple[Wanted, int], wait_s: float) -> None:
        """Learn what was made since."""
        deadline_s = monotonic() + wait_s
        while self._memories:
            left_s = 0 if awaited in self._made else max(0, deadline_s - monotonic())
            ready = wait(list(self._memories), left_s)
            if not ready:
                return
            for source in ready:
                self._hear_of(source)  # type: ignore[arg-type]

    def _hear_of(self, source: Connection) -> None:
        try:
            made: _Made = source.recv()
        except (EOFError, OSError):  # the process has ended
            del self._memories[source]
            self._made = OrderedDict((k, v) for k, v in self._made.items() if v[0] is not source)
            return
        key = (made.wanted, made.seed)
        if key in self._made_here:  # this process needed them before
            self._made_here.remove(key)
            self._free(source, made)
        else:
            self._made[key] = source, made

    def _give_up_some(self) -> None:
        """Where something was not made, there may be no room, for what kernels need that are never
        evaluated. Give up the half that was made first.
        """
        for source in self._memories:
            own = [(key, made) for key, (of, made) in self._made.items() if of is source]
            taken = sum(made.size for _, made in own)
            if len(own) >= MOST_UNUSED // 2 or taken >= MEMORY_BYTES // 2:
                for key, made in own[: -(-len(own) // 2)]:
                    del self._made[key]
                    self._free(source, made)

    def _free(self, source: Connection, made: _Made) -> None:
        with suppress(OSError):
            source.send(made.start)
