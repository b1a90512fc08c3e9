"""Binds instructions to a machine: operands to arrays, opcodes to functions that execute them."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from explorer.ptx_emulator.findings import UnsupportedPtx
from explorer.ptx_emulator.lanes import Lanes
from explorer.ptx_emulator.machine import Machine
from explorer.ptx_emulator.program import (
    DTYPES,
    FLOATS,
    PACKED,
    STORAGE,
    Array,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
)
from explorer.ptx_emulator.registers import NoTarget, RegisterFile, Source, Target

Step = Callable[[Lanes], None]
"""A bound instruction that computes or accesses memory: executes it for the given lanes."""

Control = Callable[[Lanes], "int | None"]
"""A bound instruction that can move lanes elsewhere or make them wait.

It returns the instruction at which all lanes go on, or None if it has placed them itself.
"""


class Current:
    """The batch that a kernel's instructions are executed for at present."""

    __slots__ = ("machine",)

    def __init__(self) -> None:
        self.machine: Machine


class BoundSteps:
    """The steps and controls of a kernel that serve for any batch, so that they are bound once.

    They ask their operands for arrays and `current` for the machine when they are executed, and
    take no value of a register while they are bound.
    """

    def __init__(self, registers: RegisterFile, instructions: int, *, of_sets: bool) -> None:
        self.registers = registers
        self.of_sets = of_sets
        """Whether floats are sets (`element_sets`)."""
        self.current = Current()
        self.steps: list[Step | None] = [None] * instructions
        self.controls: dict[int, Control] = {}


class Binder:
    """What a binding function is given: the machine, and its operands by type."""

    def __init__(self, bound: BoundSteps) -> None:
        self.current = bound.current
        """For instructions that ask for their machine when they are executed."""
        self.of_sets = bound.of_sets
        self._registers = bound.registers
        self.machine_asked = False
        """Whether the machine was asked for, so that what is bound serves for its batch alone."""

    @property
    def machine(self) -> Machine:
        """The batch that the instruction is bound to."""
        self.machine_asked = True
        return self.current.machine

    def source(self, operand: Operand, ptx_type: str) -> Source:
        """Read an operand as a value of `ptx_type`. Raises UnsupportedPtx."""
        if isinstance(operand, Register):
            return self._registers.source(operand.name, ptx_type, negated=operand.negated)
        if isinstance(operand, Immediate):
            return Source(_literal(operand, ptx_type))
        if isinstance(operand, Special):
            return Source(self.machine.special(operand.name, ptx_type))
        if isinstance(operand, Symbol):
            address = self.machine.symbol_address(operand.name) + operand.offset
            return Source(DTYPES[ptx_type].type(address))
        raise UnsupportedPtx((f"operand {operand}",))

    def guard(self, instruction: Instruction) -> Source | None:
        """Return the predicate under which an instruction is executed; None if it always is."""
        return None if instruction.guard is None else self.source(instruction.guard, "pred")

    def width_of(self, register: Register) -> str:
        """Return the unsigned type of a register's width."""
        return f"u{8 * self._registers.itemsize(register.name)}"

    def target(self, operand: Operand, ptx_type: str) -> Target:
        """Write an operand with values of `ptx_type`. Raises UnsupportedPtx."""
        if isinstance(operand, Sink):
            return NoTarget()
        if isinstance(operand, Register):
            return self._registers.target(operand.name, ptx_type)
        raise UnsupportedPtx((f"destination {operand}",))

    def targets(self, operand: Operand, ptx_type: str) -> tuple[Target, Target | None]:
        """Return a destination `d`, or `d|p` with its predicate."""
        if isinstance(operand, Pair):
            return self.target(operand.first, ptx_type), self.target(operand.second, "pred")
        return self.target(operand, ptx_type), None


def _literal(operand: Immediate, ptx_type: str) -> Any:
    """Return a literal as a NumPy scalar of `ptx_type`."""
    dtype = DTYPES[ptx_type]
    if ptx_type == "pred":
        return np.bool_(operand.value)
    if ptx_type in FLOATS and not (
        dtype.itemsize == 2 and not operand.bits_of and isinstance(operand.value, int)
    ):
        return dtype.type(operand.as_float())
    if isinstance(operand.value, float):
        return np.dtype(f"f{dtype.itemsize}").type(operand.value).view(dtype)
    storage = STORAGE[dtype.itemsize]
    return storage.type(operand.value & ((1 << 8 * dtype.itemsize) - 1)).view(dtype)


# The tables of opcodes.

_StepBinding = Callable[[Binder, Instruction], Step]
_ControlBinding = Callable[[Binder, Instruction], Control]

_STEPS: dict[str, _StepBinding] = {}
_CONTROLS: dict[str, _ControlBinding] = {}


def binds(*opcodes: str) -> Callable[[_StepBinding], _StepBinding]:
    """Register a function that binds the opcodes which begin with one of these.

    The longest beginning decides: `st.async` goes before `st`. The guard is not the function's
    business.
    """

    def register(function: _StepBinding) -> _StepBinding:
        _STEPS.update(dict.fromkeys(opcodes, function))
        return function

    return register


def controls(*opcodes: str) -> Callable[[_ControlBinding], _ControlBinding]:
    """Register, as `binds` does, a function that binds a control. It sees to the guard itself."""

    def register(function: _ControlBinding) -> _ControlBinding:
        _CONTROLS.update(dict.fromkeys(opcodes, function))
        return function

    return register


def bind_step(binder: Binder, instruction: Instruction) -> Step | None:
    """Return the step that executes an instruction, its guard included; None for a control.

    Raises UnsupportedPtx.
    """
    function = _look_up(instruction.opcode)
    if function is None:
        return None
    step = function(binder, instruction)
    guard = binder.guard(instruction)
    return step if guard is None else _guarded(step, guard)


def bind_control(binder: Binder, instruction: Instruction) -> Control:
    """Return the control that executes an instruction. Raises UnsupportedPtx for a step."""
    for name in _beginnings(instruction.opcode):
        if name in _CONTROLS:
            return _CONTROLS[name](binder, instruction)
    raise UnsupportedPtx((instruction.opcode,))


@cache  # Thousands of instructions have few opcodes.
def _look_up(opcode: str) -> _StepBinding | None:
    """Return the binding of a step; None for a control. Raises UnsupportedPtx."""
    for name in _beginnings(opcode):
        if name in _CONTROLS:
            return None
        if name in _STEPS:
            return _STEPS[name]
    raise UnsupportedPtx((opcode,))


def _beginnings(opcode: str) -> Iterable[str]:
    """`a.b.c`, `a.b`, `a`."""
    while opcode:
        yield opcode
        opcode = opcode.rpartition(".")[0]


def _guarded(step: Step, predicate: Source) -> Step:
    """`@p step`: executed for the lanes whose predicate holds."""

    def run(lanes: Lanes) -> None:
        holds = predicate.each(lanes)
        count = int(np.count_nonzero(holds))
        if count == lanes.count:
            step(lanes)
        elif count:
            step(lanes.where(holds))

    return run


class Modifiers:
    """An opcode's modifiers. A binding takes those that it knows; none is ever ignored."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        self._left = list(instruction.modifiers)

    def take(self, *names: str) -> bool:
        """Return whether one of `names` is there, and take it."""
        for name in names:
            if name in self._left:
                self._left.remove(name)
                return True
        return False

    def one_of(self, names: Iterable[str], default: str | None = None) -> str:
        """Take the first modifier that is among `names`.

        If there is none, return the default; raises UnsupportedPtx if that is None.
        """
        for name in self._left:
            if name in names:
                self._left.remove(name)
                return name
        if default is None:
            raise self.unsupported()
        return default

    def drop_prefixed(self, *prefixes: str) -> None:
        """Pass over hints, which change no result."""
        self._left = [name for name in self._left if not name.startswith(prefixes)]

    def finish(self) -> None:
        """Raise UnsupportedPtx if a modifier is left."""
        if self._left:
            raise self.unsupported()

    def unsupported(self) -> UnsupportedPtx:
        """Return the error that names this opcode."""
        return UnsupportedPtx((self._instruction.opcode,))


# Steps that compute each lane's result from that lane's operands alone.


def in_place(ufunc: np.ufunc, target: Target, *sources: Source) -> Step:
    """Return a step that lets a ufunc write straight to the destination if the lanes are a box."""
    if isinstance(target, NoTarget):
        return computed(ufunc, target, *sources)
    plain = all(type(source) is Source for source in sources)

    def step(lanes: Lanes) -> None:
        if lanes.full and plain:
            ufunc(*[source.value for source in sources], out=target.array)
        elif lanes.box is not None:
            ufunc(*[source.at(lanes) for source in sources], out=target.array[lanes.box])
        else:
            target.flat[lanes.flat] = ufunc(*[source.at(lanes) for source in sources])

    if not plain or len(sources) != 2:
        return step
    first, second = sources

    def of_two(lanes: Lanes) -> None:
        """As `step`, without a list of the operands for each: of the usual case."""
        if lanes.full:
            ufunc(first.value, second.value, out=target.array)
        else:
            step(lanes)

    return of_two


def computed(function: Callable[..., Any], target: Target, *sources: Source) -> Step:
    """Return a step that stores the result of a function of arrays."""

    put, reads = target.put, [source.at for source in sources]

    def step(lanes: Lanes) -> None:
        put(lanes, function(*[at(lanes) for at in reads]))

    def of_one(lanes: Lanes) -> None:
        put(lanes, function(read(lanes)))

    read = reads[0]
    return of_one if len(reads) == 1 else step


def packed(function: Callable[..., Array], ptx_type: str) -> Callable[..., Any]:
    """Apply a function of floats to both halves of registers that hold a pair of them."""
    whole, half = DTYPES[ptx_type], DTYPES[PACKED[ptx_type]]

    def unpack(values: Any) -> Array:
        pairs = np.ascontiguousarray(values, dtype=whole).view(half)
        return pairs.reshape(*np.shape(values), 2)

    def both(*operands: Any) -> Any:
        halves = np.ascontiguousarray(function(*[unpack(o) for o in operands]).astype(half))
        return halves.view(whole)[..., 0]

    return both
