"""Bulk stores: carried out at once; their source must stay as it is until the group's wait."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.bulk_engine import CHUNK, BulkEngine, shared_place
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.machine import Machine
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import Immediate, Instruction


def store_step(engine: BulkEngine, destination: Any, origin: Any, size: Any) -> Step:
    """cp.async.bulk from shared to global memory."""
    machine = engine.machine
    access = Access(engine.instruction, CHUNK, "write")

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
                    place.write(CHUNK, values)
            _hold(engine, source, count, lane)

    return step


def _check_proxy(engine: BulkEngine, source: int, count: int, lane: int) -> None:
    """What threads wrote must pass a fence.proxy.async before the engine reads it."""
    machine = engine.machine
    shadow = machine.shared_space.shadow
    start = shared_place(machine, source, lane)
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


def _hold(engine: BulkEngine, source: int, count: int, lane: int) -> None:
    """Mark the source as read by the engine, which no barrier of threads orders."""
    machine = engine.machine
    start = shared_place(machine, source, lane)
    index = np.arange(start, start + count, CHUNK, dtype=np.int64)
    lanes = Lanes(np.full(len(index), machine.ordering.async_lane), machine.shape, None)
    access = Access(engine.instruction, CHUNK, "read")
    place = Place(lanes, index, machine.shared_space.data, machine.shared_space.shadow)
    now = machine.tick(engine.instruction)
    rows, width = machine.shared_space.shadow.words(index, access.size)
    codes = (lanes.flat + (1 + machine.first_lane))[:, None]
    machine.shared_space.shadow.readers.note(rows, width, codes, now, 1)
    machine.bulk.open[lane].append((place, now))


def commit(machine: Machine, lanes: Lanes) -> None:
    """cp.async.bulk.commit_group: what was stored since the last commit is one group."""
    for lane in lanes.flat.tolist():
        machine.bulk.committed[lane].append(machine.bulk.open.pop(lane, []))


def bind_bulk_wait(binder: Binder, instruction: Instruction) -> Step:
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
