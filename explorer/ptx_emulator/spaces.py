"""State spaces: from addresses to places in memory, with bounds and alignment checked.

PTX ISA, chapter "State Spaces, Types, and Variables".
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.batch import Batch
from explorer.ptx_emulator.findings import Kind
from explorer.ptx_emulator.geometry import Layout, Ranges
from explorer.ptx_emulator.happens_before import LaneIds
from explorer.ptx_emulator.lanes import Lanes, all_of, any_of, distinct
from explorer.ptx_emulator.memory import SLOT_BITS, Allocation, GlobalMemory
from explorer.ptx_emulator.program import Array
from explorer.ptx_emulator.registers import unassigned
from explorer.ptx_emulator.shadow import Access, Shadow

Addresses = NDArray[np.int64]

SHARED_WINDOW = 1 << 54
LOCAL_WINDOW = 1 << 55
"""Where shared and local memory lie among generic addresses. Global memory lies below."""

RANK_SHIFT = 24
"""A shared::cluster address has the rank of its block plus one above the offset; 0 is one's own."""

_UNITS: dict[int, Any] = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


@dataclass(slots=True)
class Place:
    """Where some lanes access one space or allocation."""

    lanes: Lanes
    index: Addresses
    """Bytes from the start of `data`, one for each lane."""
    data: NDArray[np.uint8]
    shadow: Shadow | None
    chosen: NDArray[np.bool_] | None = None
    """Which of the instruction's lanes these are; None for all."""

    def read(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return values of shape (lanes, components)."""
        number = self._number(size)
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            read: Array = unit.take(number).reshape(-1, 1).view(dtype)
            return read
        return self.data.reshape(-1, size).take(number, axis=0).view(dtype)

    def _number(self, size: int) -> Addresses:
        """Return the index in units of `size` bytes, which is a power of 2."""
        return self.index >> size.bit_length() - 1

    def write(self, size: int, values: Array) -> None:
        """Store values of shape (lanes, components)."""
        if size in _UNITS:
            unit = self.data.view(_UNITS[size])
            unit[self._number(size)] = values.view(_UNITS[size])[:, 0]
        else:
            octets = values.view(np.uint8).reshape(len(self.index), -1)
            self.data.reshape(-1, size)[self._number(size)] = octets

    def within(self, outer: NDArray[np.bool_]) -> "Place":
        """Say which lanes these are of a larger set, of which `outer` had been chosen."""
        inner, self.chosen = self.chosen, outer.copy()
        if inner is not None:
            self.chosen[outer] = inner
        return self


class Space:
    """One state space of a batch."""

    name = ""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def locate(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        """Return where the accesses go. Those out of bounds or misaligned are reported."""
        aligned = self._aligned(addresses, lanes, access)
        if aligned is None:
            return self._places(addresses, lanes, access) if lanes.count else []
        lanes, addresses = lanes.where(aligned), addresses[aligned]
        places = self._places(addresses, lanes, access) if lanes.count else []
        return [place.within(aligned) for place in places]

    def _aligned(
        self, addresses: Addresses, lanes: Lanes, access: Access
    ) -> NDArray[np.bool_] | None:
        """Return which accesses are aligned; None for all."""
        low_bits = access.size - 1
        if not int(np.bitwise_or.reduce(addresses)) & low_bits:
            return None
        wrong = (addresses & low_bits) != 0
        self._report(Kind.MISALIGNED, self._at(addresses, access, wrong), lanes, access, wrong)
        return np.asarray(~wrong)

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        raise NotImplementedError

    def describe(self, address: int) -> str:
        """Return an address in words."""
        return hex(address)

    def _at(self, addresses: Addresses, access: Access, bad: NDArray[np.bool_]) -> str:
        address = int(addresses[int(np.argmax(bad))])
        return (
            f"{access.action} of {access.size} bytes at {self.name} address "
            f"{self.describe(address)}"
        )

    def _report(
        self,
        kind: Kind,
        message: str,
        lanes: Lanes,
        access: Access,
        bad: NDArray[np.bool_],
        key: object = None,
    ) -> None:
        """Report the accesses of the lanes that are `bad`."""
        self._batch.report(
            kind,
            message,
            access.instruction,
            int(lanes.flat[int(np.argmax(bad))]),
            count=int(np.count_nonzero(bad)),
            key=key,
        )

    def _outside(
        self, addresses: Addresses, lanes: Lanes, access: Access, bad: NDArray[np.bool_]
    ) -> None:
        message = self._at(addresses, access, bad)
        self._report(Kind.OUT_OF_BOUNDS, message, lanes, access, bad)


class GlobalSpace(Space):
    """Global memory. Each access must lie within one allocation."""

    name = "global"

    def __init__(
        self,
        batch: Batch,
        memory: GlobalMemory,
        granule: int,
        shadows: dict[int, Shadow],
        *,
        overlaps: bool,
        others_write: bool = False,
    ) -> None:
        """`shadows` are those of the launch by address; all its batches share them.

        With `overlaps`, the launch before may not have ended when this one begins. If that is of
        another program and `others_write`, it may write all memory.
        """
        super().__init__(batch)
        self._memory = memory
        self._granule = granule
        self._shadows = shadows
        for shadow in shadows.values():
            shadow.attach(batch)
        self._unordered = np.ones(batch.ordering.lanes, np.bool_) if overlaps else None
        """Threads that have not waited for the launch before; None if it has ended."""
        self._others_write = others_write

    def wait_for_launch_before(self, lanes: Lanes) -> None:
        """Note that these threads go on once the launch before has ended."""
        if self._unordered is not None:
            self._unordered[lanes.flat] = False

    def describe(self, address: int) -> str:
        """Return an address as an allocation and an offset."""
        allocation = self._memory.find(address)
        if allocation is None:
            near = self._memory.find(address + (1 << SLOT_BITS - 1))
            if near is None:
                return hex(address)
            allocation = near
        offset = address - allocation.start
        size = allocation.end - allocation.start
        return f"{allocation.name}{offset:+d} (of {size} bytes)"

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        allocation = self._memory.find(low)
        fits = allocation is not None and high + access.size <= allocation.end
        if allocation is not None and fits and low >= allocation.start:
            return self._within(allocation, addresses, lanes, access)
        slots = addresses >> SLOT_BITS
        places = []
        for slot in np.unique(slots):
            chosen = slots == slot
            allocation = self._memory.find(int(slot) << SLOT_BITS)
            start, end = (allocation.start, allocation.end) if allocation else (0, 0)
            inside = chosen & (addresses >= start) & (addresses + access.size <= end)
            outside = chosen & ~inside
            if any_of(outside):
                self._outside(addresses, lanes, access, outside)
            if allocation is not None and any_of(inside):
                part = self._within(allocation, addresses[inside], lanes.where(inside), access)
                places += [place.within(inside) for place in part]
        return places

    def _within(
        self, allocation: Allocation, addresses: Addresses, lanes: Lanes, access: Access
    ) -> list[Place]:
        """Return the place of accesses that lie within an allocation."""
        if access.action != "read" and not allocation.writable:
            message = f"{access.action} to the read-only {allocation.name}"
            self._report(Kind.READ_ONLY, message, lanes, access, np.ones(lanes.count, np.bool_))
            return []
        index = addresses - allocation.address
        backed = None
        if allocation.windows is not None:
            index, backed = allocation.windows.find(index, access.size)
            if all_of(backed):
                backed = None
            else:
                self._outside_windows(allocation, addresses, lanes, access, ~backed)
                lanes, index = lanes.where(backed), index[backed]
                if not lanes.count:
                    return []
        data = self._memory.arena[allocation.offset :]
        data = data[: len(data) // 32 * 32]
        if self._unordered is not None and (allocation.writable or self._others_write):
            self._check_waited(allocation, self._unordered, index, lanes, access)
            if access.non_coherent:
                self._check_read_only(allocation, index, lanes, access)
        if access.action == "read" and allocation.gaps is not None:
            self._check_gaps(allocation.gaps, index, lanes, access)
        return [Place(lanes, index, data, self.shadow(allocation), backed)]

    def _outside_windows(
        self,
        allocation: Allocation,
        addresses: Addresses,
        lanes: Lanes,
        access: Access,
        bad: NDArray[np.bool_],
    ) -> None:
        """Report accesses to parts of a sparse allocation that no block which runs works on."""
        itemsize = allocation.dtype.itemsize
        element = (int(addresses[int(np.argmax(bad))]) - allocation.start) // itemsize
        message = (
            f"{access.action} of {access.size} bytes at element {element} of {allocation.name}, "
            "which belongs to no block that runs: a wrong index?"
        )
        self._report(Kind.OUT_OF_BOUNDS, message, lanes, access, bad, key="window")

    def _check_waited(
        self,
        allocation: Allocation,
        unordered: NDArray[np.bool_],
        index: Addresses,
        lanes: Lanes,
        access: Access,
    ) -> None:
        """Report accesses to what earlier launches wrote by threads that did not wait for them."""
        if not any_of(unordered[lanes.flat]):
            return
        bad = self._written_before(allocation, index, access) & unordered[lanes.flat]
        if any_of(bad):
            message = (
                f"{access.action} of {allocation.name} without a wait for the launch before, which "
                "writes it and may not have ended yet"
            )
            self._report(Kind.GLOBAL_RACE, message, lanes, access, bad)

    def _check_read_only(
        self, allocation: Allocation, index: Addresses, lanes: Lanes, access: Access
    ) -> None:
        """Report loads through the non-coherent cache of what was written while this launch ran.

        That cache is for what is only read as long as a kernel runs, and waiting does not end it.
        """
        touched = self._written_before(allocation, index, access)
        if any_of(touched):
            message = (
                f"load through the non-coherent cache (ld.global.nc) of {allocation.name}, which "
                "the launch before writes, and this one may begin before that has ended"
            )
            self._report(Kind.NON_COHERENT, message, lanes, access, touched)

    def _written_before(
        self, allocation: Allocation, index: Addresses, access: Access
    ) -> NDArray[np.bool_]:
        """Return for each access whether launches before may write what it touches."""
        if self._others_write:
            return np.ones(len(index), np.bool_)
        return _touched(allocation.written, index, access)

    def _check_gaps(
        self, gaps: NDArray[np.bool_], index: Addresses, lanes: Lanes, access: Access
    ) -> None:
        """Report reads of what lies between rows. They get what is there."""
        bad = _touched(gaps, index, access)
        if any_of(bad):
            message = (
                f"read of {access.size} bytes reaches between rows, where nothing is to be read"
            )
            self._report(Kind.OUT_OF_BOUNDS, message, lanes, access, bad)

    def shadow(self, allocation: Allocation) -> Shadow | None:
        """Return the allocation's shadow in this launch; None for what is only read."""
        if not allocation.writable:
            return None
        if allocation.address not in self._shadows:
            empty = None if allocation.initialised else Kind.UNINITIALISED_GLOBAL
            shadow = Shadow(
                self._batch, allocation.backed, self._granule, race=Kind.GLOBAL_RACE, empty=empty
            )
            if empty is not None and allocation.written.any():
                words = np.zeros(len(shadow.write) * self._granule, np.bool_)
                words[: allocation.backed] = allocation.written
                shadow.initialised = np.asarray(words.reshape(-1, self._granule).all(axis=1))
            shadow.once = allocation.name if allocation.written_once else ""
            self._shadows[allocation.address] = shadow
        return self._shadows[allocation.address]


def _touched(marked: NDArray[np.bool_], index: Addresses, access: Access) -> NDArray[np.bool_]:
    """Return which accesses, of those that begin at `index`, touch a byte that is marked."""
    return np.asarray(marked[index[:, None] + np.arange(access.size)].any(axis=1))


def _unmangled(name: str) -> str:
    """Return the name that a function's static variable has in its source (Itanium C++ ABI)."""
    match = re.fullmatch(r"_ZZ\w+?E(\d+)([A-Za-z_]\w*)", name)
    if match is None or len(match[2]) < int(match[1]):
        return name
    return match[2][: int(match[1])]


class SharedSpace(Space):
    """Shared memory of all blocks of a batch, addressed by the own block or by its cluster's."""

    name = "shared"

    def __init__(self, batch: Batch, layout: Layout) -> None:
        super().__init__(batch)
        self._ranges = layout.shared_ranges
        ends = max([end for _, end, _ in self._ranges], default=0)
        self.block_bytes = -(-ends // 128) * 128 + 128
        """Bytes of `data` that each block has."""
        size = batch.blocks * self.block_bytes
        self.data = np.full(size // 4, 0x7FEDEAD0, np.uint32).view(np.uint8)
        self.shadow = Shadow(
            batch,
            size,
            layout.shared_granule,
            race=Kind.SHARED_RACE,
            empty=Kind.UNINITIALISED_SHARED,
        )
        self.remote = RemoteAccesses(batch)

    def describe(self, address: int) -> str:
        """Return an address as a variable and an offset."""
        offset = address & ((1 << RANK_SHIFT) - 1)
        starts = [r for r in self._ranges if r[0] <= offset] or self._ranges[:1]
        if not starts:
            return f"{offset}"
        start, end, name = starts[-1]
        return f"{_unmangled(name)}{offset - start:+d} (of {end - start} bytes)"

    def index_of(self, address: int, lane: int) -> int:
        """Return where in `data` an address of a lane lies, which need not be in bounds."""
        return int(self.indices_of(np.array([address]), np.array([lane]))[0])

    def indices_of(self, addresses: Addresses, lanes: LaneIds) -> Addresses:
        """Return where in `data` an address of each lane lies, which need not be in bounds."""
        own = self._batch.ordering.block_of[lanes]
        rank, cluster = addresses >> RANK_SHIFT, self._batch.cluster_size
        blocks = np.where(rank == 0, own, own // cluster * cluster + rank - 1)
        return np.asarray(blocks * self.block_bytes + (addresses & ((1 << RANK_SHIFT) - 1)))

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        low, high = int(np.minimum.reduce(addresses)), int(np.maximum.reduce(addresses))
        blocks = self._batch.blocks_of(lanes)
        offsets = addresses
        chosen: NDArray[np.bool_] | None = None
        absent = False
        if high >> RANK_SHIFT or low < 0:
            blocks = self._target_blocks(addresses, lanes, access)
            offsets = addresses & ((1 << RANK_SHIFT) - 1)
            low, high = int(offsets.min()), int(offsets.max())
            absent = any_of(blocks < 0)
        single = any(start <= low and high + access.size <= end for start, end, _ in self._ranges)
        if not single or absent:
            chosen = _inside(self._ranges, offsets, access.size) & (blocks >= 0)
            if not all_of(chosen):
                self._outside(addresses, lanes, access, ~chosen)
            offsets, blocks, lanes = offsets[chosen], blocks[chosen], lanes.where(chosen)
            if not lanes.count:
                return []
        index = blocks * self.block_bytes + offsets
        return [Place(lanes, index, self.data, self.shadow, chosen)]

    def _target_blocks(self, addresses: Addresses, lanes: Lanes, access: Access) -> Addresses:
        """Return the block of the batch that each address lies in; -1 if there is none."""
        batch = self._batch
        own = batch.blocks_of(lanes)
        rank = addresses >> RANK_SHIFT
        base = own // batch.cluster_size * batch.cluster_size
        target = np.where(rank == 0, own, base + rank - 1)
        target[(rank < 0) | (rank > batch.cluster_size)] = -1
        remote = (target != own) & (target >= 0)
        if any_of(remote):
            self.remote.note(target[remote], lanes.flat[remote], access)
        return target


def _inside(ranges: Ranges, offsets: Addresses, size: int) -> NDArray[np.bool_]:
    """Return which accesses of `size` bytes lie within one of the ranges."""
    inside = np.zeros(len(offsets), np.bool_)
    for start, end, _ in ranges:
        inside |= (offsets >= start) & (offsets + size <= end)
    return inside


class RemoteAccesses:
    """Accesses to the shared memory of other blocks of a cluster, which must be alive."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._accessed: dict[tuple[int, int], tuple[int, int]] = {}
        """(target block, accessing block) to the last accessing lane and its time."""
        self._sent: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(target block, storing block, mbarrier) to the lane and time of its last asynchronous
        store; once that has come, to the copy engine and when it did."""
        self._ended = np.zeros(batch.blocks, np.bool_)

    def note(self, targets: Array, lanes: Array, access: Access) -> None:
        """Note that lanes access the shared memory of blocks `targets`, one each."""
        batch = self._batch
        now = batch.now
        early = batch.ordering.cluster_met[lanes] == 0
        self._report(early, lanes, access, "before a cluster barrier says that it has started")
        self._report(self._ended[targets], lanes, access, "after it has exited")
        if "async" in access.instruction.modifiers:
            return  # It is under way until it comes, as its mbarrier counts.
        for target, block, lane in self._last(targets, lanes):
            self._accessed[target, block] = (lane, now)

    def note_sent(
        self, targets: Array, mbarrier: int, lanes: LaneIds, now: int, *, landed: bool = False
    ) -> None:
        """Note that lanes store to blocks `targets`, one each, counted by an mbarrier.

        With `landed`, what they stored has come, and the copy engine is who stored it.
        """
        engine = self._batch.ordering.async_lane
        for target, block, lane in self._last(targets, lanes):
            if target != block:
                self._sent[target, block, mbarrier] = (engine if landed else lane, now)

    def _last(self, targets: Array, lanes: LaneIds) -> list[tuple[int, int, int]]:
        """Return each (target, own block) that lanes access, with the last of its lanes."""
        own = self._batch.ordering.block_of[lanes]
        pairs, first = np.unique((targets * self._batch.blocks + own)[::-1], return_index=True)
        last = lanes[::-1][first].tolist()
        return [
            (*divmod(p, self._batch.blocks), n) for p, n in zip(pairs.tolist(), last, strict=True)
        ]

    def _report(self, bad: Array, lanes: Array, access: Access, when: str) -> None:
        if any_of(bad):
            self._batch.report(
                Kind.CLUSTER,
                f"{access.action} of another block's shared memory {when}",
                access.instruction,
                int(lanes[int(np.argmax(bad))]),
                count=int(np.count_nonzero(bad)),
                key=when,
            )

    def exited(self, lanes: Lanes, all_exited: Array) -> None:
        """Check that a block whose last threads exit knows of all accesses to its memory."""
        if self._batch.ordering.cluster_size == 1:
            return
        per_block = self._batch.ordering.per_block
        blocks = self._batch.blocks_of(lanes)
        gone = np.asarray(all_exited.reshape(-1, per_block).all(axis=1))
        ended = {block for block in distinct(blocks).tolist() if gone[block]}
        self._ended[list(ended)] = True
        accesses: dict[int, list[tuple[int, int]]] = {}
        for (target, *_), access in (*self._accessed.items(), *self._sent.items()):
            if target in ended:
                accesses.setdefault(target, []).append(access)
        for block, known in accesses.items():
            self._check_exit(lanes.flat[blocks == block], known)

    def _check_exit(self, leaving: Array, accesses: list[tuple[int, int]]) -> None:
        """Check that of each access, a lane and a time, some lane that leaves knows."""
        batch, lanes = self._batch, len(leaving)
        who, times = np.array(accesses, np.int64).T
        left = np.flatnonzero(times > int(batch.ordering.cluster_met[leaving].max()))
        # Mostly the first lane knows of all: the others are asked for the rest.
        first = np.repeat(leaving[:1], len(left))
        left = left[~batch.ordering.ordered(who[left], times[left], first)]
        if not len(left):
            return
        who, times = who[left], times[left]
        each = np.repeat(who, lanes), np.repeat(times, lanes), np.tile(leaving, len(who))
        known = batch.ordering.ordered(*each).reshape(-1, lanes)
        for number in left[~known.any(axis=1)].tolist():
            lane, when = accesses[number]
            batch.report(
                Kind.CLUSTER,
                "the block may exit while another one still accesses its shared memory",
                batch.instruction_at(when),
                lane,
                key="exit",
            )


class LocalSpace(Space):
    """Each thread's own memory."""

    name = "local"

    def __init__(self, batch: Batch, layout: Layout) -> None:
        super().__init__(batch)
        self._ranges = layout.local_ranges
        ends = max([end for _, end, _ in self._ranges], default=0)
        self._thread_bytes = -(-ends // 32) * 32
        words = batch.ordering.lanes * self._thread_bytes // 4
        self._data = unassigned(4, words).copy().view(np.uint8)

    def _places(self, addresses: Addresses, lanes: Lanes, access: Access) -> list[Place]:
        inside = _inside(self._ranges, addresses, access.size)
        chosen = None
        if not all_of(inside):
            self._outside(addresses, lanes, access, ~inside)
            chosen, addresses, lanes = inside, addresses[inside], lanes.where(inside)
        if not lanes.count:
            return []
        index = lanes.flat * self._thread_bytes + addresses
        return [Place(lanes, index, self._data, None, chosen)]
