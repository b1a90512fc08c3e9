"""mbarrier instructions. PTX ISA, "mbarrier"."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from explorer.devices.emulated.access import Access
from explorer.devices.emulated.addresses import SCOPES, bind_address, split_generic
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.mbarriers import Mbarrier
from explorer.devices.emulated.ordering import LaneIds
from explorer.devices.emulated.program import Instruction, Operand
from explorer.devices.emulated.registers import Target

if TYPE_CHECKING:
    pass


Rows = NDArray[np.int64]

Operation = Callable[[Mbarrier, int, int], Any]
"""What an instruction does to one object, for (object, lane, row of the operands)."""


class BoundMbarrier:
    """An mbarrier instruction's address, located and checked lane by lane."""

    def __init__(
        self, binder: Binder, instruction: Instruction, space: str, address: Operand
    ) -> None:
        self._machine = binder.machine
        self._instruction = instruction
        self._space = space
        self._addresses = bind_address(binder, address)
        self._machine.asynchronous.used = True

    def places(self, lanes: Lanes, action: str) -> list[tuple[int, int, int]]:
        """(row of the operands, lane, place in shared memory), after the checks of the shadow."""
        machine = self._machine
        access = Access(self._instruction, 8, action)
        addresses = self._addresses(lanes)
        if not self._space:
            _, window, _ = split_generic(machine, addresses)[0]
            addresses = addresses - window
        now = machine.tick(self._instruction)
        creates = action == "write"
        found: list[tuple[int, int, int]] = []
        for place in machine.shared_space.locate(addresses, lanes, access):
            shadow = machine.shared_space.shadow
            shadow.atomic(place.index, place.lanes, access, now, reads=not creates)
            rows = np.arange(lanes.count) if place.chosen is None else np.flatnonzero(place.chosen)
            lane_ids = place.lanes.flat.tolist()
            found += zip(rows.tolist(), lane_ids, place.index.tolist(), strict=True)
        return found

    def objects(self, lanes: Lanes) -> Iterator[tuple[Mbarrier | None, Rows, LaneIds]]:
        """Each object that lanes name, with their rows of the operands and the lanes."""
        places = np.array(self.places(lanes, "atomic"), np.int64).reshape(-1, 3)
        for place in np.unique(places[:, 2]).tolist():
            rows, of, _ = places[places[:, 2] == place].T
            yield self._machine.mbarriers.get(place, self._instruction, of), rows, of

    def each(self, lanes: Lanes, operation: Operation) -> list[Any]:
        """Apply an operation to the object of every lane; None where there is no object."""
        results: list[Any] = [None] * lanes.count
        for barrier, rows, of in self.objects(lanes):
            if barrier is not None:
                for row, lane in zip(rows.tolist(), of.tolist(), strict=True):
                    results[row] = operation(barrier, lane, row)
        return results


@binds("mbarrier")
def bind_mbarrier(binder: Binder, instruction: Instruction) -> Step:
    """Every mbarrier instruction."""
    mods = binder.modifiers(instruction)
    action = mods.one_of(("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx",
                          "test_wait", "try_wait"))  # fmt: skip
    space = mods.one_of(("shared", "shared::cta", "shared::cluster"), "")
    bindings: dict[str, Callable[..., Step]] = {
        "init": _bind_init,
        "inval": _bind_inval,
        "arrive": _bind_arrive,
        "expect_tx": _bind_bytes,
        "complete_tx": _bind_bytes,
        "test_wait": _bind_wait,
        "try_wait": _bind_wait,
    }
    return bindings[action](binder, instruction, mods, space)


def _end(mods: Modifiers) -> None:
    mods.one_of(("release", "acquire", "relaxed"), "release")
    mods.one_of(SCOPES, "")
    mods.take("b64")
    mods.finish()


def _bind_init(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])
    count = binder.source(instruction.operands[1], "u32")

    def step(lanes: Lanes) -> None:
        counts = count.each(lanes)
        for row, lane, place in bound.places(lanes, "write"):
            now = binder.machine.tick(instruction)
            binder.machine.mbarriers.init(place, int(counts[row]), lane, now)

    return step


def _bind_inval(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])

    def step(lanes: Lanes) -> None:
        for _, _, place in bound.places(lanes, "write"):
            binder.machine.mbarriers.remove(place)

    return step


def _bind_bytes(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    sign = 1 if "expect_tx" in instruction.modifiers else -1
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[0])
    amount = binder.source(instruction.operands[1], "u32")

    def step(lanes: Lanes) -> None:
        amounts = amount.each(lanes)

        def change(barrier: Mbarrier, lane: int, row: int) -> None:
            barrier.bytes_due += sign * int(amounts[row])
            binder.machine.mbarriers.settle(barrier, instruction)

        bound.each(lanes, change)

    return step


def _bind_arrive(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    expects = mods.take("expect_tx")
    mods.take("noComplete")
    _end(mods)
    state, address, *rest = instruction.operands
    bound = BoundMbarrier(binder, instruction, space, address)
    number = binder.source(rest[0], "u32") if rest else None
    target: Target = binder.target(state, "b64")
    machine = binder.machine

    def step(lanes: Lanes) -> None:
        numbers = number.each(lanes) if number else np.ones(lanes.count, np.uint32)

        def arrive(barrier: Mbarrier, lane: int, row: int) -> int:
            phase = barrier.phase
            if expects:
                barrier.bytes_due += int(numbers[row])
            known = machine.ordering.knowledge(lane, machine.tick(instruction))
            count = 1 if expects else int(numbers[row])
            machine.mbarriers.arrive(barrier, count, known, instruction, lane)
            return phase

        phases = bound.each(lanes, arrive)
        target.put(lanes, np.array([phase or 0 for phase in phases], np.uint64))

    return step


def _bind_wait(binder: Binder, instruction: Instruction, mods: Modifiers, space: str) -> Step:
    """test_wait and try_wait: neither blocks here, which both may do."""
    parity = mods.take("parity")
    _end(mods)
    bound = BoundMbarrier(binder, instruction, space, instruction.operands[1])
    target = binder.target(instruction.operands[0], "pred")
    phase = binder.source(instruction.operands[2], "u32" if parity else "b64")
    machine = binder.machine

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
            machine.ordering.acquire(of[results[rows]], barrier.row)
        target.put(lanes, results)

    return step
