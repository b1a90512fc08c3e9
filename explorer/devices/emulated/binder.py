"""Binds instructions to a batch: operands to arrays, opcodes to steps."""

from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.instruction_set import BINDINGS, Modifiers, Step
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import (
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
)
from explorer.devices.emulated.ptx_types import DTYPES, FLOATS, STORAGE
from explorer.devices.emulated.registers import NoTarget, RegisterFile, Source, Target

if TYPE_CHECKING:
    from explorer.devices.emulated.machine import Machine


class Binder:
    """What a binding function is given: the batch, and its operands by type."""

    def __init__(self, machine: "Machine", registers: RegisterFile) -> None:
        self.machine = machine
        self._registers = registers

    def bind(self, instruction: Instruction) -> Step:
        """The step that executes `instruction`; raises UnsupportedPtx."""
        step = self.bind_unguarded(instruction)
        if instruction.guard is None:
            return step
        return guarded(step, self.source(instruction.guard, "pred"))

    def bind_unguarded(self, instruction: Instruction) -> Step:
        """The step without the instruction's guard; raises UnsupportedPtx."""
        binding = BINDINGS.get(instruction.root)
        if binding is None:
            raise UnsupportedPtx((instruction.opcode,))
        try:
            return binding(self, instruction)
        except (KeyError, ValueError, IndexError, AssertionError) as error:
            raise UnsupportedPtx(
                (instruction.opcode,), f" ({instruction.text}: {error})"
            ) from error

    def bind_as(self, name: str, instruction: Instruction) -> Step:
        """Bind by another entry of the table than the opcode's root."""
        return BINDINGS[name](self, instruction)

    def modifiers(self, instruction: Instruction) -> Modifiers:
        """The opcode's modifiers, to be taken one by one."""
        return Modifiers(instruction)

    def source(self, operand: Operand, ptx_type: str) -> Source:
        """Read an operand as a value of `ptx_type`; raises UnsupportedPtx."""
        if isinstance(operand, Register):
            return self._registers.source(operand.name, ptx_type, negated=operand.negated)
        if isinstance(operand, Immediate):
            return Source(literal(operand, ptx_type))
        if isinstance(operand, Special):
            return Source(self.machine.special(operand.name, ptx_type))
        if isinstance(operand, Symbol):
            address = self.machine.symbol_address(operand.name) + operand.offset
            return Source(DTYPES[ptx_type].type(address))
        raise UnsupportedPtx((f"operand {operand}",))

    def width_of(self, register: Register) -> str:
        """The unsigned type of a register's width."""
        return f"u{8 * self._registers.itemsize(register.name)}"

    def target(self, operand: Operand, ptx_type: str) -> Target:
        """Write an operand with values of `ptx_type`; raises UnsupportedPtx."""
        if isinstance(operand, Sink):
            return NoTarget()
        if isinstance(operand, Register):
            return self._registers.target(operand.name, ptx_type)
        raise UnsupportedPtx((f"destination {operand}",))

    def targets(self, operand: Operand, ptx_type: str) -> tuple[Target, Target | None]:
        """A destination `d` or `d|p`."""
        if isinstance(operand, Pair):
            return self.target(operand.first, ptx_type), self.target(operand.second, "pred")
        return self.target(operand, ptx_type), None


def literal(operand: Immediate, ptx_type: str) -> Any:
    """A literal as a NumPy scalar of `ptx_type`."""
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


def guarded(step: Step, predicate: Source) -> Step:
    """`@p step`: executed for the lanes whose predicate holds."""

    def run(lanes: Lanes) -> None:
        holds = predicate.each(lanes)
        count = int(np.count_nonzero(holds))
        if count == lanes.count:
            step(lanes)
        elif count:
            step(lanes.where(holds))

    return run
