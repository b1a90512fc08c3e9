"""Warp-wide instructions: shuffles, votes, matches, reductions, warp barriers.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync". The
lanes that an instruction's mask names wait for one another.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator import element_sets
from explorer.ptx_emulator.binding import Binder, Control, Modifiers, Step, binds, controls
from explorer.ptx_emulator.findings import ABSENT_LANE, Kind
from explorer.ptx_emulator.lanes import WARP, Lanes, all_of, any_of, distinct
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.program import DTYPES, Array, Instruction, Operand
from explorer.ptx_emulator.registers import Source, unassigned
from explorer.ptx_emulator.scheduler import Scheduler, guarded

FULL = 0xFFFFFFFF
"""The mask that names all lanes of a warp."""

# Lanes that meet.


Meeting = tuple[Instruction, Step, Source]
"""A warp-wide instruction, what it does once its lanes have met, and its mask."""


class _Meetings:
    """Lanes that wait at a warp-wide instruction for those that its mask names."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scheduler = machine.part(Scheduler)
        self._parked: dict[int, Lanes] = {}
        self._gone: dict[int, NDArray[np.uint32]] = {}
        """Lanes of each warp that had exited when others last began to wait at an instruction."""
        self._met: dict[int, Meeting] = {}
        self._scheduler.stalled.append(self._force)

    def meet(self, meeting: Meeting, lanes: Lanes) -> int | None:
        """Run the step once all lanes of the mask have come."""
        instruction, step, mask = meeting
        pc = instruction.pc
        if pc not in self._parked and lanes.whole_warps and _is_full(mask):
            step(lanes)
            return self._go_on(pc, lanes, lanes)
        arrived = lanes
        parked = self._parked.pop(pc, None)
        if parked is not None:
            lanes = lanes.union(parked)
        masks = self._masks(instruction, mask, lanes)
        warps = lanes.flat >> 5
        missing = masks & ~lanes.warp_bits()[warps]
        if not missing.any():
            step(lanes)
            return self._go_on(pc, lanes, arrived)
        # Lanes that have exited need not come; reading their values is what is wrong.
        waits = (missing & ~self._gone_bits()[warps]) != 0
        if any_of(waits):
            self._scheduler.wait_pc[lanes.flat[waits]] = pc
            self._parked[pc], self._met[pc] = lanes.where(waits), meeting
            self._gone[pc] = self._gone_bits()
            lanes = lanes.where(~waits)
        if lanes.count:
            step(lanes)
            return self._go_on(pc, lanes, arrived)
        return None

    def _go_on(self, pc: int, lanes: Lanes, arrived: Lanes) -> int | None:
        if lanes is arrived:
            return pc + 1
        self._scheduler.place(pc + 1, lanes)
        return None

    def _masks(self, instruction: Instruction, mask: Source, lanes: Lanes) -> NDArray[np.uint32]:
        masks = mask.each(lanes).astype(np.uint32)
        own = np.uint32(1) << (lanes.flat & 31).astype(np.uint32)
        outside = (masks & own) == 0
        if any_of(outside):
            self._machine.report(
                Kind.WARP_MASK,
                "a lane executes this without being in its mask",
                instruction,
                int(lanes.flat[int(np.argmax(outside))]),
                count=int(np.count_nonzero(outside)),
                key="own",
            )
        return masks | own

    def _gone_bits(self) -> NDArray[np.uint32]:
        exited = self._scheduler.exited.reshape(-1, WARP)
        return np.packbits(exited, axis=1, bitorder="little").view(np.uint32).reshape(-1)

    def _force(self) -> bool:
        """Let waiting lanes go on if no other lane can: those they wait for never come."""
        if not self._parked:
            return False
        pc = min(self._parked)
        lanes = self._parked.pop(pc)
        instruction, step, mask = self._met[pc]
        masks = mask.each(lanes).astype(np.uint32)
        warps = lanes.flat >> 5
        absent = (masks & ~lanes.warp_bits()[warps] & ~self._gone[pc][warps]) != 0
        # An instruction without a mask says itself that it needs the whole warp.
        if any_of(absent) and "aligned" not in instruction.modifiers:
            self._machine.report(
                Kind.WARP_MASK,
                "the mask names lanes that do not reach this instruction",
                instruction,
                int(lanes.flat[int(np.argmax(absent))]),
                count=int(np.count_nonzero(absent)),
            )
        step(lanes)
        self._scheduler.place(pc + 1, lanes)
        return True


def bind_meeting(binder: Binder, instruction: Instruction, step: Step, mask: Operand) -> Control:
    """Return a control that runs the step once all lanes of the mask have come."""
    current, meeting = binder.current, (instruction, step, binder.source(mask, "b32"))
    return guarded(
        binder, instruction, lambda lanes: current.machine.part(_Meetings).meet(meeting, lanes)
    )


def _collective(
    *opcodes: str,
) -> Callable[[Callable[[Binder, Instruction], Step]], Callable[[Binder, Instruction], Control]]:
    """Register a function that binds a step which waits for the lanes of its last operand."""

    def register(
        function: Callable[[Binder, Instruction], Step],
    ) -> Callable[[Binder, Instruction], Control]:
        @controls(*opcodes)
        def bind(binder: Binder, instruction: Instruction) -> Control:
            step = function(binder, instruction)
            return bind_meeting(binder, instruction, step, instruction.operands[-1])

        return bind

    return register


def _is_full(mask: Source) -> bool:
    """Return whether a mask always names all lanes of a warp."""
    return mask.scalar is not None and int(mask.scalar) == FULL


def _members(lanes: Lanes, mask: Source) -> NDArray[np.uint32]:
    """Return for each lane the lanes of its mask that are here."""
    if lanes.whole_warps:
        return np.asarray(mask.each(lanes).astype(np.uint32))
    here = lanes.warp_bits()[lanes.flat >> 5]
    return np.asarray(here & mask.each(lanes).astype(np.uint32))


# Shuffles.

_LaneIds = NDArray[np.int64]


def _source_lanes(mode: str, lane: _LaneIds, b: Any, c: Any) -> tuple[_LaneIds, NDArray[np.bool_]]:
    """Return for each lane of a warp the lane that it reads, and whether that is in range."""
    b = np.asarray(b).astype(np.int64) & 31
    c = np.asarray(c).astype(np.int64)
    segment, clamp = c >> 8 & 31, c & 31
    most = (lane & segment) | (clamp & ~segment)
    least = lane & segment
    if mode == "up":
        picked = lane - b
        inside = picked >= most
    elif mode == "down":
        picked = lane + b
        inside = picked <= most
    elif mode == "bfly":
        picked = lane ^ b
        inside = picked <= most
    else:
        picked = least | (b & ~segment)
        inside = picked <= most
    return np.where(inside, picked, lane), inside


@cache
def _of_a_warp(mode: str, b: int, c: int) -> tuple[_LaneIds, NDArray[np.bool_]]:
    """Return the same for the lanes of any warp, which share these operands."""
    return _source_lanes(mode, np.arange(WARP), b, c)


@_collective("shfl")
def bind_shfl(binder: Binder, instruction: Instruction) -> Step:
    """Bind shfl.sync d|p, a, b, c, mask."""
    mods = Modifiers(instruction)
    mods.one_of(("sync",))
    mode = mods.one_of(("up", "down", "bfly", "idx"))
    mods.one_of(("b32",))
    mods.finish()
    target, valid = binder.targets(instruction.operands[0], "b32")
    a, b, c, mask = (binder.source(o, "b32") for o in instruction.operands[1:])
    current = binder.current

    def step(lanes: Lanes) -> None:
        varies = a.scalar is None
        if b.scalar is None or c.scalar is None or not (varies and _is_full(mask)):
            fixed = None
        else:
            fixed = _of_a_warp(mode, int(b.scalar), int(c.scalar))
        if fixed is not None and lanes.whole_warps and lanes.box is not None:
            lane, inside = fixed
            part = a.value[lanes.box]
            target.put(lanes, part.take(lane, axis=2))
            if valid is not None:
                valid.put(lanes, inside.reshape(1, 1, WARP))
            return
        own = (lanes.flat & 31).astype(np.int64)
        picked, inside = _source_lanes(mode, own, b.each(lanes), c.each(lanes))
        absent = _absent_sources(current.machine, instruction, lanes, picked, mask)
        origin = (lanes.flat & ~31) + picked
        everyone = a.value.reshape(-1) if varies else a.each(Lanes.every(lanes.shape))
        values = everyone[origin]
        if any_of(absent):
            values[absent] = unassigned(4, lanes.count)[absent]
        target.put(lanes, values)
        if valid is not None:
            valid.put(lanes, inside)

    return step


def _absent_sources(
    machine: Machine, instruction: Instruction, lanes: Lanes, picked: _LaneIds, mask: Source
) -> NDArray[np.bool_]:
    """Return who reads from a lane that does not take part, and report them.

    What they get is undefined.
    """
    bit = np.uint32(1) << picked.astype(np.uint32)
    present = lanes.warp_bits()[lanes.flat >> 5] & mask.each(lanes).astype(np.uint32)
    bad = (present & bit == 0) & (picked != (lanes.flat & 31))
    if any_of(bad):
        machine.report(
            Kind.WARP_MASK,
            ABSENT_LANE,
            instruction,
            int(lanes.flat[int(np.argmax(bad))]),
            count=int(np.count_nonzero(bad)),
            key="source",
        )
    return np.asarray(bad)


# Votes, matches, reductions.


def _ballot(lanes: Lanes, holds: NDArray[np.bool_], members: NDArray[np.uint32]) -> NDArray[Any]:
    flags = np.zeros(lanes.shape[0] * lanes.shape[1] * WARP, np.bool_)
    flags[lanes.flat] = holds
    bits = np.packbits(flags.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)
    return np.asarray(bits.reshape(-1)[lanes.flat >> 5] & members)


@_collective("vote")
def bind_vote(binder: Binder, instruction: Instruction) -> Step:
    """Bind vote.sync.{all,any,uni,ballot}."""
    mods = Modifiers(instruction)
    mods.one_of(("sync",))
    mode = mods.one_of(("all", "any", "uni", "ballot"))
    mods.one_of(("pred", "b32"))
    mods.finish()
    target = binder.target(instruction.operands[0], "b32" if mode == "ballot" else "pred")
    predicate = binder.source(instruction.operands[1], "pred")
    mask = binder.source(instruction.operands[2], "b32")

    def step(lanes: Lanes) -> None:
        members = _members(lanes, mask)
        ballot = _ballot(lanes, predicate.each(lanes), members)
        results: dict[str, Callable[[], Any]] = {
            "ballot": lambda: ballot,
            "any": lambda: ballot != 0,
            "all": lambda: ballot == members,
            "uni": lambda: (ballot == 0) | (ballot == members),
        }
        target.put(lanes, results[mode]())

    return step


@binds("activemask")
def bind_activemask(binder: Binder, instruction: Instruction) -> Step:
    """Bind activemask: the lanes that happen to run together."""
    target = binder.target(instruction.operands[0], "b32")
    return lambda lanes: target.put(lanes, lanes.warp_bits()[lanes.flat >> 5])


@_collective("elect")
def bind_elect(binder: Binder, instruction: Instruction) -> Step:
    """Bind elect.sync d|p, mask: the lowest lane of the mask."""
    if "sync" not in instruction.modifiers:
        raise Modifiers(instruction).unsupported()
    target, elected = binder.targets(instruction.operands[0], "b32")
    mask = binder.source(instruction.operands[1], "b32")

    def step(lanes: Lanes) -> None:
        members = _members(lanes, mask)
        lowest = np.bitwise_count((members & -members.astype(np.int64)) - 1).astype(np.uint32)
        target.put(lanes, lowest)
        if elected is not None:
            elected.put(lanes, (lanes.flat & 31) == lowest)

    return step


_REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@_collective("redux")
def bind_redux(binder: Binder, instruction: Instruction) -> Step:
    """Bind redux.sync: one integer reduction over the lanes of a mask."""
    mods = Modifiers(instruction)
    mods.one_of(("sync",))
    name = mods.one_of(_REDUCTIONS)
    reduce = _REDUCTIONS[name]
    ptx_type = mods.one_of(("u32", "s32", "b32"))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    value = binder.source(instruction.operands[1], ptx_type)
    mask = binder.source(instruction.operands[2], "b32")
    current, of_sets = binder.current, binder.of_sets and name in ("max", "min")

    def reduced(values: Array, starts: NDArray[np.int64]) -> Array:
        if not of_sets:
            return np.asarray(reduce.reduceat(values, starts))
        made = element_sets.united_by_class(reduce, values, starts)
        current.machine.note_maximum(made.view(np.uint32))
        return made

    def step(lanes: Lanes) -> None:
        members = _members(lanes, mask)
        values = value.each(lanes)
        keys = (lanes.flat >> 5).astype(np.uint64) << np.uint64(32) | members
        _, group = np.unique(keys, return_inverse=True)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        target.put(lanes, reduced(values[order], starts).astype(values.dtype)[group])

    return step


@_collective("match")
def bind_match(binder: Binder, instruction: Instruction) -> Step:
    """Bind match.sync.{any,all}: the lanes that hold the same value."""
    mods = Modifiers(instruction)
    mods.one_of(("sync",))
    mode = mods.one_of(("any", "all"))
    ptx_type = mods.one_of(("b32", "b64"))
    mods.finish()
    target, agreed = binder.targets(instruction.operands[0], "b32")
    value = binder.source(instruction.operands[1], ptx_type)
    mask = binder.source(instruction.operands[2], "b32")

    def step(lanes: Lanes) -> None:
        members = _members(lanes, mask)
        same = np.zeros(lanes.count, np.uint32)
        values: Array = np.zeros((lanes.shape[0] * lanes.shape[1], WARP), DTYPES[ptx_type])
        values.reshape(-1)[lanes.flat] = value.each(lanes)
        rows = values[lanes.flat >> 5]
        for lane in range(WARP):
            equal = rows[:, lane] == value.each(lanes)
            same |= equal.astype(np.uint32) << np.uint32(lane)
        same &= members
        everyone = same == members
        target.put(lanes, np.where(everyone, members, 0) if mode == "all" else same)
        if agreed is not None:
            agreed.put(lanes, everyone)

    return step


# Warp barriers.


@controls("bar.warp", "barrier.warp")
def bind_warp_barrier(binder: Binder, instruction: Instruction) -> Control:
    """Bind bar.warp.sync: the lanes of the mask see one another's earlier accesses."""
    current = binder.current
    mask = binder.source(instruction.operands[0], "b32")

    def step(lanes: Lanes) -> None:
        machine = current.machine
        now = machine.tick(instruction)
        machine.counters.warp_barriers += lanes.warps
        members = _members(lanes, mask)
        whole = members == FULL
        if all_of(whole):
            machine.ordering.sync_warps(distinct(lanes.flat >> 5), now)
            return
        machine.ordering.sync_warps(distinct(lanes.flat[whole] >> 5), now)
        keys = (lanes.flat >> 5).astype(np.uint64) << np.uint64(32) | members
        for key in np.unique(keys[~whole]):
            machine.ordering.sync_some(lanes.flat[keys == key], now)

    return bind_meeting(binder, instruction, step, instruction.operands[0])
