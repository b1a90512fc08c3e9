"""Lanes of a warp that wait for those that an instruction's mask names."""

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.findings import Kind
from explorer.devices.emulated.instruction_set import Step
from explorer.devices.emulated.lanes import WARP, Lanes
from explorer.devices.emulated.program import Instruction, Operand
from explorer.devices.emulated.registers import Source
from explorer.devices.emulated.scheduler import Control, Scheduler

_FULL = 0xFFFFFFFF


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
        self._gone: dict[int, NDArray[np.uint32]] = {}
        """Lanes of each warp that had exited when others last began to wait at an instruction."""
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
        # Lanes that have exited need not come; reading their values is what is wrong.
        waits = (missing & ~self._gone_bits()[warps]) != 0
        if waits.any():
            self._scheduler.wait_pc[lanes.flat[waits]] = pc
            self._parked[pc] = lanes.where(waits)
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
        self, instruction: Instruction, lanes: Lanes, absent: NDArray[np.bool_]
    ) -> None:
        self._machine.report(
            Kind.WARP_MASK,
            "the mask names lanes that do not reach this instruction",
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
        instruction, step, mask = self._bound[pc]
        masks = mask.each(lanes).astype(np.uint32)
        warps = lanes.flat >> 5
        absent = (masks & ~lanes.warp_bits()[warps] & ~self._gone[pc][warps]) != 0
        if absent.any():
            self._report_absent(instruction, lanes, absent)
        step(lanes)
        self._scheduler.place(pc + 1, lanes)
        return True
