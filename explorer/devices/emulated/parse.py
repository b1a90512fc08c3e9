"""PTX text to data. NVIDIA, Parallel Thread Execution ISA 9.x, chapters 4 to 7."""

import re

from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.operands import parse_operand, split_operands
from explorer.devices.emulated.program import (
    Entry,
    Immediate,
    Instruction,
    Module,
    Register,
    SourceLine,
    Variable,
)
from explorer.devices.emulated.ptx_types import DTYPES

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_LABEL = re.compile(r"([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_INNER_LABEL = re.compile(r"(?:^|[;{}\n])\s*([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*?inlined_at\s+\d+\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_REG = re.compile(r"\.reg\s+(?:\.v\d\s+)?\.(\w+)\s+(.*)", re.S)
_RANGE = re.compile(r"(%?[\w$]+)<(\d+)>")
_VARIABLE = re.compile(
    r"\.(shared|local|global|const|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
    r"([\w$%]+)\s*((?:\[\w*\])*)\s*(?:=\s*(.*))?$",
    re.S,
)
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


def parse(text: str) -> Module:
    """Read PTX; raises UnsupportedPtx for a construct that is not known."""
    return _Parser(text).module()


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = _COMMENT.sub(_blank, text.replace("\0", ""))
        self._files = {int(n): name for n, name in _FILE.findall(self._text)}
        self._position = 0
        self._line = 1
        self._counted = 0
        self._entries: dict[str, Entry] = {}
        self._variables: dict[str, Variable] = {}

    def module(self) -> Module:
        while self._skip_space():
            if self._at(".visible") or self._at(".weak") or self._at(".extern"):
                self._take_word()
            elif self._at(".entry"):
                self._entry()
            elif self._at(".func"):
                self._skip_function()
            elif self._at(".section"):
                self._take_line()
                self._skip_space()
                self._skip_braces()
            elif re.match(r"\.(version|target|address_size|file|loc)\b", self._rest(16)):
                self._take_line()
            else:
                self._module_variable(self._take_until(";"))
        return Module(self._entries, self._variables)

    def _module_variable(self, statement: str) -> None:
        statement = re.sub(r"^(\.(visible|extern|weak|common)\s+)+", "", statement)
        if statement.startswith((".pragma", ".alias")):
            return
        variable = parse_variable(statement)
        self._variables[variable.name] = variable

    def _entry(self) -> None:
        self._take_word()
        self._skip_space()
        match = re.compile(r"[\w$]+").match(self._text, self._position)
        assert match, "PTX names every entry"
        self._position = match.end()
        self._skip_space()
        params: tuple[Variable, ...] = ()
        if self._at("("):
            listed = self._take_until(")")[1:]
            params = tuple(parse_variable(p.strip()) for p in listed.split(",") if p.strip())
        directives = self._take_until("{")
        entry = Entry(match.group(), params)
        cluster = _CLUSTER.search(directives)
        if cluster:
            x, y, z = (int(v) if v else 1 for v in cluster.groups())
            entry.cluster = (x, y, z)
        _Body(self, entry, self._files).read()
        self._entries[entry.name] = entry

    def _skip_function(self) -> None:
        """Device functions are passed over: a call of one is what is not known."""
        match = re.compile(r"[;{]").search(self._text, self._position)
        assert match, "PTX ends every function"
        self._position = match.start()
        if match.group() == "{":
            self._skip_braces()
        else:
            self._position += 1

    def _skip_braces(self) -> None:
        depth = 0
        while self._position < len(self._text):
            character = self._text[self._position]
            depth += (character == "{") - (character == "}")
            self._position += 1
            if depth == 0:
                return

    # The scanner: a position in the text, moved on by what is taken.

    def _skip_space(self) -> bool:
        text, end = self._text, len(self._text)
        while self._position < end and text[self._position].isspace():
            self._position += 1
        return self._position < end

    def line(self) -> int:
        """The line of the text that the scanner stands on, from 1."""
        self._line += self._text.count("\n", self._counted, self._position)
        self._counted = self._position
        return self._line

    def _rest(self, length: int) -> str:
        return self._text[self._position : self._position + length]

    def _at(self, word: str) -> bool:
        return self._text.startswith(word, self._position)

    def _take_word(self) -> str:
        start = self._position
        while self._position < len(self._text) and not self._text[self._position].isspace():
            self._position += 1
        return self._text[start : self._position]

    def _take_line(self) -> str:
        return self._take_until("\n")

    def _take_until(self, mark: str) -> str:
        end = self._text.find(mark, self._position)
        end = len(self._text) if end < 0 else end
        taken = self._text[self._position : end]
        self._position = end + len(mark)
        return taken.strip()


class _Body:
    """Reads the statements between an entry's braces; inner braces scope registers."""

    def __init__(self, parser: _Parser, entry: Entry, files: dict[int, str]) -> None:
        self._parser = parser
        self._entry = entry
        self._files = files
        self._scopes: list[dict[str, str]] = [{}]
        self._scopes_opened = 0
        self._source: SourceLine | None = None

    def read(self) -> None:
        parser = self._parser
        while parser._skip_space():
            if parser._at("{"):
                self._open_scope()
            elif parser._at("}"):
                parser._position += 1
                if len(self._scopes) == 1:
                    return
                self._scopes.pop()
            elif parser._at(".loc") and not parser._at(".local"):
                self._locate(parser._take_line())
            elif label := _LABEL.match(parser._text, parser._position):
                parser._position = label.end()
                self._label(label.group(1))
            else:
                line = parser.line()
                self._statement(parser._take_until(";"), line)

    def _open_scope(self) -> None:
        """Labels are declared at once, since a branch may stand before its label."""
        parser = self._parser
        start = parser._position
        parser._skip_braces()
        inside = parser._text[start + 1 : parser._position - 1]
        parser._position = start + 1
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
        """The entry-wide name of a register or label, which an inner scope may shadow."""
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
            variable = parse_variable(text)
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
        match = _GUARD.match(text)
        if match:
            guard = Register(self._scoped(match.group(2)), negated=bool(match.group(1)))
            rest = text[match.end() :]
        opcode, _, operands = rest.partition(" ")
        parsed = tuple(
            parse_operand(operand, self._scoped, self._entry.registers)
            for operand in split_operands(operands)
        )
        self._entry.instructions.append(
            Instruction(
                len(self._entry.instructions), opcode, parsed, guard, line, self._source, text
            )
        )


def parse_variable(statement: str) -> Variable:
    """Read a declaration of a variable or parameter; raises UnsupportedPtx."""
    statement = re.sub(r"\.ptr\s+(\.\w+\s+)?(\.align\s+\d+\s*)?", "", statement)
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
