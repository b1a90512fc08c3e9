"""mov, cvta, cvt, comparisons and selections.

PTX ISA, chapters "Data Movement and Conversion Instructions" and "Comparison and Selection
Instructions".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from explorer.ptx_emulator import arithmetic, element_sets
from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds, computed, packed
from explorer.ptx_emulator.lanes import Lanes
from explorer.ptx_emulator.program import (
    BFLOAT16,
    DTYPES,
    FLOATS,
    PACKED,
    Array,
    Instruction,
    Operand,
    Pair,
    Sink,
    Vector,
)
from explorer.ptx_emulator.registers import Source

Function = Callable[..., Any]


@binds("mov")
def bind_mov(binder: Binder, instruction: Instruction) -> Step:
    """Bind mov of a value, or between a register and a vector of narrower ones."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(DTYPES)
    mods.finish()
    to, of = instruction.operands
    if isinstance(to, Vector):
        return _unpack(binder, to, of, ptx_type)
    if isinstance(of, Vector):
        return _pack(binder, to, of, ptx_type)
    target = binder.target(to, ptx_type)
    source = binder.source(of, ptx_type)
    return lambda lanes: target.put(lanes, source.at(lanes))


def _part_type(ptx_type: str, count: int) -> str:
    return f"b{8 * DTYPES[ptx_type].itemsize // count}"


def _unpack(binder: Binder, to: Vector, of: Operand, ptx_type: str) -> Step:
    part = _part_type(ptx_type, len(to.items))
    bits = 8 * DTYPES[part].itemsize
    whole_type = f"b{bits * len(to.items)}"
    whole = binder.source(of, whole_type)
    targets = [None if isinstance(o, Sink) else binder.target(o, part) for o in to.items]
    dtype, count = DTYPES[part], len(targets)

    def step(lanes: Lanes) -> None:
        values = np.ascontiguousarray(whole.at(lanes)).view(dtype)
        for place, target in enumerate(targets):
            if target is not None:
                target.put(lanes, values[..., place::count])

    return step


def _pack(binder: Binder, to: Operand, of: Vector, ptx_type: str) -> Step:
    part = _part_type(ptx_type, len(of.items))
    bits = 8 * DTYPES[part].itemsize
    whole_type = f"b{bits * len(of.items)}"
    sources = [binder.source(o, part) for o in of.items]
    dtype = DTYPES[whole_type]

    return computed(partial(_joined, dtype), binder.target(to, whole_type), *sources)


def _joined(dtype: np.dtype[Any], *parts: Any) -> Array:
    """Return numbers of `dtype` made of parts, of which the first are the lowest bits."""
    shape = np.broadcast_shapes(*(np.shape(part) for part in parts))
    whole = np.empty(shape, dtype)
    for place, values in enumerate(parts):
        of_parts = whole.reshape(*shape, 1).view(np.asarray(values).dtype)
        of_parts[..., place] = values
    return whole


@binds("cvta")
def bind_cvta(binder: Binder, instruction: Instruction) -> Step:
    """Bind cvta and cvta.to: between generic addresses and those of a state space."""
    mods = Modifiers(instruction)
    to_space = mods.take("to")
    space = mods.one_of(("global", "shared", "local", "const", "param", "shared::cta"))
    if not to_space and space == "shared::cluster":
        raise mods.unsupported()
    ptx_type = mods.one_of(("u64", "u32"))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    base = np.uint64(binder.machine.window(space.split("::")[0]))
    source = binder.source(instruction.operands[1], ptx_type)
    move = np.subtract if to_space else np.add
    return computed(lambda a: move(a, base), target, source)


# cvt: between integers and floats of every width.

_TO_INTEGRAL: dict[str, Function] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}
_MODES = ("rn", "rz", "rm", "rp", "rna")
_TYPES = tuple(name for name in DTYPES if name not in ("pred", "b8", "b16", "b64"))


def float_to_int(values: Any, ptx_type: str, mode: str) -> Array:
    """Round, then clamp to the integer type's range; NaN becomes 0, of 64 bits 2^63."""
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
    """Convert integers to a float type, rounded once."""
    values = np.asarray(values)
    if ptx_type == "f64":
        return np.asarray(values.astype(np.float64))
    if mode == "rn" and ptx_type == "f32":
        return np.asarray(values.astype(np.float32))
    wide = values.astype(np.float64)
    error = (values.astype(object) - wide.astype(object)).astype(np.float64)
    return float_to_float(arithmetic.round_to_odd(wide, error), ptx_type, mode)


def float_to_float(values: Any, ptx_type: str, mode: str) -> Array:
    """Convert to another float type. Raises AssertionError for a mode not known there."""
    values = np.asarray(values)
    dtype = DTYPES[ptx_type]
    if dtype.itemsize > values.dtype.itemsize or dtype == values.dtype:
        return np.asarray(values.astype(dtype))
    if ptx_type == "f32":
        if mode == "rn":
            return np.asarray(values.astype(np.float32))
        wide = np.asarray(values.astype(np.float64))
        return arithmetic.directed(wide, np.zeros_like(wide), mode)
    narrowed = _narrowed(values, dtype)
    if mode == "rn":
        return narrowed
    assert mode == "rz"
    return _toward_zero(narrowed, values.astype(np.float64))


def _narrowed(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert to a 16-bit float, rounded to nearest."""
    if values.dtype == np.float32:
        return np.asarray(values.astype(dtype))
    return arithmetic.narrow(values.astype(np.float64), dtype)


def _toward_zero(narrowed: Array, wide: Array) -> Array:
    away = np.abs(narrowed.astype(np.float64)) > np.abs(wide)
    bits = np.ascontiguousarray(narrowed).view(np.uint16)
    return np.asarray((bits - away.astype(np.uint16)).view(narrowed.dtype))


def int_to_int(values: Any, ptx_type: str, *, saturate: bool) -> Array:
    """Truncate or extend; with .sat clamp to the destination's range."""
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
        read: Function = arithmetic.flush if ftz else np.asarray
        return lambda a: float_to_int(read(a), to, integral or "rzi")
    return lambda a: int_to_int(a, to, saturate=saturate)


def _between_floats(to: str, mode: str, integral: str, *, ftz: bool, saturate: bool) -> Function:
    def convert(values: Any) -> Array:
        values = np.asarray(values)
        if ftz and values.dtype == np.float32:
            values = arithmetic.flush(values)
        if integral:
            values = _TO_INTEGRAL[integral](values)
        result = float_to_float(values, to, mode)
        if ftz and to == "f32":
            result = arithmetic.flush(result)
        if (values.dtype, to) != (BFLOAT16, "f32"):  # Those bits are shifted, NaN too.
            result = arithmetic.with_one_nan(result)
        return arithmetic.saturate(result) if saturate else result

    return convert


@binds("cvt")
def bind_cvt(binder: Binder, instruction: Instruction) -> Step:
    """Bind cvt of one value, or of two f32 into a packed pair."""
    mods = Modifiers(instruction)
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
    if binder.of_sets and {to, of} & FLOATS:
        function = element_sets.converted(to)
    source = binder.source(instruction.operands[1], of)
    step = computed(function, binder.target(instruction.operands[0], to), source)
    return step if (of, DTYPES[to].itemsize) != ("f32", 2) else _noted(binder, step, source)


def _noted(binder: Binder, step: Step, *sources: Source) -> Step:
    """Return a step that notes the numbers which it rounds to 16 bits, if orders are compared."""
    current = binder.current

    def run(lanes: Lanes) -> None:
        if current.machine.compares_orders:
            for source in sources:
                current.machine.note_rounded(lanes, source.each(lanes))
        step(lanes)

    return run


def _relu(function: Function) -> Function:
    def clamp(values: Any) -> Array:
        result = np.asarray(function(values))
        return np.where((result > 0) | np.isnan(result), result, result.dtype.type(0))

    return clamp


def _bind_pair(
    binder: Binder, instruction: Instruction, to: str, of: str, mods: Modifiers, *, relu: bool
) -> Step:
    """Bind cvt.rn.f16x2.f32 d, a, b: a into the upper half, b into the lower."""
    if of != "f32":
        raise mods.unsupported()
    function = _function(PACKED[to], of, mods)
    mods.finish()
    if relu:
        function = _relu(function)
    if binder.of_sets:
        function = element_sets.converted(PACKED[to])

    def pack(upper: Any, lower: Any) -> Array:
        halves = (np.ascontiguousarray(function(x)).view(np.uint16) for x in (lower, upper))
        return _joined(DTYPES["b32"], *halves)

    target = binder.target(instruction.operands[0], to)
    sources = [binder.source(operand, of) for operand in instruction.operands[1:]]
    return _noted(binder, computed(pack, target, *sources), *sources)


# Comparisons and selections.

_COMPARE: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_UNORDERED = {f"{name}u": name for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_COMBINE: dict[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def comparison(name: str, ptx_type: str) -> Function:
    """Return a comparison as a function; NaN makes ordered ones false, unordered ones true."""
    if name in _UNORDERED:
        plain = _COMPARE[_UNORDERED[name]]
        return lambda a, b: plain(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and ptx_type in FLOATS:
        return lambda a, b: np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    return _COMPARE[name]


def _compare_function(binder: Binder, mods: Modifiers, ptx_type: str) -> Function:
    name = mods.one_of((*_COMPARE, *_UNORDERED))
    function = comparison(name, PACKED.get(ptx_type, ptx_type))
    if mods.take("ftz"):
        plain = function
        function = lambda a, b: plain(arithmetic.flush(a), arithmetic.flush(b))  # noqa: E731
    are_sets = binder.of_sets and PACKED.get(ptx_type, ptx_type) in FLOATS
    return element_sets.compared(function) if are_sets else function


@binds("setp")
def bind_setp(binder: Binder, instruction: Instruction) -> Step:
    """Bind setp p|q, a, b, {!}c: q is the comparison's negation, each combined with c."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(DTYPES)
    function = _compare_function(binder, mods, ptx_type)
    combine = _COMBINE.get(mods.one_of(_COMBINE, ""))
    mods.finish()
    if ptx_type in PACKED:
        return _bind_packed_setp(binder, instruction, function, ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:3]]
    target, negation = binder.targets(instruction.operands[0], "pred")
    third = binder.source(instruction.operands[3], "pred") if combine else None

    def step(lanes: Lanes) -> None:
        holds = function(*[source.at(lanes) for source in sources])
        also = third.at(lanes) if third else None
        target.put(lanes, combine(holds, also) if combine else holds)
        if negation:
            opposite = np.logical_not(holds)
            negation.put(lanes, combine(opposite, also) if combine else opposite)

    return step


def _bind_packed_setp(
    binder: Binder, instruction: Instruction, function: Function, ptx_type: str
) -> Step:
    """setp.f16x2 p|q: p from the lower halves, q from the upper ones."""
    assert isinstance(instruction.operands[0], Pair)
    target, upper = binder.targets(instruction.operands[0], "pred")
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    dtype = DTYPES[PACKED[ptx_type]]

    def step(lanes: Lanes) -> None:
        halves = [np.ascontiguousarray(s.each(lanes)).view(dtype).reshape(-1, 2) for s in (a, b)]
        holds = function(*halves)
        target.put(lanes, holds[:, 0])
        if upper:
            upper.put(lanes, holds[:, 1])

    return step


@binds("set")
def bind_set(binder: Binder, instruction: Instruction) -> Step:
    """Bind set: 1.0 or all ones if the comparison holds, else 0."""
    mods = Modifiers(instruction)
    types = [name for name in instruction.modifiers if name in DTYPES]
    to, of = types
    mods.take(to)
    mods.take(of)
    compare = _compare_function(binder, mods, of)
    mods.finish()
    element = DTYPES[PACKED.get(to, to)]
    true = element.type(1) if PACKED.get(to, to) in FLOATS else ~element.type(0)
    function: Function = lambda a, b: np.where(compare(a, b), true, element.type(0))  # noqa: E731
    if of in PACKED:
        function = packed(function, of)
    target = binder.target(instruction.operands[0], to)
    return computed(function, target, *[binder.source(o, of) for o in instruction.operands[1:3]])


@binds("selp")
def bind_selp(binder: Binder, instruction: Instruction) -> Step:
    """Bind selp d, a, b, p."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(DTYPES)
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    p: Source = binder.source(instruction.operands[3], "pred")
    return computed(lambda x, y, c: np.where(c, x, y), target, a, b, p)


@binds("slct")
def bind_slct(binder: Binder, instruction: Instruction) -> Step:
    """Bind slct d, a, b, c: a if c is not negative, else b."""
    mods = Modifiers(instruction)
    ftz = mods.take("ftz")
    ptx_type, of = [name for name in instruction.modifiers if name in DTYPES]
    mods.take(ptx_type)
    mods.take(of)
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    c = binder.source(instruction.operands[3], of)
    read: Function = arithmetic.flush if ftz else np.asarray
    return computed(lambda x, y, z: np.where(read(z) >= 0, x, y), target, a, b, c)
