"""Matrix products of a warp: mma of 16-bit floats that sums in f32.

PTX ISA, "mma", "Matrix Fragments for mma.m16n8k16". Lane 4 g + t holds the elements of D, A, B and
C that the fragments give to "groupID" g and "threadID_in_group" t.

The ISA leaves open in which order and with which rounding the tensor cores sum. Here the products
are exact, float64 sums them, and the sum is rounded to f32 once: what a GPU gives differs in its
last bits, by more where large terms cancel.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.ptx_emulator.arithmetic import with_one_nan
from explorer.ptx_emulator.binding import Binder, Control, controls
from explorer.ptx_emulator.findings import Kind, UnsupportedPtx
from explorer.ptx_emulator.lanes import WARP, Lanes, distinct
from explorer.ptx_emulator.program import DTYPES, Array, Immediate, Instruction, Operand, Vector
from explorer.ptx_emulator.registers import Source
from explorer.ptx_emulator.warp_instructions import FULL, bind_meeting

_TERMS = {"m16n8k8": 8, "m16n8k16": 16}
"""The products that each element of D sums, by shape."""

_WORK = 8
"""The cost of a product for each lane, in arithmetic instructions of 10 ns (512 warps a batch)."""


@controls("mma")
def bind_mma(binder: Binder, instruction: Instruction) -> Control:
    """Bind mma.sync.aligned.m16n8k{8,16} of f16 or bf16: D = A B + C in f32."""
    shape, element = instruction.modifiers[2], instruction.modifiers[6]
    known = f"mma.sync.aligned.{shape}.row.col.f32.{element}.{element}.f32"
    if shape not in _TERMS or element not in ("f16", "bf16") or instruction.opcode != known:
        raise UnsupportedPtx((instruction.opcode,))
    d, a, b, c = (_registers(operand) for operand in instruction.operands)
    assert (len(d), len(a), len(b), len(c)) == (4, _TERMS[shape] // 4, _TERMS[shape] // 8, 4)
    targets = [binder.target(operand, "f32") for operand in d]
    left, right = ([binder.source(operand, "b32") for operand in part] for part in (a, b))
    addends = [binder.source(operand, "f32") for operand in c]
    current, dtype = binder.current, DTYPES[element]

    def step(lanes: Lanes) -> None:
        warps = lanes
        current.machine.spend(_WORK * lanes.count, instruction, int(lanes.flat[0]))
        if not lanes.whole_warps:
            warps = _completed(lanes)
            current.machine.report(
                Kind.WARP_MASK,
                "this needs all 32 lanes of the warp, and some do not reach it",
                instruction,
                int(lanes.flat[0]),
                count=warps.count - lanes.count,
            )
        product = _left(left, warps, dtype) @ _right(right, warps, dtype)
        product += _addends(addends, warps)
        results = with_one_nan(product.astype(np.float32)).reshape(-1, 2, 8, 4, 2)
        for number, target in enumerate(targets):
            each = results[:, number >> 1, :, :, number & 1].reshape(-1)
            target.put(lanes, each if warps is lanes else each[lanes.mask()[warps.flat]])

    return bind_meeting(binder, instruction, step, Immediate(FULL))


def _registers(operand: Operand) -> Sequence[Operand]:
    assert isinstance(operand, Vector)
    return operand.items


def _completed(lanes: Lanes) -> Lanes:
    """Return all lanes of the warps that have a lane here."""
    warps = distinct(lanes.flat >> 5)
    return Lanes.of((warps[:, None] * WARP + np.arange(WARP)).reshape(-1), lanes.shape)


# Fragments as matrices of float64, one for each warp.


def _left(registers: Sequence[Source], lanes: Lanes, dtype: np.dtype[Any]) -> Array:
    """Return A, of 16 rows: registers take turns between row g and row g + 8."""
    pairs = np.empty((lanes.count // WARP, 2, 8, len(registers) // 2, 4), np.uint32)
    for number, register in enumerate(registers):
        pairs[:, number & 1, :, number >> 1] = _by_group(register, lanes)
    return pairs.reshape(len(pairs), 16, -1).view(dtype).astype(np.float64)


def _right(registers: Sequence[Source], lanes: Lanes, dtype: np.dtype[Any]) -> Array:
    """Return B, of 8 columns: column g is all registers of four lanes."""
    pairs = np.empty((lanes.count // WARP, 8, len(registers), 4), np.uint32)
    for number, register in enumerate(registers):
        pairs[:, :, number] = _by_group(register, lanes)
    columns = pairs.reshape(len(pairs), 8, -1).view(dtype)
    # A product with a transposed view takes four times as long.
    return columns.transpose(0, 2, 1).astype(np.float64, order="C")


def _addends(registers: Sequence[Source], lanes: Lanes) -> Array:
    """Return C, of 16 rows and 8 columns, in f32."""
    numbers = np.empty((lanes.count // WARP, 2, 8, 4, 2), np.float32)
    for number, register in enumerate(registers):
        numbers[:, number >> 1, :, :, number & 1] = _by_group(register, lanes)
    return numbers.reshape(len(numbers), 16, 8)


def _by_group(register: Source, lanes: Lanes) -> Any:
    """Return a register's values by warp, g and t, or the one value of all lanes."""
    values = register.at(lanes)
    return values if register.scalar is not None else values.reshape(-1, 8, 4)
