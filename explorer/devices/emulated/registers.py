"""The registers of a batch, and how instructions read and write them.

A register is an array of shape (blocks, warps, 32), which it shares with registers that are never
in use when it is. One that is assigned once, from a literal or a launch constant, is a scalar.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.ptx_types import DTYPES, STORAGE, Array, Values, storage_dtype


class Source:
    """An operand that is read: a scalar, or an array of the batch's shape."""

    __slots__ = ("_flat", "value")

    def __init__(self, value: Values) -> None:
        self.value: Any = value
        self._flat: Array | None = None
        if isinstance(value, np.ndarray) and value.ndim == 3:
            self._flat = value.reshape(-1)

    @property
    def scalar(self) -> Any | None:
        """The operand's value where it is the same for all lanes at all times, else None."""
        return self.value if self._flat is None else None

    def at(self, lanes: Lanes) -> Any:
        """Its values for these lanes: a scalar, a view of the box, or gathered by index."""
        if lanes.full or self._flat is None:
            return self.value
        if lanes.box is not None:
            return self.value[lanes.box]
        return self._flat[lanes.flat]

    def each(self, lanes: Lanes) -> Array:
        """Its values in the order of `lanes.flat`, one for each lane."""
        values = self.at(lanes)
        if self._flat is None:
            return np.broadcast_to(values, (lanes.count,))
        return np.asarray(values).reshape(-1)


class NarrowedSource(Source):
    """A register wider than the type that the instruction reads: its low bits."""

    __slots__ = ("_dtype",)

    def __init__(self, value: Values, dtype: np.dtype[Any]) -> None:
        super().__init__(value)
        self._dtype = dtype

    @property
    def scalar(self) -> Any | None:
        """The low bits of the value where it is the same for all lanes."""
        return self._narrow(self.value) if self._flat is None else None

    def at(self, lanes: Lanes) -> Any:
        """The low bits of its values for these lanes."""
        return self._narrow(super().at(lanes))

    def _narrow(self, values: Any) -> Any:
        return np.asarray(values).astype(STORAGE[self._dtype.itemsize]).view(self._dtype)


class NegatedSource(Source):
    """A predicate read as `!%p`."""

    __slots__ = ()

    def at(self, lanes: Lanes) -> Any:
        """The negated values for these lanes."""
        return np.logical_not(super().at(lanes))


class Target:
    """An operand that is written."""

    __slots__ = ("array", "flat")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.flat = array.reshape(-1)

    def put(self, lanes: Lanes, values: Any) -> None:
        """Write a scalar, values in the box's shape, or values in the order of `lanes.flat`."""
        if lanes.full:
            self.array[...] = self._shaped(values, self.array)
        elif lanes.box is not None:
            view = self.array[lanes.box]
            view[...] = self._shaped(values, view)
        else:
            self.flat[lanes.flat] = values

    @staticmethod
    def _shaped(values: Any, view: Array) -> Any:
        if type(values) is not np.ndarray or values.ndim != 1:
            return values
        # Arithmetic on scalars alone may have given one value for all.
        return values.reshape(view.shape) if len(values) == view.size else values[0]


class NoTarget(Target):
    """The destination `_`, or a register known to be constant: nothing is kept."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.uint32))

    def put(self, lanes: Lanes, values: Any) -> None:
        """Drop the values."""


class RegisterFile:
    """The registers of one batch, allotted as they are bound."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        declared: Mapping[str, str],
        constants: Mapping[str, int],
        slots: Mapping[str, tuple[int, int]],
    ) -> None:
        assert shape[2] == WARP
        self._shape = shape
        self._declared = declared
        self._constants = constants
        self._slots = slots
        self._arrays: dict[tuple[int, int], Array] = {}

    def _storage(self, name: str) -> Values:
        dtype = storage_dtype(self._declared[name])
        if name in self._constants:
            scalar: np.generic = dtype.type(self._constants[name] & ((1 << 8 * dtype.itemsize) - 1))
            return scalar
        slot = self._slots[name]
        if slot not in self._arrays:
            self._arrays[slot] = np.zeros(self._shape, dtype)
        return self._arrays[slot]

    def itemsize(self, name: str) -> int:
        """Bytes of a register."""
        return storage_dtype(self._declared[name]).itemsize

    def source(self, name: str, ptx_type: str, *, negated: bool = False) -> Source:
        """Read register `name` as a value of `ptx_type`."""
        values = self._storage(name)
        dtype = DTYPES[ptx_type]
        if ptx_type == "pred":
            return NegatedSource(values) if negated else Source(values)
        if values.dtype.itemsize > dtype.itemsize:
            return NarrowedSource(values, dtype)
        if values.dtype.itemsize < dtype.itemsize:
            # Only conversions and stores of a wider type do so; the extra bits are zero.
            return Source(values.astype(STORAGE[dtype.itemsize]).view(dtype))
        return Source(values.view(dtype))

    def target(self, name: str, ptx_type: str) -> Target:
        """Write register `name` with values of `ptx_type`; a wider register is extended."""
        if name in self._constants:
            return NoTarget()
        values = self._storage(name)
        assert isinstance(values, np.ndarray)
        dtype = DTYPES[ptx_type]
        if values.dtype.itemsize == dtype.itemsize:
            return Target(values.view(dtype))
        signed = np.issubdtype(dtype, np.signedinteger)
        return Target(values.view(f"i{values.itemsize}") if signed else values)
