"""cp.async: copies that land only when their thread waits for them. PTX ISA, "cp.async".

The destination counts as pending from the copy to the wait, and reading it in between is a defect.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds
from explorer.ptx_emulator.lanes import Lanes, all_of, any_of
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.mbarriers import BoundMbarrier, Mbarrier, Mbarriers
from explorer.ptx_emulator.memory_instructions import HINTS, bind_address, locate
from explorer.ptx_emulator.program import Array, Immediate, Instruction
from explorer.ptx_emulator.registers import Source
from explorer.ptx_emulator.shadow import PENDING_TIME, Access
from explorer.ptx_emulator.spaces import Place


@dataclass(slots=True)
class _Copy:
    """One executed cp.async: which lanes it still has in flight, and what they will write."""

    place: Place
    size: int
    values: Array
    group: NDArray[np.int64]
    """The group that each lane's copy belongs to, counted by its thread."""
    flying: NDArray[np.bool_]


class _CopiesInFlight:
    """The copies of a batch that have not landed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copies: list[_Copy] = []
        self._committed = np.zeros(machine.ordering.lanes, np.int64)

    def start(self, place: Place, size: int, values: Array) -> None:
        """Begin a copy into `place`. Its words are pending from now on."""
        lanes = place.lanes
        assert place.shadow is not None
        # The engine's mark, not the thread's: the thread too must wait before it reads.
        engine = self._machine.first_lane + self._machine.ordering.async_lane + 1
        pending = np.full(lanes.count, PENDING_TIME << 32 | engine)
        place.shadow.mark(place.index, size, pending)
        group = self._committed[lanes.flat]
        self._copies.append(_Copy(place, size, values, group, np.ones(lanes.count, np.bool_)))
        self._machine.counters.async_copy_bytes += size * lanes.count

    def commit(self, lanes: Lanes) -> None:
        """Make what these lanes started since their last commit one group."""
        self._committed[lanes.flat] += 1

    def wait(self, lanes: Lanes, pending: int | None, now: int) -> None:
        """Land all but the last `pending` groups of these lanes; None: all, committed or not."""
        waits = lanes.mask()
        for copy in self._copies:
            who = copy.place.lanes.flat
            landing = copy.flying & waits[who]
            if pending is not None:
                landing &= copy.group < self._committed[who] - pending
            if any_of(landing):
                self._land(copy, landing, now)
        self._copies = [copy for copy in self._copies if any_of(copy.flying)]

    def _land(self, copy: _Copy, landing: NDArray[np.bool_], now: int) -> None:
        place = copy.place
        part = Place(place.lanes.where(landing), place.index[landing], place.data, place.shadow)
        part.write(copy.size, copy.values[landing])
        assert place.shadow is not None
        codes = part.lanes.flat + (1 + self._machine.first_lane)
        place.shadow.mark(part.index, copy.size, now << 32 | codes)
        copy.flying &= ~landing


@binds("cp.async.commit_group")
def bind_commit(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.commit_group."""
    return binder.machine.part(_CopiesInFlight).commit


@binds("cp.async.wait_all", "cp.async.wait_group")
def bind_wait(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.wait_group N, and wait_all, which waits for uncommitted copies as well."""
    machine, copies = binder.machine, binder.machine.part(_CopiesInFlight)
    pending = None
    if "wait_group" in instruction.modifiers:
        operand = instruction.operands[0]
        assert isinstance(operand, Immediate)
        pending = int(operand.value)
    return lambda lanes: copies.wait(lanes, pending, machine.tick(instruction))


@binds("cp.async.mbarrier.arrive")
def bind_mbarrier_arrive(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.mbarrier.arrive.noinc: an arrival once the thread's copies have landed.

    They are made to land here, at the earliest moment that is allowed.
    """
    if "noinc" not in instruction.modifiers:
        raise Modifiers(instruction).unsupported()
    bound = BoundMbarrier(binder, instruction, "shared", instruction.operands[0])
    machine = binder.machine
    copies, mbarriers = machine.part(_CopiesInFlight), machine.part(Mbarriers)

    def step(lanes: Lanes) -> None:
        copies.wait(lanes, None, machine.tick(instruction))

        def arrive(barrier: Mbarrier, lane: int, row: int) -> None:
            known = machine.ordering.knowledge(lane, machine.tick(instruction))
            mbarriers.arrive(barrier, 1, known, instruction, lane)

        bound.each(lanes, arrive)

    return step


@binds("cp.async")
def bind_copy(binder: Binder, instruction: Instruction) -> Step:
    """Bind cp.async.{ca,cg} from global to shared memory."""
    mods = Modifiers(instruction)
    mods.one_of(("async",))
    mods.one_of(("ca", "cg"))
    mods.one_of(("shared", "shared::cta"))
    mods.one_of(("global",))
    cached = mods.take("L2::cache_hint")
    mods.drop_prefixed(*HINTS)
    mods.finish()
    to, of, size_operand, *rest = instruction.operands
    assert isinstance(size_operand, Immediate)
    size = int(size_operand.value)
    if cached:
        rest = rest[:-1]
    read_size: Source | None = binder.source(rest[0], "u32") if rest else None
    destination, origin = bind_address(binder, to), bind_address(binder, of)
    machine, copies = binder.machine, binder.machine.part(_CopiesInFlight)
    read = Access(instruction, size, "read")
    write = Access(instruction, size, "write")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        values = np.zeros((lanes.count, size), np.uint8)
        amount = read_size.each(lanes) if read_size else np.full(lanes.count, size)
        reading = lanes if all_of(amount > 0) else lanes.where(amount > 0)
        if reading.count:
            addresses = origin(lanes)[amount > 0]
            _fetch(machine, addresses, reading, read, values, lanes, now)
        values[np.arange(size) >= amount[:, None]] = 0
        for place in locate(machine, "shared", destination(lanes), lanes, write):
            assert place.shadow is not None
            place.shadow.store(place.index, place.lanes, write, now)
            own = values if place.chosen is None else values[place.chosen]
            copies.start(place, size, own)

    return step


def _fetch(
    machine: Machine,
    addresses: Any,
    reading: Lanes,
    access: Access,
    values: Array,
    lanes: Lanes,
    now: int,
) -> None:
    """Read global memory for the lanes of `reading` into their rows of `values`."""
    rows = np.searchsorted(lanes.flat, reading.flat)
    for place in locate(machine, "global", addresses, reading, access):
        if place.shadow is not None:
            place.shadow.load(place.index, place.lanes, access, now)
        own = rows if place.chosen is None else rows[place.chosen]
        values[own] = place.read(access.size, np.dtype(np.uint8))
