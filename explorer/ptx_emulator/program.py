"""A PTX program as data: its scalar types, modules, entries, variables, instructions and operands.

NVIDIA, "Parallel Thread Execution ISA", chapters "State Spaces, Types, and Variables" and
"Instruction Operands".
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Values = NDArray[Any] | np.generic
"""The values of an operand: an array with one element for each lane, or one scalar for all."""

Extents = tuple[int, int, int]
"""Sizes, or a position, along x, y and z."""

# Scalar types.

BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)

DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "b8": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "b16": np.dtype(np.uint16),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "bf16": BFLOAT16,
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "f16x2": np.dtype(np.uint32),
    "bf16x2": np.dtype(np.uint32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "s64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
    "f32x2": np.dtype(np.uint64),
}
"""The dtype in which an operand of a PTX type is read and written."""

STORAGE: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}
"""The dtype that holds a register of so many bytes. Other types are views of it."""

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
SIGNED = frozenset({"s8", "s16", "s32", "s64"})
PACKED = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}
"""The element type of each packed type."""


def storage_dtype(ptx_type: str) -> np.dtype[Any]:
    """Return the dtype of a register declared with `ptx_type`."""
    if ptx_type == "pred":
        return DTYPES["pred"]
    return STORAGE[DTYPES[ptx_type].itemsize]


# Programs.


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Where an instruction comes from: a line of the `.cu`, and the call it was inlined at."""

    file: str
    line: int
    inlined_at: int | None = None

    def __str__(self) -> str:
        inlined = f" (inlined at line {self.inlined_at})" if self.inlined_at else ""
        return f"{self.file}:{self.line}{inlined}"


@dataclass(frozen=True, slots=True)
class Register:
    """A declared virtual register. `negated` stands for `!%p` of a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `bits_of` is 'f32' or 'f64' if the text gives the bits of a float."""

    value: int | float
    bits_of: str = ""

    def as_float(self) -> float:
        """Return the literal as a number of a floating-point type."""
        if self.bits_of == "f32":
            return float(struct.unpack("<f", struct.pack("<I", int(self.value)))[0])
        if self.bits_of == "f64":
            return float(struct.unpack("<d", struct.pack("<Q", int(self.value)))[0])
        return float(self.value)


@dataclass(frozen=True, slots=True)
class Symbol:
    """The name of a variable or a label, used as a value."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """A memory operand: [base + offset]."""

    base: "Register | Immediate | Symbol"
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """Operands in braces."""

    items: "tuple[Operand, ...]"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations, `d|p`: a value and a predicate."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Sink:
    """The destination `_`, which drops the result."""


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its opcode with modifiers, its operands, its guard and its place."""

    pc: int
    """The number of the instruction in its kernel, from 0."""
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None
    ptx_line: int
    source: SourceLine | None
    text: str

    @property
    def root(self) -> str:
        """The opcode without its modifiers."""
        return _parts(self.opcode)[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The parts of the opcode after its first dot."""
        return _parts(self.opcode)[1:]

    @property
    def where(self) -> str:
        """The source line in words, or the PTX line if the PTX has no line information."""
        return str(self.source or f"PTX line {self.ptx_line}")

    def access_bytes(self) -> int:
        """Return the bytes that a memory instruction accesses a thread, 4 if it does not say."""
        sizes = [DTYPES[m].itemsize for m in self.modifiers if m in DTYPES]
        count = next((int(m[1]) for m in self.modifiers if m in ("v2", "v4", "v8")), 1)
        return sizes[-1] * count if sizes else 4


@cache  # Each of thousands of instructions is asked ten times, but there are few opcodes.
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in shared, local, global, const or param space. Sizes are in bytes."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes = b""
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Directives:
    """What a kernel says about its launches. PTX ISA, "Performance-Tuning Directives"."""

    maxntid: Extents | None = None
    """.maxntid: a block has at most the product of these as threads."""
    reqntid: Extents | None = None
    """.reqntid: a block has exactly these extents."""
    minnctapersm: int = 0
    """.minnctapersm: blocks that an SM should hold at least. It limits registers, not launches."""
    maxclusterrank: int = 0
    """.maxclusterrank: a cluster has at most so many blocks; 0 for no bound."""


@dataclass(slots=True)
class Entry:
    """A kernel: its parameters in order, variables, register types and instructions."""

    name: str
    params: tuple[Variable, ...]
    variables: dict[str, Variable] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    branch_tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cluster: Extents | None = None
    """Cluster extents that the kernel itself requires (.reqnctapercluster), in blocks."""
    directives: Directives = Directives()
    facts: dict[Callable[["Entry"], Any], Any] = field(default_factory=dict)
    """Cached results of the functions that `once_an_entry` wraps."""
    bound: dict[tuple[frozenset[str], bool], Any] = field(default_factory=dict)
    """Steps that serve for any batch, by the names of constant registers and by whether floats are
    sets: `binding.BoundSteps`."""


_Fact = TypeVar("_Fact")


def once_an_entry(function: Callable[[Entry], _Fact]) -> Callable[[Entry], _Fact]:
    """Let a function look through an entry once: the instructions do not change once parsed.

    A kernel is launched some twenty times to be verified, and has up to ten thousand instructions.
    """

    @wraps(function)
    def known(entry: Entry) -> _Fact:
        if function not in entry.facts:
            entry.facts[function] = function(entry)
        fact: _Fact = entry.facts[function]
        return fact

    return known


@dataclass(slots=True)
class Module:
    """The kernels and the module variables of one PTX text, by name."""

    entries: dict[str, Entry]
    variables: dict[str, Variable]
