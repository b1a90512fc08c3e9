"""Floating-point instructions: add, sub, mul, fma, div, min, max, neg, ex2, rcp, sqrt and the like.

PTX ISA, chapters "Floating Point Instructions" and "Half Precision Floating Point Instructions".
ex2 returns the very bits of the hardware, and tanh of f32 is as far off as it may be. The other
approximate instructions return the correctly rounded result, which lies within their error bound. A
NaN of f32 that is a result has the bits that a GPU gives it, since code may look at them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.ptx_emulator import arithmetic, element_sets
from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds, computed, in_place, packed
from explorer.ptx_emulator.lanes import Lanes, any_of
from explorer.ptx_emulator.program import DTYPES, PACKED, Array, Instruction
from explorer.ptx_emulator.registers import Source, Target

FLOAT_TYPES = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")
ROUNDING_MODES = ("rn", "rz", "rm", "rp")
Function = Callable[..., Any]


def finish(function: Function, *, ftz: bool, sat: bool) -> Function:
    """Wrap a function of float32 in the flushing and clamping that its modifiers ask for."""
    if ftz:
        inner = function
        function = lambda *o: arithmetic.flush(inner(*[arithmetic.flush(x) for x in o]))  # noqa: E731
    if sat:
        unclamped = function
        return lambda *o: arithmetic.saturate(unclamped(*o))
    return function


def bind_float(
    binder: Binder, instruction: Instruction, function: Function, ptx_type: str, mods: Modifiers
) -> Step:
    """Bind an instruction whose operands are all of one floating-point type."""
    ftz, sat = mods.take("ftz"), mods.take("sat")
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:]]
    if binder.of_sets:
        return _of_sets(binder, instruction, ptx_type, target, sources)
    if isinstance(function, np.ufunc) and not (ftz or sat) and ptx_type in ("f32", "f64"):
        return _with_one_nan(in_place(function, target, *sources), target)
    inexact = finish(function, ftz=ftz, sat=sat)
    finished: Function = lambda *o: arithmetic.with_one_nan(np.asarray(inexact(*o)))  # noqa: E731
    if ptx_type in PACKED:
        finished = packed(finished, ptx_type)
    return computed(finished, target, *sources)


def _of_sets(
    binder: Binder, instruction: Instruction, ptx_type: str, target: Target, sources: list[Source]
) -> Step:
    """Return a step for floats that are sets of elements: a union, of a maximum one that is noted.

    A minimum is the maximum of a row whose scale is negative.
    """
    current, varying = binder.current, [source for source in sources if source.scalar is None]
    function: Function = element_sets.union if varying else element_sets.empty
    if instruction.root == "ex2":
        function = element_sets.empty
    elif instruction.root in ("max", "min"):

        def function(*operands: Any) -> Array:
            made = element_sets.union(*operands)
            current.machine.note_maximum(element_sets.members(made))
            return made

    if ptx_type in PACKED:
        function = packed(function, ptx_type)
    return computed(function, target, *(varying or sources[:1]))


def _with_one_nan(step: Step, target: Target) -> Step:
    """Return a step that writes numbers in place, and the NaN among them as a GPU does."""

    def run(lanes: Lanes) -> None:
        step(lanes)
        made = target.written(lanes)
        canonical = arithmetic.with_one_nan(made)
        if canonical is not made:
            target.put(lanes, canonical)

    return run


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
        return lambda a, b: arithmetic.add32(a, _negate(b), mode)
    return lambda a, b: (arithmetic.add32 if root == "add" else arithmetic.mul32)(a, b, mode)


def bind_sum(binder: Binder, instruction: Instruction) -> Step:
    """Bind add, sub and mul of floating-point types."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    mode = mods.one_of(ROUNDING_MODES, "rn")
    function = _sum_function(instruction.root, _element(ptx_type), mode, mods)
    return bind_float(binder, instruction, function, ptx_type, mods)


@binds("fma")
def bind_fma(binder: Binder, instruction: Instruction) -> Step:
    """Bind fma, which rounds once; fma.rn.relu clamps negatives to zero."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    return bind_float(binder, instruction, _fma_function(ptx_type, mods), ptx_type, mods)


def _fma_function(ptx_type: str, mods: Modifiers) -> Function:
    mode = mods.one_of(ROUNDING_MODES, "rn")
    element = _element(ptx_type)
    if element == "f32":
        return lambda a, b, c: arithmetic.fma32(a, b, c, mode)
    if mode != "rn":
        raise mods.unsupported()
    if element == "f64":
        return arithmetic.fma64
    dtype = DTYPES[element]
    if mods.take("relu"):
        return lambda a, b, c: np.maximum(arithmetic.fma16(a, b, c, dtype), dtype.type(0))
    return lambda a, b, c: arithmetic.fma16(a, b, c, dtype)


def bind_float_mad(binder: Binder, instruction: Instruction) -> Step:
    """Bind mad.f32, which is fma on every architecture since sm_20."""
    return bind_fma(binder, instruction)


def _divide_approximately(a: Any, b: Any) -> Array:
    """div.approx gives 0 if |b| lies between 2^126 and 2^128, as the reciprocal underflows."""
    quotient = np.divide(a, b, dtype=np.float32)
    huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    if not np.any(huge):
        return np.asarray(quotient)
    underflow = np.copysign(np.float32(0), quotient)
    underflow = np.where(np.isinf(a), np.float32(np.nan), underflow)
    return np.where(huge, underflow, quotient)


def bind_float_div(binder: Binder, instruction: Instruction) -> Step:
    """Bind div.rn, div.approx and div.full."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    if mods.take("approx"):
        return bind_float(binder, instruction, _divide_approximately, ptx_type, mods)
    mode = "rn" if mods.take("full") else mods.one_of(ROUNDING_MODES)
    function: Function = np.divide
    if mode != "rn":
        function = lambda a, b: arithmetic.div32(a, b, mode)  # noqa: E731
    return bind_float(binder, instruction, function, ptx_type, mods)


def extreme(root: str, *, nan: bool) -> Function:
    """Return min or max as a function: -0 is below +0; one NaN is passed over unless `nan`."""
    ignoring: Function = np.fmax if root == "max" else np.fmin
    keeping: Function = np.maximum if root == "max" else np.minimum
    combine = np.logical_and if root == "max" else np.logical_or

    def pick(a: Any, b: Any) -> Array:
        result = np.asarray((keeping if nan else ignoring)(a, b))
        if not nan and any_of(lost := np.isnan(result)):  # NumPy keeps some NaN that signal
            result = np.where(lost, np.where(np.isnan(a), b, a), result)
        zero = result == 0
        if any_of(zero):
            sign = np.where(combine(np.signbit(a), np.signbit(b)), -1.0, 1.0)
            both = zero & (np.asarray(a) == 0) & (np.asarray(b) == 0)
            signed_zero = np.copysign(np.float32(0), sign).astype(result.dtype)
            result = np.where(both, signed_zero, result)
        return result

    return pick


def bind_float_extreme(binder: Binder, instruction: Instruction) -> Step:
    """Bind min and max of two or three operands, .NaN and .abs."""
    mods = Modifiers(instruction)
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
    """Bind abs and neg."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    # NumPy 2.4's negative is wrong for arrays with strides, which is what boxes of lanes are.
    function: Function = np.absolute if instruction.root == "abs" else _negate
    return bind_float(binder, instruction, function, ptx_type, mods)


def _negate(a: Any) -> Array:
    return np.asarray(np.multiply(a, np.asarray(a).dtype.type(-1)))


# Functions of one number.


def _in_double(function: Callable[[Any], Any]) -> Function:
    """Return a function that is evaluated in float64 and rounded once to its operand's type."""

    def evaluate(a: Any) -> Array:
        wide = np.asarray(function(np.asarray(a).astype(np.float64)))
        dtype = np.asarray(a).dtype
        return arithmetic.narrow(wide, dtype) if dtype.itemsize == 2 else wide.astype(dtype)

    return evaluate


_TANH_BITS = 11


def _tanh_approximately(a: Any) -> Array:
    """Return tanh, of f32 rounded to 11 bits: a kernel that asks for it has no more of them.

    PTX ISA 9.7.3.22: "The maximum relative error over the entire floating point range is 2^-11",
    and subnormal inputs are passed through. A correctly rounded f16 or bf16 has hardly less than
    the largest absolute error that 9.7.4.9 allows: 2^-10.987 and 2^-8.
    """
    exact = _in_double(np.tanh)(a)
    if exact.dtype != np.float32:
        return np.asarray(exact)
    mantissa, exponent = np.frexp(exact)
    kept = np.ldexp(np.rint(np.ldexp(mantissa, _TANH_BITS)), exponent - _TANH_BITS)
    is_subnormal = np.abs(exact) < np.finfo(np.float32).tiny
    return np.asarray(np.where(is_subnormal, exact, kept))


_APPROXIMATE: dict[str, Function] = {
    "ex2": _in_double(np.exp2),
    "lg2": _in_double(np.log2),
    "sin": _in_double(np.sin),
    "cos": _in_double(np.cos),
    "tanh": _tanh_approximately,
    "rsqrt": _in_double(lambda a: 1.0 / np.sqrt(a)),
}


@binds("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
def bind_approximate(binder: Binder, instruction: Instruction) -> Step:
    """Bind the functions of the special-function unit."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    if not mods.take("approx"):
        raise mods.unsupported()
    function = _APPROXIMATE[instruction.root]
    if instruction.root == "ex2" and ptx_type == "f32":
        ftz = mods.take("ftz")
        function = lambda a: arithmetic.ex2_quietly(np.asarray(a), ftz=ftz)  # noqa: E731
    return bind_float(binder, instruction, function, ptx_type, mods)


@binds("rcp", "sqrt")
def bind_root(binder: Binder, instruction: Instruction) -> Step:
    """Bind rcp and sqrt, rounded as asked or approximate."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    mode = "rn" if mods.take("approx") else mods.one_of(ROUNDING_MODES)
    if ptx_type == "f64" and mode != "rn":
        raise mods.unsupported()
    one = DTYPES[ptx_type].type(1)
    function: Function
    if instruction.root == "rcp":
        function = lambda a: one / a if mode == "rn" else arithmetic.div32(one, a, mode)  # noqa: E731
    else:
        function = np.sqrt if mode == "rn" else lambda a: arithmetic.sqrt32(a, mode)
    return bind_float(binder, instruction, function, ptx_type, mods)


@binds("copysign")
def bind_copysign(binder: Binder, instruction: Instruction) -> Step:
    """Bind copysign d, a, b: b with the sign of a."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:])
    return computed(lambda sign, of: np.copysign(of, sign), target, a, b)


_TESTS: dict[str, Function] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "notanumber": np.isnan,
    "number": lambda a: ~np.isnan(a),
    "normal": lambda a: np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny),
    "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
}


@binds("testp")
def bind_testp(binder: Binder, instruction: Instruction) -> Step:
    """Bind testp, which tests the class of a number."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    test = _TESTS[mods.one_of(_TESTS)]
    mods.finish()
    target = binder.target(instruction.operands[0], "pred")
    return computed(test, target, binder.source(instruction.operands[1], ptx_type))
