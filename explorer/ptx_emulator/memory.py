"""Global memory: allocations far apart in a virtual address space, backed by one array.

An allocation is dense or sparse. Of a sparse one, which may be many GiB, only stated ranges of
elements (its windows) are backed, so that kernels can run blocks that are far from block 0.
"""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.findings import Finding, Kind
from explorer.ptx_emulator.program import Array

SLOT_BITS = 42
"""Allocations start 2^42 bytes apart, so that no stray index falls into another one."""

MOST_BYTES = 1 << (SLOT_BITS - 1)
"""Bytes of a sparse array."""

_ALIGNMENT = 256

SECTOR = 32
"""Bytes of the widest access. Each window is backed by whole sectors of its own."""

POISON: dict[np.dtype[Any], Any] = {
    np.dtype(np.float32): np.uint32(0x7FEDEAD0),
    np.dtype(np.float16): np.uint16(0x7FED),
    np.dtype(ml_dtypes.bfloat16): np.uint16(0x7FED),
    np.dtype(np.float64): np.uint64(0x7FFDEAD0DEADBEEF),
    np.dtype(np.int32): np.uint32(0x8DEAD0D0),
    np.dtype(np.int64): np.uint64(0x8DEAD0D0DEADBEEF),
}
"""A quiet NaN of each type, or a negative whole number, that nothing computes by itself."""

Bytes = NDArray[np.int64]


def poisoned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array filled with the number that marks elements which nobody wrote."""
    pattern = POISON[np.dtype(dtype)]
    return np.full(shape, pattern, pattern.dtype).view(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The backed ranges of a sparse allocation, ascending and apart, in bytes."""

    starts: Bytes
    """First byte of each window, counted from the allocation's start."""
    ends: Bytes
    places: Bytes
    """Where each window begins in the memory that backs the allocation."""

    @classmethod
    def of(cls, elements: Bytes, itemsize: int) -> "Windows":
        """Make windows from ranges of elements, shape (windows, 2), ascending and disjoint.

        Ranges that touch become one window. Raises ValueError for ranges that overlap.
        """
        first, past = elements[:, 0], elements[:, 1]
        if (first >= past).any() or (first[1:] < past[:-1]).any():
            raise ValueError("windows must be ascending ranges that do not overlap")
        begins = np.concatenate([[True], first[1:] > past[:-1]])
        starts = first[begins] * itemsize
        ends = past[np.concatenate([begins[1:], [True]])] * itemsize
        heads = starts % SECTOR
        taken = -(-(heads + ends - starts) // SECTOR) * SECTOR
        return cls(starts, ends, np.cumsum(taken) - taken + heads)

    @property
    def backed(self) -> int:
        """Bytes of memory that back the windows."""
        size = self.places[-1] + self.ends[-1] - self.starts[-1]
        return int(-(-size // SECTOR) * SECTOR)

    def find(self, offsets: Bytes, size: int) -> tuple[Bytes, NDArray[np.bool_]]:
        """Return places in the backing memory, and which accesses of `size` bytes lie in a window.

        `offsets` are bytes from the allocation's start, of any shape.
        """
        number = np.searchsorted(self.starts, offsets, side="right") - 1
        np.maximum(number, 0, out=number)
        start = self.starts[number]
        inside = (offsets >= start) & (offsets + size <= self.ends[number])
        return offsets + (self.places - self.starts)[number], inside

    def elements(self, itemsize: int) -> tuple[Bytes, Bytes]:
        """Return for every element of every window its number, and its place in elements."""
        counts = (self.ends - self.starts) // itemsize
        before = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(before, counts)
        numbers = np.repeat(self.starts // itemsize, counts) + within
        return numbers, np.repeat(self.places // itemsize, counts) + within


@dataclass(slots=True, eq=False)
class Allocation:
    """A piece of global memory. Kernels are given `start`."""

    name: str
    address: int
    size: int
    """Bytes that the kernel may believe to be there; of a sparse allocation few are backed."""
    offset: int
    """Where its backing memory begins in the arena."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    writable: bool
    initialised: bool
    written_once: bool
    windows: Windows | None = None
    """The backed ranges of a sparse allocation; None for a dense one, which is backed whole."""
    written: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """One flag for each backed byte: some launch has stored there."""
    lead: int = 0
    """Bytes at its start that kernels must not touch: what they are given begins after them."""
    gaps: NDArray[np.bool_] | None = None
    """One flag for each backed byte: it lies between rows, where there is nothing to read."""

    @property
    def start(self) -> int:
        """The first address that kernels may use."""
        return self.address + self.lead

    @property
    def end(self) -> int:
        """The first address past it."""
        return self.address + self.size

    @property
    def backed(self) -> int:
        """Bytes of the arena that it takes."""
        return self.size if self.windows is None else self.windows.backed


class GlobalMemory:
    """Allocations and their contents, which are kept from one launch to the next."""

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
        """Copy an array of any shape into new memory.

        With `initialised=False`, reading before writing is a defect. With `written_once=True`, so
        is a second store to an element within one launch.
        """
        data = np.ascontiguousarray(array)
        octets = data.reshape(-1).view(np.uint8)
        allocation = self._new(
            name, octets.size, octets.size, data.dtype, data.shape, writable=writable
        )
        allocation.initialised = initialised
        allocation.written_once = written_once
        self.arena[allocation.offset : allocation.offset + octets.size] = octets
        return allocation

    def allocate_sparse(
        self,
        elements: int,
        windows: Bytes,
        contents: Array,
        *,
        name: str,
        writable: bool = True,
        initialised: bool = True,
        written_once: bool = False,
    ) -> Allocation:
        """Make an array of `elements` elements of which only some ranges are backed.

        `windows` are ranges of elements, shape (windows, 2): first, and past the last; ascending
        and disjoint. `contents` are the elements of all windows, one after the other. Every access
        outside the windows is a finding. Raises ValueError for windows that overlap or do not fit.
        """
        windows = np.asarray(windows, np.int64).reshape(-1, 2)
        if not len(windows) or windows[0, 0] < 0 or windows[-1, 1] > elements:
            raise ValueError(f"windows of {name} must lie within its {elements} elements")
        itemsize = contents.dtype.itemsize
        if elements * itemsize > MOST_BYTES:
            raise ValueError(f"{name} has {elements * itemsize} bytes, too many for its address")
        backed = Windows.of(windows, itemsize)
        allocation = self._new(
            name, elements * itemsize, backed.backed, contents.dtype, (elements,), writable=writable
        )
        allocation.windows = backed
        allocation.initialised = initialised
        allocation.written_once = written_once
        self._view(allocation)[backed.elements(itemsize)[1]] = contents.reshape(-1)
        return allocation

    def _new(
        self,
        name: str,
        size: int,
        backed: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        writable: bool,
    ) -> Allocation:
        self._reserve(self._used + backed + 2 * _ALIGNMENT)
        allocation = Allocation(
            name=name,
            address=(len(self.allocations) + 1) << SLOT_BITS,
            size=size,
            offset=self._used,
            dtype=dtype,
            shape=shape,
            writable=writable,
            initialised=True,
            written_once=False,
            written=np.zeros(backed if writable else 0, np.bool_),
        )
        self._used += -(-backed // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        self.allocations.append(allocation)
        return allocation

    def _reserve(self, size: int) -> None:
        if size > self.arena.size:
            larger = np.zeros(-(-2 * size // _ALIGNMENT) * _ALIGNMENT, np.uint8)
            larger[: self._used] = self.arena[: self._used]
            self.arena = larger

    def find(self, address: int) -> Allocation | None:
        """Return the allocation in whose slot of the address space `address` lies, if any."""
        slot = (address >> SLOT_BITS) - 1
        return self.allocations[slot] if 0 <= slot < len(self.allocations) else None

    def _view(self, allocation: Allocation) -> Array:
        """Return the backing memory in elements."""
        octets = self.arena[allocation.offset : allocation.offset + allocation.backed]
        return octets.view(allocation.dtype)

    def read(self, allocation: Allocation) -> Array:
        """Return a copy of the contents.

        It has the dtype and shape of the array that was put in. Of a sparse allocation it holds
        the elements of all windows, one after the other.
        """
        values = self._view(allocation)
        if allocation.windows is not None:
            return values[allocation.windows.elements(allocation.dtype.itemsize)[1]]
        return values.copy().reshape(allocation.shape)

    def get(self, allocation: Allocation, elements: Bytes) -> Array:
        """Return elements by their numbers, in the shape of `elements`. All must be backed."""
        return self._view(allocation)[self.places(allocation, elements)]

    def put(self, allocation: Allocation, elements: Bytes, values: Array) -> None:
        """Replace elements by their numbers; `values` has the shape of `elements`."""
        self._view(allocation)[self.places(allocation, elements)] = values

    @staticmethod
    def places(allocation: Allocation, elements: Bytes) -> Bytes:
        """Return where elements lie in the backing memory, in elements. Raises ValueError."""
        if allocation.windows is None:
            return elements
        size = allocation.dtype.itemsize
        places, backed = allocation.windows.find(np.asarray(elements) * size, size)
        if not backed.all():
            raise ValueError(f"some elements of {allocation.name} lie outside its windows")
        return places // size

    def write(self, allocation: Allocation, array: Array) -> None:
        """Replace the contents of a dense allocation by an array of the same size."""
        octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.arena[allocation.offset : allocation.offset + allocation.size] = octets


def check_output(
    memory: GlobalMemory,
    allocation: Allocation,
    due: Bytes | None = None,
    *,
    may_stay: bool = False,
) -> tuple[Finding, ...]:
    """Return the defects of an output after its launches: what nobody wrote, and poison in it.

    `due` are the numbers of the elements to check; None for all, of a sparse output all windows.
    Those that `may_stay` as they were need not be written.
    """
    size = allocation.dtype.itemsize
    flags = allocation.written.view(f"u{size}")
    numbers = None if due is None else due.reshape(-1)
    if numbers is not None:
        values, flags = memory.get(allocation, numbers), flags[memory.places(allocation, numbers)]
    else:
        values = memory.read(allocation).reshape(-1)
        if allocation.windows is not None:
            numbers, places = allocation.windows.elements(size)
            flags = flags[places]
    written = flags == np.array([1] * size, np.uint8).view(flags.dtype)[0]
    groups = []
    missing = np.flatnonzero(~written)
    if missing.size and not may_stay:
        groups.append((Kind.NEVER_WRITTEN, "never written", missing))
    pattern = POISON.get(allocation.dtype)
    if pattern is not None:
        bad = np.flatnonzero(written & (values.view(pattern.dtype) == pattern))
        if bad.size:
            what = "poison" if allocation.dtype.kind == "i" else "NaN poison"
            groups.append((Kind.POISON, what, bad))
    return tuple(
        _element_finding(kind, what, allocation, places if numbers is None else numbers[places],
                         len(values))
        for kind, what, places in groups
    )  # fmt: skip


def _element_finding(
    kind: Kind, what: str, allocation: Allocation, elements: NDArray[Any], total: int
) -> Finding:
    """Return a finding on some elements of an output, by their numbers."""
    first = np.unravel_index(int(elements[0]), allocation.shape)
    index = ", ".join(str(int(i)) for i in first)
    message = f"{allocation.name}[{index}] {what}; {elements.size} of {total} elements"
    return Finding(kind, message, count=int(elements.size))
