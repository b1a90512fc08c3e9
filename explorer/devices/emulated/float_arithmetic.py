"""Floating-point instructions: add, sub, mul, fma, div, min, max, neg.

PTX ISA, chapters "Floating Point Instructions" and "Half Precision Floating Point Instructions"."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated import rounding
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed, in_place, packed
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, PACKED, Array

FLOAT_TYPES = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
ROUNDING_MODES = ("rn", "rz", "rm", "rp")
Function = Callable[..., Any]


def finish(function: Function, *, ftz: bool, sat: bool) -> Function:
    """Wrap a function of float32 in the flushing and clamping that its modifiers ask for."""
    if ftz:
        inner = function
        function = lambda *o: rounding.flush(inner(*[rounding.flush(x) for x in o]))  # noqa: E731
    if sat:
        unclamped = function
        return lambda *o: rounding.saturate(unclamped(*o))
    return function


def bind_float(
    binder: Binder, instruction: Instruction, function: Function, ptx_type: str, mods: Modifiers
) -> Step:
    """Bind an instruction all of whose operands are of one floating-point type."""
    ftz, sat = mods.take("ftz"), mods.take("sat")
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:]]
    if ptx_type in PACKED:
        return computed(packed(finish(function, ftz=ftz, sat=sat), ptx_type), target, *sources)
    if isinstance(function, np.ufunc) and not (ftz or sat) and ptx_type in ("f32", "f64"):
        return in_place(function, target, *sources)
    return computed(finish(function, ftz=ftz, sat=sat), target, *sources)


def _element(ptx_type: str) -> str:
    return PACKED.get(ptx_type, ptx_type)


def _sum_function(root: str, element: str, mode: str, mods: Modifiers) -> Function:
    ufunc: Function = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[root]
    if element in ("f16", "bf16"):
        if mode != "rn":
            raise mods.unsupported()
        dtype = DTYPES[element]
        # float32 has more than twice the bits, so rounding twice is harmless.
        return lambda a, b: ufunc(a.astype(np.float32), b.astype(np.float32)).astype(dtype)
    if mode == "rn":
        return ufunc
    if element == "f64":
        raise mods.unsupported()
    if root == "sub":
        return lambda a, b: rounding.add32(a, _negate(b), mode)
    return lambda a, b: (rounding.add32 if root == "add" else rounding.mul32)(a, b, mode)


def bind_sum(binder: Binder, instruction: Instruction) -> Step:
    """add, sub and mul of floating-point types."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    mode = mods.one_of(ROUNDING_MODES, "rn")
    function = _sum_function(instruction.root, _element(ptx_type), mode, mods)
    return bind_float(binder, instruction, function, ptx_type, mods)


@binds("fma")
def bind_fma(binder: Binder, instruction: Instruction) -> Step:
    """fma, rounded once; fma.rn.relu clamps negatives to zero."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    return bind_float(binder, instruction, _fma_function(ptx_type, mods), ptx_type, mods)


def _fma_function(ptx_type: str, mods: Modifiers) -> Function:
    mode = mods.one_of(ROUNDING_MODES, "rn")
    element = _element(ptx_type)
    if element == "f32":
        return lambda a, b, c: rounding.fma32(a, b, c, mode)
    if mode != "rn":
        raise mods.unsupported()
    if element == "f64":
        return rounding.fma64
    dtype = DTYPES[element]
    if mods.take("relu"):
        return lambda a, b, c: np.maximum(rounding.fma16(a, b, c, dtype), dtype.type(0))
    return lambda a, b, c: rounding.fma16(a, b, c, dtype)


def bind_float_mad(binder: Binder, instruction: Instruction) -> Step:
    """mad.f32 is fma on every architecture since sm_20."""
    return bind_fma(binder, instruction)


def _divide_approximately(a: Any, b: Any) -> Array:
    """div.approx: 0 where |b| lies between 2^126 and 2^128, as its reciprocal underflows."""
    quotient = np.divide(a, b, dtype=np.float32)
    huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    if not np.any(huge):
        return np.asarray(quotient)
    underflow = np.copysign(np.float32(0), quotient)
    underflow = np.where(np.isinf(a), np.float32(np.nan), underflow)
    return np.where(huge, underflow, quotient)


def bind_float_div(binder: Binder, instruction: Instruction) -> Step:
    """div.rn, div.approx and div.full."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    if mods.take("approx"):
        return bind_float(binder, instruction, _divide_approximately, ptx_type, mods)
    mode = "rn" if mods.take("full") else mods.one_of(ROUNDING_MODES)
    function: Function = np.divide
    if mode != "rn":
        function = lambda a, b: rounding.div32(a, b, mode)  # noqa: E731
    return bind_float(binder, instruction, function, ptx_type, mods)


def extreme(root: str, *, nan: bool) -> Function:
    """min or max: -0 is less than +0; one NaN is passed over unless `nan`."""
    ignoring: Function = np.fmax if root == "max" else np.fmin
    keeping: Function = np.maximum if root == "max" else np.minimum
    combine = np.logical_and if root == "max" else np.logical_or

    def pick(a: Any, b: Any) -> Array:
        result = np.asarray((keeping if nan else ignoring)(a, b))
        zero = result == 0
        if zero.any():
            sign = np.where(combine(np.signbit(a), np.signbit(b)), -1.0, 1.0)
            both = zero & (np.asarray(a) == 0) & (np.asarray(b) == 0)
            signed_zero = np.copysign(np.float32(0), sign).astype(result.dtype)
            result = np.where(both, signed_zero, result)
        return result

    return pick


def bind_float_extreme(binder: Binder, instruction: Instruction) -> Step:
    """min and max of two or three operands, .NaN and .abs."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    pick = extreme(instruction.root, nan=mods.take("NaN"))
    absolute = mods.take("abs")

    def function(first: Any, *others: Any) -> Array:
        result = np.abs(first) if absolute else first
        for other in others:
            result = pick(result, np.abs(other) if absolute else other)
        return np.asarray(result)

    return bind_float(binder, instruction, function, ptx_type, mods)


def bind_float_sign(binder: Binder, instruction: Instruction) -> Step:
    """abs and neg."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    # NumPy 2.4's negative is wrong for arrays with strides, which is what boxes of lanes are.
    function: Function = np.absolute if instruction.root == "abs" else _negate
    return bind_float(binder, instruction, function, ptx_type, mods)


def _negate(a: Any) -> Array:
    return np.asarray(np.multiply(a, np.asarray(a).dtype.type(-1)))
