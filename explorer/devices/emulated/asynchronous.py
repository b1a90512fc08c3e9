"""cp.async: copies that land only when their thread waits for them. PTX ISA, "cp.async".

The destination counts as pending from the copy to the wait, and reading it in between is a defect.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.addresses import HINTS, bind_address, locate
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.place import Place
from explorer.devices.emulated.program import Immediate, Instruction
from explorer.devices.emulated.ptx_types import Array
from explorer.devices.emulated.registers import Source
from explorer.devices.emulated.shadow import PENDING_TIME

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


@dataclass(slots=True)
class _Copy:
    """One executed cp.async: which lanes it still has in flight, and what they will write."""

    place: Place
    size: int
    values: Array
    group: NDArray[np.int64]
    """The group that each lane's copy belongs to, counted by its thread."""
    flying: NDArray[np.bool_]


class AsynchronousCopies:
    """The copies in flight of a batch."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._copies: list[_Copy] = []
        self._committed = np.zeros(machine.ordering.lanes, np.int64)
        self.used = False
        """Whether the kernel has copies that no barrier of threads orders."""

    def report_pending(
        self, access: Access, verb: str, lanes: NDArray[Any], stamps: NDArray[np.int64]
    ) -> None:
        """Someone touched what an asynchronous copy has yet to write."""
        self._machine.report(
            Kind.ASYNC_WAIT,
            f"{verb} of data that an asynchronous copy, not waited for, is writing",
            access.instruction,
            int(lanes[0]),
            count=len(lanes),
            key=verb,
        )

    def start(self, place: Place, size: int, values: Array) -> None:
        """A copy into `place` begins; its words are pending from now on."""
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
        """What was started since the last commit is one group."""
        self._committed[lanes.flat] += 1

    def wait(self, lanes: Lanes, pending: int | None, now: int) -> None:
        """All but the last `pending` groups of these lanes land; None: all, committed or not."""
        waits = lanes.mask()
        for copy in self._copies:
            who = copy.place.lanes.flat
            landing = copy.flying & waits[who]
            if pending is not None:
                landing &= copy.group < self._committed[who] - pending
            if landing.any():
                self._land(copy, landing, now)
        self._copies = [copy for copy in self._copies if copy.flying.any()]

    def _land(self, copy: _Copy, landing: NDArray[np.bool_], now: int) -> None:
        place = copy.place
        part = Place(place.lanes.where(landing), place.index[landing], place.data, place.shadow)
        part.write(copy.size, copy.values[landing])
        assert place.shadow is not None
        codes = part.lanes.flat + (1 + self._machine.first_lane)
        place.shadow.mark(part.index, copy.size, now << 32 | codes)
        copy.flying &= ~landing


def bind_cp_async(binder: Binder, instruction: Instruction) -> Step:
    """cp.async, its commit_group, wait_group and wait_all."""
    machine = binder.machine
    copies = machine.asynchronous
    if "commit_group" in instruction.modifiers:
        return copies.commit
    if "wait_all" in instruction.modifiers:
        return lambda lanes: copies.wait(lanes, None, machine.tick(instruction))
    if "wait_group" in instruction.modifiers:
        pending = instruction.operands[0]
        assert isinstance(pending, Immediate)
        count = int(pending.value)
        return lambda lanes: copies.wait(lanes, count, machine.tick(instruction))
    return _bind_copy(binder, instruction)


def _bind_copy(binder: Binder, instruction: Instruction) -> Step:
    mods = binder.modifiers(instruction)
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
    kept: Source | None = binder.source(rest[0], "u32") if rest else None
    destination, origin = bind_address(binder, to), bind_address(binder, of)
    machine = binder.machine
    read = Access(instruction, size, "read")
    write = Access(instruction, size, "write")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        values = np.zeros((lanes.count, size), np.uint8)
        amount = kept.each(lanes) if kept else np.full(lanes.count, size)
        reading = lanes if (amount > 0).all() else lanes.where(amount > 0)
        if reading.count:
            addresses = origin(lanes)[amount > 0]
            _fetch(machine, addresses, reading, read, values, lanes, now)
        values[np.arange(size) >= amount[:, None]] = 0
        for place in locate(machine, "shared", destination(lanes), lanes, write):
            assert place.shadow is not None
            place.shadow.store(place.index, place.lanes, write, now)
            own = values if place.chosen is None else values[place.chosen]
            machine.asynchronous.start(place, size, own)

    return step


def _fetch(
    machine: "Machine",
    addresses: Any,
    reading: Lanes,
    access: Access,
    values: Array,
    lanes: Lanes,
    now: int,
) -> None:
    """Read global memory for the lanes of `reading`, into their rows of `values`."""
    rows = np.searchsorted(lanes.flat, reading.flat)
    for place in locate(machine, "global", addresses, reading, access):
        if place.shadow is not None:
            place.shadow.load(place.index, place.lanes, access, now)
        own = rows if place.chosen is None else rows[place.chosen]
        values[own] = place.read(access.size, np.dtype(np.uint8))
