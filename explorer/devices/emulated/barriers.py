"""bar and barrier: threads of a block wait for one another. PTX ISA, "bar, barrier"."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind, UnsupportedPtx
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.ordering import Row
from explorer.devices.emulated.program import Instruction, Operand
from explorer.devices.emulated.registers import Source, Target
from explorer.devices.emulated.scheduler import Control, Scheduler

_RESOURCES = 16
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


class BlockBarriers:
    """The sixteen barriers of each block of a batch."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._machine = scheduler.machine
        lanes = self._machine.ordering.lanes
        self._waiting: NDArray[np.int8] = np.full(lanes, _NOT_WAITING, np.int8)
        self._expected: NDArray[np.int32] = np.zeros(lanes, np.int32)
        """The thread count that each waiting lane named; 0 for the whole block."""
        self._forms: dict[int, _Form] = {}
        self._arrived: dict[tuple[int, int], tuple[int, Row]] = {}
        """bar.arrive: how many came to (block, barrier), and what they made known."""
        scheduler.on_exit.append(self._exited)

    def bind(self, binder: Binder, instruction: Instruction) -> Control:
        """bar.sync, bar.arrive, bar.red and their barrier.* forms."""
        form = self._form(binder, instruction)
        self._forms[instruction.pc] = form
        guard = binder.source(instruction.guard, "pred") if instruction.guard else None

        def control(lanes: Lanes) -> int | None:
            if guard is not None:
                holds = guard.each(lanes)
                if not holds.all():
                    self._scheduler.place(instruction.pc + 1, lanes.where(~holds))
                    if holds.any():
                        self._arrive(form, lanes.where(holds))
                    return None
            if self._all_meet(form, lanes):
                return instruction.pc + 1
            return self._arrive(form, lanes)

        return control

    def _form(self, binder: Binder, instruction: Instruction) -> _Form:
        mods = binder.modifiers(instruction)
        mods.take("cta")
        mods.take("aligned")
        action = mods.one_of(("sync", "arrive", "red"))
        operands = list(instruction.operands)
        if action != "red":
            mods.finish()
            numbers = [binder.source(o, "u32") for o in operands]
            count = numbers[1] if len(numbers) > 1 else None
            return _Form(instruction, numbers[0], count, arrive_only=action == "arrive")
        return self._reduction(binder, instruction, mods.one_of(("popc", "and", "or")), operands)

    @staticmethod
    def _reduction(
        binder: Binder, instruction: Instruction, reduction: str, operands: list[Operand]
    ) -> _Form:
        """bar.red d, a{, b}, {!}c."""
        if len(operands) not in (3, 4):
            raise UnsupportedPtx((instruction.opcode,))
        target = binder.target(operands[0], "u32" if reduction == "popc" else "pred")
        count = binder.source(operands[2], "u32") if len(operands) == 4 else None
        return _Form(
            instruction,
            binder.source(operands[1], "u32"),
            count,
            reduction=reduction,
            predicate=binder.source(operands[-1], "pred"),
            target=target,
        )

    def _all_meet(self, form: _Form, lanes: Lanes) -> bool:
        """The usual case: every thread of the batch stands here."""
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

    def _reduce(self, form: _Form, groups: NDArray[np.intp]) -> None:
        """The reduction over each row of lanes, given to all of them."""
        assert form.predicate is not None and form.target is not None
        shape = self._machine.shape
        everyone = Lanes.every(shape)
        holds = form.predicate.each(everyone)[groups]
        reduce: Any = {"popc": np.sum, "and": np.all, "or": np.any}[form.reduction]
        for members, value in zip(groups, reduce(holds, axis=1), strict=True):
            form.target.put(Lanes.of(members, shape), value)

    def _arrive(self, form: _Form, lanes: Lanes) -> int | None:
        machine = self._machine
        if form.count is not None and lanes.warps > 1:
            # A barrier of so many threads lets them go when the last of them comes: warps that
            # step together here come one after the other, and need not meet.
            warps = lanes.flat >> 5
            for warp in np.unique(warps):
                if self._arrive(form, lanes.where(warps == warp)) is not None:
                    self._scheduler.place(form.instruction.pc + 1, lanes.where(warps == warp))
            return None
        numbers = form.number.each(lanes)
        now = machine.tick(form.instruction)
        if form.arrive_only:
            self._arrive_only(form, lanes, numbers, now)
        else:
            self._waiting[lanes.flat] = numbers
            self._expected[lanes.flat] = form.count.each(lanes) if form.count else 0
            self._scheduler.wait_pc[lanes.flat] = form.instruction.pc
        blocks = lanes.flat // machine.ordering.per_block
        for block, number in {*zip(blocks.tolist(), numbers.tolist(), strict=True)}:
            self._try(block, int(number))
        return form.instruction.pc + 1 if form.arrive_only else None

    def _arrive_only(self, form: _Form, lanes: Lanes, numbers: NDArray[Any], now: int) -> None:
        ordering = self._machine.ordering
        blocks = lanes.flat // ordering.per_block
        for block, number in {*zip(blocks.tolist(), numbers.tolist(), strict=True)}:
            members = lanes.flat[(blocks == block) & (numbers == number)]
            row = ordering.knowledge(int(members[0]), now)
            for lane in members[1:]:
                row = np.maximum(row, ordering.knowledge(int(lane), now))
            count, earlier = self._arrived.get((block, number), (0, row))
            self._arrived[block, number] = (count + len(members), np.maximum(row, earlier))

    def _exited(self, lanes: Lanes) -> None:
        if (self._waiting == _NOT_WAITING).all():
            return
        for block in np.unique(lanes.flat // self._machine.ordering.per_block):
            for number in np.unique(self._waiting[self._threads(int(block))]):
                if number != _NOT_WAITING:
                    self._try(int(block), int(number))

    def _threads(self, block: int) -> slice:
        per_block = self._machine.ordering.per_block
        return slice(block * per_block, (block + 1) * per_block)

    def _try(self, block: int, number: int) -> None:
        """Let the barrier complete if all that it waits for have come."""
        threads = self._threads(block)
        members = np.flatnonzero(self._waiting[threads] == number) + threads.start
        if not len(members):
            return
        named = int(self._expected[members].max())
        gone = int(np.count_nonzero(self._exited_threads(block)))
        arrived = self._arrived.get((block, number), (0, None))[0]
        expected = named or self._machine.geometry.threads - gone
        if len(members) + arrived >= expected:
            self._complete(block, number, members, named, gone)

    def _exited_threads(self, block: int) -> NDArray[np.bool_]:
        threads = self._threads(block)
        real = slice(threads.start, threads.start + self._machine.geometry.threads)
        return self._scheduler.exited[real]

    def _complete(
        self, block: int, number: int, members: NDArray[np.intp], named: int, gone: int
    ) -> None:
        scheduler, machine = self._scheduler, self._machine
        pcs = scheduler.wait_pc[members]
        self._check(members, pcs, named, gone)
        self._waiting[members] = _NOT_WAITING
        machine.progress = True
        machine.counters.barriers += 1
        form = self._forms[int(pcs[0])]
        now = machine.tick(form.instruction)
        _, row = self._arrived.pop((block, number), (0, None))
        if len(members) == machine.geometry.threads - gone:
            machine.ordering.sync_blocks(np.array([block]), now)
        else:
            machine.ordering.sync_some(members, now)
        if row is not None:
            machine.ordering.acquire(members, row)
        if form.reduction:
            self._reduce(form, members[None, :])
        for pc in np.unique(pcs):
            scheduler.place(int(pc) + 1, Lanes.of(members[pcs == pc], machine.shape))

    def _check(
        self, members: NDArray[np.intp], pcs: NDArray[np.int32], named: int, gone: int
    ) -> None:
        instruction = self._forms[int(pcs[0])].instruction
        if gone and not named:
            message = f"{gone} threads of the block exited without reaching the barrier"
            self._machine.report(Kind.BARRIER, message, instruction, int(members[0]))
        if (pcs != pcs[0]).any():
            different = pcs != pcs[0]
            warps = members >> 5
            split = np.isin(warps[different], warps[~different]).any()
            if split or not named:
                lane = int(members[int(np.argmax(different))])
                other = self._forms[int(pcs[different][0])].instruction
                self._machine.report(
                    Kind.BARRIER,
                    "threads of the block meet at different barriers",
                    instruction,
                    lane,
                    other=other,
                    key="different",
                )
