"""cp.async.bulk and st.async: copies by the engine that mbarriers and bulk groups track.

PTX ISA, "cp.async.bulk", "st.async". Loads land when the phase of their mbarrier completes. Stores
are carried out at once, and their source must stay as it is until the group's wait. Bulk copies are
read and written in pieces of 16 bytes, each checked.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds
from explorer.ptx_emulator.findings import Kind
from explorer.ptx_emulator.happens_before import LaneIds
from explorer.ptx_emulator.lanes import Lanes
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.mbarriers import Mbarriers
from explorer.ptx_emulator.memory_instructions import (
    ACCESS_WORK,
    HINTS,
    TURN_WORK,
    Fences,
    bind_address,
)
from explorer.ptx_emulator.program import DTYPES, Array, Immediate, Instruction, Operand, Vector
from explorer.ptx_emulator.scheduler import Scheduler
from explorer.ptx_emulator.shadow import PENDING_TIME, THREAD, Access
from explorer.ptx_emulator.spaces import RANK_SHIFT, Place, Space

_CHUNK = 16

_SHARED_SPACES = ("shared::cluster", "shared::cta", "shared")


@dataclass(slots=True)
class _Engine:
    """A copy instruction, bound. Its operands are read lane by lane: few lanes issue one."""

    machine: Machine
    instruction: Instruction

    def __post_init__(self) -> None:
        self.machine.ordering.engine_used = True

    def chunks(
        self, space: Space, address: int, size: int, lane: int, action: str
    ) -> list[Place] | None:
        """Return the place of `size` bytes in pieces; None if they are not aligned, reported."""
        self.machine.work += TURN_WORK + ACCESS_WORK * size // _CHUNK
        if size % _CHUNK or address % _CHUNK:
            self.machine.report(
                Kind.MISALIGNED,
                f"bulk {action} of {size} bytes at {space.describe(address)}: both must be "
                f"multiples of {_CHUNK}",
                self.instruction,
                lane,
            )
            return None
        addresses = address + np.arange(0, size, _CHUNK, dtype=np.int64)
        lanes = Lanes(np.full(len(addresses), lane), self.machine.shape, None)
        access = Access(self.instruction, _CHUNK, action)
        return space.locate(addresses, lanes, access)

    def read(self, space: Space, address: int, size: int, lane: int, now: int) -> Array | None:
        """Return the bytes of a source, checked; None if not all of them can be read."""
        places = self.chunks(space, address, size, lane, "read")
        if not places or sum(len(place.index) for place in places) * _CHUNK != size:
            return None
        access = Access(self.instruction, _CHUNK, "read")
        for place in places:
            if place.shadow is not None:
                place.shadow.load(place.index, place.lanes, access, now)
        return np.concatenate([p.read(_CHUNK, np.dtype(np.uint8)) for p in places])

    def write_later(
        self,
        place: Place,
        values: Array,
        mbarrier: int,
        senders: LaneIds,
        size: int,
        width: int = _CHUNK,
    ) -> None:
        """Write when the phase of an mbarrier completes. Until then the words are pending.

        All that these lanes send to an mbarrier at once, `size` bytes, is written together.
        """
        machine = self.machine
        remote, mbarriers = machine.shared_space.remote, machine.part(Mbarriers)
        shadow, index = place.shadow, place.index
        assert shadow is not None
        engine = machine.first_lane + machine.ordering.async_lane + 1
        shadow.mark(index, width, np.full(len(index), PENDING_TIME << 32 | engine))
        barrier = mbarriers.get(mbarrier, self.instruction, senders)
        machine.counters.async_copy_bytes += size

        def land(now: int) -> None:
            place.write(width, values)
            shadow.mark(index, width, np.full(len(index), now << 32 | engine))
            remote.note_sent(targets, mbarrier, senders, now, landed=True)

        targets = index[: len(senders)] // machine.shared_space.block_bytes
        remote.note_sent(targets, mbarrier, senders, machine.now)
        if barrier is not None:
            if self.instruction.root == "cp":
                mbarriers.check_engine(barrier, self.instruction, int(senders[0]))
            if machine.cluster_size > 1:
                mbarriers.credit(barrier, senders, self.instruction)
            mbarriers.land_later(barrier, land, self.instruction, int(senders[0]))
            barrier.bytes_due -= size
            mbarriers.settle(barrier, self.instruction)


# cp.async.bulk.


@binds("cp.async.bulk")
def bind_bulk(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.bulk between global and shared memory, also of several blocks."""
    mods = Modifiers(instruction)
    mods.take("async")
    mods.take("bulk")
    to = mods.one_of((*_SHARED_SPACES, "global"))
    of = mods.one_of((*_SHARED_SPACES, "global"))
    tracked = mods.take("mbarrier::complete_tx::bytes")
    grouped = mods.take("bulk_group")
    cast = mods.take("multicast::cluster")
    mods.drop_prefixed(*HINTS)
    mods.finish()
    if tracked == grouped or tracked != to.startswith("shared"):
        raise mods.unsupported()
    destination, origin = (bind_address(binder, o) for o in instruction.operands[:2])
    size = binder.source(instruction.operands[2], "u32")
    engine = _Engine(binder.machine, instruction)
    if grouped:
        return _store_step(engine, destination, origin, size)
    mbarrier = bind_address(binder, instruction.operands[3])
    mask = binder.source(instruction.operands[4], "u16") if cast else None
    return _load_step(engine, of, destination, origin, size, mbarrier, mask)


def _load_step(
    engine: _Engine, of: str, destination: Any, origin: Any, size: Any, mbarrier: Any, mask: Any
) -> Step:
    machine = engine.machine

    def step(lanes: Lanes) -> None:
        operands = [f(lanes).tolist() for f in (destination, origin, mbarrier)]
        operands += [size.each(lanes).tolist()]
        masks = mask.each(lanes).tolist() if mask else [0] * lanes.count
        for lane, to, source, barrier, count, cast in zip(
            lanes.flat.tolist(), *operands, masks, strict=True
        ):
            now = machine.tick(engine.instruction)
            values = engine.read(machine.space(of), source, count, lane, now)
            if values is None:
                continue
            ranks: list[int | None] = [r + 1 for r in range(16) if cast >> r & 1] or [None]
            for rank in ranks:
                _load_one(engine, _at(to, rank), _at(barrier, rank), values, lane, now)

    return step


def _at(address: int, rank: int | None) -> int:
    return address if rank is None else address & ((1 << RANK_SHIFT) - 1) | rank << RANK_SHIFT


def _load_one(engine: _Engine, to: int, barrier: int, values: Array, lane: int, now: int) -> None:
    shared = engine.machine.shared_space
    places = engine.chunks(shared, to, len(values) * _CHUNK, lane, "write")
    access = Access(engine.instruction, _CHUNK, "write")
    for place in places or ():
        if len(place.index) == len(values) and place.shadow is not None:
            place.shadow.store(place.index, place.lanes, access, now)
            counted = shared.index_of(barrier, lane)
            engine.write_later(place, values, counted, np.array([lane]), values.size)


def _store_step(engine: _Engine, destination: Any, origin: Any, size: Any) -> Step:
    machine = engine.machine
    groups = machine.part(_BulkGroups)
    access = Access(engine.instruction, _CHUNK, "write")

    def step(lanes: Lanes) -> None:
        operands = zip(
            lanes.flat.tolist(),
            destination(lanes).tolist(),
            origin(lanes).tolist(),
            size.each(lanes).tolist(),
            strict=True,
        )
        for lane, to, source, count in operands:
            now = machine.tick(engine.instruction)
            machine.progress = True
            _check_proxy(engine, source, count, lane)
            values = engine.read(machine.shared_space, source, count, lane, now)
            if values is None:
                continue
            machine.counters.async_copy_bytes += count
            for place in engine.chunks(machine.global_space, to, count, lane, "write") or ():
                if len(place.index) == len(values):
                    if place.shadow is not None:
                        place.shadow.store(place.index, place.lanes, access, now)
                    place.write(_CHUNK, values)
            groups.open[lane].append(_hold(engine, source, count, lane))

    return step


def _check_proxy(engine: _Engine, source: int, count: int, lane: int) -> None:
    """Report what threads wrote without a fence.proxy.async before the engine reads it."""
    machine = engine.machine
    shadow, fences = machine.shared_space.shadow, machine.part(Fences)
    start = machine.shared_space.index_of(source, lane)
    rows, _ = shadow.words(np.arange(start, start + count, 4), 4)
    stamps = np.unique(shadow.write[rows[rows < len(shadow.write)]])
    when = stamps >> 32
    who = (stamps & THREAD) - 1 - machine.first_lane
    threads = (who >= 0) & (who < machine.ordering.lanes)
    fenced = fences.proxy[lane] > when
    fenced |= fences.proxy[np.where(threads, who, 0)] > when
    bad = threads & ~fenced
    if bad.any():
        machine.report(
            Kind.ASYNC_PROXY,
            "a bulk store reads shared memory that threads wrote without fence.proxy.async",
            engine.instruction,
            lane,
            other=machine.instruction_at(int(when[int(np.argmax(bad))])),
        )


def _hold(engine: _Engine, source: int, count: int, lane: int) -> int:
    """Mark the source as read by the engine, and return when.

    No barrier of threads orders what the engine does.
    """
    machine = engine.machine
    start = machine.shared_space.index_of(source, lane)
    index = np.arange(start, start + count, _CHUNK, dtype=np.int64)
    now = machine.tick(engine.instruction)
    code = machine.ordering.async_lane + 1 + machine.first_lane
    stamps = np.full((len(index), 1), now << 32 | code, np.int64)
    machine.shared_space.shadow.hold(index, _CHUNK, stamps)
    return now


# Groups of bulk stores.

_Times = list[int]
"""When stores read their source."""


class _BulkGroups:
    """The bulk stores in flight of each thread: in committed groups, and not yet committed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.open: dict[int, _Times] = defaultdict(list)
        self.committed: dict[int, list[_Times]] = defaultdict(list)
        machine.part(Scheduler).on_exit.append(self._exited)

    def _exited(self, lanes: Lanes) -> None:
        """Report threads that exit with bulk stores for which they never waited."""
        left = {lane for lane, groups in self.committed.items() if any(groups)}
        left |= {lane for lane, copies in self.open.items() if copies}
        if not left:
            return
        leaving = lanes.flat[np.isin(lanes.flat, sorted(left))]
        if len(leaving):
            instructions = self._machine.entry.instructions
            last = next(i for i in reversed(instructions) if i.root == "cp")
            message = "a thread exits before its bulk store has read shared memory"
            self._machine.report(
                Kind.ASYNC_WAIT, message, last, int(leaving[0]), count=len(leaving)
            )

    def commit(self, lanes: Lanes) -> None:
        """Make what each lane stored since its last commit one group."""
        for lane in lanes.flat.tolist():
            self.committed[lane].append(self.open.pop(lane, []))

    def wait(self, lanes: Lanes, pending: int) -> None:
        """Let all but the last `pending` groups of each lane be done with their source."""
        ordering = self._machine.ordering
        for lane in lanes.flat.tolist():
            groups = self.committed[lane]
            done = groups[: len(groups) - pending] if pending else list(groups)
            del groups[: len(done)]
            times = [when for group in done for when in group]
            if times:
                row: NDArray[np.int64] = np.zeros(ordering.lanes + 1, np.int64)
                row[ordering.async_lane] = max(times)
                ordering.acquire(np.array([lane]), row)


@binds("cp.async.bulk.commit_group")
def bind_bulk_commit(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.bulk.commit_group."""
    return binder.machine.part(_BulkGroups).commit


@binds("cp.async.bulk.wait_group")
def bind_bulk_wait(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.bulk.wait_group{.read} N."""
    operand = instruction.operands[0]
    assert isinstance(operand, Immediate)
    pending = int(operand.value)
    machine, groups = binder.machine, binder.machine.part(_BulkGroups)

    def step(lanes: Lanes) -> None:
        machine.tick(instruction)
        groups.wait(lanes, pending)

    return step


# st.async.


@binds("st.async")
def bind_st_async(binder: Binder, instruction: Instruction) -> Step:
    """Bind st.async: registers to another block's shared memory, tracked by an mbarrier there."""
    mods = Modifiers(instruction)
    mods.take("async")
    mods.take("weak")
    mods.one_of(_SHARED_SPACES)
    mods.one_of(("mbarrier::complete_tx::bytes",))
    ptx_type = mods.one_of(DTYPES)
    count = int(mods.one_of(("v2", "v4"), "v1")[1:])
    mods.finish()
    to, of, barrier_operand = instruction.operands
    items: tuple[Operand, ...] = of.items if isinstance(of, Vector) else (of,)
    sources = [binder.source(o, ptx_type) for o in items]
    destination, mbarrier = bind_address(binder, to), bind_address(binder, barrier_operand)
    machine, shared = binder.machine, binder.machine.shared_space
    engine = _Engine(machine, instruction)
    size = DTYPES[ptx_type].itemsize * count
    access = Access(instruction, size, "write")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        machine.work += ACCESS_WORK * lanes.count
        values = np.stack([np.asarray(s.each(lanes)) for s in sources], axis=1)
        addresses, barriers = destination(lanes), mbarrier(lanes)
        for place in shared.locate(addresses, lanes, access):
            assert place.shadow is not None
            place.shadow.store(place.index, place.lanes, access, now)
            kept = ... if place.chosen is None else place.chosen
            _store_later(engine, place, values[kept], barriers[kept], size)

    return step


def _store_later(
    engine: _Engine, place: Place, values: Array, barriers: NDArray[np.int64], size: int
) -> None:
    """Let each lane of a place store `size` bytes there, counted by the mbarrier that it names."""
    shared, mbarriers = engine.machine.shared_space, engine.machine.part(Mbarriers)
    senders = place.lanes.flat
    counted = shared.indices_of(barriers, senders)
    for mbarrier in dict.fromkeys(counted.tolist()):
        rows = np.flatnonzero(counted == mbarrier)
        while len(rows):
            # What follows a store that completes the phase belongs to the next one.
            count = mbarriers.stores_due(mbarrier, size) or len(rows)
            these, rows = rows[:count], rows[count:]
            lanes = Lanes(senders[these], place.lanes.shape, None)
            part = Place(lanes, place.index[these], place.data, place.shadow)
            sent = size * len(these)
            engine.write_later(part, values[these], mbarrier, lanes.flat, sent, size)
