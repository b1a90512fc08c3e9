"""State spaces: from addresses to places in memory, with bounds and alignment checked."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.memory import SLOT_BITS, Allocation
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.shadow import Shadow

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine

Addresses = NDArray[np.int64]

SHARED_WINDOW = 1 << 48
LOCAL_WINDOW = 1 << 49
"""Where shared and local memory lie among generic addresses; global memory lies below."""

RANK_SHIFT = 24
"""A shared::cluster address has its block's rank plus one above the offset; 0 is one's own."""


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
        return np.asarray(~wrong)

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
        """An address as an allocation and an offset."""
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
        if self.machine.launch.overlaps and allocation.writable:
            self._check_waited(allocation, index, lanes, access)
        if access.action == "read" and allocation.gaps is not None:
            self._check_gaps(allocation.gaps, index, lanes, access)
        return [Place(lanes, index, data, self.shadow(allocation), chosen)]

    def _check_waited(
        self, allocation: Allocation, index: Addresses, lanes: Lanes, access: Access
    ) -> None:
        """Report accesses to what launches before have written, by threads that did not wait."""
        touched = allocation.written[index[:, None] + np.arange(access.size)].any(axis=1)
        bad = touched & self.machine.unordered[lanes.flat]
        if bad.any():
            self.machine.report(
                Kind.GLOBAL_RACE,
                f"{access.action} of {allocation.name} without a wait for the launch before, which "
                "writes it and may not have ended yet",
                access.instruction,
                int(lanes.flat[int(np.argmax(bad))]),
                count=int(np.count_nonzero(bad)),
            )

    def _check_gaps(
        self, gaps: NDArray[np.bool_], index: Addresses, lanes: Lanes, access: Access
    ) -> None:
        """Report reads of what lies between rows; they get what is there."""
        bad = gaps[index[:, None] + np.arange(access.size)].any(axis=1)
        if bad.any():
            self.machine.report(
                Kind.OUT_OF_BOUNDS,
                f"read of {access.size} bytes reaches between rows, where nothing is to be read",
                access.instruction,
                int(lanes.flat[int(np.argmax(bad))]),
                count=int(np.count_nonzero(bad)),
            )

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
                shadow.initialised = np.asarray(words.reshape(-1, self._granule).all(axis=1))
            shadow.once = allocation.name if allocation.written_once else ""
            self._shadows[allocation.address] = shadow
        return self._shadows[allocation.address]


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
