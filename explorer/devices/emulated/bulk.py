"""cp.async.bulk and st.async: copies by the engine that mbarriers and bulk groups track.

PTX ISA, "cp.async.bulk", "st.async". Loads land when their mbarrier's phase completes. Stores are
carried out at once, and their source must stay as it is until the group's wait.
"""

from typing import Any

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.addresses import HINTS, bind_address
from explorer.devices.emulated.asynchronous import bind_cp_async
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.bulk_engine import CHUNK, SHARED_SPACES, BulkEngine, shared_place
from explorer.devices.emulated.bulk_stores import bind_bulk_wait, commit, store_step
from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.mbarrier_instructions import BoundMbarrier
from explorer.devices.emulated.mbarriers import Mbarrier
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.spaces import RANK_SHIFT


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
        return lambda lanes: commit(binder.machine, lanes)
    if "wait_group" in instruction.modifiers:
        return bind_bulk_wait(binder, instruction)
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


def _bind_bulk(binder: Binder, instruction: Instruction) -> Step:
    mods = binder.modifiers(instruction)
    mods.take("async")
    mods.take("bulk")
    to = mods.one_of((*SHARED_SPACES, "global"))
    of = mods.one_of((*SHARED_SPACES, "global"))
    tracked = mods.take("mbarrier::complete_tx::bytes")
    grouped = mods.take("bulk_group")
    cast = mods.take("multicast::cluster")
    mods.drop_prefixed(*HINTS)
    mods.finish()
    if tracked == grouped or tracked != to.startswith("shared"):
        raise mods.unsupported()
    destination, origin = (bind_address(binder, o) for o in instruction.operands[:2])
    size = binder.source(instruction.operands[2], "u32")
    engine = BulkEngine(binder.machine, instruction)
    binder.machine.asynchronous.used = True
    if grouped:
        return store_step(engine, destination, origin, size)
    mbarrier = bind_address(binder, instruction.operands[3])
    mask = binder.source(instruction.operands[4], "u16") if cast else None
    return _load_step(engine, of, destination, origin, size, mbarrier, mask)


def _load_step(
    engine: BulkEngine, of: str, destination: Any, origin: Any, size: Any, mbarrier: Any, mask: Any
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


def _load_one(
    engine: BulkEngine, to: int, barrier: int, values: Array, lane: int, now: int
) -> None:
    machine = engine.machine
    places = engine.chunks(machine.shared_space, to, len(values) * CHUNK, lane, "write")
    access = Access(engine.instruction, CHUNK, "write")
    for place in places or ():
        if len(place.index) == len(values) and place.shadow is not None:
            place.shadow.store(place.index, place.lanes, access, now)
            engine.write_later(
                place, values, shared_place(machine, barrier, lane), lane, values.size
            )
