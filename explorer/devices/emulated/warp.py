"""Warp-wide instructions: votes, matches, reductions, warp barriers.

PTX ISA, "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync".
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, Array
from explorer.devices.emulated.registers import Source


def _members(lanes: Lanes, mask: Source) -> NDArray[np.uint32]:
    """For each lane, the lanes of its mask that are here."""
    here = lanes.warp_bits()[lanes.flat >> 5]
    return np.asarray(here & mask.each(lanes).astype(np.uint32))


def _ballot(lanes: Lanes, holds: NDArray[np.bool_], members: NDArray[np.uint32]) -> NDArray[Any]:
    flags = np.zeros(lanes.shape[0] * lanes.shape[1] * WARP, np.bool_)
    flags[lanes.flat] = holds
    bits = np.packbits(flags.reshape(-1, WARP), axis=1, bitorder="little").view(np.uint32)
    return np.asarray(bits.reshape(-1)[lanes.flat >> 5] & members)


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
        whole = members == 0xFFFFFFFF
        if whole.all():
            machine.ordering.sync_warps(np.unique(lanes.flat >> 5), now)
            return
        machine.ordering.sync_warps(np.unique(lanes.flat[whole] >> 5), now)
        keys = (lanes.flat >> 5).astype(np.uint64) << np.uint64(32) | members
        for key in np.unique(keys[~whole]):
            machine.ordering.sync_some(lanes.flat[keys == key], now)

    return step
