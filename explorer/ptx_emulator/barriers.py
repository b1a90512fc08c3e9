"""bar and barrier: the threads of a block wait for one another. PTX ISA, "bar, barrier"."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.binding import Binder, Control, Modifiers, controls
from explorer.ptx_emulator.findings import Kind, UnsupportedPtx
from explorer.ptx_emulator.happens_before import Row
from explorer.ptx_emulator.lanes import Lanes, all_of, any_of, distinct
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.program import Instruction
from explorer.ptx_emulator.registers import Source, Target
from explorer.ptx_emulator.scheduler import Scheduler, guarded

_NOT_WAITING = -1


@dataclass(slots=True)
class _Form:
    """One barrier instruction, bound."""

    instruction: Instruction
    number: Source
    count: Source | None
    arrive_only: bool = False
    reduction: str = ""
    predicate: Source | None = None
    target: Target | None = None


@controls("bar", "barrier")
def bind_barrier(binder: Binder, instruction: Instruction) -> Control:
    """Bind bar.sync, bar.arrive, bar.red and their barrier.* forms."""
    barriers = binder.machine.part(_BlockBarriers)
    form = _form(binder, instruction)
    barriers.forms[instruction.pc] = form
    return guarded(binder, instruction, partial(barriers.arrive, form))


def _form(binder: Binder, instruction: Instruction) -> _Form:
    mods = Modifiers(instruction)
    mods.take("cta")
    mods.take("aligned")
    action = mods.one_of(("sync", "arrive", "red"))
    operands = list(instruction.operands)
    if action != "red":
        mods.finish()
        numbers = [binder.source(o, "u32") for o in operands]
        count = numbers[1] if len(numbers) > 1 else None
        return _Form(instruction, numbers[0], count, arrive_only=action == "arrive")
    reduction = mods.one_of(("popc", "and", "or"))
    if len(operands) not in (3, 4):  # bar.red d, a{, b}, {!}c
        raise UnsupportedPtx((instruction.opcode,))
    return _Form(
        instruction,
        binder.source(operands[1], "u32"),
        binder.source(operands[2], "u32") if len(operands) == 4 else None,
        reduction=reduction,
        predicate=binder.source(operands[-1], "pred"),
        target=binder.target(operands[0], "u32" if reduction == "popc" else "pred"),
    )


class _BlockBarriers:
    """The sixteen barriers of each block of a batch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._scheduler = machine.part(Scheduler)
        lanes = machine.ordering.lanes
        self._waiting: NDArray[np.int8] = np.full(lanes, _NOT_WAITING, np.int8)
        """The barrier at which each lane waits."""
        self._expected: NDArray[np.int32] = np.zeros(lanes, np.int32)
        """The thread count that each waiting lane named; 0 for the whole block."""
        self.forms: dict[int, _Form] = {}
        self._arrived: dict[tuple[int, int], tuple[int, Row]] = {}
        """bar.arrive: how many came to (block, barrier), and what they made known."""
        self._last_met: dict[tuple[int, int], tuple[NDArray[np.intp], int]] = {}
        """For (block, barrier) of a stated number of threads: who met there last, and when."""
        self._scheduler.on_exit.append(self._exited)

    def arrive(self, form: _Form, lanes: Lanes) -> int | None:
        """Let lanes come to a barrier. Return where they go on, None if they have to wait."""
        machine = self._machine
        if self._all_meet(form, lanes):
            return form.instruction.pc + 1
        if form.count is not None and lanes.warps > 1:
            self._arrive_by_warps(form, lanes)
            return None
        numbers = form.number.each(lanes)
        now = machine.tick(form.instruction)
        if form.arrive_only:
            self._arrive_only(form, lanes, numbers, now)
        else:
            self._waiting[lanes.flat] = numbers
            self._expected[lanes.flat] = form.count.each(lanes) if form.count else 0
            self._scheduler.wait_pc[lanes.flat] = form.instruction.pc
        blocks = machine.blocks_of(lanes)
        if form.count is not None and self._last_met:
            self._check_that_it_is_theirs(form, lanes, int(blocks[0]), int(numbers[0]))
        for number in np.unique(numbers).tolist():
            self._try(distinct(blocks[numbers == number]), number)
        return form.instruction.pc + 1 if form.arrive_only else None

    def _all_meet(self, form: _Form, lanes: Lanes) -> bool:
        """Return whether every thread of the batch stands here, as is usual; they have then met."""
        if (
            not lanes.full
            or form.count is not None
            or form.arrive_only
            or form.number.scalar is None
        ):
            return False
        machine = self._machine
        now = machine.tick(form.instruction)
        machine.progress = True
        if form.reduction:
            self._reduce(form, lanes.flat.reshape(machine.blocks, -1))
        machine.ordering.sync_blocks(np.arange(machine.blocks), now)
        machine.counters.barriers += machine.blocks
        return True

    def _arrive_by_warps(self, form: _Form, lanes: Lanes) -> None:
        """Let the warps come one after the other to a barrier of a stated number of threads.

        It lets them go when the last of so many comes, so warps that step together need not meet.
        """
        warps = lanes.flat >> 5
        for warp in np.unique(warps):
            members = lanes.where(warps == warp)
            if self.arrive(form, members) is not None:
                self._scheduler.place(form.instruction.pc + 1, members)

    def _arrive_only(self, form: _Form, lanes: Lanes, numbers: NDArray[Any], now: int) -> None:
        ordering = self._machine.ordering
        blocks = self._machine.blocks_of(lanes)
        for block, number in {*zip(blocks.tolist(), numbers.tolist(), strict=True)}:
            members = lanes.flat[(blocks == block) & (numbers == number)]
            row = ordering.knowledge(int(members[0]), now)
            for lane in members[1:]:
                row = np.maximum(row, ordering.knowledge(int(lane), now))
            count, earlier = self._arrived.get((block, number), (0, row))
            self._arrived[block, number] = (count + len(members), np.maximum(row, earlier))

    def _check_that_it_is_theirs(self, form: _Form, lanes: Lanes, block: int, number: int) -> None:
        """Report threads that come to a barrier, and might have come before it last let others go.

        A barrier of a stated number of threads counts whoever comes: then it would have let these
        go, and kept others. `lanes` are of one warp.
        """
        met = self._last_met.get((block, number))
        if met is None or any(known.arrive_only for known in self.forms.values()):
            return
        members, when = met
        others = lanes.flat[~np.isin(lanes.flat, members)]
        before = np.full(len(others), members[0])
        after = self._machine.ordering.ordered(before, np.full(len(others), when), others)
        if not all_of(after):
            message = (
                f"more threads come to barrier {number} than the {len(members)} that it waits for, "
                "in no order: it may let others go"
            )
            self._machine.report(Kind.BARRIER, message, form.instruction, int(others[0]))

    def _exited(self, lanes: Lanes) -> None:
        """Stop waiting for exited threads at barriers of the whole block."""
        if all_of(self._waiting == _NOT_WAITING):
            return
        blocks = distinct(self._machine.blocks_of(lanes))
        waiting = self._by_block(self._waiting)[blocks]
        for number in np.unique(waiting).tolist():
            if number != _NOT_WAITING:
                self._try(blocks[(waiting == number).any(axis=1)], number)

    def _by_block(self, of_lanes: NDArray[Any]) -> NDArray[Any]:
        return of_lanes.reshape(self._machine.blocks, -1)

    def _try(self, blocks: NDArray[np.intp], number: int) -> None:
        """Complete a barrier in those of the blocks in which all that it waits for have come."""
        threads = self._machine.geometry.threads
        here = self._by_block(self._waiting)[blocks] == number
        come = np.count_nonzero(here, axis=1)
        named = np.where(here, self._by_block(self._expected)[blocks], 0).max(axis=1)
        gone = np.count_nonzero(self._by_block(self._scheduler.exited)[blocks, :threads], axis=1)
        arrived = np.zeros(len(blocks), np.int64)
        if self._arrived:
            pairs = [self._arrived.get((block, number), (0, None)) for block in blocks.tolist()]
            arrived = np.array([count for count, _ in pairs])
        due = np.where(named > 0, named, threads - gone)
        done = (come > 0) & (come + arrived >= due)
        whole = done & (come == threads) & (arrived == 0)
        if any_of(whole) and self._complete_whole(blocks[whole], number):
            done &= ~whole
        for place in np.flatnonzero(done).tolist():
            self._complete(int(blocks[place]), number, int(named[place]), int(gone[place]))

    def _complete_whole(self, blocks: NDArray[np.intp], number: int) -> bool:
        """Complete a barrier at which all threads of some blocks wait, at one instruction.

        Return False if they wait at several instructions.
        """
        scheduler, machine = self._scheduler, self._machine
        members = self._members(blocks, number)
        pcs = scheduler.wait_pc[members]
        if any_of(pcs != pcs[0]):
            return False
        self._waiting[members] = _NOT_WAITING
        machine.progress = True
        machine.counters.barriers += len(blocks)
        form = self.forms[int(pcs[0])]
        now = machine.tick(form.instruction)
        machine.ordering.sync_blocks(blocks, now)
        if form.reduction:
            self._reduce(form, members.reshape(len(blocks), -1))
        scheduler.place(form.instruction.pc + 1, Lanes.of(members, machine.shape))
        return True

    def _members(self, blocks: NDArray[np.intp], number: int) -> NDArray[np.intp]:
        """Return the lanes of blocks that wait at a barrier, ascending."""
        rows, columns = np.nonzero(self._by_block(self._waiting)[blocks] == number)
        return np.asarray(blocks[rows] * self._machine.ordering.per_block + columns)

    def _complete(self, block: int, number: int, named: int, gone: int) -> None:
        """Complete a barrier of one block, whoever waits there."""
        scheduler, machine = self._scheduler, self._machine
        members = self._members(np.array([block]), number)
        pcs = scheduler.wait_pc[members]
        for message, instruction, lane, other in self._faults(members, pcs, named, gone):
            key = "different" if other else None
            machine.report(Kind.BARRIER, message, instruction, lane, other=other, key=key)
        self._waiting[members] = _NOT_WAITING
        machine.progress = True
        machine.counters.barriers += 1
        form = self.forms[int(pcs[0])]
        now = machine.tick(form.instruction)
        _, row = self._arrived.pop((block, number), (0, None))
        if len(members) == machine.geometry.threads - gone:
            machine.ordering.sync_blocks(np.array([block]), now)
        else:
            machine.ordering.sync_some(members, now)
            self._last_met[block, number] = members, now
        if row is not None:
            machine.ordering.acquire(members, row)
        if form.reduction:
            self._reduce(form, members[None, :])
        for pc in np.unique(pcs):
            scheduler.place(int(pc) + 1, Lanes.of(members[pcs == pc], machine.shape))

    def _reduce(self, form: _Form, groups: NDArray[np.intp]) -> None:
        """Give each row of lanes the reduction over its predicates."""
        assert form.predicate is not None and form.target is not None
        shape = self._machine.shape
        holds = form.predicate.each(Lanes.every(shape))[groups]
        reduce: Any = {"popc": np.sum, "and": np.all, "or": np.any}[form.reduction]
        for members, value in zip(groups, reduce(holds, axis=1), strict=True):
            form.target.put(Lanes.of(members, shape), value)

    def _faults(
        self, members: NDArray[np.intp], pcs: NDArray[np.int32], named: int, gone: int
    ) -> Iterator[tuple[str, Instruction, int, Instruction | None]]:
        """Yield what is wrong with who waits: message, instruction, lane, other instruction."""
        instruction = self.forms[int(pcs[0])].instruction
        if gone and not named:
            message = f"{gone} threads of the block exited without reaching the barrier"
            yield message, instruction, int(members[0]), None
        different = pcs != pcs[0]
        if not any_of(different):
            return
        warps = members >> 5
        if not named or np.isin(warps[different], warps[~different]).any():
            message = "threads of the block meet at different barriers"
            lane = int(members[int(np.argmax(different))])
            yield message, instruction, lane, self.forms[int(pcs[different][0])].instruction
