"""PTX text to data. NVIDIA, Parallel Thread Execution ISA 9.x, chapters 4 to 7."""

import re

from explorer.devices.emulated.declarations import parse_variable
from explorer.devices.emulated.findings import UnsupportedPtx
from explorer.devices.emulated.operands import parse_operand, split_operands
from explorer.devices.emulated.program import (
    Entry,
    Instruction,
    Module,
    Register,
    SourceLine,
    Variable,
)
from explorer.devices.emulated.ptx_types import DTYPES
from explorer.devices.emulated.scanner import Scanner

_LABEL = re.compile(r"([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_INNER_LABEL = re.compile(r"(?:^|[;{}\n])\s*([$%_A-Za-z][\w$.]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*?inlined_at\s+\d+\s+(\d+))?")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_REG = re.compile(r"\.reg\s*(?:\.v\d\s+)?\.(\w+)\s+(.*)", re.S)
_RANGE = re.compile(r"(%?[\w$]+)<(\d+)>")
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


def parse(text: str) -> Module:
    """Read PTX; raises UnsupportedPtx for a construct that is not known."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str) -> None:
        self._scanner = Scanner(text)
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
        variable = parse_variable(statement)
        self._variables[variable.name] = variable

    def _entry(self) -> None:
        scanner = self._scanner
        scanner.take_word()
        scanner.skip_space()
        match = re.compile(r"[\w$]+").match(scanner.text, scanner.position)
        assert match, "PTX names every entry"
        scanner.position = match.end()
        scanner.skip_space()
        params: tuple[Variable, ...] = ()
        if scanner.at("("):
            listed = scanner.take_until(")")[1:]
            params = tuple(parse_variable(p.strip()) for p in listed.split(",") if p.strip())
        directives = scanner.take_until("{")
        entry = Entry(match.group(), params)
        cluster = _CLUSTER.search(directives)
        if cluster:
            x, y, z = (int(v) if v else 1 for v in cluster.groups())
            entry.cluster = (x, y, z)
        _Body(scanner, entry, self._files).read()
        self._entries[entry.name] = entry

    def _skip_function(self) -> None:
        """Device functions are passed over: a call of one is what is not known."""
        scanner = self._scanner
        match = re.compile(r"[;{]").search(scanner.text, scanner.position)
        assert match, "PTX ends every function"
        scanner.position = match.start()
        if match.group() == "{":
            scanner.skip_braces()
        else:
            scanner.position += 1


class _Body:
    """Reads the statements between an entry's braces; inner braces scope registers."""

    def __init__(self, scanner: Scanner, entry: Entry, files: dict[int, str]) -> None:
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
        """Labels are declared at once, since a branch may stand before its label."""
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
        try:
            parsed = tuple(
                parse_operand(operand, self._scoped, self._entry.registers)
                for operand in split_operands(operands)
            )
        except UnsupportedPtx:
            # Left for the launch to report, by the opcode; another kernel may be what is wanted.
            parsed = ()
        self._entry.instructions.append(
            Instruction(
                len(self._entry.instructions), opcode, parsed, guard, line, self._source, text
            )
        )
