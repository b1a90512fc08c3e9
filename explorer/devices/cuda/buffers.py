"""Device memory: sets of operands that launches rotate over, and a matrix between guard zones."""

from typing import Any

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from explorer.devices.cuda.program import checked
from explorer.devices.cuda.tools import Tools
from explorer.model.element import DType, ElementType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem, inputs, results

GUARD_BYTES = 4096
_PITCH_BYTES = 4096
MAX_SETS = 256
"""Most sets of buffers. A launch takes at least 1.6 us on an H200 and an H100, so that so many take
the 400 us of a sample, and each launch of a small problem has buffers outside the cache."""

NAN_BYTE = 0xFF
"""A byte whose repetition is a NaN in every element type, and -1 among whole numbers."""

_NO_COLUMN_BYTE = 0x80
"""A byte whose repetition is no column, and not -1."""

_USABLE_SHARE = 0.85  # of the free memory: the rest is for code, tools and others


def _whole_pitches(size: int) -> int:
    """Return the distance in bytes from a buffer to the next, aligned as an allocation is."""
    return -(-size // _PITCH_BYTES) * _PITCH_BYTES


def poison_of(dtype: ElementType) -> int:
    """Return a byte whose repetition is no right result of a type."""
    return NAN_BYTE if isinstance(dtype, DType) else _NO_COLUMN_BYTE


class RotatingBuffers:
    """Sets of a problem's operands, together several times as large as the L2 cache.

    `cold` timing has as many sets as make 4 x L2 of traffic, at least 2 and at most MAX_SETS;
    `exceed_cache` says whether they make so much. If not, the cache is flushed before each sample,
    and each launch is the first to touch its set. `warm` timing has one set. A set has inputs and
    results, an output even if the problem is in place: the output then stores the original input.
    """

    def __init__(self, problem: Problem, l2_bytes: int, timing: str) -> None:
        self.problem = problem
        operands = (*inputs(problem), *results(problem))
        self._pitch = {o.name: _whole_pitches(o.bytes) for o in operands}
        needed = sum(self._pitch.values())
        free, _ = checked(driver.cuMemGetInfo())
        fitting = int(free * _USABLE_SHARE) // needed
        if fitting < 1:
            raise InvalidInput(
                f"{problem} needs {needed / 1e9:.1f} GB for inputs and output, and the GPU has "
                f"{free / 1e9:.1f} GB free; take fewer rows"
            )
        touched = problem.bytes // 2 if problem.in_place else problem.bytes
        wanted = 1 if timing == "warm" else max(2, -(-4 * l2_bytes // touched))
        self.count = min(wanted, fitting, MAX_SETS)
        self.exceed_cache = self.count * touched >= 4 * l2_bytes
        self._bases = {
            name: int(checked(driver.cuMemAlloc(self.count * pitch)))
            for name, pitch in self._pitch.items()
        }

    def fill(self, tools: Tools, seed: int) -> None:
        """Fill every input of every set, and copy it to the output if the problem is in place."""
        for number, operand in enumerate(inputs(self.problem)):
            count = self.count * self._pitch[operand.name] // operand.dtype.itemsize
            tools.fill(self.problem, operand, self._bases[operand.name], count, seed + number)
        if self.problem.in_place:
            size = self.count * self._pitch["input"]
            checked(driver.cuMemcpyDtoD(self._bases["output"], self._bases["input"], size))

    def at(self, index: int) -> dict[str, int]:
        """Return the addresses of a set's operands, by the names in launches; indices wrap."""
        addresses = {name: self._address(name, index) for name in self._bases}
        if self.problem.in_place:
            addresses["output"] = addresses["input"]
        return addresses

    def input(self, index: int) -> int:
        """Return the address of a set's input."""
        return self._address("input", index)

    def output(self, index: int) -> int:
        """Return the address of a set's output, or in place that of its original input."""
        return self._address("output", index)

    def checked_at(self, index: int) -> dict[str, int]:
        """Return the addresses for a check: in place, `input` is the original input's."""
        addresses = self.at(index)
        if self.problem.in_place:
            addresses["input"] = self.output(index)
        return addresses

    def prepare(self, index: int, stream: Any) -> None:
        """Poison the results before a launch that is checked; in place, restore the input."""
        for result in results(self.problem):
            at, size = self._address(result.name, index), result.bytes
            if self.problem.in_place and result.name == "output":
                checked(driver.cuMemcpyDtoDAsync(self.input(index), at, size, stream))
            else:
                checked(driver.cuMemsetD8Async(at, poison_of(result.dtype), size, stream))

    def free(self) -> None:
        """Give the memory back."""
        for base in self._bases.values():
            checked(driver.cuMemFree(base))

    def _address(self, name: str, index: int) -> int:
        return self._bases[name] + index % self.count * self._pitch[name]


class Scratch:
    """Scratch memory that the launches of one kernel share, for each set; a context manager."""

    @staticmethod
    def lacking(size: int, count: int) -> str | None:
        """Return why `count` sets of `size` bytes do not fit the free memory, or None."""
        free, _ = checked(driver.cuMemGetInfo())
        needed = _whole_pitches(size) * count
        if needed <= free * _USABLE_SHARE:
            return None
        return (
            f"it needs {needed / 1e9:.1f} GB of scratch memory for {count} sets of buffers, and "
            f"the GPU has {free / 1e9:.1f} GB free"
        )

    def __init__(self, size: int, count: int) -> None:
        self._pitch = _whole_pitches(size)
        self._count = count
        self._base = int(checked(driver.cuMemAlloc(self._pitch * count))) if size else 0

    def at(self, index: int) -> dict[str, int]:
        """Return a set's address by the name `scratch`; nothing if the kernel needs no scratch."""
        return {"scratch": self._base + index % self._count * self._pitch} if self._base else {}

    def __enter__(self) -> "Scratch":
        return self

    def __exit__(self, *_: object) -> None:
        if self._base:  # unchecked: after a fault the context and its memory are gone
            driver.cuMemFree(self._base)


class GuardedMatrix:
    """One matrix between two guard zones, which reveal writes, or reads, outside of it."""

    def __init__(self, data_bytes: int, guard: int) -> None:
        self.data_bytes = data_bytes
        self._guard = guard
        self._size = data_bytes + 2 * GUARD_BYTES
        self._base = checked(driver.cuMemAlloc(self._size))

    def address(self, offset: int = 0) -> int:
        """Return the address `offset` bytes after the first guard zone."""
        return int(self._base) + GUARD_BYTES + offset

    def poison(self, value: int, stream: Any) -> None:
        """Set every byte: the data to `value`, the guard zones to the guard byte."""
        checked(driver.cuMemsetD8Async(self._base, self._guard, self._size, stream))
        checked(driver.cuMemsetD8Async(self.address(), value, self.data_bytes, stream))

    def upload(self, data: NDArray[Any], offset: int = 0) -> None:
        """Copy a contiguous array to the GPU, `offset` bytes after the first guard zone."""
        checked(driver.cuMemcpyHtoD(self.address(offset), data.ctypes.data, data.nbytes))

    def touched_beside(self, used_bytes: int, offset: int, poison: int) -> str | None:
        """Say where a write outside of the `used_bytes` from `offset` on is; None if none is.

        `poison` is the byte that the rest of the data was set to.
        """
        before = self._read(0, GUARD_BYTES + offset)
        expected = np.full(len(before), self._guard, np.uint8)
        expected[GUARD_BYTES:] = poison
        changed = np.flatnonzero(before != expected)
        if len(changed):
            return f"{len(before) - changed[-1]} bytes before"
        start = GUARD_BYTES + offset + used_bytes
        after = self._read(start, min(self._size - start, 2 * GUARD_BYTES))
        expected = np.full(len(after), poison, np.uint8)
        expected[max(0, GUARD_BYTES + self.data_bytes - start) :] = self._guard
        changed = np.flatnonzero(after != expected)
        return f"{changed[0] + 1} bytes past" if len(changed) else None

    def _read(self, start: int, size: int) -> NDArray[np.uint8]:
        data = np.empty(size, np.uint8)
        checked(driver.cuMemcpyDtoH(data, int(self._base) + start, size))
        return data

    def free(self) -> None:
        """Give the memory back."""
        checked(driver.cuMemFree(self._base))
