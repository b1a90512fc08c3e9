"""Instructions that send lanes elsewhere: bra, brx.idx, ret, exit, trap."""

from collections.abc import Sequence

import numpy as np

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.scheduler import Control, Scheduler

_POLLS = ("volatile", "acquire", "relaxed", "test_wait", "try_wait", "mmio")

LOOP_FUEL = 4096
SPIN_FUEL = 4


class Branches:
    """Binds branches to a scheduler. A loop that takes too many turns steps back for the others."""

    def __init__(self, scheduler: Scheduler, instructions: Sequence[Instruction]) -> None:
        self._scheduler = scheduler
        self._instructions = instructions
        self._fuel: dict[int, int] = {}

    def bind_branch(self, binder: Binder, instruction: Instruction, target: int) -> Control:
        """bra: all lanes, or those whose guard holds, go to `target`."""
        pc = instruction.pc
        backward = target <= pc
        fuel = self._loop_fuel(target, pc) if backward else 0
        if instruction.guard is None:
            return (
                (lambda lanes: self._loop(pc, target, fuel, lanes))
                if backward
                else (lambda lanes: target)
            )
        guard = binder.source(instruction.guard, "pred")

        def branch(lanes: Lanes) -> int | None:
            holds = guard.each(lanes)
            count = int(np.count_nonzero(holds))
            if count == 0:
                return pc + 1
            if count < lanes.count:
                self._scheduler.arrive(pc + 1, lanes.where(~holds))
                lanes = lanes.where(holds)
                following = self._loop(pc, target, fuel, lanes) if backward else target
                if following is not None:
                    self._scheduler.arrive(following, lanes)
                return None
            return self._loop(pc, target, fuel, lanes) if backward else target

        return branch

    def _loop_fuel(self, start: int, end: int) -> int:
        for instruction in self._instructions[start:end]:
            polls = any(m in _POLLS for m in instruction.modifiers)
            if polls or instruction.root in ("atom", "nanosleep"):
                return SPIN_FUEL
        return LOOP_FUEL

    def _loop(self, pc: int, target: int, fuel: int, lanes: Lanes) -> int | None:
        used = self._fuel.get(pc, 0) + 1
        if used < fuel:
            self._fuel[pc] = used
            return target
        self._fuel[pc] = 0
        self._scheduler.defer(target, lanes)
        return None

    def bind_switch(self, binder: Binder, instruction: Instruction, targets: list[int]) -> Control:
        """brx.idx: each lane goes to the target that its index picks."""
        index = binder.source(instruction.operands[0], "u32")

        def switch(lanes: Lanes) -> None:
            chosen = index.each(lanes)
            for number in np.unique(chosen):
                self._scheduler.arrive(targets[int(number)], lanes.where(chosen == number))

        return switch

    def bind_exit(self, binder: Binder, instruction: Instruction) -> Control:
        """ret and exit, perhaps guarded."""
        guard = binder.source(instruction.guard, "pred") if instruction.guard else None

        def leave(lanes: Lanes) -> int | None:
            if guard is not None:
                holds = guard.each(lanes)
                if not holds.any():
                    return instruction.pc + 1
                if not holds.all():
                    self._scheduler.arrive(instruction.pc + 1, lanes.where(~holds))
                    lanes = lanes.where(holds)
            self._scheduler.exit(lanes)
            return None

        return leave

    def bind_trap(self, binder: Binder, instruction: Instruction) -> Control:
        """trap and brkpt: reported; the lanes end."""
        leave = self.bind_exit(binder, instruction)

        def trap(lanes: Lanes) -> int | None:
            self._scheduler.machine.report(
                Kind.TRAP,
                f"{instruction.root} was executed",
                instruction,
                int(lanes.flat[0]),
                count=lanes.count,
            )
            return leave(lanes)

        return trap
