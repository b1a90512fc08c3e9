"""Which threads of a batch an instruction runs for.

A batch of blocks is an array of shape (blocks, warps, 32), and a lane is a thread's place in it.
Sets of lanes that form a box (every n-th block, a run of warps, a run of lanes) are kept as slices,
so that registers are read as views instead of being gathered.
"""

from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Box = EllipsisType | tuple[slice, slice, slice]
Shape = tuple[int, int, int]
Flat = NDArray[np.intp]

WARP = 32

MOST_PARTS = 128
"""Parts of a batch's lanes that are remembered, of up to a sixth of a megabyte each."""


class Lanes:
    """A set of lanes: ascending flat indices, and slices if they form a box."""

    __slots__ = (
        *("_parent", "_parts", "_room", "_warps", "_whole"),
        *("box", "count", "flat", "full", "shape"),
    )

    def __init__(self, flat: Flat, shape: Shape, box: Box | None) -> None:
        self.flat = flat
        self.shape = shape
        self.box = box
        self.count = len(flat)
        self.full = box is Ellipsis
        self._warps = -1
        self._whole: bool | None = None
        self._parent: Lanes | None = None
        self._parts: dict[bytes, Lanes] | None = None
        self._room: list[int] = []

    def remember_parts(self) -> None:
        """Find each part of these lanes once, until `forget_parts`: loops part them often."""
        self._parts, self._room = {}, [MOST_PARTS]

    def forget_parts(self) -> None:
        """Let go of all parts, which hold these lanes as these hold them."""
        parts, self._parts = self._parts or {}, None
        for part in parts.values():
            part.forget_parts()

    @classmethod
    def every(cls, shape: Shape) -> "Lanes":
        """Return all lanes of a batch."""
        return cls(np.arange(shape[0] * shape[1] * shape[2]), shape, ...)

    @classmethod
    def of(cls, flat: Flat, shape: Shape) -> "Lanes":
        """Return the lanes with these ascending indices."""
        return cls(flat, shape, _box(flat, shape))

    @property
    def warps(self) -> int:
        """How many warps have a lane here."""
        if self._warps < 0:
            self._warps = self._count_warps()
        return self._warps

    def _count_warps(self) -> int:
        if self.full:
            return self.shape[0] * self.shape[1]
        ids = self.flat >> 5
        return int(np.count_nonzero(np.diff(ids))) + 1 if self.count else 0

    @property
    def whole_warps(self) -> bool:
        """Whether all 32 lanes of each warp that has a lane here are here."""
        if self._whole is None:
            self._whole = self.full or self.count == self.warps * WARP
        return self._whole

    def where(self, chosen: NDArray[np.bool_]) -> "Lanes":
        """Return the lanes for which `chosen` holds.

        `chosen` is in the order of `flat`, or has the box's shape.
        """
        if self._parts is None:
            return Lanes.of(self.flat[chosen.reshape(-1)], self.shape)
        key = chosen.tobytes()
        part = self._parts.get(key)
        if part is None:
            part = Lanes.of(self.flat[chosen.reshape(-1)], self.shape)
            if self._room[0]:
                self._room[0] -= 1
                self._parts[key] = part
                part._parent, part._parts, part._room = self, {}, self._room
        return part

    def union(self, other: "Lanes") -> "Lanes":
        """Return the lanes of either set. The two must share none."""
        whole = self._parent
        if whole is not None and whole is other._parent and self.count + other.count == whole.count:
            return whole
        blocks, warps, width = self.shape
        if self.count + other.count == blocks * warps * width:
            return Lanes.every(self.shape)
        return Lanes.of(np.sort(np.concatenate([self.flat, other.flat])), self.shape)

    def mask(self) -> NDArray[np.bool_]:
        """Return one flag for each lane of the batch."""
        present = np.zeros(self.shape[0] * self.shape[1] * self.shape[2], np.bool_)
        present[self.flat] = True
        return present

    def warp_bits(self) -> NDArray[np.uint32]:
        """Return for each warp of the batch its lanes here as a 32-bit mask."""
        bits = np.packbits(self.mask().reshape(-1, WARP), axis=1, bitorder="little")
        return bits.view(np.uint32).reshape(-1)


def _box(flat: Flat, shape: Shape) -> Box | None:
    """Return slices that pick exactly these lanes, or None if there are none."""
    blocks, warps, width = shape
    if len(flat) == blocks * warps * width:
        return ...
    if len(flat) == 0:
        return None
    first, last = int(flat[0]), int(flat[-1])
    per_block = warps * width
    if last - first + 1 == len(flat):
        return _run(first, last, per_block)
    present = np.zeros(shape, np.bool_)
    present.reshape(-1)[flat] = True
    axes = (
        present[:, first // width % warps, first % width],
        present[first // per_block, :, first % width],
        present[first // per_block, first // width % warps, :],
    )
    slices = []
    size = 1
    for axis in axes:
        line = _progression(axis)
        if line is None:
            return None
        slices.append(line)
        size *= int(np.count_nonzero(axis))
    box = (slices[0], slices[1], slices[2])
    complete = size == len(flat) and bool(present[box].all()) and bool(present.reshape(-1)[last])
    return box if complete else None


def _run(first: int, last: int, per_block: int) -> Box | None:
    """Return slices that pick the lanes from `first` to `last`, or None if there are none."""
    (block, lane), (last_block, last_lane) = divmod(first, per_block), divmod(last, per_block)
    warp, last_warp = lane // WARP, last_lane // WARP
    blocks, warps = slice(block, last_block + 1), slice(warp, last_warp + 1)
    if block == last_block and warp == last_warp:
        return blocks, warps, slice(lane % WARP, last_lane % WARP + 1)
    if lane % WARP or (last_lane + 1) % WARP:
        return None
    if block == last_block or (lane == 0 and last_lane + 1 == per_block):
        return blocks, warps, slice(0, WARP)
    return None


def _progression(axis: NDArray[np.bool_]) -> slice | None:
    """Return the slice that picks the true elements, or None if their distances differ."""
    places = np.flatnonzero(axis)
    if len(places) == 1:
        return slice(int(places[0]), int(places[0]) + 1)
    step = int(places[1] - places[0])
    if (len(places) - 1) * step != int(places[-1] - places[0]) or not axis[
        places[0] : places[-1] + 1 : step
    ].all():
        return None
    return slice(int(places[0]), int(places[-1]) + 1, step)


def any_of(flags: Any) -> bool:
    """Return whether one of some flags is set, an array of any shape or a scalar.

    It takes a third of the time of `flags.any()`, of many flags a sixth, and is asked several times
    an instruction.
    """
    return bool(flags.size and flags.item(flags.argmax()))


def all_of(flags: Any) -> bool:
    """Return whether all of some flags are set, an array of any shape or a scalar."""
    return bool(not flags.size or flags.item(flags.argmin()))


def distinct(numbers: NDArray[Any]) -> NDArray[np.intp]:
    """Return the different ones of some small numbers, none below 0, in ascending order.

    For the numbers of blocks and warps it takes a tenth of the time of np.unique.
    """
    return np.flatnonzero(np.bincount(numbers))
