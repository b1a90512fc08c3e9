"""mbarrier objects: phases of arrivals and of bytes that asynchronous copies bring.

PTX ISA, "mbarrier". A phase completes when the arrivals and the bytes that it expects have come.
The copies that it tracks land then, and are known to the threads that see it complete. A relaxed
arrival makes known only what came before a fence of its thread, and what a relaxed wait sees is
known from the thread's next fence on. So is what other blocks of the cluster did, for a wait of
block scope, which is the scope of one that names none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds
from explorer.ptx_emulator.findings import Kind
from explorer.ptx_emulator.happens_before import LaneIds, Row
from explorer.ptx_emulator.lanes import Lanes, all_of, any_of
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.memory_instructions import (
    SCOPES,
    TURN_WORK,
    Fences,
    bind_address,
    split_generic,
)
from explorer.ptx_emulator.phases import Facts, Phases, merged
from explorer.ptx_emulator.program import Instruction, Operand
from explorer.ptx_emulator.registers import Target
from explorer.ptx_emulator.shadow import Access

# Objects.


@dataclass(slots=True)
class Mbarrier:
    """One object in shared memory."""

    count: int
    """Arrivals that each phase expects."""
    pending: int
    """Arrivals that the present phase still expects."""
    row: Row
    """What the arrivals made known."""
    near: Row
    """What those of its own block did, which a wait of block scope makes known; `row` itself where
    a cluster is one block."""
    opener: int
    """The lane that initialised it."""
    opened: int
    """When it did."""
    known: NDArray[np.bool_]
    """For each lane: it is known to know that."""
    place: int
    block: int
    """The block in whose memory it lies."""
    is_late: bool = False
    """Whether copies may seem to be under way still, as nobody has seen that the phase is over."""
    told: Facts = field(default_factory=dict)
    """What those who arrived, or sent, before the present phase knew of phases."""
    telling: Facts = field(default_factory=dict)
    """What those of the present phase did."""
    phase: int = 0
    bytes_due: int = 0
    landings: list[Callable[[int], None]] = field(default_factory=list)
    """Copies to carry out when the phase completes, given the time."""
    far_landings: bool = False
    """Whether threads of other blocks stored some of what lands."""


class Mbarriers:
    """The mbarrier objects of a batch, by their place in its shared memory."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._fences = machine.part(Fences)
        self.phases = machine.part(Phases)
        self._objects: dict[int, Mbarrier] = {}

    def init(self, place: int, count: int, lane: int, now: int) -> None:
        """Make a new object that expects `count` arrivals in each phase."""
        lanes = self._machine.ordering.lanes
        known = np.zeros(lanes, np.bool_)
        known[lane] = True
        row = np.zeros(lanes + 1, np.int64)
        near = row if self._machine.cluster_size == 1 else row.copy()
        block = place // self._machine.shared_space.block_bytes
        made = Mbarrier(count, count, row, near, lane, now, known, place, block)
        self._objects[place] = made

    def tell(self, lanes: LaneIds, fenced: NDArray[np.int64]) -> None:
        """Let these lanes know what lane i initialised before fenced[i]."""
        for barrier in self._objects.values():
            if barrier.opened < fenced[barrier.opener]:
                barrier.known[lanes] = True

    def remove(self, place: int) -> None:
        """Forget the object at a place."""
        self._objects.pop(place, None)

    def stores_due(self, place: int, size: int) -> int:
        """Return how many stores of `size` bytes complete the phase there; 0 if none do."""
        barrier = self._objects.get(place)
        if barrier is None or barrier.pending or barrier.bytes_due <= 0 or barrier.bytes_due % size:
            return 0
        return barrier.bytes_due // size

    def get(self, place: int, instruction: Instruction, lanes: LaneIds) -> Mbarrier | None:
        """Return the object at a place. What is not initialised is reported, and None."""
        found = self._objects.get(place)
        if found is None:
            message = "operation on an mbarrier that is not initialised"
            self._machine.report(
                Kind.MBARRIER, message, instruction, int(lanes[0]), count=len(lanes)
            )
        elif not found.known[lanes].all():
            self._check_known(found, instruction, lanes)
        return found

    def _check_known(self, barrier: Mbarrier, instruction: Instruction, lanes: LaneIds) -> None:
        opener = np.full(len(lanes), barrier.opener)
        opened = np.full(len(lanes), barrier.opened, np.int64)
        known = barrier.known[lanes] | self._machine.ordering.ordered(opener, opened, lanes)
        if not all_of(known):
            message = "operation on an mbarrier whose initialisation may not be known to the thread"
            lane, count = int(lanes[int(np.argmin(known))]), int(np.count_nonzero(~known))
            self._machine.report(Kind.MBARRIER, message, instruction, lane, count=count)
        barrier.known[lanes] = True

    def check_engine(self, barrier: Mbarrier, at: Instruction, lane: int) -> None:
        """Report an object that the copy engine may not know: its maker has passed no fence."""
        fences = (self._fences.mbarrier_init, self._fences.proxy)
        if all(fenced[barrier.opener] <= barrier.opened for fenced in fences):
            message = (
                "a bulk copy is counted by an mbarrier that was initialised without "
                "fence.mbarrier_init or fence.proxy.async"
            )
            self._machine.report(Kind.ASYNC_PROXY, message, at, lane)

    def credit(self, barrier: Mbarrier, senders: LaneIds, at: Instruction) -> None:
        """Note senders of bytes. Report those that cannot know that the phase before is over."""
        unsure = list[int]()
        other = barrier.block if barrier.phase else None
        for lanes, facts in self.phases.known(senders, other):
            if facts.get(barrier.place, 0) < barrier.phase:
                unsure += lanes.tolist()
            barrier.telling = merged(barrier.telling, facts)
        if unsure:
            message = (
                "bytes are sent to an mbarrier by a thread that cannot know that the phase before "
                "is over: they may be counted in that phase"
            )
            self._machine.report(Kind.MBARRIER, message, at, unsure[0], count=len(unsure))

    def arrive(self, barrier: Mbarrier, count: int, row: Row, at: Instruction, lane: int) -> None:
        """Count `count` arrivals, which make `row` known."""
        if count > barrier.pending:
            message = "more arrivals at an mbarrier than its phase expects"
            self._machine.report(Kind.MBARRIER, message, at, lane)
            return
        for known in self._rows_told(barrier, far=not self._is_near(barrier, lane)):
            np.maximum(known, row, out=known)
        if self._machine.cluster_size > 1:
            for _, facts in self.phases.known(np.array([lane])):
                barrier.telling = merged(barrier.telling, facts)
        barrier.pending -= count
        self.settle(barrier, at)

    def _is_near(self, barrier: Mbarrier, lane: int) -> bool:
        """Return whether a lane is of the block that an object was initialised by."""
        block_of = self._machine.ordering.block_of
        return bool(block_of[lane] == block_of[barrier.opener])

    def _rows_told(self, barrier: Mbarrier, *, far: bool) -> tuple[Row, ...]:
        """Return what is to say that something was done, by another block or by its own."""
        one = far or barrier.near is barrier.row
        return (barrier.row,) if one else (barrier.row, barrier.near)

    def land_later(
        self, barrier: Mbarrier, land: Callable[[int], None], at: Instruction, lane: int
    ) -> None:
        """Carry out a copy when the phase completes, given the time.

        The engine's own copies are known to waits of block scope, whichever block asked for them.
        """
        barrier.landings.append(land)
        barrier.far_landings |= at.root == "st" and not self._is_near(barrier, lane)

    def settle(self, barrier: Mbarrier, at: Instruction) -> None:
        """Complete the phase if nothing is due any more."""
        if barrier.pending or barrier.bytes_due:
            return
        now = self._machine.tick(at)
        for land in barrier.landings:
            land(now)
        if barrier.landings:
            for row in self._rows_told(barrier, far=barrier.far_landings):
                row[self._machine.ordering.async_lane] = now
        barrier.is_late = self._machine.late_copies and bool(barrier.landings)
        barrier.landings.clear()
        barrier.far_landings = False
        barrier.told, barrier.telling = merged(barrier.told, barrier.telling), {}
        barrier.phase += 1
        barrier.pending = barrier.count
        self._machine.progress = True


# Instructions.

_Rows = NDArray[np.int64]

_Operation = Callable[[Mbarrier, int, int], Any]
"""What an instruction does to one object, for (object, lane, row of the operands)."""


class BoundMbarrier:
    """The address of an mbarrier instruction, located and checked lane by lane."""

    def __init__(
        self, binder: Binder, instruction: Instruction, space: str, address: Operand
    ) -> None:
        self._machine = binder.machine
        self._mbarriers = binder.machine.part(Mbarriers)
        self._instruction = instruction
        self._space = space
        self._addresses = bind_address(binder, address)
        binder.machine.ordering.engine_used = True

    def places(self, lanes: Lanes, action: str) -> list[tuple[int, int, int]]:
        """Return (row of the operands, lane, place in shared memory), checked by the shadow."""
        located = (part.tolist() for part in self._located(lanes, action))
        return list(zip(*located, strict=True))

    def _located(self, lanes: Lanes, action: str) -> tuple[_Rows, LaneIds, _Rows]:
        """Return the same as three arrays."""
        machine = self._machine
        access = Access(self._instruction, 8, action)
        addresses = self._addresses(lanes)
        if not self._space:
            _, window, _ = split_generic(machine, addresses)[0]
            addresses = addresses - window
        now = machine.tick(self._instruction)
        creates = action == "write"
        parts: list[tuple[_Rows, LaneIds, _Rows]] = []
        for place in machine.shared_space.locate(addresses, lanes, access):
            shadow = machine.shared_space.shadow
            shadow.atomic(place.index, place.lanes, access, now, reads=not creates)
            rows = np.arange(lanes.count) if place.chosen is None else np.flatnonzero(place.chosen)
            parts.append((rows, place.lanes.flat, place.index))
        if len(parts) == 1:
            return parts[0]
        none = np.zeros(0, np.int64)
        columns = zip((none, none, none), *parts, strict=True)
        all_rows, of, places = (np.concatenate(column) for column in columns)
        return all_rows, of, places

    def objects(self, lanes: Lanes) -> Iterator[tuple[Mbarrier | None, _Rows, LaneIds]]:
        """Yield each object that lanes name, with their rows of the operands and the lanes."""
        rows, of, places = self._located(lanes, "atomic")
        for place in np.unique(places).tolist():
            chosen = places == place
            some = of[chosen]
            yield self._mbarriers.get(place, self._instruction, some), rows[chosen], some

    def each(self, lanes: Lanes, operation: _Operation) -> list[Any]:
        """Apply an operation to the object of every lane; None if there is no object."""
        results: list[Any] = [None] * lanes.count
        for barrier, rows, of in self.objects(lanes):
            if barrier is not None:
                self._machine.work += TURN_WORK * len(of)
                for row, lane in zip(rows.tolist(), of.tolist(), strict=True):
                    results[row] = operation(barrier, lane, row)
        return results


@binds("mbarrier")
def bind_mbarrier(binder: Binder, instruction: Instruction) -> Step:
    """Bind every mbarrier instruction."""
    mods = Modifiers(instruction)
    action = mods.one_of(_BINDINGS)
    space = mods.one_of(("shared", "shared::cta", "shared::cluster"), "")
    return _BINDINGS[action](binder, instruction, mods, space)


@dataclass(frozen=True, slots=True)
class _Order:
    """How an instruction orders memory."""

    relaxed: bool
    """Not at all, without a fence."""
    near: bool
    """Only with the threads of its own block."""


def _end(mods: Modifiers) -> _Order:
    """Take what each of these instructions may have. Return how it orders memory."""
    relaxed = mods.one_of(("release", "acquire", "relaxed"), "release") == "relaxed"
    near = mods.one_of(SCOPES, "cta") == "cta"
    mods.take("b64")
    mods.finish()
    return _Order(relaxed, near)


def _bind_init(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])
    count = binder.source(instruction.operands[1], "u32")
    machine, mbarriers = binder.machine, binder.machine.part(Mbarriers)

    def step(lanes: Lanes) -> None:
        counts = count.each(lanes)
        for row, lane, place in bound.places(lanes, "write"):
            mbarriers.init(place, int(counts[row]), lane, machine.tick(instruction))

    return step


def _bind_inval(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])
    mbarriers = binder.machine.part(Mbarriers)

    def step(lanes: Lanes) -> None:
        for _, _, place in bound.places(lanes, "write"):
            mbarriers.remove(place)

    return step


def _bind_bytes(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    sign = 1 if "expect_tx" in instruction.modifiers else -1
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])
    amount = binder.source(instruction.operands[1], "u32")
    mbarriers = binder.machine.part(Mbarriers)

    def step(lanes: Lanes) -> None:
        amounts = amount.each(lanes)

        def change(barrier: Mbarrier, lane: int, row: int) -> None:
            barrier.bytes_due += sign * int(amounts[row])
            mbarriers.settle(barrier, instruction)

        bound.each(lanes, change)

    return step


def _bind_arrive(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    expects = mods.take("expect_tx")
    mods.take("noComplete")
    relaxed = _end(mods).relaxed
    state, address, *rest = instruction.operands
    bound = BoundMbarrier(binder, instruction, space, address)
    number = binder.source(rest[0], "u32") if rest else None
    target: Target = binder.target(state, "b64")
    machine, mbarriers = binder.machine, binder.machine.part(Mbarriers)

    def step(lanes: Lanes) -> None:
        numbers = number.each(lanes) if number else np.ones(lanes.count, np.uint32)

        def arrive(barrier: Mbarrier, lane: int, row: int) -> int:
            phase = barrier.phase
            if expects:
                barrier.bytes_due += int(numbers[row])
            now = machine.tick(instruction)
            known = _fenced(machine, lane) if relaxed else machine.ordering.knowledge(lane, now)
            count = 1 if expects else int(numbers[row])
            mbarriers.arrive(barrier, count, known, instruction, lane)
            return phase

        phases = bound.each(lanes, arrive)
        target.put(lanes, np.array([phase or 0 for phase in phases], np.uint64))

    return step


def _fenced(machine: Machine, lane: int) -> Row:
    """Return what a relaxed arrival makes known: what its thread did before its last fence."""
    fenced = machine.ordering.fenced_knowledge(lane)
    row = np.zeros(machine.ordering.lanes + 1, np.int64) if fenced is None else fenced.copy()
    if machine.cluster_size == 1:  # of block scope as well
        row[lane] = max(row[lane], machine.part(Fences).block[lane])
    return row


def _bind_wait(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    """Bind test_wait and try_wait. Neither blocks here, which both may do, and both may fail."""
    parity = mods.take("parity")
    order = _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[1])
    target = binder.target(instruction.operands[0], "pred")
    phase = binder.source(instruction.operands[2], "u32" if parity else "b64")
    machine, known = binder.machine, binder.machine.part(Mbarriers).phases

    def step(lanes: Lanes) -> None:
        phases = np.asarray(phase.each(lanes)).astype(np.int64)
        # An object that was never initialised must not hang the emulator too.
        results = np.ones(lanes.count, np.bool_)
        for barrier, rows, of in bound.objects(lanes):
            if barrier is None:
                continue
            if parity:
                results[rows] = barrier.phase & 1 != phases[rows] & 1
            else:
                results[rows] = barrier.phase > phases[rows]
            if barrier.is_late and any_of(results[rows]):
                # Copies take time, and who waits has to ask again, as long as nobody knows better.
                results[rows], barrier.is_late, machine.progress = False, False, True
            passed = of[results[rows]]
            _learn(machine, passed, barrier, order)
            if barrier.phase and len(passed) and machine.cluster_size > 1:
                known.waited(passed, machine.now, barrier.place, barrier.phase, barrier.told)
        target.put(lanes, results)

    return step


def _learn(machine: Machine, lanes: LaneIds, barrier: Mbarrier, order: _Order) -> None:
    """Let lanes that waited know what was done, or see it: then their next fence makes it known."""
    ordering, alone = machine.ordering, machine.cluster_size == 1
    if not order.relaxed:
        ordering.acquire(lanes, barrier.near if order.near else barrier.row)
    if order.relaxed and alone:
        ordering.see_near(lanes.tolist(), barrier.row.copy())
    elif order.relaxed or (order.near and not alone):
        ordering.see(lanes.tolist(), barrier.row.copy())


_BINDINGS: dict[str, Callable[[Binder, Instruction, Modifiers, str], Step]] = {
    "init": _bind_init,
    "inval": _bind_inval,
    "arrive": _bind_arrive,
    "expect_tx": _bind_bytes,
    "complete_tx": _bind_bytes,
    "test_wait": _bind_wait,
    "try_wait": _bind_wait,
}
