"""The registers of a batch: how they are read and written, which share storage, which are constant.

A register is an array of shape (blocks, warps, 32), which it shares with registers that are never
in use when it is. A register that is assigned once, from a literal or a launch constant, is a
scalar: arithmetic with a scalar is cheaper than with an array.

What nothing has assigned yet is different numbers in neighbouring lanes, which no code expects. PTX
leaves it undefined, and compilers read it where the value does not matter.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from explorer.ptx_emulator.findings import UnsupportedPtx
from explorer.ptx_emulator.geometry import Geometry, constant_special
from explorer.ptx_emulator.lanes import WARP, Lanes, Shape
from explorer.ptx_emulator.program import (
    DTYPES,
    FLOATS,
    SIGNED,
    STORAGE,
    Address,
    Array,
    Entry,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Special,
    Symbol,
    Values,
    Vector,
    once_an_entry,
    storage_dtype,
)


class Source:
    """An operand that is read: a scalar, or an array of the batch's shape.

    That of a register is another array in each batch; those who keep a Source ask it each time.
    """

    __slots__ = ("_flat", "value")

    def __init__(self, value: Values) -> None:
        self.value: Any
        self._flat: Array | None
        self.load(value)

    def load(self, value: Values) -> None:
        """Read `value` from now on."""
        self.value, self._flat = value, None
        if isinstance(value, np.ndarray) and value.ndim == 3:
            self._flat = value.reshape(-1)

    def load_array(self, array: Array, flat: Array) -> None:
        """Read an array of the batch's shape from now on, which is also given as one row."""
        self.value, self._flat = array, flat

    @property
    def scalar(self) -> Any | None:
        """The operand's value if it is the same for all lanes at all times, else None."""
        return self.value if self._flat is None else None

    def at(self, lanes: Lanes) -> Any:
        """Return its values for these lanes: a scalar, a view of the box, or gathered by index."""
        if lanes.full or self._flat is None:
            return self.value
        if lanes.box is not None:
            return self.value[lanes.box]
        return self._flat[lanes.flat]

    def each(self, lanes: Lanes) -> Array:
        """Return its values in the order of `lanes.flat`, one for each lane."""
        values = self.at(lanes)
        if self._flat is None:
            return np.full(lanes.count, values)
        return np.asarray(values).reshape(-1)


class NarrowedSource(Source):
    """A register wider than the type that the instruction reads: its low bits."""

    __slots__ = ("_dtype",)

    def __init__(self, value: Values, dtype: np.dtype[Any]) -> None:
        super().__init__(value)
        self._dtype = dtype

    @property
    def scalar(self) -> Any | None:
        """The low bits of the value if it is the same for all lanes, else None."""
        return self._narrow(self.value) if self._flat is None else None

    def at(self, lanes: Lanes) -> Any:
        """Return the low bits of its values for these lanes."""
        return self._narrow(super().at(lanes))

    def _narrow(self, values: Any) -> Any:
        return np.asarray(values).astype(STORAGE[self._dtype.itemsize]).view(self._dtype)


class NegatedSource(Source):
    """A predicate read as `!%p`."""

    __slots__ = ()

    def at(self, lanes: Lanes) -> Any:
        """Return the negated values for these lanes."""
        return np.logical_not(super().at(lanes))


class Target:
    """An operand that is written: another array in each batch, as of a Source."""

    __slots__ = ("array", "flat")

    def __init__(self, array: Array) -> None:
        self.load_array(array, array.reshape(-1))

    def load_array(self, array: Array, flat: Array) -> None:
        """Write to an array from now on, which is also given as one row."""
        self.array, self.flat = array, flat

    def put(self, lanes: Lanes, values: Any) -> None:
        """Write a scalar, values in the box's shape, or values in the order of `lanes.flat`."""
        if lanes.full:
            if type(values) is np.ndarray and values.ndim == 1:
                values = self._shaped(values, self.array)
            self.array[...] = values
        elif lanes.box is not None:
            view = self.array[lanes.box]
            view[...] = self._shaped(values, view)
        else:
            self.flat[lanes.flat] = values

    def written(self, lanes: Lanes) -> Array:
        """Return what lanes have: a view of the box, or gathered in the order of `lanes.flat`."""
        if lanes.full:
            return self.array
        return self.array[lanes.box] if lanes.box is not None else self.flat[lanes.flat]

    @staticmethod
    def _shaped(values: Any, view: Array) -> Any:
        if type(values) is not np.ndarray or values.ndim != 1:
            return values
        # Arithmetic on scalars alone may have given one value for all.
        return values.reshape(view.shape) if len(values) == view.size else values[0]


class NoTarget(Target):
    """The destination `_`, or a register that is known to be constant. Nothing is stored."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(np.zeros(1, np.uint32))

    def put(self, lanes: Lanes, values: Any) -> None:
        """Drop the values."""


_UNASSIGNED: dict[int, tuple[int, ...]] = {
    0: (1, 0),
    1: (0x7E, 0xFE, 0x81),
    2: (0x7FED, 0x7B17, 0xFB17),
    4: (0x7FEDEAD0, 0x7E967699, 0xFE967699),
    8: (0x7FFDEAD0DEADBEEF, 0x7E37E43C8800759C, 0xFE37E43C8800759C),
}
"""What registers of so many bytes hold before they are assigned, in lanes that take turns: a NaN, a
huge number and its negative, so that no maximum and no sum passes over all of them. A predicate,
of 0 bytes, is true in every other lane."""


@lru_cache(maxsize=16)  # a kernel has many registers of a size, in each of many batches
def unassigned(size: int, count: int) -> Array:
    """Return what `count` registers of neighbouring lanes hold before they are assigned."""
    values = np.array(_UNASSIGNED[size], STORAGE[size] if size else DTYPES["pred"])
    return np.tile(values, -(-count // len(values)))[:count]


class RegisterFile:
    """The registers of a kernel: what reads and writes them, and their storage in one batch.

    Instructions are bound to it once. `allot` gives it the storage of the next batch, of another
    shape and with other values of the constant registers, whose names stay the same.
    """

    def __init__(self, declared: Mapping[str, str], slots: Mapping[str, tuple[int, int]]) -> None:
        self._declared = declared
        self._slots = slots
        self._shape: Shape = (0, 0, WARP)
        self._constants: Mapping[str, int] = {}
        self._arrays: dict[tuple[int, int], Array] = {}
        self._views: dict[tuple[int, int, np.dtype[Any]], int] = {}
        """Storage as a type sees it: (bytes, slot, type), and the number of that view."""
        self._users: list[tuple[Callable[[Array, Array], None], int]] = []
        """What to call with each view in a new batch."""
        self._sources: dict[tuple[str, str, bool], Source] = {}
        self._targets: dict[tuple[str, str], Target] = {}

    def allot(self, shape: Shape, constants: Mapping[str, int]) -> None:
        """Give registers storage of a shape, not assigned yet, and constant ones their values.

        The storage of a batch before serves again if it has this shape.
        """
        assert shape[2] == WARP
        self._constants = constants
        if shape == self._shape:
            for (size, _), array in self._arrays.items():
                array.reshape(-1)[:] = unassigned(size, array.size)
        else:
            self._shape, self._arrays = shape, {}
            arrays = [self._array(*view) for view in self._views]
            views = [(array, array.reshape(-1)) for array in arrays]
            for load, number in self._users:
                load(*views[number])
        for (name, ptx_type, _), source in self._sources.items():
            if name in constants:
                source.load(self._constant(name, ptx_type))

    def content(self) -> bytes:
        """Return what all registers that vary hold."""
        return b"".join(array.tobytes() for array in self._arrays.values())

    def _array(self, size: int, slot: int, dtype: np.dtype[Any]) -> Array:
        if (size, slot) not in self._arrays:
            blocks, warps, lanes = self._shape
            values = unassigned(size, blocks * warps * lanes)
            self._arrays[size, slot] = values.reshape(self._shape).copy()
        return self._arrays[size, slot].view(dtype)

    def _view(self, name: str, dtype: np.dtype[Any], load: Callable[[Array, Array], None]) -> None:
        """Load a register that varies as `dtype`, now and in each later batch."""
        view = (*self._slots[name], dtype)
        self._users.append((load, self._views.setdefault(view, len(self._views))))
        array = self._array(*view)
        load(array, array.reshape(-1))

    def _constant(self, name: str, ptx_type: str) -> Any:
        stored, dtype = storage_dtype(self._declared[name]), DTYPES[ptx_type]
        value: Any = stored.type(self._constants[name] & ((1 << 8 * stored.itemsize) - 1))
        if ptx_type == "pred" or stored.itemsize > dtype.itemsize:
            return value
        if stored.itemsize < dtype.itemsize:
            value = value.astype(STORAGE[dtype.itemsize])
        return value.view(dtype)

    def itemsize(self, name: str) -> int:
        """Return the bytes of a register."""
        return storage_dtype(self._declared[name]).itemsize

    def source(self, name: str, ptx_type: str, *, negated: bool = False) -> Source:
        """Read register `name` as a value of `ptx_type`."""
        key = name, ptx_type, negated
        if key not in self._sources:
            self._sources[key] = self._source(name, ptx_type, negated=negated)
        return self._sources[key]

    def _source(self, name: str, ptx_type: str, *, negated: bool) -> Source:
        stored, dtype = storage_dtype(self._declared[name]), DTYPES[ptx_type]
        constant = name in self._constants
        if stored.itemsize < dtype.itemsize and not constant:
            raise UnsupportedPtx((f"{name} read as {ptx_type}",))
        wider = ptx_type != "pred" and stored.itemsize > dtype.itemsize
        seen = stored if wider or ptx_type == "pred" else dtype
        value = self._constant(name, ptx_type) if constant else np.zeros(1, seen)
        source = NarrowedSource(value, dtype) if wider else Source(value)
        if negated and ptx_type == "pred":
            source = NegatedSource(value)
        if not constant:
            self._view(name, seen, source.load_array)
        return source

    def target(self, name: str, ptx_type: str) -> Target:
        """Write register `name` with values of `ptx_type`; a wider register is extended."""
        key = name, ptx_type
        if key not in self._targets:
            self._targets[key] = self._target(name, ptx_type)
        return self._targets[key]

    def _target(self, name: str, ptx_type: str) -> Target:
        if name in self._constants:
            return NoTarget()
        stored, dtype = storage_dtype(self._declared[name]), DTYPES[ptx_type]
        seen = dtype
        if stored.itemsize != dtype.itemsize:
            signed = np.issubdtype(dtype, np.signedinteger)
            seen = np.dtype(f"i{stored.itemsize}") if signed else stored
        target = Target(np.zeros(1, seen))
        self._view(name, seen, target.load_array)
        return target


# Which registers can share storage: those that are never in use at the same time.

_Loop = tuple[int, int]
"""First and last instruction of what a backward branch repeats."""


@dataclass(slots=True)
class _Range:
    """The instructions from a register's first occurrence to its last."""

    start: int
    end: int
    carried: bool
    """It may carry a value from one turn of a loop to the next."""


@once_an_entry
def register_slots(entry: Entry) -> dict[str, tuple[int, int]]:
    """Return for each register that occurs the bytes of its storage and the number of its slot.

    Compilers number registers without end. Kept apart, those of an unrolled kernel are more memory
    than any cache holds. Each lane has storage of its own, so lanes may run apart.
    """
    ranges = _ranges(entry)
    loops = _loops(entry)
    for live in ranges.values():
        _extend(live, loops)
    for name in maybe_unassigned(entry):
        ranges[name].start = 0  # No other register leaves a value where this one is read.
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
    """Return the names of the registers that an operand mentions."""
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
    """Return the registers that an instruction may write, which are those of its first operand."""
    first = instruction.operands[0] if instruction.operands else None
    return [] if first is None or isinstance(first, Address) else registers_of(first)


def _read(instruction: Instruction) -> list[str]:
    """Return the registers that an instruction reads, its guard among them."""
    operands = instruction.operands
    names = [name for operand in operands[1:] for name in registers_of(operand)]
    names += [n for o in operands[:1] if isinstance(o, Address) for n in registers_of(o)]
    return [*names, instruction.guard.name] if instruction.guard is not None else names


def _ranges(entry: Entry) -> dict[str, _Range]:
    ranges: dict[str, _Range] = {}
    definitions: Counter[str] = Counter()
    for instruction in entry.instructions:
        written = _written(instruction)
        definitions.update(written)
        reads = _read(instruction)
        for name in [*reads, *written]:
            # A register that is read before it is written comes around a loop.
            live = ranges.setdefault(name, _Range(instruction.pc, instruction.pc, name in reads))
            live.end = instruction.pc
    for name, live in ranges.items():
        live.carried |= definitions[name] != 1
    return ranges


def _loops(entry: Entry) -> list[_Loop]:
    loops = []
    for instruction in entry.instructions:
        labels = [o.name for o in instruction.operands if isinstance(o, Symbol)]
        for label in labels:
            for target in entry.branch_tables.get(label, (label,)):
                start = entry.labels.get(target, instruction.pc + 1)
                if start <= instruction.pc and instruction.root in ("bra", "brx"):
                    loops.append((start, instruction.pc))
    return loops


def _extend(live: _Range, loops: list[_Loop]) -> None:
    """Extend a range over every loop that the register is live into, out of, or carried around.

    A backward branch need not be a loop: compilers may put a block before the branches that go to
    it. What is in use after such a branch is in use in that block, too.
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


# Which registers may be read before they are assigned.

_Bits = int
"""A set of registers, one bit each."""


@once_an_entry
def maybe_unassigned(entry: Entry) -> list[str]:
    """Return the registers that are read on some path on which nothing has assigned them.

    An instruction under a guard may not be executed, and assigns nothing here.
    """
    number = {name: place for place, name in enumerate(_ranges(entry))}
    starts = _block_starts(entry)
    read, assigned = {}, {}
    for start, end in pairwise([*starts, len(entry.instructions)]):
        read[start], assigned[start] = _of_block(entry.instructions[start:end], number)
    needed = dict.fromkeys(starts, 0)
    changed = True
    while changed:
        changed = False
        for start, end in reversed([*pairwise([*starts, len(entry.instructions)])]):
            after: _Bits = 0
            for following in _following(entry, end - 1):
                after |= needed.get(following, 0)
            before = read[start] | after & ~assigned[start]
            changed |= before != needed[start]
            needed[start] = before
    return [name for name, place in number.items() if needed and needed[0] >> place & 1]


def _block_starts(entry: Entry) -> list[int]:
    """Return where paths meet or part: the first instruction, each label, and what a jump ends."""
    last = len(entry.instructions)
    ends = (i.pc + 1 for i in entry.instructions if i.root in ("bra", "brx", "ret", "exit"))
    return sorted({0, *entry.labels.values(), *ends} - {last} if last else ())


def _of_block(
    instructions: Sequence[Instruction], number: Mapping[str, int]
) -> tuple[_Bits, _Bits]:
    """Return the registers that are read before they are assigned, and the assigned ones."""
    read: _Bits = 0
    assigned: _Bits = 0
    for instruction in instructions:
        for name in _read(instruction):
            read |= 1 << number[name] & ~assigned
        if instruction.guard is None:
            for name in _written(instruction):
                assigned |= 1 << number[name]
    return read, assigned


def _following(entry: Entry, pc: int) -> list[int]:
    """Return the instructions that may come after the one at `pc`."""
    instruction = entry.instructions[pc]
    jumps = instruction.root in ("bra", "brx")
    labels = [o.name for o in instruction.operands if isinstance(o, Symbol)] if jumps else []
    tables = (entry.branch_tables.get(label, (label,)) for label in labels)
    targets = [entry.labels[t] for table in tables for t in table if t in entry.labels]
    ends = instruction.root in ("bra", "brx", "ret", "exit") and instruction.guard is None
    return targets if ends else [*targets, pc + 1]


# Registers whose value is known before a launch runs.


def constant_registers(
    entry: Entry, geometry: Geometry, addresses: Mapping[str, int], params: Mapping[str, bytes]
) -> dict[str, int]:
    """Return the names of registers whose value is known, and their bits.

    `addresses` are those of variables, `params` the bytes of each parameter.
    """
    constants: dict[str, int] = {}
    for name, instruction in _only_definitions(entry):
        value = _value(instruction, constants, geometry, addresses, params)
        if value is not None:
            constants[name] = value
    return constants


@once_an_entry
def _only_definitions(entry: Entry) -> list[tuple[str, Instruction]]:
    """Return the registers that may be constant, each with the one instruction that assigns it."""
    definitions: Counter[str] = Counter()
    for instruction in entry.instructions:
        if instruction.operands:
            definitions.update(registers_of(instruction.operands[0]))
    moves = []
    for instruction in entry.instructions:
        to = instruction.operands[0] if instruction.operands else None
        if (
            isinstance(to, Register)
            and instruction.guard is None
            and definitions[to.name] == 1
            and len(instruction.operands) == 2
            and instruction.root in ("mov", "ld", "cvta")
        ):
            moves.append((to.name, instruction))
    return moves


def _value(
    instruction: Instruction,
    constants: Mapping[str, int],
    geometry: Geometry,
    addresses: Mapping[str, int],
    params: Mapping[str, bytes],
) -> int | None:
    of = instruction.operands[1]
    ptx_type = instruction.modifiers[-1] if instruction.modifiers else ""
    if instruction.root == "mov" and ptx_type in DTYPES and ptx_type != "pred":
        if isinstance(of, Special):
            return constant_special(geometry, of.name)
        if isinstance(of, Symbol) and of.name in addresses:
            return addresses[of.name] + of.offset
        if isinstance(of, Immediate):
            return _literal(of, ptx_type)
        return constants.get(of.name) if isinstance(of, Register) else None
    if instruction.opcode.startswith("ld.param.") and instruction.modifiers[1:] == (ptx_type,):
        return _parameter(of, ptx_type, params)
    if instruction.opcode == "cvta.to.global.u64" and isinstance(of, Register):
        return constants.get(of.name)
    return None


def _literal(of: Immediate, ptx_type: str) -> int | None:
    if ptx_type in FLOATS or of.bits_of:
        same_width = of.bits_of and DTYPES[ptx_type].itemsize == int(of.bits_of[1:]) // 8
        return int(of.value) if same_width else None
    return int(of.value)


def _parameter(of: Operand, ptx_type: str, params: Mapping[str, bytes]) -> int | None:
    if not isinstance(of, Address) or not isinstance(of.base, Symbol):
        return None
    start = of.offset + of.base.offset
    dtype = DTYPES[ptx_type]
    if of.base.name not in params:
        return None
    data = params[of.base.name][start : start + dtype.itemsize]
    if ptx_type in SIGNED:
        return int(np.frombuffer(data, dtype)[0])
    return int.from_bytes(data, "little")
