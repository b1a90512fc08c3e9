"""Integer and bitwise instructions. PTX ISA, "Integer Arithmetic" and "Logic and Shift"."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed, in_place
from explorer.devices.emulated.float_arithmetic import (
    FLOAT_TYPES,
    bind_float_div,
    bind_float_extreme,
    bind_float_mad,
    bind_float_sign,
    bind_sum,
)
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, Array

INT_TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
Function = Callable[..., Any]
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _is_float(instruction: Instruction) -> bool:
    return any(name in FLOAT_TYPES for name in instruction.modifiers)


def bind_same(
    binder: Binder, instruction: Instruction, function: Function, ptx_type: str, mods: Modifiers
) -> Step:
    """Bind an instruction all of whose operands are of one type."""
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:]]
    if isinstance(function, np.ufunc):
        return in_place(function, target, *sources)
    return computed(function, target, *sources)


def _clamped(function: Function) -> Function:
    """add.sat and sub.sat of s32."""

    def saturated(a: Any, b: Any) -> Array:
        wide = function(np.asarray(a).astype(np.int64), b)
        return np.asarray(np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32))

    return saturated


@binds("add", "sub")
def bind_add(binder: Binder, instruction: Instruction) -> Step:
    """add and sub of every type."""
    if _is_float(instruction):
        return bind_sum(binder, instruction)
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = np.add if instruction.root == "add" else np.subtract
    if mods.take("sat"):
        function = _clamped(function)
    return bind_same(binder, instruction, function, ptx_type, mods)


def high_product(ptx_type: str) -> Function:
    """The upper half of a product."""
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = DTYPES[_WIDER[ptx_type]]
        return lambda a, b: (np.asarray(a).astype(wide) * b >> wide.type(bits)).astype(dtype)

    def high(a: Any, b: Any) -> Array:
        product = np.asarray(a).astype(object) * np.asarray(b).astype(object)
        return np.asarray(product // 2**64).astype(dtype)

    return high


@binds("mul", "mad")
def bind_mul(binder: Binder, instruction: Instruction) -> Step:
    """mul and mad: .lo, .hi or .wide."""
    if _is_float(instruction):
        is_mul = instruction.root == "mul"
        return (bind_sum if is_mul else bind_float_mad)(binder, instruction)
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    part = mods.one_of(("lo", "hi", "wide"))
    result_type = _WIDER[ptx_type] if part == "wide" else ptx_type
    mods.finish()
    target = binder.target(instruction.operands[0], result_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    product: Function = np.multiply
    if part == "hi":
        product = high_product(ptx_type)
    elif part == "wide":
        wide = DTYPES[result_type]
        product = lambda x, y: np.multiply(x, y, dtype=wide)  # noqa: E731
    if instruction.root == "mul":
        return (
            in_place(np.multiply, target, a, b) if part == "lo" else computed(product, target, a, b)
        )
    c = binder.source(instruction.operands[3], result_type)
    return computed(lambda x, y, z: product(x, y) + z, target, a, b, c)


@binds("mul24", "mad24")
def bind_mul24(binder: Binder, instruction: Instruction) -> Step:
    """mul24.lo and mad24.lo."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("u32", "s32"))
    if not mods.take("lo"):
        raise mods.unsupported()
    shift = DTYPES[ptx_type].type(8)

    def function(a: Any, b: Any, c: Any = 0) -> Any:
        return (np.asarray(a) << shift >> shift) * (np.asarray(b) << shift >> shift) + c

    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("sad")
def bind_sad(binder: Binder, instruction: Instruction) -> Step:
    """sad: c + |a - b|."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    return bind_same(
        binder, instruction, lambda a, b, c: c + np.where(a < b, b - a, a - b), ptx_type, mods
    )


def divide(a: Any, b: Any) -> Array:
    """Integer quotient rounded toward zero; division by zero gives all ones."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if np.issubdtype(a.dtype, np.signedinteger):
        quotient = quotient + ((quotient < 0) & (quotient * safe != a))
    return np.asarray(np.where(b == 0, ~np.zeros_like(a), quotient).astype(a.dtype))


@binds("div", "rem")
def bind_div(binder: Binder, instruction: Instruction) -> Step:
    """div of every type and rem."""
    if _is_float(instruction):
        return bind_float_div(binder, instruction)
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = divide
    if instruction.root == "rem":
        function = lambda a, b: a - divide(a, b) * b  # noqa: E731
    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("min", "max")
def bind_extreme(binder: Binder, instruction: Instruction) -> Step:
    """min and max of every type."""
    if _is_float(instruction):
        return bind_float_extreme(binder, instruction)
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = np.minimum if instruction.root == "min" else np.maximum
    if mods.take("relu"):
        unclamped = function
        function = lambda a, b: np.maximum(unclamped(a, b), 0)  # noqa: E731
    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("abs", "neg")
def bind_sign(binder: Binder, instruction: Instruction) -> Step:
    """abs and neg of every type."""
    if _is_float(instruction):
        return bind_float_sign(binder, instruction)
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    zero = DTYPES[ptx_type].type(0)
    function: Function = np.absolute
    if instruction.root == "neg":
        function = lambda a: np.subtract(zero, a)  # noqa: E731 - negative fails on strides
    return bind_same(binder, instruction, function, ptx_type, mods)
