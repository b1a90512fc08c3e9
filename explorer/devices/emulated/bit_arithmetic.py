"""Bitwise instructions. PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic"."""

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.devices.emulated.binder import Binder
from explorer.devices.emulated.elementwise import computed, in_place
from explorer.devices.emulated.instruction_set import Step, binds
from explorer.devices.emulated.int_arithmetic import INT_TYPES, bind_same
from explorer.devices.emulated.program import Instruction
from explorer.devices.emulated.ptx_types import DTYPES, SIGNED, STORAGE, Array

Function = Callable[..., Any]
BIT_TYPES = ("b16", "b32", "b64")


_LOGIC: dict[str, Function] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
}


@binds("and", "or", "xor", "not", "cnot")
def bind_logic(binder: Binder, instruction: Instruction) -> Step:
    """Bitwise instructions, on predicates too."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of((*BIT_TYPES, "pred"))
    if instruction.root == "cnot":
        dtype = DTYPES[ptx_type]
        return bind_same(binder, instruction, lambda a: (a == 0).astype(dtype), ptx_type, mods)
    return bind_same(binder, instruction, _LOGIC[instruction.root], ptx_type, mods)


@binds("shl", "shr")
def bind_shift(binder: Binder, instruction: Instruction) -> Step:
    """shl and shr; amounts beyond the width are clamped to it."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of((*BIT_TYPES, *INT_TYPES))
    mods.finish()
    target = binder.target(instruction.operands[0], ptx_type)
    value = binder.source(instruction.operands[1], ptx_type)
    amount = binder.source(instruction.operands[2], "u32")
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize
    ufunc = np.left_shift if instruction.root == "shl" else np.right_shift
    if amount.scalar is not None and int(amount.scalar) < bits:
        constant = type(amount)(dtype.type(int(amount.scalar)))
        return in_place(ufunc, target, value, constant)

    def shift(a: Any, n: Any) -> Array:
        n = np.asarray(n)
        most = bits - 1 if ptx_type in SIGNED and ufunc is np.right_shift else bits
        n = np.minimum(n, np.uint32(most))
        shifted = ufunc(a, np.minimum(n, np.uint32(bits - 1)).astype(dtype))
        return np.asarray(np.where(n < bits, shifted, dtype.type(0)).astype(dtype))

    return computed(shift, target, value, amount)


@binds("shf")
def bind_funnel(binder: Binder, instruction: Instruction) -> Step:
    """shf.l and shf.r: shift of the 64-bit value {b, a}."""
    mods = binder.modifiers(instruction)
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
    """lop3: any function of three bits, given as its truth table."""
    mods = binder.modifiers(instruction)
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
    """Four bytes picked from the eight of {b, a}; bit 3 of a pick replicates the sign."""
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
    """prmt.b32 in its default mode."""
    mods = binder.modifiers(instruction)
    mods.one_of(("b32",))
    return bind_same(binder, instruction, prmt, "b32", mods)


@binds("bfe")
def bind_bfe(binder: Binder, instruction: Instruction) -> Step:
    """bfe: a field of `length` bits from `start`, extended by its sign for signed types."""
    mods = binder.modifiers(instruction)
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
    """bfi: the low `length` bits of a inserted into b at `start`."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("b32", "b64"))
    mods.finish()
    dtype = DTYPES[ptx_type]
    bits = 8 * dtype.itemsize

    def insert(a: Any, b: Any, start: Any, length: Any) -> Array:
        start = (np.asarray(start) & 255).astype(object)
        mask = (2 ** (np.asarray(length) & 255).astype(object) - 1 << start) & (2**bits - 1)
        a, b = np.asarray(a).astype(object), np.asarray(b).astype(object)
        return np.asarray(b & ~mask | (a << start) & mask).astype(dtype)

    target = binder.target(instruction.operands[0], ptx_type)
    sources = [binder.source(o, ptx_type) for o in instruction.operands[1:3]]
    sources += [binder.source(o, "u32") for o in instruction.operands[3:]]
    return computed(insert, target, *sources)


def highest_bit(a: Any) -> Array:
    """The place of the highest set bit, -1 where there is none."""
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
    """popc, clz and bfind: counts and places of bits."""
    mods = binder.modifiers(instruction)
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
    """brev: the bits in reverse order."""
    mods = binder.modifiers(instruction)
    ptx_type = mods.one_of(("b32", "b64"))
    dtype = DTYPES[ptx_type]

    def reverse(a: Any) -> Array:
        octets = np.ascontiguousarray(a).reshape(-1).view(np.uint8).reshape(-1, dtype.itemsize)
        bits = np.unpackbits(octets, axis=1, bitorder="little")
        flipped = np.packbits(bits[:, ::-1], axis=1, bitorder="little")
        return flipped.view(dtype).reshape(np.shape(a))

    return bind_same(binder, instruction, reverse, ptx_type, mods)
