"""Registers whose value is known before a launch runs.

Compilers assign most registers once. One that holds a literal, a parameter or an extent is the same
for all threads, and arithmetic with a scalar is cheaper than with an array.
"""

from collections import Counter

import numpy as np

from explorer.devices.emulated.geometry import SpecialRegisters
from explorer.devices.emulated.liveness import registers_of
from explorer.devices.emulated.machine import LaunchState
from explorer.devices.emulated.program import (
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Special,
    Symbol,
)
from explorer.devices.emulated.ptx_types import DTYPES, FLOATS, SIGNED


def constant_registers(state: LaunchState) -> dict[str, int]:
    """Names of such registers, and their bits."""
    definitions: Counter[str] = Counter()
    for instruction in state.entry.instructions:
        if instruction.operands:
            definitions.update(registers_of(instruction.operands[0]))
    constants: dict[str, int] = {}
    for instruction in state.entry.instructions:
        to = instruction.operands[0] if instruction.operands else None
        if (
            isinstance(to, Register)
            and instruction.guard is None
            and definitions[to.name] == 1
            and len(instruction.operands) == 2
        ):
            value = _value(state, instruction, constants)
            if value is not None:
                constants[to.name] = value
    return constants


def _value(state: LaunchState, instruction: Instruction, constants: dict[str, int]) -> int | None:
    of = instruction.operands[1]
    ptx_type = instruction.modifiers[-1] if instruction.modifiers else ""
    if instruction.root == "mov" and ptx_type in DTYPES and ptx_type != "pred":
        return _moved(state, of, ptx_type, constants)
    if instruction.opcode.startswith("ld.param.") and instruction.modifiers[1:] == (ptx_type,):
        return _param(state, of, ptx_type)
    if instruction.opcode == "cvta.to.global.u64" and isinstance(of, Register):
        return constants.get(of.name)
    return None


def _moved(state: LaunchState, of: Operand, ptx_type: str, constants: dict[str, int]) -> int | None:
    if isinstance(of, Immediate):
        dtype = DTYPES[ptx_type]
        if ptx_type in FLOATS or of.bits_of:
            if of.bits_of and dtype.itemsize == int(of.bits_of[1:]) // 8:
                return int(of.value)
            return None
        return int(of.value)
    if isinstance(of, Special):
        return SpecialRegisters(state.geometry, 0, 1).constant(of.name)
    if isinstance(of, Symbol) and of.name in state.layout.addresses:
        return state.layout.addresses[of.name] + of.offset
    return constants.get(of.name) if isinstance(of, Register) else None


def _param(state: LaunchState, of: Operand, ptx_type: str) -> int | None:
    if not isinstance(of, Address) or not isinstance(of.base, Symbol):
        return None
    start = of.offset + of.base.offset
    dtype = DTYPES[ptx_type]
    if of.base.name not in state.params:
        return None
    data = state.params[of.base.name][start : start + dtype.itemsize]
    if ptx_type in SIGNED:
        return int(np.frombuffer(data, dtype)[0])
    return int.from_bytes(data, "little")
