"""Shared memory of a batch, addressed by its own block or by another of the cluster."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.shadow import Shadow
from explorer.devices.emulated.spaces import RANK_SHIFT, Addresses, Space

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


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
        """An address as a variable and an offset."""
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
