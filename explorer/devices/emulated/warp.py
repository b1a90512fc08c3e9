"""Warp-wide instructions: shuffles, votes, matches, reductions, warp barriers.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync".
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.program import Instruction, Operand
from explorer.devices.emulated.ptx_types import DTYPES, Array
from explorer.devices.emulated.registers import Source
from explorer.devices.emulated.scheduler import Control, Scheduler

_FULL = 0xFFFFFFFF
Lane32 = NDArray[np.int64]


def mask_operand(instruction: Instruction) -> Operand:
    """The operand that names the lanes which take part."""
    first = instruction.root in ("bar", "barrier")
    return instruction.operands[0 if first else -1]


class WarpMeetings:
    """Lanes that wait at a warp-wide instruction for those that its mask names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._machine = scheduler.machine
        self._parked: dict[int, Lanes] = {}
        self._bound: dict[int, tuple[Instruction, Step, Source]] = {}
        scheduler.stalled.append(self._force)

    def bind(self, binder: Binder, instruction: Instruction, step: Step) -> Control:
        """Let the instruction run once all lanes of its mask have come."""
        mask = binder.source(mask_operand(instruction), "b32")
        self._bound[instruction.pc] = (instruction, step, mask)
        following = instruction.pc + 1
        always = mask.scalar is not None and int(mask.scalar) == _FULL
        guard = binder.source(instruction.guard, "pred") if instruction.guard else None

        def control(lanes: Lanes) -> int | None:
            if guard is not None:
                holds = guard.each(lanes)
                if not holds.all():
                    self._scheduler.place(following, lanes.where(~holds))
                    if not holds.any():
                        return None
                    lanes = lanes.where(holds)
                    self._meet(instruction.pc, lanes)
                    return None
            if always and lanes.full:
                step(lanes)
                return following
            return self._meet(instruction.pc, lanes)

        return control

    def _meet(self, pc: int, lanes: Lanes) -> int | None:
        instruction, step, mask = self._bound[pc]
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
        gone = self._gone_bits()[warps]
        waits = (missing & ~gone) != 0
        absent = (missing != 0) & ~waits
        if absent.any():
            self._report_absent(instruction, lanes, absent, "have exited")
        if waits.any():
            self._scheduler.wait_pc[lanes.flat[waits]] = pc
            self._parked[pc] = lanes.where(waits)
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
        if outside.any():
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

    def _report_absent(
        self, instruction: Instruction, lanes: Lanes, absent: NDArray[np.bool_], why: str
    ) -> None:
        self._machine.report(
            Kind.WARP_MASK,
            f"the mask names lanes that {why}",
            instruction,
            int(lanes.flat[int(np.argmax(absent))]),
            count=int(np.count_nonzero(absent)),
        )

    def _force(self) -> bool:
        """No lane can go on: those that wait here do so for lanes that never come."""
        if not self._parked:
            return False
        pc = min(self._parked)
        lanes = self._parked.pop(pc)
        instruction, step, _ = self._bound[pc]
        self._report_absent(
            instruction, lanes, np.ones(lanes.count, np.bool_), "do not reach this instruction"
        )
        step(lanes)
        self._scheduler.place(pc + 1, lanes)
        return True


# Shuffles.


def source_lanes(mode: str, lane: Lane32, b: Any, c: Any) -> tuple[Lane32, NDArray[np.bool_]]:
    """For each lane of a warp, the lane that it reads and whether that is in range."""
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


@binds("shfl")
def bind_shfl(binder: Binder, instruction: Instruction) -> Step:
    """shfl.sync d|p, a, b, c, mask."""
    mods = binder.modifiers(instruction)
    mods.one_of(("sync",))
    mode = mods.one_of(("up", "down", "bfly", "idx"))
    mods.one_of(("b32",))
    mods.finish()
    target, valid = binder.targets(instruction.operands[0], "b32")
    a, b, c, mask = (binder.source(o, "b32") for o in instruction.operands[1:])
    machine = binder.machine
    values = a.value if isinstance(a.value, np.ndarray) and a.value.ndim == 3 else None
    fixed = None
    if b.scalar is not None and c.scalar is not None and values is not None:
        fixed = source_lanes(mode, np.arange(WARP), b.scalar, c.scalar)

    def step(lanes: Lanes) -> None:
        if fixed is not None and lanes.full and values is not None:
            target.put(lanes, np.take(values, fixed[0], axis=2))
            if valid is not None:
                valid.put(lanes, np.broadcast_to(fixed[1], machine.shape))
            return
        own = (lanes.flat & 31).astype(np.int64)
        picked, inside = source_lanes(mode, own, b.each(lanes), c.each(lanes))
        check_sources(binder, instruction, lanes, picked, mask)
        origin = (lanes.flat & ~31) + picked
        everyone = a.each(Lanes.every(machine.shape)) if values is None else values.reshape(-1)
        target.put(lanes, everyone[origin])
        if valid is not None:
            valid.put(lanes, inside)

    return step


def check_sources(
    binder: Binder, instruction: Instruction, lanes: Lanes, picked: Lane32, mask: Source
) -> None:
    """Reading a lane that does not take part is undefined."""
    bit = np.uint32(1) << picked.astype(np.uint32)
    present = lanes.warp_bits()[lanes.flat >> 5] & mask.each(lanes).astype(np.uint32)
    bad = (present & bit == 0) & (picked != (lanes.flat & 31))
    if bad.any():
        binder.machine.report(
            Kind.WARP_MASK,
            "the value is read from a lane that does not take part",
            instruction,
            int(lanes.flat[int(np.argmax(bad))]),
            count=int(np.count_nonzero(bad)),
            key="source",
        )


# Votes, matches, reductions.


def _members(lanes: Lanes, mask: Source) -> NDArray[np.uint32]:
    """For each lane, the lanes of its mask that are here."""
    return lanes.warp_bits()[lanes.flat >> 5] & mask.each(lanes).astype(np.uint32)


def _ballot(lanes: Lanes, holds: NDArray[np.bool_], members: NDArray[np.uint32]) -> NDArray[Any]:
    flags = np.zeros(lanes.shape[0] * lanes.shape[1] * WARP, np.bool_)
    flags[lanes.flat] = holds
    bits = np.packbits(flags.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)
    return bits.reshape(-1)[lanes.flat >> 5] & members


@binds("vote")
def bind_vote(binder: Binder, instruction: Instruction) -> Step:
    """vote.sync.{all,any,uni,ballot}."""
    mods = binder.modifiers(instruction)
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
        results = {
            "ballot": lambda: ballot,
            "any": lambda: ballot != 0,
            "all": lambda: ballot == members,
            "uni": lambda: (ballot == 0) | (ballot == members),
        }
        target.put(lanes, results[mode]())

    return step


@binds("activemask")
def bind_activemask(binder: Binder, instruction: Instruction) -> Step:
    """activemask: the lanes that happen to run together."""
    target = binder.target(instruction.operands[0], "b32")
    return lambda lanes: target.put(lanes, lanes.warp_bits()[lanes.flat >> 5])


@binds("elect")
def bind_elect(binder: Binder, instruction: Instruction) -> Step:
    """elect.sync d|p, mask: the lowest lane of the mask."""
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


@binds("redux")
def bind_redux(binder: Binder, instruction: Instruction) -> Step:
    """redux.sync: one integer or f32 reduction over the lanes of a mask."""
    mods = binder.modifiers(instruction)
    mods.one_of(("sync",))
    reduce = _REDUCTIONS[mods.one_of(_REDUCTIONS)]
    ptx_type = mods.one_of(("u32", "s32", "b32"))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    value = binder.source(instruction.operands[1], ptx_type)
    mask = binder.source(instruction.operands[2], "b32")

    def step(lanes: Lanes) -> None:
        members = _members(lanes, mask)
        values = value.each(lanes)
        keys = (lanes.flat >> 5).astype(np.uint64) << np.uint64(32) | members
        _, group = np.unique(keys, return_inverse=True)
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        target.put(lanes, reduce.reduceat(values[order], starts).astype(values.dtype)[group])

    return step


@binds("match")
def bind_match(binder: Binder, instruction: Instruction) -> Step:
    """match.sync.{any,all}: the lanes that hold the same value."""
    mods = binder.modifiers(instruction)
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


def bind_warp_barrier(binder: Binder, instruction: Instruction) -> Step:
    """bar.warp.sync: the lanes of the mask see one another's earlier accesses."""
    machine = binder.machine
    mask = binder.source(instruction.operands[0], "b32")

    def step(lanes: Lanes) -> None:
        now = machine.tick(instruction)
        machine.counters.warp_barriers += lanes.warps
        members = _members(lanes, mask)
        whole = members == _FULL
        if whole.all():
            machine.ordering.sync_warps(np.unique(lanes.flat >> 5), now)
            return
        machine.ordering.sync_warps(np.unique(lanes.flat[whole] >> 5), now)
        keys = (lanes.flat >> 5).astype(np.uint64) << np.uint64(32) | members
        for key in np.unique(keys[~whole]):
            machine.ordering.sync_some(lanes.flat[keys == key], now)

    return step
