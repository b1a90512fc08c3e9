"""cp.async.bulk and st.async: copies by the engine that mbarriers and bulk groups track.

PTX ISA, "cp.async.bulk", "st.async". Loads land when their mbarrier's phase completes. Stores are
carried out at once, and their source must stay as it is until the group's wait.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.accesses import HINTS, bind_address
from explorer.devices.emulated.asynchronous import bind_cp_async
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind, UnsupportedPtx
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.machine import Machine
from explorer.devices.emulated.mbarriers import BoundMbarrier, Mbarrier
from explorer.devices.emulated.program import Immediate, Instruction, Operand, Vector
from explorer.devices.emulated.ptx_types import DTYPES, Array
from explorer.devices.emulated.shadow import PENDING_TIME, Access
from explorer.devices.emulated.spaces import RANK_SHIFT, Place, Space

_CHUNK = 16
_SHARED = ("shared::cluster", "shared::cta", "shared")


@binds("cp")
def bind_cp(binder: Binder, instruction: Instruction) -> Step:
    """cp.async in both its forms."""
    if instruction.modifiers[:1] != ("async",):
        raise UnsupportedPtx((instruction.opcode,))
    if "bulk" not in instruction.modifiers:
        if "mbarrier" in instruction.modifiers:
            return _bind_mbarrier_arrive(binder, instruction)
        return bind_cp_async(binder, instruction)
    if "prefetch" in instruction.modifiers:
        return lambda lanes: None
    if "commit_group" in instruction.modifiers:
        return lambda lanes: _commit(binder.machine, lanes)
    if "wait_group" in instruction.modifiers:
        return _bind_wait(binder, instruction)
    return _bind_bulk(binder, instruction)


def _bind_mbarrier_arrive(binder: Binder, instruction: Instruction) -> Step:
    """cp.async.mbarrier.arrive.noinc: an arrival once the thread's copies have landed.

    They are made to land here, at the earliest moment that is allowed.
    """
    if "noinc" not in instruction.modifiers:
        raise UnsupportedPtx((instruction.opcode,))
    bound = BoundMbarrier(binder, instruction, "shared", instruction.operands[0])
    machine = binder.machine

    def step(lanes: Lanes) -> None:
        machine.asynchronous.wait(lanes, None, machine.tick(instruction))

        def arrive(barrier: Mbarrier, lane: int, row: int) -> None:
            known = machine.ordering.knowledge(lane, machine.tick(instruction))
            machine.mbarriers.arrive(barrier, 1, known, instruction, lane)

        bound.each(lanes, arrive)

    return step


@dataclass(slots=True)
class _Engine:
    """A bulk copy, bound: operands are read lane by lane, since few lanes issue one."""

    machine: Machine
    instruction: Instruction

    def chunks(
        self, space: Space, address: int, size: int, lane: int, action: str
    ) -> list[Place] | None:
        """The place of `size` bytes as accesses of 16 bytes; None if that was reported."""
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
        """Bytes of a source, checked."""
        places = self.chunks(space, address, size, lane, "read")
        if not places or sum(len(place.index) for place in places) * _CHUNK != size:
            return None
        access = Access(self.instruction, _CHUNK, "read")
        for place in places:
            if place.shadow is not None:
                place.shadow.load(place.index, place.lanes, access, now)
        return np.concatenate([p.read(_CHUNK, np.dtype(np.uint8)) for p in places])

    def write_later(
        self, place: Place, values: Array, mbarrier: int, lane: int, size: int, width: int = _CHUNK
    ) -> None:
        """Write when the mbarrier's phase completes; until then the words are pending."""
        machine = self.machine
        assert place.shadow is not None
        engine = machine.first_lane + machine.ordering.async_lane + 1
        place.shadow.mark(
            place.index, width, np.full(len(place.index), PENDING_TIME << 32 | engine)
        )
        barrier = machine.mbarriers.get(mbarrier, self.instruction, lane)
        machine.counters.async_copy_bytes += size

        def land(now: int) -> None:
            assert place.shadow is not None
            place.write(width, values)
            place.shadow.mark(place.index, width, np.full(len(place.index), now << 32 | engine))

        if barrier is not None:
            barrier.landings.append(land)
            barrier.bytes_due -= size
            machine.mbarriers.settle(barrier, self.instruction)


def _shared_place(machine: Machine, address: int, lane: int) -> int:
    """The place of a shared address in the batch's shared memory."""
    block = lane // machine.ordering.per_block
    rank = address >> RANK_SHIFT
    if rank:
        block = block // machine.cluster_size * machine.cluster_size + rank - 1
    return block * machine.shared_space.block_bytes + (address & ((1 << RANK_SHIFT) - 1))


def _bind_bulk(binder: Binder, instruction: Instruction) -> Step:
    mods = binder.modifiers(instruction)
    mods.take("async")
    mods.take("bulk")
    to = mods.one_of((*_SHARED, "global"))
    of = mods.one_of((*_SHARED, "global"))
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
    binder.machine.asynchronous.used = True
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
            ranks = [r + 1 for r in range(16) if cast >> r & 1] or [None]
            for rank in ranks:
                _load_one(engine, _at(to, rank), _at(barrier, rank), values, lane, now)

    return step


def _at(address: int, rank: int | None) -> int:
    return address if rank is None else address & ((1 << RANK_SHIFT) - 1) | rank << RANK_SHIFT


def _load_one(engine: _Engine, to: int, barrier: int, values: Array, lane: int, now: int) -> None:
    machine = engine.machine
    places = engine.chunks(machine.shared_space, to, len(values) * _CHUNK, lane, "write")
    access = Access(engine.instruction, _CHUNK, "write")
    for place in places or ():
        if len(place.index) == len(values) and place.shadow is not None:
            place.shadow.store(place.index, place.lanes, access, now)
            engine.write_later(
                place, values, _shared_place(machine, barrier, lane), lane, values.size
            )


def _store_step(engine: _Engine, destination: Any, origin: Any, size: Any) -> Step:
    machine = engine.machine
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
            _hold(engine, source, count, lane)

    return step


def _check_proxy(engine: _Engine, source: int, count: int, lane: int) -> None:
    """What threads wrote must pass a fence.proxy.async before the engine reads it."""
    machine = engine.machine
    shadow = machine.shared_space.shadow
    start = _shared_place(machine, source, lane)
    rows, _ = shadow.words(np.arange(start, start + count, 4), 4)
    stamps = np.unique(shadow.write[rows[rows < len(shadow.write)]])
    when = stamps >> 32
    who = (stamps & 0xFFFFFFFF) - 1 - machine.first_lane
    threads = (who >= 0) & (who < machine.ordering.lanes)
    fenced = machine.proxy_fences[lane] > when
    fenced |= machine.proxy_fences[np.where(threads, who, 0)] > when
    bad = threads & ~fenced
    if bad.any():
        machine.report(
            Kind.ASYNC_PROXY,
            "a bulk store reads shared memory that threads wrote without fence.proxy.async",
            engine.instruction,
            lane,
            other=machine.instruction_at(int(when[int(np.argmax(bad))])),
        )


def _hold(engine: _Engine, source: int, count: int, lane: int) -> None:
    """Mark the source as read by the engine, which no barrier of threads orders."""
    machine = engine.machine
    start = _shared_place(machine, source, lane)
    index = np.arange(start, start + count, _CHUNK, dtype=np.int64)
    lanes = Lanes(np.full(len(index), machine.ordering.async_lane), machine.shape, None)
    access = Access(engine.instruction, _CHUNK, "read")
    place = Place(lanes, index, machine.shared_space.data, machine.shared_space.shadow)
    now = machine.tick(engine.instruction)
    rows, width = machine.shared_space.shadow.words(index, access.size)
    codes = (lanes.flat + (1 + machine.first_lane))[:, None]
    machine.shared_space.shadow._note_read(rows, width, codes, now)
    machine.bulk.open[lane].append((place, now))


def _commit(machine: Machine, lanes: Lanes) -> None:
    for lane in lanes.flat.tolist():
        machine.bulk.committed[lane].append(machine.bulk.open.pop(lane, []))


def _bind_wait(binder: Binder, instruction: Instruction) -> Step:
    """cp.async.bulk.wait_group{.read} N: the thread's older groups are done with their source."""
    pending = instruction.operands[0]
    assert isinstance(pending, Immediate)
    count = int(pending.value)
    machine = binder.machine

    def step(lanes: Lanes) -> None:
        machine.tick(instruction)
        for lane in lanes.flat.tolist():
            groups = machine.bulk.committed[lane]
            done = groups[: len(groups) - count] if count else list(groups)
            del groups[: len(done)]
            times = [when for group in done for _, when in group]
            if times:
                row = np.zeros(machine.ordering.lanes + 1, np.int64)
                row[machine.ordering.async_lane] = max(times)
                machine.ordering.acquire(np.array([lane]), row)

    return step


def bulk_stores_left(machine: Machine, lanes: Lanes) -> NDArray[np.intp]:
    """Of these lanes, those with bulk stores that they never waited for."""
    bulk = machine.bulk
    left = {lane for lane, groups in bulk.committed.items() if any(groups)}
    left |= {lane for lane, copies in bulk.open.items() if copies}
    return lanes.flat[np.isin(lanes.flat, sorted(left))] if left else lanes.flat[:0]


@binds("st.async")
def bind_st_async(binder: Binder, instruction: Instruction) -> Step:
    """st.async: registers to another block's shared memory, tracked by an mbarrier there."""
    mods = binder.modifiers(instruction)
    mods.take("async")
    mods.take("weak")
    mods.one_of(_SHARED)
    mods.one_of(("mbarrier::complete_tx::bytes",))
    ptx_type = mods.one_of(DTYPES)
    count = int(mods.one_of(("v2", "v4"), "v1")[1:])
    mods.finish()
    to, of, barrier_operand = instruction.operands
    items: tuple[Operand, ...] = of.items if isinstance(of, Vector) else (of,)
    sources = [binder.source(o, ptx_type) for o in items]
    destination, mbarrier = bind_address(binder, to), bind_address(binder, barrier_operand)
    machine = binder.machine
    machine.asynchronous.used = True
    engine = _Engine(machine, instruction)
    size = DTYPES[ptx_type].itemsize * count
    access = Access(instruction, size, "write")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        values = np.stack([np.asarray(s.each(lanes)) for s in sources], axis=1)
        addresses, barriers = destination(lanes), mbarrier(lanes).tolist()
        for place in machine.shared_space.locate(addresses, lanes, access):
            assert place.shadow is not None
            place.shadow.store(place.index, place.lanes, access, now)
            kept = np.arange(lanes.count) if place.chosen is None else np.flatnonzero(place.chosen)
            for number, row in enumerate(kept.tolist()):
                lane = int(lanes.flat[row])
                one = Place(Lanes(lanes.flat[row : row + 1], lanes.shape, None),
                            place.index[number : number + 1], place.data, place.shadow)  # fmt: skip
                where = _shared_place(machine, barriers[row], lane)
                engine.write_later(one, values[row : row + 1], where, lane, size, size)

    return step
