"""Declarations of variables and parameters, from PTX text."""

import re

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.operands import parse_operand
from explorer.devices.emulated.program import Immediate, Variable
from explorer.devices.emulated.ptx_types import DTYPES

_VARIABLE = re.compile(
    r"\.(shared|local|global|const|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"([\w$%]+)\s*((?:\[\w*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)


def parse_variable(statement: str) -> Variable:
    """Read a declaration of a variable or parameter; raises UnsupportedPtx."""
    statement = re.sub(r"\.ptr\s+(\.(?!align)\w+\s+)?(\.align\s+\d+\s*)?", "", statement)
    statement = re.sub(r"\.attribute\([^)]*\)\s*", "", statement)
    match = _VARIABLE.match(statement.strip())
    if not match or match.group(3) not in DTYPES:
        raise UnsupportedPtx((" ".join(statement.split())[:80],))
    space, align, ptx_type, name, extents, initial = match.groups()
    itemsize = DTYPES[ptx_type].itemsize
    counts = re.findall(r"\[(\w*)\]", extents)
    size = itemsize
    for count in counts:
        size *= int(count) if count else 0
    data = _initial_bytes(initial, ptx_type, size) if initial else b""
    return Variable(name, space, int(align or itemsize), size, data, dynamic=size == 0)


def _initial_bytes(text: str, ptx_type: str, size: int) -> bytes:
    literals = [part.strip() for part in text.replace("{", "").replace("}", "").split(",")]
    dtype = DTYPES[ptx_type]
    data = b""
    for literal in filter(None, literals):
        immediate = parse_operand(literal, str, {})
        if not isinstance(immediate, Immediate):
            raise UnsupportedPtx((f"initial value {literal}",))
        if immediate.bits_of or isinstance(immediate.value, float):
            data += dtype.type(immediate.as_float()).tobytes()
        else:
            data += (immediate.value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
    return data.ljust(size, b"\0")
