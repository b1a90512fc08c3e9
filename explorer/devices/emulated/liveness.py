"""Which registers can share storage: those that are never in use at the same time.

Compilers number registers without end. Kept apart, those of an unrolled kernel are more memory than
any cache holds, and allotting them costs more than computing.
"""

import heapq
from collections import Counter
from dataclasses import dataclass

from explorer.devices.emulated.program import (
    Address,
    Entry,
    Instruction,
    Operand,
    Pair,
    Register,
    Symbol,
    Vector,
)
from explorer.devices.emulated.ptx_types import storage_dtype

Loop = tuple[int, int]
"""First and last instruction of what a backward branch repeats."""


@dataclass(slots=True)
class _Range:
    """The instructions from a register's first occurrence to its last."""

    start: int
    end: int
    carried: bool
    """It may carry a value from one turn of a loop to the next."""


def register_slots(entry: Entry) -> dict[str, tuple[int, int]]:
    """For each register that occurs: the bytes of its storage, and the number of its slot.

    Lanes have storage of their own, so that it does not matter that they run apart.
    """
    if entry.slots is None:
        entry.slots = _allotted(entry)
    return entry.slots


def _allotted(entry: Entry) -> dict[str, tuple[int, int]]:
    ranges = _ranges(entry)
    loops = _loops(entry)
    for live in ranges.values():
        _extend(live, loops)
    slots: dict[str, tuple[int, int]] = {}
    free: dict[int, list[int]] = {}
    busy: list[tuple[int, int, int]] = []
    used: Counter[int] = Counter()
    for name, live in sorted(ranges.items(), key=lambda item: item[1].start):
        while busy and busy[0][0] < live.start:
            _, size, slot = heapq.heappop(busy)
            free.setdefault(size, []).append(slot)
        size = storage_dtype(entry.registers[name]).itemsize
        if entry.registers[name] == "pred":
            size = 0
        slot = free[size].pop() if free.get(size) else used[size]
        if slot == used[size]:
            used[size] += 1
        slots[name] = (size, slot)
        heapq.heappush(busy, (live.end, size, slot))
    return slots


def registers_of(operand: Operand) -> list[str]:
    """Names of the registers that an operand mentions."""
    if isinstance(operand, Register):
        return [operand.name]
    if isinstance(operand, Vector):
        return [name for item in operand.items for name in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    if isinstance(operand, Address) and isinstance(operand.base, Register):
        return [operand.base.name]
    return []


def _written(instruction: Instruction) -> list[str]:
    """Registers that an instruction may write: those of its first operand, at least."""
    first = instruction.operands[0] if instruction.operands else None
    return [] if first is None or isinstance(first, Address) else registers_of(first)


def _ranges(entry: Entry) -> dict[str, _Range]:
    ranges: dict[str, _Range] = {}
    definitions: Counter[str] = Counter()
    for instruction in entry.instructions:
        written = _written(instruction)
        definitions.update(written)
        names = [name for operand in instruction.operands[1:] for name in registers_of(operand)]
        first = instruction.operands[:1]
        reads = names + [n for o in first if isinstance(o, Address) for n in registers_of(o)]
        if instruction.guard is not None:
            reads.append(instruction.guard.name)
        for name in [*reads, *written]:
            # A register that is read before it is written comes around a loop.
            live = ranges.setdefault(name, _Range(instruction.pc, instruction.pc, name in reads))
            live.end = instruction.pc
    for name, live in ranges.items():
        live.carried |= definitions[name] != 1
    return ranges


def _loops(entry: Entry) -> list[Loop]:
    loops = []
    for instruction in entry.instructions:
        labels = [o.name for o in instruction.operands if isinstance(o, Symbol)]
        for label in labels:
            for target in entry.branch_tables.get(label, (label,)):
                start = entry.labels.get(target, instruction.pc + 1)
                if start <= instruction.pc and instruction.root in ("bra", "brx"):
                    loops.append((start, instruction.pc))
    return loops


def _extend(live: _Range, loops: list[Loop]) -> None:
    """Over every loop that the register is live into or out of, or may carry a value around.

    Out of: what looks like a loop may be a block that compilers have put before those that branch
    to it and go on behind the branch. What is in use there is so in that block, too.
    """
    changed = True
    while changed:
        changed = False
        for start, end in loops:
            if live.start > end or live.end < start:
                continue
            lives_on = live.carried or live.start <= end < live.end
            first = min(live.start, start) if lives_on else live.start
            last = max(live.end, end) if live.carried or live.start < start else live.end
            if (first, last) != (live.start, live.end):
                live.start, live.end, changed = first, last, True
