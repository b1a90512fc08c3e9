"""The copy engine: bulk copies are read and written in pieces of 16 bytes, each checked."""

from dataclasses import dataclass

import numpy as np

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.machine import Machine
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.shadow import PENDING_TIME
from explorer.devices.emulated.spaces import RANK_SHIFT, Space

CHUNK = 16


SHARED_SPACES = ("shared::cluster", "shared::cta", "shared")


@dataclass(slots=True)
class BulkEngine:
    """A bulk copy, bound: operands are read lane by lane, since few lanes issue one."""

    machine: Machine
    instruction: Instruction

    def chunks(
        self, space: Space, address: int, size: int, lane: int, action: str
    ) -> list[Place] | None:
        """The place of `size` bytes as accesses of 16 bytes; None if that was reported."""
        if size % CHUNK or address % CHUNK:
            self.machine.report(
                Kind.MISALIGNED,
                f"bulk {action} of {size} bytes at {space.describe(address)}: both must be "
                f"multiples of {CHUNK}",
                self.instruction,
                lane,
            )
            return None
        addresses = address + np.arange(0, size, CHUNK, dtype=np.int64)
        lanes = Lanes(np.full(len(addresses), lane), self.machine.shape, None)
        access = Access(self.instruction, CHUNK, action)
        return space.locate(addresses, lanes, access)

    def read(self, space: Space, address: int, size: int, lane: int, now: int) -> Array | None:
        """Bytes of a source, checked."""
        places = self.chunks(space, address, size, lane, "read")
        if not places or sum(len(place.index) for place in places) * CHUNK != size:
            return None
        access = Access(self.instruction, CHUNK, "read")
        for place in places:
            if place.shadow is not None:
                place.shadow.load(place.index, place.lanes, access, now)
        return np.concatenate([p.read(CHUNK, np.dtype(np.uint8)) for p in places])

    def write_later(
        self, place: Place, values: Array, mbarrier: int, lane: int, size: int, width: int = CHUNK
    ) -> None:
        """Write when the mbarrier's phase completes; until then the words are pending."""
        machine = self.machine
        assert place.shadow is not None
        engine = machine.first_lane + machine.ordering.async_lane + 1
        place.shadow.mark(
            place.index, width, np.full(len(place.index), PENDING_TIME << 32 | engine)
        )
        barrier = machine.mbarriers.get(mbarrier, self.instruction, np.array([lane]))
        machine.counters.async_copy_bytes += size

        def land(now: int) -> None:
            assert place.shadow is not None
            place.write(width, values)
            place.shadow.mark(place.index, width, np.full(len(place.index), now << 32 | engine))
            machine.clusters.note_sent(target, mbarrier, lane, machine.ordering.async_lane, now)

        target = int(place.index[0]) // machine.shared_space.block_bytes
        machine.clusters.note_sent(target, mbarrier, lane, lane, machine.now)
        if barrier is not None:
            if self.instruction.root == "cp":
                machine.mbarriers.check_engine(barrier, self.instruction, lane)
            barrier.landings.append(land)
            barrier.bytes_due -= size
            machine.mbarriers.settle(barrier, self.instruction)


def shared_place(machine: Machine, address: int, lane: int) -> int:
    """The place of a shared address in the batch's shared memory."""
    block = lane // machine.ordering.per_block
    rank = address >> RANK_SHIFT
    if rank:
        block = block // machine.cluster_size * machine.cluster_size + rank - 1
    return block * machine.shared_space.block_bytes + (address & ((1 << RANK_SHIFT) - 1))
