"""mov, cvta, comparisons and selections."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated import rounding
from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed, packed
from explorer.devices.emulated.instruction_set import Modifiers, Step, binds
from explorer.devices.emulated.lanes import Lanes
from explorer.devices.emulated.program import Instruction, Operand, Pair, Sink, Vector
from explorer.devices.emulated.ptx_types import DTYPES, FLOATS, PACKED, Array
from explorer.devices.emulated.registers import Source

Function = Callable[..., Any]


@binds("mov")
def bind_mov(binder: Binder, instruction: Instruction) -> Step:
    """mov of a value, or between a register and a vector of narrower ones."""
    mods = binder.modifiers(instruction)
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
    shift = DTYPES[whole_type].type

    def step(lanes: Lanes) -> None:
        values = np.asarray(whole.at(lanes))
        for place, target in enumerate(targets):
            if target is not None:
                target.put(lanes, (values >> shift(place * bits)).astype(DTYPES[part]))

    return step


def _pack(binder: Binder, to: Operand, of: Vector, ptx_type: str) -> Step:
    part = _part_type(ptx_type, len(of.items))
    bits = 8 * DTYPES[part].itemsize
    whole_type = f"b{bits * len(of.items)}"
    sources = [binder.source(o, part) for o in of.items]
    dtype = DTYPES[whole_type]

    def join(*parts: Any) -> Array:
        whole = np.asarray(parts[0]).astype(dtype)
        for place, values in enumerate(parts[1:], 1):
            whole = whole | np.asarray(values).astype(dtype) << dtype.type(place * bits)
        return np.asarray(whole)

    return computed(join, binder.target(to, whole_type), *sources)


@binds("cvta")
def bind_cvta(binder: Binder, instruction: Instruction) -> Step:
    """cvta and cvta.to: between generic addresses and those of a state space."""
    mods = binder.modifiers(instruction)
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
    """A comparison as a function; NaN makes the ordered ones false, the unordered ones true."""
    if name in _UNORDERED:
        plain = _COMPARE[_UNORDERED[name]]
        return lambda a, b: plain(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and ptx_type in FLOATS:
        return lambda a, b: np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    return _COMPARE[name]


def _compare_function(mods: Modifiers, ptx_type: str) -> Function:
    name = mods.one_of((*_COMPARE, *_UNORDERED))
    function = comparison(name, PACKED.get(ptx_type, ptx_type))
    if mods.take("ftz"):
        plain = function
        function = lambda a, b: plain(rounding.flush(a), rounding.flush(b))  # noqa: E731
    return function


@binds("setp")
def bind_setp(binder: Binder, instruction: Instruction) -> Step:
    """setp p|q, a, b, {!}c: q is the comparison's negation, each combined with c."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(DTYPES)
    function = _compare_function(mods, ptx_type)
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
    """set: 1.0 or all ones where the comparison holds, else 0."""
    mods = binder.modifiers(instruction)
    types = [name for name in instruction.modifiers if name in DTYPES]
    to, of = types
    mods.take(to)
    mods.take(of)
    compare = _compare_function(mods, of)
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
    """selp d, a, b, p."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(DTYPES)
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    p: Source = binder.source(instruction.operands[3], "pred")
    return computed(lambda x, y, c: np.where(c, x, y), target, a, b, p)


@binds("slct")
def bind_slct(binder: Binder, instruction: Instruction) -> Step:
    """slct d, a, b, c: a where c is not negative."""
    mods = binder.modifiers(instruction)
    ftz = mods.take("ftz")
    ptx_type, of = [name for name in instruction.modifiers if name in DTYPES]
    mods.take(ptx_type)
    mods.take(of)
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    a, b = (binder.source(o, ptx_type) for o in instruction.operands[1:3])
    c = binder.source(instruction.operands[3], of)
    read: Function = rounding.flush if ftz else np.asarray
    return computed(lambda x, y, z: np.where(read(z) >= 0, x, y), target, a, b, c)
