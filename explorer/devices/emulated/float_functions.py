"""Functions of one number: ex2, lg2, rcp, sqrt and the like.

ex2 returns the hardware's very bits; the other approximate instructions the correctly rounded
result, which lies within their error bound.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated import rounding
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed
from explorer.devices.emulated.exp2_unit import ex2_approx
from explorer.devices.emulated.float_arithmetic import (
    FLOAT_TYPES,
    ROUNDING_MODES,
    Function,
    bind_float,
)
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, Array


def _in_double(function: Callable[[Any], Any]) -> Function:
    """A function evaluated in float64 and rounded once to the operand's type."""

    def evaluate(a: Any) -> Array:
        wide = np.asarray(function(np.asarray(a).astype(np.float64)))
        dtype = np.asarray(a).dtype
        return rounding.narrow(wide, dtype) if dtype.itemsize == 2 else wide.astype(dtype)

    return evaluate


def _ex2(a: Array) -> Array:
    """2^a: in fp32 as the hardware does, else rounded once."""
    return ex2_approx(a) if np.asarray(a).dtype == np.float32 else _in_double(np.exp2)(a)


_APPROXIMATE: dict[str, Function] = {
    "ex2": _ex2,
    "lg2": _in_double(np.log2),
    "sin": _in_double(np.sin),
    "cos": _in_double(np.cos),
    "tanh": _in_double(np.tanh),
    "rsqrt": _in_double(lambda a: 1.0 / np.sqrt(a)),
}


@binds("ex2", "lg2", "sin", "cos", "tanh", "rsqrt")
def bind_approximate(binder: Binder, instruction: Instruction) -> Step:
    """The functions of the special-function unit."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(FLOAT_TYPES)
    if not mods.take("approx"):
        raise mods.unsupported()
    return bind_float(binder, instruction, _APPROXIMATE[instruction.root], ptx_type, mods)


@binds("rcp", "sqrt")
def bind_root(binder: Binder, instruction: Instruction) -> Step:
    """rcp and sqrt, rounded as asked or approximate."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    mode = "rn" if mods.take("approx") else mods.one_of(ROUNDING_MODES)
    if ptx_type == "f64" and mode != "rn":
        raise mods.unsupported()
    one = DTYPES[ptx_type].type(1)
    function: Function
    if instruction.root == "rcp":
        function = lambda a: one / a if mode == "rn" else rounding.div32(one, a, mode)  # noqa: E731
    else:
        function = np.sqrt if mode == "rn" else lambda a: rounding.sqrt32(a, mode)
    return bind_float(binder, instruction, function, ptx_type, mods)


@binds("copysign")
def bind_copysign(binder: Binder, instruction: Instruction) -> Step:
    """copysign d, a, b: b with the sign of a."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    return bind_float(binder, instruction, lambda a, b: np.copysign(b, a), ptx_type, mods)


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
    """testp: the class of a number."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("f32", "f64"))
    test = _TESTS[mods.one_of(_TESTS)]
    mods.finish()
    target = binder.target(instruction.operands[0], "pred")
    return computed(test, target, binder.source(instruction.operands[1], ptx_type))
