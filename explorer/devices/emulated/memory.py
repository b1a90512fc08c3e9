"""Global memory: allocations far apart in a virtual address space, backed by one array."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.findings import Finding, Kind
from explorer.devices.emulated.ptx_types import Array

SLOT_BITS = 36
"""Allocations start 2^36 bytes apart, so that no stray index falls into another one."""

_ALIGNMENT = 256

POISON: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.uint32(0x7FEDEAD0),
    np.dtype(np.float16): np.uint16(0x7FED),
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7FED),
    np.dtype(np.float64): np.uint64(0x7FFDEAD0DEADBEEF),
}
"""A quiet NaN of each type that no computation produces by itself."""


def poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array filled with the NaN that marks elements nobody wrote."""
    pattern = POISON[np.dtype(dtype)]
    return np.full(shape, pattern, pattern.dtype).view(dtype)


@dataclass(slots=True, eq=False)
class Allocation:
    """A piece of global memory; `address` is what a kernel is given."""

    name: str
    address: int
    size: int
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    writable: bool
    initialised: bool
    written_once: bool
    written: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """One flag a byte: some launch has stored there."""
    lead: int = 0
    """Bytes at its start that kernels must not touch: what they are given begins after them."""
    gaps: NDArray[np.bool_] | None = None
    """One flag a byte: it lies between rows, where there is nothing to read. None for no gap."""

    @property
    def start(self) -> int:
        """The first address that kernels may use."""
        return self.address + self.lead

    @property
    def end(self) -> int:
        """The first address past it."""
        return self.address + self.size


class GlobalMemory:
    """Allocations and their contents; kept from one launch to the next."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.arena: NDArray[np.uint8] = np.zeros(1 << 16, np.uint8)
        self._used = 0

    def allocate(
        self,
        array: Array,
        *,
        name: str,
        writable: bool = True,
        initialised: bool = True,
        written_once: bool = False,
    ) -> Allocation:
        """Copy `array` (any shape) in.

        With `initialised=False`, reading before writing is a defect; with `written_once=True`, so
        is a second store to an element within one launch.
        """
        data = np.ascontiguousarray(array)
        octets = data.reshape(-1).view(np.uint8)
        self._reserve(self._used + octets.size + 2 * _ALIGNMENT)
        allocation = Allocation(
            name=name,
            address=(len(self.allocations) + 1) << SLOT_BITS,
            size=octets.size,
            offset=self._used,
            dtype=data.dtype,
            shape=data.shape,
            writable=writable,
            initialised=initialised,
            written_once=written_once,
            written=np.zeros(octets.size if writable else 0, np.bool_),
        )
        self.arena[self._used : self._used + octets.size] = octets
        self._used += -(-octets.size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        self.allocations.append(allocation)
        return allocation

    def _reserve(self, size: int) -> None:
        if size > self.arena.size:
            larger = np.zeros(-(-2 * size // _ALIGNMENT) * _ALIGNMENT, np.uint8)
            larger[: self.arena.size] = self.arena
            self.arena = larger

    def find(self, address: int) -> Allocation | None:
        """The allocation whose slot of the address space `address` lies in."""
        slot = (address >> SLOT_BITS) - 1
        return self.allocations[slot] if 0 <= slot < len(self.allocations) else None

    def read(self, allocation: Allocation) -> Array:
        """A copy of the contents, with the dtype and shape of the array that was put in."""
        octets = self.arena[allocation.offset : allocation.offset + allocation.size]
        return octets.copy().view(allocation.dtype).reshape(allocation.shape)

    def write(self, allocation: Allocation, array: Array) -> None:
        """Replace the contents; `array` has the size of the one that was put in."""
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.arena[allocation.offset : allocation.offset + allocation.size] = octets


def check_output(memory: GlobalMemory, allocation: Allocation) -> tuple[Finding, ...]:
    """Defects of an output after its launches: elements never written, and poison in it."""
    values = memory.read(allocation).reshape(-1)
    size = allocation.dtype.itemsize
    flags = allocation.written.view(f"u{size}")
    written = flags == np.array([1] * size, np.uint8).view(flags.dtype)[0]
    found = []
    missing = np.flatnonzero(~written)
    if missing.size:
        found.append(_element_finding(Kind.NEVER_WRITTEN, "never written", allocation, missing))
    pattern = POISON.get(allocation.dtype)
    if pattern is not None:
        bad = np.flatnonzero(written & (values.view(pattern.dtype) == pattern))
        if bad.size:
            found.append(_element_finding(Kind.POISON, "NaN poison", allocation, bad))
    return tuple(found)


def _element_finding(
    kind: Kind, what: str, allocation: Allocation, places: NDArray[np.intp]
) -> Finding:
    first = np.unravel_index(int(places[0]), allocation.shape)
    index = ", ".join(str(int(i)) for i in first)
    total = allocation.size // allocation.dtype.itemsize
    message = f"{allocation.name}[{index}] {what}; {places.size} of {total} elements"
    return Finding(kind, message, count=int(places.size))
