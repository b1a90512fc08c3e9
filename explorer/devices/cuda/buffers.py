"""Device memory: pairs of matrices to rotate over, and one matrix between guards."""

from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.driver import checked
from explorer.errors import InvalidInput
from explorer.problem import Problem

GUARD_BYTES = 4096
_PITCH_BYTES = 4096
MAX_PAIRS = 2048
"""Launches of one graph, where each has buffers of its own."""

_USABLE_SHARE = 0.85  # of the free memory: the rest is for code, tools and others


class RotatingPairs:
    """Inputs and outputs of a problem, so many that they exceed the cache several times.

    `cold` timing takes as many pairs as make 4 x L2 of traffic, at least 2 and at most
    MAX_PAIRS; `exceed_cache` says whether they do. `warm` takes one.
    """

    def __init__(self, problem: Problem, l2_bytes: int, timing: str) -> None:
        matrix = problem.rows * problem.row_bytes
        self._pitch = -(-matrix // _PITCH_BYTES) * _PITCH_BYTES
        free, _ = checked(driver.cuMemGetInfo())
        fitting = int(free * _USABLE_SHARE) // (2 * self._pitch)
        if fitting < 1:
            raise InvalidInput(
                f"{problem} needs {2 * matrix / 1e9:.1f} GB for input and output, and the GPU has "
                f"{free / 1e9:.1f} GB free; take fewer rows"
            )
        wanted = 1 if timing == "warm" else max(2, -(-4 * l2_bytes // problem.bytes))
        self.count = min(wanted, fitting, MAX_PAIRS)
        self.exceed_cache = self.count * problem.bytes >= 4 * l2_bytes
        self._inputs = checked(driver.cuMemAlloc(self.count * self._pitch))
        self._outputs = checked(driver.cuMemAlloc(self.count * self._pitch))
        self.input_bytes = self.count * self._pitch

    def input(self, index: int) -> int:
        """Address of an input matrix; indices wrap."""
        return int(self._inputs) + index % self.count * self._pitch

    def output(self, index: int) -> int:
        """Address of the output matrix that goes with it."""
        return int(self._outputs) + index % self.count * self._pitch


class GuardedMatrix:
    """One matrix between two guard zones, to notice what is written, or read, beside it."""

    def __init__(self, data_bytes: int, guard: int) -> None:
        self.data_bytes = data_bytes
        self._guard = guard
        self._size = data_bytes + 2 * GUARD_BYTES
        self._base = checked(driver.cuMemAlloc(self._size))

    def address(self, offset: int = 0) -> int:
        """Where the data starts, `offset` bytes into its place."""
        return int(self._base) + GUARD_BYTES + offset

    def poison(self, value: int, stream: Any) -> None:
        """Set every byte, data to `value` and guards to the guard's."""
        checked(driver.cuMemsetD8Async(self._base, self._guard, self._size, stream))
        checked(driver.cuMemsetD8Async(self.address(), value, self.data_bytes, stream))

    def upload(self, data: bytes, offset: int = 0) -> None:
        """Copy host bytes to the data's place."""
        checked(driver.cuMemcpyHtoD(self.address(offset), data, len(data)))

    def touched_beside(self, used_bytes: int, offset: int, poison: int) -> str | None:
        """What was written beside the `used_bytes` from `offset` on, or None.

        `poison` is the value that the rest of the data's place was set to.
        """
        before = self._read(0, GUARD_BYTES + offset)
        expected = np.full(len(before), self._guard, np.uint8)
        expected[GUARD_BYTES:] = poison
        changed = np.flatnonzero(before != expected)
        if len(changed):
            return f"{len(before) - changed[-1]} bytes before the output"
        start = GUARD_BYTES + offset + used_bytes
        after = self._read(start, min(self._size - start, 2 * GUARD_BYTES))
        expected = np.full(len(after), poison, np.uint8)
        expected[max(0, GUARD_BYTES + self.data_bytes - start) :] = self._guard
        changed = np.flatnonzero(after != expected)
        return f"{changed[0] + 1} bytes past the output" if len(changed) else None

    def _read(self, start: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, np.uint8)
        checked(driver.cuMemcpyDtoH(data, int(self._base) + start, size))
        return data

    def free(self) -> None:
        """Give the memory back."""
        checked(driver.cuMemFree(self._base))
