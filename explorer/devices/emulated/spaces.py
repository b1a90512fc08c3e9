"""State spaces: from addresses to places in memory, with bounds and alignment checked."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.memory import SLOT_BITS, Allocation
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.shadow import Access, Shadow

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

Addresses = NDArray[np.int64]

SHARED_WINDOW = 1 << 48
LOCAL_WINDOW = 1 << 49
"""Where shared and local memory lie among generic addresses; global memory lies below."""

RANK_SHIFT = 24
"""A shared::cluster address has its block's rank plus one above the offset; 0 is one's own."""

_UNITS: dict[int, Any] = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


@dataclass(slots=True)
class Place:
    """Where some lanes access one space or allocation."""

    lanes: Lanes
    index: Addresses
    """Bytes from the start of `data`."""
    data: NDArray[np.uint8]
    shadow: Shadow | None
    chosen: NDArray[np.bool_] | None = None
    """Which of the instruction's lanes these are; None for all."""

    def read(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Values of shape (lanes, components)."""
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            return np.take(unit, self.index // size).reshape(-1, 1).view(dtype)
        return np.take(self.data.reshape(-1, size), self.index // size, axis=0).view(dtype)

    def write(self, size: int, values: Array) -> None:
        """Store values of shape (lanes, components)."""
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            unit[self.index // size] = values.view(_UNITS[size])[:, 0]
        else:
            octets = values.view(np.uint8).reshape(len(self.index), -1)
            self.data.reshape(-1, size)[self.index // size] = octets


class Space:
    """One state space of a batch."""

    name = ""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine

    def locate(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        """Where the accesses go; those that are out of bounds or misaligned are reported."""
        aligned = self._aligned(addresses, lanes, access)
        if aligned is not None:
            lanes, addresses = lanes.where(aligned), addresses[aligned]
        places = self._places(addresses, lanes, access) if lanes.count else []
        if aligned is not None:
            for place in places:
                inner = place.chosen
                place.chosen = aligned.copy()
                if inner is not None:
                    place.chosen[aligned] = inner
        return places

    def _aligned(
        self, addresses: Addresses, lanes: Lanes, access: Access
    ) -> NDArray[np.bool_] | None:
        low_bits = access.size - 1
        if not int(np.bitwise_or.reduce(addresses)) & low_bits:
            return None
        wrong = (addresses & low_bits) != 0
        first = int(np.argmax(wrong))
        self.machine.report(
            Kind.MISALIGNED,
            f"{access.action} of {access.size} bytes at {self.name} address "
            f"{self.describe(int(addresses[first]))}",
            access.instruction,
            int(lanes.flat[first]),
            count=int(np.count_nonzero(wrong)),
        )
        return ~wrong

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        raise NotImplementedError

    def describe(self, address: int) -> str:
        """An address in words."""
        return hex(address)

    def _outside(self, addresses: Addresses, lanes: Lanes, access: Access, bad: Any) -> None:
        first = int(np.argmax(bad))
        self.machine.report(
            Kind.OUT_OF_BOUNDS,
            f"{access.action} of {access.size} bytes at {self.name} address "
            f"{self.describe(int(addresses[first]))}",
            access.instruction,
            int(lanes.flat[first]),
            count=int(np.count_nonzero(bad)),
        )


class GlobalSpace(Space):
    """Global memory: each access must lie within one allocation."""

    name = "global"

    def __init__(self, machine: "Machine", granule: int, shadows: dict[int, Shadow]) -> None:
        super().__init__(machine)
        self._memory = machine.memory
        self._granule = granule
        self._shadows = shadows

    def describe(self, address: int) -> str:
        allocation = self._memory.find(address)
        if allocation is None:
            near = self._memory.find(address + (1 << SLOT_BITS - 1))
            if near is None:
                return hex(address)
            allocation = near
        offset = address - allocation.start
        return f"{allocation.name}{offset:+d} (of {allocation.size - allocation.lead} bytes)"

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        low, high = int(addresses.min()), int(addresses.max())
        allocation = self._memory.find(low)
        fits = allocation is not None and high + access.size <= allocation.end
        if allocation is not None and fits and low >= allocation.start:
            return self._within(allocation, addresses, lanes, access, None)
        slots = addresses >> SLOT_BITS
        places = []
        for slot in np.unique(slots):
            chosen = slots == slot
            allocation = self._memory.find(int(slot) << SLOT_BITS)
            start, end = (allocation.start, allocation.end) if allocation else (0, 0)
            inside = chosen & (addresses >= start) & (addresses + access.size <= end)
            outside = chosen & ~inside
            if outside.any():
                self._outside(addresses, lanes, access, outside)
            if allocation is not None and inside.any():
                places += self._within(
                    allocation, addresses[inside], lanes.where(inside), access, inside
                )
        return places

    def _within(
        self,
        allocation: Allocation,
        addresses: Addresses,
        lanes: Lanes,
        access: Access,
        chosen: NDArray[np.bool_] | None,
    ) -> list[Place]:
        if access.action != "read" and not allocation.writable:
            self.machine.report(
                Kind.READ_ONLY,
                f"{access.action} to the read-only {allocation.name}",
                access.instruction,
                int(lanes.flat[0]),
                count=lanes.count,
            )
            return []
        data = self._memory.arena[allocation.offset :]
        data = data[: len(data) // 32 * 32]
        index = addresses - allocation.address
        return [Place(lanes, index, data, self.shadow(allocation), chosen)]

    def shadow(self, allocation: Allocation) -> Shadow | None:
        """The allocation's shadow in this launch; none for what is only read."""
        if not allocation.writable:
            return None
        if allocation.address not in self._shadows:
            empty = None if allocation.initialised else Kind.UNINITIALISED_GLOBAL
            shadow = Shadow(
                self.machine, allocation.size, self._granule, race=Kind.GLOBAL_RACE, empty=empty
            )
            if empty is not None and allocation.written.any():
                words = np.zeros(len(shadow.write) * self._granule, np.bool_)
                words[: allocation.size] = allocation.written
                shadow.initialised = words.reshape(-1, self._granule).all(axis=1)
            shadow.once = allocation.name if allocation.written_once else ""
            self._shadows[allocation.address] = shadow
        return self._shadows[allocation.address]


class SharedSpace(Space):
    """Shared memory of all blocks of the batch, and of a cluster's other blocks."""

    name = "shared"

    def __init__(
        self, machine: "Machine", ranges: list[tuple[int, int, str]], granule: int
    ) -> None:
        super().__init__(machine)
        self.ranges = ranges
        """Start, end and name of each variable."""
        self.block_bytes = -(-max([end for _, end, _ in ranges], default=0) // 128) * 128 + 128
        size = machine.blocks * self.block_bytes
        self.data = np.full(size // 4, 0x7FEDEAD0, np.uint32).view(np.uint8)
        self.shadow = Shadow(
            machine, size, granule, race=Kind.SHARED_RACE, empty=Kind.UNINITIALISED_SHARED
        )

    def describe(self, address: int) -> str:
        offset = address & ((1 << RANK_SHIFT) - 1)
        starts = [r for r in self.ranges if r[0] <= offset] or self.ranges[:1]
        if not starts:
            return f"{offset}"
        start, end, name = starts[-1]
        return f"{name}{offset - start:+d} (of {end - start} bytes)"

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        low, high = int(addresses.min()), int(addresses.max())
        blocks = lanes.flat // self.machine.ordering.per_block
        offsets = addresses
        chosen: NDArray[np.bool_] | None = None
        if high >> RANK_SHIFT or low < 0:
            blocks = self.target_blocks(addresses, lanes, access)
            offsets = addresses & ((1 << RANK_SHIFT) - 1)
            low, high = int(offsets.min()), int(offsets.max())
        single = any(start <= low and high + access.size <= end for start, end, _ in self.ranges)
        if not single or (blocks < 0).any():
            chosen = self._inside(offsets, access.size) & (blocks >= 0)
            if not chosen.all():
                self._outside(addresses, lanes, access, ~chosen)
            offsets, blocks, lanes = offsets[chosen], blocks[chosen], lanes.where(chosen)
            if not lanes.count:
                return []
        index = blocks * self.block_bytes + offsets
        return [Place(lanes, index, self.data, self.shadow, chosen)]

    def _inside(self, offsets: Addresses, size: int) -> NDArray[np.bool_]:
        inside = np.zeros(len(offsets), np.bool_)
        for start, end, _ in self.ranges:
            inside |= (offsets >= start) & (offsets + size <= end)
        return inside

    def target_blocks(self, addresses: Addresses, lanes: Lanes, access: Access) -> Addresses:
        """The block of the batch that each address lies in; -1 where there is none."""
        machine = self.machine
        own = lanes.flat // machine.ordering.per_block
        rank = addresses >> RANK_SHIFT
        base = own // machine.cluster_size * machine.cluster_size
        target = np.where(rank == 0, own, base + rank - 1)
        target[(rank < 0) | (rank > machine.cluster_size)] = -1
        remote = (target != own) & (target >= 0)
        if remote.any():
            machine.clusters.note_remote(target[remote], lanes.flat[remote], access)
        return target


class LocalSpace(Space):
    """Each thread's own memory."""

    name = "local"

    def __init__(self, machine: "Machine", ranges: list[tuple[int, int, str]]) -> None:
        super().__init__(machine)
        self.ranges = ranges
        self.thread_bytes = -(-max([end for _, end, _ in ranges], default=0) // 32) * 32
        self.data = np.zeros(machine.ordering.lanes * self.thread_bytes, np.uint8)

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        inside = np.zeros(len(addresses), np.bool_)
        for start, end, _ in self.ranges:
            inside |= (addresses >= start) & (addresses + access.size <= end)
        chosen = None
        if not inside.all():
            self._outside(addresses, lanes, access, ~inside)
            chosen, addresses, lanes = inside, addresses[inside], lanes.where(inside)
        if not lanes.count:
            return []
        return [Place(lanes, lanes.flat * self.thread_bytes + addresses, self.data, None, chosen)]
