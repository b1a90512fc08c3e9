"""Integer and bitwise instructions, and those that the opcode shares with floats (add, min, ...).

PTX ISA, chapters "Integer Arithmetic Instructions" and "Logic and Shift Instructions".
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.ptx_emulator.binding import Binder, Modifiers, Step, binds, computed, in_place
from explorer.ptx_emulator.float_instructions import (
    FLOAT_TYPES,
    bind_float_div,
    bind_float_extreme,
    bind_float_mad,
    bind_float_sign,
    bind_sum,
)
from explorer.ptx_emulator.program import (
    DTYPES,
    SIGNED,
    STORAGE,
    Array,
    Immediate,
    Instruction,
)
from explorer.ptx_emulator.registers import Source

INT_TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
Function = Callable[..., Any]
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _is_float(instruction: Instruction) -> bool:
    return any(name in FLOAT_TYPES for name in instruction.modifiers)


def bind_same(
    binder: Binder, instruction: Instruction, function: Function, ptx_type: str, mods: Modifiers
) -> Step:
    """Bind an instruction whose operands are all of one type."""
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
    """Bind add and sub of every type."""
    if _is_float(instruction):
        return bind_sum(binder, instruction)
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = np.add if instruction.root == "add" else np.subtract
    if mods.take("sat"):
        function = _clamped(function)
    return bind_same(binder, instruction, function, ptx_type, mods)


def high_product(ptx_type: str) -> Function:
    """Return a function that gives the upper half of a product."""
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
    """Bind mul and mad: .lo, .hi or .wide, or of floats."""
    if _is_float(instruction):
        is_mul = instruction.root == "mul"
        return (bind_sum if is_mul else bind_float_mad)(binder, instruction)
    mods = Modifiers(instruction)
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
    """Bind mul24.lo and mad24.lo."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("u32", "s32"))
    if not mods.take("lo"):
        raise mods.unsupported()
    shift = DTYPES[ptx_type].type(8)

    def function(a: Any, b: Any, c: Any = 0) -> Any:
        return (np.asarray(a) << shift >> shift) * (np.asarray(b) << shift >> shift) + c

    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("sad")
def bind_sad(binder: Binder, instruction: Instruction) -> Step:
    """Bind sad: c + |a - b|."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    return bind_same(
        binder, instruction, lambda a, b, c: c + np.where(a < b, b - a, a - b), ptx_type, mods
    )


def divide(a: Any, b: Any) -> Array:
    """Return the integer quotient rounded toward zero; division by zero gives all ones."""
    a, b = np.asarray(a), np.asarray(b)
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if np.issubdtype(a.dtype, np.signedinteger):
        quotient = quotient + ((quotient < 0) & (quotient * safe != a))
    return np.asarray(np.where(b == 0, ~np.zeros_like(a), quotient).astype(a.dtype))


@binds("div", "rem")
def bind_div(binder: Binder, instruction: Instruction) -> Step:
    """Bind div of every type and rem."""
    if _is_float(instruction):
        return bind_float_div(binder, instruction)
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = divide
    if instruction.root == "rem":
        function = lambda a, b: a - divide(a, b) * b  # noqa: E731
    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("min", "max")
def bind_extreme(binder: Binder, instruction: Instruction) -> Step:
    """Bind min and max of every type."""
    if _is_float(instruction):
        return bind_float_extreme(binder, instruction)
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    function: Function = np.minimum if instruction.root == "min" else np.maximum
    if mods.take("relu"):
        unclamped = function
        function = lambda a, b: np.maximum(unclamped(a, b), 0)  # noqa: E731
    return bind_same(binder, instruction, function, ptx_type, mods)


@binds("abs", "neg")
def bind_sign(binder: Binder, instruction: Instruction) -> Step:
    """Bind abs and neg of every type."""
    if _is_float(instruction):
        return bind_float_sign(binder, instruction)
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(INT_TYPES)
    zero = DTYPES[ptx_type].type(0)
    function: Function = np.absolute
    if instruction.root == "neg":
        function = lambda a: np.subtract(zero, a)  # noqa: E731 - negative fails on strides
    return bind_same(binder, instruction, function, ptx_type, mods)


# Bits.

BIT_TYPES = ("b16", "b32", "b64")


_LOGIC: dict[str, Function] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
}


@binds("and", "or", "xor", "not", "cnot")
def bind_logic(binder: Binder, instruction: Instruction) -> Step:
    """Bind bitwise instructions, also of predicates."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of((*BIT_TYPES, "pred"))
    if instruction.root == "cnot":
        dtype = DTYPES[ptx_type]
        return bind_same(binder, instruction, lambda a: (a == 0).astype(dtype), ptx_type, mods)
    return bind_same(binder, instruction, _LOGIC[instruction.root], ptx_type, mods)


@binds("shl", "shr")
def bind_shift(binder: Binder, instruction: Instruction) -> Step:
    """Bind shl and shr; amounts beyond the width are clamped to it."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of((*BIT_TYPES, *INT_TYPES))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    value = binder.source(instruction.operands[1], ptx_type)
    amount = binder.source(instruction.operands[2], "u32")
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize
    ufunc = np.left_shift if instruction.root == "shl" else np.right_shift
    if isinstance(instruction.operands[2], Immediate) and int(amount.value) < bits:
        return in_place(ufunc, target, value, Source(dtype.type(int(amount.value))))

    def shift(a: Any, n: Any) -> Array:
        n = np.asarray(n)
        most = bits - 1 if ptx_type in SIGNED and ufunc is np.right_shift else bits
        n = np.minimum(n, np.uint32(most))
        shifted = ufunc(a, np.minimum(n, np.uint32(bits - 1)).astype(dtype))
        return np.asarray(np.where(n < bits, shifted, dtype.type(0)).astype(dtype))

    return computed(shift, target, value, amount)


@binds("shf")
def bind_funnel(binder: Binder, instruction: Instruction) -> Step:
    """Bind shf.l and shf.r, which shift the 64-bit value {b, a}."""
    mods = Modifiers(instruction)
    left = mods.one_of(("l", "r")) == "l"
    wrap = mods.one_of(("wrap", "clamp")) == "wrap"
    mods.one_of(("b32",))

    def funnel(a: Any, b: Any, c: Any) -> Array:
        n = (np.asarray(c) & np.uint32(31)) if wrap else np.minimum(c, np.uint32(32))
        n = n.astype(np.uint64)
        whole = np.asarray(b).astype(np.uint64) << np.uint64(32) | np.asarray(a).astype(np.uint64)
        if left:
            return (whole << n >> np.uint64(32)).astype(np.uint32)
        return (whole >> n).astype(np.uint32)

    return bind_same(binder, instruction, funnel, "b32", mods)


@binds("lop3")
def bind_lop3(binder: Binder, instruction: Instruction) -> Step:
    """Bind lop3: any function of three bits, given by its truth table."""
    mods = Modifiers(instruction)
    mods.one_of(("b32",))
    mods.finish()
    *operands, table_operand = instruction.operands[1:]
    table = int(binder.source(table_operand, "u32").scalar or 0)
    target = binder.target(instruction.operands[0], "b32")

    def lop3(a: Any, b: Any, c: Any) -> Array:
        result = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c)), np.uint32)
        for case in range(8):
            if table >> case & 1:
                term = a if case & 4 else ~a
                term = term & (b if case & 2 else ~b)
                result |= term & (c if case & 1 else ~c)
        return result

    return computed(lop3, target, *[binder.source(o, "b32") for o in operands])


def prmt(a: Any, b: Any, selector: Any) -> Array:
    """Return four bytes picked from the eight of {b, a}; bit 3 of a pick replicates the sign."""
    whole = np.asarray(b).astype(np.uint64) << np.uint64(32) | np.asarray(a).astype(np.uint64)
    result = np.zeros(np.broadcast_shapes(whole.shape, np.shape(selector)), np.uint32)
    for place in range(4):
        pick = (np.asarray(selector) >> np.uint32(4 * place)) & np.uint32(15)
        byte = (whole >> (pick & np.uint32(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(255)
        sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        byte = np.where(pick & np.uint32(8), sign, byte)
        result |= byte.astype(np.uint32) << np.uint32(8 * place)
    return result


@binds("prmt")
def bind_prmt(binder: Binder, instruction: Instruction) -> Step:
    """Bind prmt.b32 in its default mode."""
    mods = Modifiers(instruction)
    mods.one_of(("b32",))
    return bind_same(binder, instruction, prmt, "b32", mods)


@binds("bfe")
def bind_bfe(binder: Binder, instruction: Instruction) -> Step:
    """Bind bfe: a field of `length` bits from `start`, sign-extended for signed types."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("u32", "s32", "u64", "s64"))
    mods.finish()
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize

    def extract(a: Any, start: Any, length: Any) -> Array:
        value = np.asarray(a).astype(object) & (2**bits - 1)
        start = (np.asarray(start) & 255).astype(object)
        length = (np.asarray(length) & 255).astype(object)
        field = _field(value, start, length, bits, signed=ptx_type in SIGNED)
        return np.asarray(field & (2**bits - 1)).astype(STORAGE[dtype.itemsize]).view(dtype)

    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(instruction.operands[1], ptx_type)]
    sources += [binder.source(o, "u32") for o in instruction.operands[2:]]
    return computed(extract, target, *sources)


def _field(value: Any, start: Any, length: Any, bits: int, *, signed: bool) -> Any:
    field = value >> start & (2**length - 1)
    if not signed:
        return field
    top = np.minimum(start + length - 1, bits - 1)
    negative = (value >> np.maximum(top, 0) & 1) * (length > 0)
    present = np.maximum(np.minimum(length, bits - start), 0)
    return field - negative * 2**present


@binds("bfi")
def bind_bfi(binder: Binder, instruction: Instruction) -> Step:
    """Bind bfi: the low `length` bits of a inserted into b at `start`."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("b32", "b64"))
    mods.finish()
    dtype = DTYPES[ptx_type]

    def insert(a: Any, b: Any, start: Any, length: Any) -> Array:
        start, length = (np.asarray(x).astype(np.uint64) & np.uint64(255) for x in (start, length))
        mask = _shifted(_shifted(np.uint64(1), length) - np.uint64(1), start)
        a, b = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64)
        return np.asarray(b & ~mask | _shifted(a, start) & mask).astype(dtype)

    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:3]]
    sources += [binder.source(o, "u32") for o in instruction.operands[3:]]
    return computed(insert, target, *sources)


def _shifted(value: Any, places: Array) -> Array:
    """Return 64-bit values shifted to the left; by 64 places and more, 0."""
    within = np.minimum(places, np.uint64(63))
    return np.where(places < 64, value << within, np.uint64(0))


def highest_bit(a: Any) -> Array:
    """Return the place of the highest set bit, or -1 if there is none."""
    exponent = np.frexp(np.asarray(a).astype(np.float64))[1].astype(np.int64) - 1
    # float64 may round a 64-bit value up to the next power of two.
    over = (exponent >= 0) & (
        np.asarray(a).astype(np.uint64) >> exponent.clip(0).astype(np.uint64) == 0
    )
    return np.where(np.asarray(a) == 0, -1, exponent - over)


_COUNTS: dict[str, Callable[[Any, int], Any]] = {
    "popc": lambda a, bits: np.bitwise_count(a),
    "clz": lambda a, bits: bits - 1 - highest_bit(a),
    "bfind": lambda a, bits: highest_bit(a),
}


@binds("popc", "clz", "bfind")
def bind_count(binder: Binder, instruction: Instruction) -> Step:
    """Bind popc, clz and bfind."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("b32", "b64", "u32", "u64"))
    amount = mods.take("shiftamt")
    mods.finish()
    count = _COUNTS[instruction.root]
    bits = 8 * DTYPES[ptx_type].itemsize

    def function(a: Any) -> Array:
        places = np.asarray(count(a, bits)).astype(np.int64)
        return (np.where(places < 0, -1, bits - 1 - places) if amount else places).astype(np.uint32)

    target = binder.target(instruction.operands[0], "u32")
    return computed(function, target, binder.source(instruction.operands[1], ptx_type))


@binds("brev")
def bind_brev(binder: Binder, instruction: Instruction) -> Step:
    """Bind brev: the bits in reverse order."""
    mods = Modifiers(instruction)
    ptx_type = mods.one_of(("b32", "b64"))
    dtype = DTYPES[ptx_type]

    def reverse(a: Any) -> Array:
        octets = np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, dtype.itemsize)
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        flipped = np.packbits(bits[:, ::-1], axis=1, bitorder="little")
        return flipped.view(dtype).reshape(np.shape(a))

    return bind_same(binder, instruction, reverse, ptx_type, mods)
