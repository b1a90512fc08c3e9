"""cvt: between integers and floats of every width. PTX ISA, "Data Movement and Conversion: cvt"."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated import rounding
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, FLOATS, PACKED, Array
from explorer.reference.exact_sum import round_to_odd

Function = Callable[..., Any]

_TO_INTEGRAL: dict[str, Function] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_MODES = ("rn", "rz", "rm", "rp", "rna")
_TYPES = tuple(name for name in DTYPES if name not in ("pred", "b8", "b16", "b64"))


def float_to_int(values: Any, ptx_type: str, mode: str) -> Array:
    """Rounded, then clamped to the integer type's range; NaN to 0, for 64 bits to 2^63."""
    dtype = DTYPES[ptx_type]
    wide = _TO_INTEGRAL[mode](np.asarray(values).astype(np.float64))
    limits = np.iinfo(dtype)
    # float64 cannot hold the largest 64-bit integers: those are clamped after the test.
    over, under = wide >= float(limits.max), wide <= float(limits.min)
    safe = np.where(over | under | np.isnan(wide), 0.0, wide)
    result = safe.astype(dtype)
    result = np.where(over, dtype.type(limits.max), result)
    result = np.where(under, dtype.type(limits.min), result)
    if dtype.itemsize == 8:
        indefinite = np.uint64(2**63).astype(dtype)
        return np.where(np.isnan(wide), indefinite, result)
    return np.asarray(result)


def int_to_float(values: Any, ptx_type: str, mode: str) -> Array:
    """Rounded once."""
    values = np.asarray(values)
    if ptx_type == "f64":
        return np.asarray(values.astype(np.float64))
    if mode == "rn" and ptx_type == "f32":
        return np.asarray(values.astype(np.float32))
    wide = values.astype(np.float64)
    error = (values.astype(object) - wide.astype(object)).astype(np.float64)
    return float_to_float(round_to_odd(wide, error), ptx_type, mode)


def float_to_float(values: Any, ptx_type: str, mode: str) -> Array:
    """To another float type; raises KeyError for a rounding mode that is not known there."""
    values = np.asarray(values)
    dtype = DTYPES[ptx_type]
    if dtype.itemsize > values.dtype.itemsize or dtype == values.dtype:
        return np.asarray(values.astype(dtype))
    wide = np.asarray(values.astype(np.float64))
    if ptx_type == "f32":
        if mode == "rn":
            return np.asarray(values.astype(np.float32))
        return rounding._directed(wide, np.zeros_like(wide), mode)
    narrowed = _narrowed(values, wide, dtype)
    if mode == "rn":
        return narrowed
    assert mode == "rz"
    return _toward_zero(narrowed, wide)


def _narrowed(values: Array, wide: Array, dtype: np.dtype[Any]) -> Array:
    """To a 16-bit float, rounded to nearest; NaN becomes 0x7fff."""
    if values.dtype == np.float32:
        narrowed = np.asarray(values.astype(dtype))
    else:
        narrowed = rounding.narrow(wide, dtype)
    nan = np.isnan(wide)
    if nan.any():
        canonical = np.uint16(0x7FFF).view(dtype)
        narrowed = np.where(nan, canonical, narrowed)
    return narrowed


def _toward_zero(narrowed: Array, wide: Array) -> Array:
    away = np.abs(narrowed.astype(np.float64)) > np.abs(wide)
    bits = np.ascontiguousarray(narrowed).view(np.uint16)
    return np.asarray((bits - away.astype(np.uint16)).view(narrowed.dtype))


def int_to_int(values: Any, ptx_type: str, *, saturate: bool) -> Array:
    """Truncated or extended; with .sat clamped to the destination's range."""
    values = np.asarray(values)
    dtype = DTYPES[ptx_type]
    if saturate:
        limits, own = np.iinfo(dtype), np.iinfo(values.dtype)
        values = np.clip(values, max(limits.min, own.min), min(limits.max, own.max))
    return np.asarray(values.astype(dtype))


def _function(to: str, of: str, mods: Modifiers) -> Function:
    integral = mods.one_of(_TO_INTEGRAL, "")
    mode = mods.one_of(_MODES, "rn")
    if mode == "rna":
        raise mods.unsupported()
    saturate = mods.take("sat")
    ftz = mods.take("ftz")
    if to in FLOATS and of in FLOATS:
        return _between_floats(to, mode, integral, ftz=ftz, saturate=saturate)
    if to in FLOATS:
        return lambda a: int_to_float(a, to, mode)
    if of in FLOATS:
        # Clamping is what this conversion always does.
        read: Function = rounding.flush if ftz else np.asarray
        return lambda a: float_to_int(read(a), to, integral or "rzi")
    return lambda a: int_to_int(a, to, saturate=saturate)


def _between_floats(to: str, mode: str, integral: str, *, ftz: bool, saturate: bool) -> Function:
    def convert(values: Any) -> Array:
        values = np.asarray(values)
        if ftz and values.dtype == np.float32:
            values = rounding.flush(values)
        if integral:
            values = _TO_INTEGRAL[integral](values)
        result = float_to_float(values, to, mode)
        if ftz and to == "f32":
            result = rounding.flush(result)
        return rounding.saturate(result) if saturate else result

    return convert


@binds("cvt")
def bind_cvt(binder: Binder, instruction: Instruction) -> Step:
    """cvt of one value, or of two f32 into a packed pair."""
    mods = binder.modifiers(instruction)
    relu = mods.take("relu")
    types = [name for name in instruction.modifiers if name in _TYPES]
    to, of = types
    mods.take(to)
    mods.take(of)
    if to in PACKED:
        return _bind_pair(binder, instruction, to, of, mods, relu=relu)
    function = _function(to, of, mods)
    mods.finish()
    if relu:
        function = _relu(function)
    target = binder.target(instruction.operands[0], to)
    return computed(function, target, binder.source(instruction.operands[1], of))


def _relu(function: Function) -> Function:
    def clamp(values: Any) -> Array:
        result = np.asarray(function(values))
        return np.where(result > 0, result, result.dtype.type(0))

    return clamp


def _bind_pair(
    binder: Binder, instruction: Instruction, to: str, of: str, mods: Modifiers, *, relu: bool
) -> Step:
    """cvt.rn.f16x2.f32 d, a, b: a into the upper half, b into the lower."""
    if of != "f32":
        raise mods.unsupported()
    function = _function(PACKED[to], of, mods)
    mods.finish()
    if relu:
        function = _relu(function)

    def pack(upper: Any, lower: Any) -> Array:
        high = np.ascontiguousarray(function(upper)).view(np.uint16).astype(np.uint32)
        low = np.ascontiguousarray(function(lower)).view(np.uint16)
        return high << np.uint32(16) | low

    target = binder.target(instruction.operands[0], to)
    sources = [binder.source(operand, of) for operand in instruction.operands[1:]]
    return computed(pack, target, *sources)
