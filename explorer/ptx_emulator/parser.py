"""Reads PTX text. NVIDIA, "Parallel Thread Execution ISA" 9.x, chapters 4 to 7."""

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from explorer.ptx_emulator.findings import UnsupportedPtx
from explorer.ptx_emulator.program import (
    DTYPES,
    Address,
    Directives,
    Entry,
    Extents,
    Immediate,
    Instruction,
    Module,
    Operand,
    Pair,
    Register,
    Sink,
    SourceLine,
    Special,
    Symbol,
    Variable,
    Vector,
)

Scope = Callable[[str], str]
"""Gives the name that a register or label of an inner scope has in the whole entry."""


def parse(text: str) -> Module:
    """Read a PTX text. Raises UnsupportedPtx for a construct that is not known.

    An instruction with operands of an unknown form is kept: launching its kernel raises.
    """
    return _Parser(text).module()


# Scanning.

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_BRACE = re.compile(r"[{}]")
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"\S*")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


class _Scanner:
    """A position in a text without its comments. What is taken moves the position on."""

    def __init__(self, text: str) -> None:
        self.text = _COMMENT.sub(_blank, text.replace("\0", ""))
        self.position = 0
        self._line = 1
        self._counted = 0

    def skip_braces(self) -> None:
        """Pass over a block in braces, which begins at the next brace."""
        depth = 0
        for match in _BRACE.finditer(self.text, self.position):
            depth += 1 if match.group() == "{" else -1
            if depth <= 0:
                self.position = match.end()
                return
        self.position = len(self.text)

    def skip_space(self) -> bool:
        """Pass over blanks. Return False at the end of the text."""
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.position < len(self.text)

    def line(self) -> int:
        """Return the line of the text that the scanner stands on, from 1."""
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        return self._line

    def rest(self, length: int) -> str:
        """Return the next characters without taking them."""
        return self.text[self.position : self.position + length]

    def at(self, word: str) -> bool:
        """Return whether the text goes on with `word`."""
        return self.text.startswith(word, self.position)

    def take_word(self) -> str:
        """Take what comes before the next blank."""
        match = _WORD.match(self.text, self.position)
        taken = match.group() if match else ""
        self.position += len(taken)
        return taken

    def take_line(self) -> str:
        """Take the rest of the line."""
        return self.take_until("\n")

    def take_until(self, mark: str) -> str:
        """Take what comes before `mark`, and pass over the mark."""
        end = self.text.find(mark, self.position)
        end = len(self.text) if end < 0 else end
        taken = self.text[self.position : end]
        self.position = end + len(mark)
        return taken.strip()


# Operands.

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT_BITS = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$")
_SUM = re.compile(r"(.+?)\s*([+-])\s*([+-]?(?:0[xX][0-9a-fA-F]+|\d+))$")
_NAME = re.compile(r"[\w$@.%]+")


def _split_operands(text: str) -> list[str]:
    """Split at the commas that stand outside braces and brackets."""
    if "{" not in text and "[" not in text and "(" not in text:
        return [part.strip() for part in text.split(",")] if text.strip() else []
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "{[(") - (character in "}])")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    if current.strip():
        parts.append(current.strip())
    return parts


_register = cache(Register)
"""Registers have few names, and each occurs in many instructions of every kernel."""


def _operand(text: str, scoped: Scope, registers: Mapping[str, str]) -> Operand:
    """Read one operand. Raises UnsupportedPtx."""
    if text.startswith("%"):  # The usual case: a register.
        name = scoped(text)
        if name in registers:
            return _register(name)
    if text.startswith("{"):
        items = _split_operands(text[1:-1])
        return Vector(tuple(_operand(item, scoped, registers) for item in items))
    if text.startswith("["):
        return _address(text[1:-1].strip(), scoped, registers)
    if "|" in text:
        first, second = text.split("|")
        return Pair(
            _operand(first.strip(), scoped, registers),
            _operand(second.strip(), scoped, registers),
        )
    if text == "_":
        return Sink()
    literal = _immediate(text)
    if literal is not None:
        return literal
    return _named(text, scoped, registers)


def _named(text: str, scoped: Scope, registers: Mapping[str, str]) -> Operand:
    negated = text.startswith("!")
    name = scoped(text.lstrip("!").strip())
    if name in registers:
        return Register(name, negated)
    if text.startswith("%"):
        return Special(text)
    total = _SUM.match(text)
    if total:
        return Symbol(scoped(total.group(1)), int(total.group(2) + total.group(3), 0))
    if not _NAME.fullmatch(name):
        raise UnsupportedPtx((f"operand {text}",))
    return Symbol(name)


def _address(text: str, scoped: Scope, registers: Mapping[str, str]) -> Operand:
    offset = 0
    total = _SUM.match(text)
    if total:
        sign = -1 if total.group(2) == "-" else 1
        text, offset = total.group(1), sign * int(total.group(3), 0)
    base = _operand(text, scoped, registers)
    if not isinstance(base, Register | Immediate | Symbol):
        raise UnsupportedPtx((f"address [{text}]",))
    return Address(base, offset)


@lru_cache(4096)
def _immediate(text: str) -> Immediate | None:
    if _INTEGER.match(text):
        return Immediate(_integer(text.rstrip("U")))
    bits = _FLOAT_BITS.match(text)
    if bits:
        size = "f32" if bits.group(2) in "fF" else "f64"
        value = int(bits.group(3), 16)
        if bits.group(1):
            value ^= 1 << (31 if size == "f32" else 63)
        return Immediate(value, size)
    if _FLOAT.match(text):
        return Immediate(float(text))
    if text == "WARP_SZ":
        return Immediate(32)
    return None


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    return sign * int(digits, 8 if octal else 0)


# Declarations.

_VARIABLE = re.compile(
    r"\.(shared|local|global|const|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"([\w$%]+)\s*((?:\[\w*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)


def _variable(statement: str) -> Variable:
    """Read a declaration of a variable or parameter. Raises UnsupportedPtx."""
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
        immediate = _operand(literal, str, {})
        if not isinstance(immediate, Immediate):
            raise UnsupportedPtx((f"initial value {literal}",))
        if immediate.bits_of or isinstance(immediate.value, float):
            data += dtype.type(immediate.as_float()).tobytes()
        else:
            data += (immediate.value % (1 << 8 * dtype.itemsize)).to_bytes(dtype.itemsize, "little")
    return data.ljust(size, b"\0")


def _extents(directives: str, name: str) -> Extents | None:
    """Return the one to three numbers of a directive, with 1 for missing ones; None without it."""
    match = re.search(rf"\.{name}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    if not match:
        return None
    x, y, z = (int(v) if v else 1 for v in match.groups())
    return x, y, z


def _directives(text: str) -> Directives:
    """Return the directives between a kernel's parameters and its body."""
    return Directives(
        maxntid=_extents(text, "maxntid"),
        reqntid=_extents(text, "reqntid"),
        minnctapersm=(_extents(text, "minnctapersm") or (0,))[0],
        maxclusterrank=(_extents(text, "maxclusterrank") or (0,))[0],
    )


# Modules and entries.

_LABEL = re.compile(r"([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_INNER_LABEL = re.compile(r"(?:^|[;{}\n])\s*([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*?inlined_at\s+\d+\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_REG = re.compile(r"\.reg\s*(?:\.v\d\s+)?\.(\w+)\s+(.*)", re.S)
_RANGE = re.compile(r"(%?[\w$]+)<(\d+)>")
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")
_ENTRY_NAME = re.compile(r"[\w$]+")
_FUNCTION_END = re.compile(r"[;{]")


class _Parser:
    def __init__(self, text: str) -> None:
        self._scanner = _Scanner(text)
        self._files = {int(n): name for n, name in _FILE.findall(self._scanner.text)}
        self._entries: dict[str, Entry] = {}
        self._variables: dict[str, Variable] = {}

    def module(self) -> Module:
        scanner = self._scanner
        while scanner.skip_space():
            if scanner.at(".visible") or scanner.at(".weak") or scanner.at(".extern"):
                scanner.take_word()
            elif scanner.at(".entry"):
                self._entry()
            elif scanner.at(".func"):
                self._skip_function()
            elif scanner.at(".section"):
                scanner.take_line()
                scanner.skip_space()
                scanner.skip_braces()
            elif re.match(r"\.(version|target|address_size|file|loc)\b", scanner.rest(16)):
                scanner.take_line()
            else:
                self._module_variable(scanner.take_until(";"))
        return Module(self._entries, self._variables)

    def _module_variable(self, statement: str) -> None:
        statement = re.sub(r"^(\.(visible|extern|weak|common)\s+)+", "", statement)
        if statement.startswith((".pragma", ".alias")):
            return
        variable = _variable(statement)
        self._variables[variable.name] = variable

    def _entry(self) -> None:
        scanner = self._scanner
        scanner.take_word()
        scanner.skip_space()
        match = _ENTRY_NAME.match(scanner.text, scanner.position)
        if not match:
            raise UnsupportedPtx((".entry without a name",))
        scanner.position = match.end()
        scanner.skip_space()
        params: tuple[Variable, ...] = ()
        if scanner.at("("):
            listed = scanner.take_until(")")[1:]
            params = tuple(_variable(p.strip()) for p in listed.split(",") if p.strip())
        directives = scanner.take_until("{")
        cluster = _extents(directives, "reqnctapercluster")
        entry = Entry(match.group(), params, cluster=cluster, directives=_directives(directives))
        _Body(scanner, entry, self._files).read()
        self._entries[entry.name] = entry

    def _skip_function(self) -> None:
        """Pass over a device function. It is a call of one that is not known."""
        scanner = self._scanner
        match = _FUNCTION_END.search(scanner.text, scanner.position)
        if not match:
            raise UnsupportedPtx((".func without an end",))
        scanner.position = match.start()
        if match.group() == "{":
            scanner.skip_braces()
        else:
            scanner.position += 1


class _Body:
    """Reads the statements between an entry's braces. Inner braces are scopes of registers."""

    def __init__(self, scanner: _Scanner, entry: Entry, files: dict[int, str]) -> None:
        self._scanner = scanner
        self._entry = entry
        self._files = files
        self._scopes: list[dict[str, str]] = [{}]
        self._scopes_opened = 0
        self._source: SourceLine | None = None

    def read(self) -> None:
        scanner = self._scanner
        while scanner.skip_space():
            if scanner.at("{"):
                self._open_scope()
            elif scanner.at("}"):
                scanner.position += 1
                if len(self._scopes) == 1:
                    return
                self._scopes.pop()
            elif scanner.at(".loc") and not scanner.at(".local"):
                self._locate(scanner.take_line())
            elif label := _LABEL.match(scanner.text, scanner.position):
                scanner.position = label.end()
                self._label(label.group(1))
            else:
                line = scanner.line()
                self._statement(scanner.take_until(";"), line)

    def _open_scope(self) -> None:
        """Declare the labels of an inner scope at once: a branch may stand before its label."""
        scanner = self._scanner
        start = scanner.position
        scanner.skip_braces()
        inside = scanner.text[start + 1 : scanner.position - 1]
        scanner.position = start + 1
        self._scopes.append({})
        self._scopes_opened += 1
        for label in _INNER_LABEL.findall(inside):
            self._scoped(label, declare=True)

    def _locate(self, text: str) -> None:
        match = _LOC.match(text)
        if match:
            file, line, inlined = match.groups()
            name = self._files.get(int(file), "?")
            self._source = SourceLine(name, int(line), int(inlined) if inlined else None)

    def _label(self, name: str) -> None:
        self._last_label = name
        self._entry.labels[self._scoped(name)] = len(self._entry.instructions)

    def _scoped(self, name: str, *, declare: bool = False) -> str:
        """Return the entry-wide name of a register or label, which an inner scope may shadow."""
        if declare:
            depth = len(self._scopes) - 1
            unique = name if depth == 0 else f"{name}@{self._scopes_opened}"
            self._scopes[-1][name] = unique
            return unique
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return name

    def _statement(self, text: str, line: int) -> None:
        if text.startswith(".reg"):
            self._declare_registers(text)
        elif text.startswith(".branchtargets"):
            targets = text.removeprefix(".branchtargets").split(",")
            names = tuple(self._scoped(t.strip()) for t in targets)
            self._entry.branch_tables[self._last_label] = names
        elif text.startswith(".pragma"):
            return
        elif text.startswith("."):
            variable = _variable(text)
            self._entry.variables[variable.name] = variable
        elif text:
            self._instruction(text, line)

    def _declare_registers(self, text: str) -> None:
        match = _REG.match(text)
        if not match or match.group(1) not in DTYPES:
            raise UnsupportedPtx((" ".join(text.split()),))
        ptx_type, names = match.groups()
        for name in (n.strip() for n in names.split(",")):
            counted = _RANGE.match(name)
            if counted:
                for number in range(int(counted.group(2))):
                    register = f"{counted.group(1)}{number}"
                    self._entry.registers[self._scoped(register, declare=True)] = ptx_type
            else:
                self._entry.registers[self._scoped(name, declare=True)] = ptx_type

    def _instruction(self, text: str, line: int) -> None:
        text = " ".join(text.split())
        guard, rest = None, text
        match = _GUARD.match(text) if text.startswith("@") else None
        if match:
            guard = Register(self._scoped(match.group(2)), negated=bool(match.group(1)))
            rest = text[match.end() :]
        opcode, _, operands = rest.partition(" ")
        try:
            parsed = tuple(
                _operand(operand, self._scoped, self._entry.registers)
                for operand in _split_operands(operands)
            )
        except UnsupportedPtx:
            # The launch reports it by its opcode, since another kernel may be what is wanted.
            parsed = ()
        self._entry.instructions.append(
            Instruction(
                len(self._entry.instructions), opcode, parsed, guard, line, self._source, text
            )
        )
