"""A PTX program as data: modules, entries, variables, instructions, operands."""

import struct
from dataclasses import dataclass, field
from functools import cache


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
    """A declared virtual register; `negated` is `!%p` of a predicate."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. `bits_of` is 'f32' or 'f64' where the text gives the bits of a float."""

    value: int | float
    bits_of: str = ""

    def as_float(self) -> float:
        """The literal read as a number of a floating-point type."""
        if self.bits_of == "f32":
            return float(struct.unpack("<f", struct.pack("<I", int(self.value)))[0])
        if self.bits_of == "f64":
            return float(struct.unpack("<d", struct.pack("<Q", int(self.value)))[0])
        return float(self.value)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable's or a label's name, used as a value."""

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
    """The destination `_`: the result is dropped."""


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Sink


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: opcode with its modifiers, operands, guard, and where it stands."""

    pc: int
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
        """What follows the opcode's first dot."""
        return _parts(self.opcode)[1:]


@cache  # asked ten times of each instruction, of which there are thousands; opcodes are few
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in shared, local, global, const or param space; sizes in bytes."""

    name: str
    space: str
    align: int
    size: int
    initial: bytes = b""
    dynamic: bool = False


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
    cluster: tuple[int, int, int] | None = None
    """Cluster extents that the kernel itself requires, blocks along x, y, z."""
    slots: dict[str, tuple[int, int]] | None = None
    """Where its registers are kept, once `register_slots` has worked it out for any launch."""


@dataclass(slots=True)
class Module:
    """What one PTX text holds."""

    entries: dict[str, Entry]
    variables: dict[str, Variable]
