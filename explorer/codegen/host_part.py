"""What the host part of an emitted file does: its functions, interpreted without a compiler.

    part = HostPart(code, kernels=["softmax_f32_4096_kernel"])
    error, launches = part.launch((input, output, rows, stream), sms=132)

The functions are in the part of C++ that the templates use: declarations, assignments, `if`,
`return`, expressions of whole numbers by the types of C++, and calls of CUDA. All else raises
NotInterpreted.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from explorer.model.element import TYPE_BYTES


class NotInterpreted(Exception):
    """A construct that is not interpreted. The text says which."""


class Undefined(Exception):
    """Something that C++ leaves undefined, such as a sum that an int does not hold."""


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number of a C++ type."""

    value: int
    bits: int = 32
    signed: bool = True

    @classmethod
    def of(cls, value: int, bits: int, signed: bool) -> "Number":
        """Return a number cut to a type, as a cast does."""
        value %= 1 << bits
        return cls(value - (1 << bits) if signed and value >> (bits - 1) else value, bits, signed)

    def to(self, other: "Number") -> "Number":
        """Return it in the type of another number."""
        return Number.of(self.value, other.bits, other.signed)


Value = Number | float | str
"""A number, or the name of a constant of CUDA's."""

ADDRESS = Number(0, 64, signed=False)


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """One launch of a kernel."""

    entry: str
    grid: int
    block: int
    shared_bytes: int
    stream: int
    arguments: tuple[float, ...]
    overlaps: bool
    attributes: Mapping[str, int]
    """What was set for the kernel by cudaFuncSetAttribute before."""


_TYPES: dict[str, Number] = {
    "bool": Number(0, 8, signed=False),
    "char": Number(0, 8),
    "int": Number(0),
    "unsigned": Number(0, 32, signed=False),
    "unsigned int": Number(0, 32, signed=False),
    "long long": Number(0, 64),
    "int64_t": Number(0, 64),
    "size_t": ADDRESS,
    "std::size_t": ADDRESS,
    "uintptr_t": ADDRESS,
    "unsigned long long": ADDRESS,
    "cudaError_t": Number(0),
    "cudaStream_t": ADDRESS,
}
_STRUCTS = ("cudaLaunchConfig_t", "cudaLaunchAttribute")
_QUALIFIERS = ("const", "constexpr", "static", "inline", "__restrict__")

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+[uUlL]*|\d+\.\d*(?:[eE][-+]?\d+)?[fF]?|\d+[uUlL]*"
    r"|[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*|<<<|>>>|<<|>>|<=|>=|==|!=|&&|\|\||\S)"
)
_STRUCT = re.compile(
    r"^struct (?:__align__\(([^\n]*)\) )?(\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL
)
_MEMBER = re.compile(r"^  (\w+) (\w[\w, ]*)(?:\[(\w+)\])?;", re.MULTILINE)
_LEVELS: dict[str, int] = {
    **{"||": 2, "&&": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7},
    **{"<": 8, ">": 8, "<=": 8, ">=": 8, "<<": 9, ">>": 9, "+": 10, "-": 10},
    **{"*": 11, "/": 11, "%": 11},
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}
_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}

MOST_DEPTH = 40
"""Calls and brackets within one another; emitted files have ten."""


def tokens(code: str) -> list[str]:
    """Return the words and signs of code without comments."""
    return _TOKEN.findall(code)


@dataclass(slots=True)
class _Function:
    parameters: list[tuple[str, list[str]]]
    """Names with the words of their types."""
    body: list[str]


@dataclass(slots=True)
class _Device:
    """What the host part asks CUDA for, and does with it."""

    sms: int = 1
    failing: int | None = None
    """The number of the call of CUDA, or of the launch, that fails."""
    calls: int = 0
    error: Number = Number(0)
    """What cudaGetLastError() returns."""
    launches: list[HostLaunch] = field(default_factory=list)
    attributes: dict[str, dict[str, int]] = field(default_factory=dict)

    def fails(self) -> bool:
        """Count a call of CUDA, and return whether it fails."""
        self.calls += 1
        if self.calls - 1 != self.failing:
            return False
        self.error = Number(1)
        return True


class HostPart:
    """The functions of a file that its host part has, in a program that calls them in turn.

    What a call leaves in a `static` variable, or sets for a kernel, later calls find.
    """

    def __init__(self, code: str, kernels: Sequence[str]) -> None:
        """Take the text of a file, without comments, and the names of its kernels."""
        self.tokens = tokens(code)
        self.kernels = frozenset(kernels)
        self._constants = {
            name: (kind, text)
            for kind, name, text in re.findall(
                r"^constexpr (int|unsigned|long long|size_t) (k\w+) = ([^;]+);", code, re.MULTILINE
            )
        }
        self._aliases = dict(re.findall(r"^using (\w+) = ([\w ]+);", code, re.MULTILINE))
        self._structs = {name: (align, text) for align, name, text in _STRUCT.findall(code)}
        self.depth = 0
        self.statics: dict[tuple[str, str], Value] = {}
        self._attributes: dict[str, dict[str, int]] = {}

    def launch(self, arguments: Sequence[Value], sms: int) -> tuple[int, list[HostLaunch]]:
        """Return what launch() returns, 0 for success, and the launches that it makes."""
        device = _Device(sms, attributes=self._attributes)
        result = self.call("launch", arguments, device)
        return _whole(result).value, device.launches

    def hides_errors(self, arguments: Sequence[Value], sms: int) -> bool:
        """Return whether launch(), called first, returns success where something of CUDA fails."""
        number, device = 0, _Device(sms)
        while number == 0 or number <= device.calls:
            self.statics.clear()
            device = _Device(sms, failing=number)
            result = _whole(self.call("launch", arguments, device)).value
            if result == 0 and number < device.calls:
                return True
            number += 1
        return False

    def number(self, function: str, arguments: Sequence[Value]) -> int:
        """Return the number that a function returns."""
        return _whole(self.call(function, arguments, _Device())).value

    def call(self, name: str, arguments: Sequence[Value], device: _Device) -> Value:
        """Return the result of a function of the file."""
        function = self.function(name)
        if len(arguments) != len(function.parameters) or self.depth > MOST_DEPTH:
            raise NotInterpreted(f"a call of {name} with {len(arguments)} arguments")
        frame = _Frame(self, device, name)
        for (parameter, words), value in zip(function.parameters, arguments, strict=True):
            frame.declare(parameter, words, value)
        self.depth += 1
        result = _Reader(function.body, frame).run()
        self.depth -= 1
        if result is None:
            raise Undefined(f"{name} returns nothing")
        return result

    def function(self, name: str) -> _Function:
        """Return the one definition of a function."""
        found = [span for span in self.bodies(name)]
        if len(found) != 1:
            raise NotInterpreted(f"{name}, which has {len(found)} definitions")
        opened, start, end = found[0]
        listed = _split(self.tokens[opened + 1 : start - 1])
        parameters = [_parameter(words) for words in listed if words]
        return _Function(parameters, self.tokens[start + 1 : end])

    def bodies(self, name: str) -> list[tuple[int, int, int]]:
        """Return of each definition the places of its bracket, and of its braces."""
        found = []
        for place, token in enumerate(self.tokens[:-1]):
            if token != name or self.tokens[place + 1] != "(":
                continue
            closed = _closing(self.tokens, place + 1)
            before = self.tokens[place - 1] if place else ""
            if self.tokens[closed + 1 : closed + 2] == ["{"] and re.match(r"\w|\*|&", before):
                found.append((place + 1, closed + 1, _closing(self.tokens, closed + 1)))
        return found

    def constant(self, name: str) -> Number:
        """Return a constant of the file."""
        if name not in self._constants:
            raise NotInterpreted(name)
        kind, text = self._constants[name]
        value = _Reader(tokens(text), _Frame(self, _Device())).whole_expression()
        return _whole(value).to(_TYPES[kind])

    def size(self, kind: str) -> int:
        """Return the bytes of a type of the file or of C++."""
        if kind in TYPE_BYTES:
            return TYPE_BYTES[kind]
        if kind in _TYPES:
            return _TYPES[kind].bits // 8
        if kind in self._aliases:
            return self.size(self._aliases[kind])
        if kind not in self._structs or self.depth > MOST_DEPTH:
            raise NotInterpreted(f"sizeof({kind})")
        align, members = self._structs[kind]
        total = widest = 0
        for member, name, count in _MEMBER.findall(members):
            size, each = self.size(member), self.constant(count).value if count else 1
            widest, total = max(widest, size), total + size * each * (name.count(",") + 1)
        unit = self._aligned(align) or widest or 1
        return -(-total // unit) * unit

    def _aligned(self, text: str) -> int:
        if not text:
            return 0
        value = _Reader(tokens(text), _Frame(self, _Device())).whole_expression()
        return _whole(value).value


def _closing(code: Sequence[str], start: int) -> int:
    """Return the place of the bracket that closes the one at `start`."""
    opened = code[start]
    closed = {"(": ")", "{": "}"}[opened]
    depth = 0
    for place in range(start, len(code)):
        depth += (code[place] == opened) - (code[place] == closed)
        if depth == 0:
            return place
    raise NotInterpreted(f"a {opened} that nothing closes")


def _split(words: Sequence[str]) -> list[list[str]]:
    """Return what stands between commas that are in no brackets."""
    parts: list[list[str]] = [[]]
    depth = 0
    for word in words:
        depth += (word in "({") - (word in ")}")
        if word == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _parameter(words: list[str]) -> tuple[str, list[str]]:
    declared = words[: words.index("=")] if "=" in words else words
    return declared[-1], declared[:-1]


def _whole(value: Value) -> Number:
    if not isinstance(value, Number):
        raise NotInterpreted(f"{value} as a whole number")
    return value


class _Frame:
    """The variables of one call."""

    def __init__(self, part: HostPart, device: _Device, function: str = "") -> None:
        self.part = part
        self.device = device
        self._function = function
        self._values: dict[str, Value] = {}
        self._kinds: dict[str, Number | None] = {}
        self._statics: set[str] = set()

    def declare(self, name: str, words: Sequence[str], value: Value) -> None:
        """Make a variable of a type, which the value is cast to; None for a structure of CUDA's.

        A static one keeps what an earlier call has left in it.
        """
        kind = type_of(words, self.part)
        self._kinds[name] = kind
        if "static" in words:
            self._statics.add(name)
            value = self.part.statics.get((self._function, name), value)
        self.assign(name, value)

    def assign(self, name: str, value: Value) -> None:
        """Give a variable, or a member of one, another value."""
        if name.split(".")[0] not in self._kinds:
            raise NotInterpreted(f"an assignment to {name}")
        kind = self._kinds.get(name)
        self._values[name] = value.to(kind) if kind and isinstance(value, Number) else value
        if name in self._statics:
            self.part.statics[self._function, name] = self._values[name]

    def value(self, name: str) -> Value:
        """Return a variable's value, a constant, or a name of CUDA's."""
        if name in self._values:
            return self._values[name]
        if name in ("cudaSuccess", "nullptr", "false"):
            return Number(0)
        if name == "true":
            return Number(1)
        if name.startswith("cudaError"):
            return Number(1 + crc32(name.encode()) % 1000)
        if name.startswith("cuda"):
            return name
        return self.part.constant(name)

    def launch(self, entry: str, of: Sequence[Value], arguments: Sequence[Value]) -> None:
        """Note a launch: its blocks, threads, shared bytes and stream."""
        self.device.fails()
        numbers = [_whole(value).value for value in of] + [0] * (4 - len(of))
        self._launch(entry, numbers, arguments, overlaps=False)

    def launch_ex(self, config: str, entry: str, arguments: Sequence[Value]) -> None:
        """Note a launch by cudaLaunchKernelEx."""
        members = ("gridDim", "blockDim", "dynamicSmemBytes", "stream", "numAttrs")
        values = [self._values.get(f"{config}.{member}", Number(0)) for member in members]
        numbers = [_whole(value).value for value in values]
        attributes = self._values.get(f"{config}.attrs")
        if numbers[4] > 1 or bool(numbers[4]) != isinstance(attributes, str):
            raise NotInterpreted("attributes of a launch but one")
        overlaps = numbers[4] == 1 and self._overlaps(str(attributes).removeprefix("&"))
        self._launch(entry, numbers[:4], arguments, overlaps=overlaps)

    def _overlaps(self, attribute: str) -> bool:
        kind = self._values.get(f"{attribute}.id")
        if kind != "cudaLaunchAttributeProgrammaticStreamSerialization":
            raise NotInterpreted(f"the attribute {kind} of a launch")
        allowed = f"{attribute}.val.programmaticStreamSerializationAllowed"
        return bool(_whole(self._values.get(allowed, Number(0))).value)

    def _launch(
        self, entry: str, numbers: Sequence[int], arguments: Sequence[Value], *, overlaps: bool
    ) -> None:
        passed = tuple(float(a) if isinstance(a, float) else _whole(a).value for a in arguments)
        known = dict(self.device.attributes.get(entry, {}))
        grid, block, shared, stream = numbers
        launch = HostLaunch(entry, grid, block, shared, stream, passed, overlaps, known)
        self.device.launches.append(launch)

    def cuda(self, name: str, arguments: Sequence[Value]) -> Value:
        """Return the result of a function of CUDA, which succeeds unless it is to fail."""
        told = [str(a).removeprefix("&") for a in arguments]
        if name == "cudaGetLastError":
            error, self.device.error = self.device.error, Number(0)
            return error
        if self.device.fails():
            return self.device.error
        if name == "cudaGetDevice":
            self.assign(told[0], Number(0))
        elif name == "cudaDeviceGetAttribute" and told[1] == "cudaDevAttrMultiProcessorCount":
            self.assign(told[0], Number(self.device.sms))
        elif name == "cudaFuncSetAttribute":
            of_kernel = self.device.attributes.setdefault(told[0], {})
            of_kernel[told[1]] = _whole(arguments[2]).value
        elif name == "cudaLaunchKernelEx":
            self.launch_ex(told[0], told[1], arguments[2:])
        else:
            raise NotInterpreted(f"a call of {name}")
        return Number(0)


def type_of(words: Sequence[str], part: HostPart) -> Number | None:
    """Return the type that some words name, as a number of it; None if it is the value's own."""
    named = [word for word in words if word not in _QUALIFIERS]
    if named and named[-1] in ("*", "&"):
        return ADDRESS if named[-1] == "*" else None
    name = " ".join(named)
    if name in ("auto", "float", "double") or name in _STRUCTS:
        return None
    if name not in _TYPES:
        raise NotInterpreted(f"the type {name}")
    return _TYPES[name]


class _Reader:
    """Executes the statements of one function, and evaluates its expressions."""

    def __init__(self, code: list[str], frame: _Frame) -> None:
        self._code = code
        self._at = 0
        self._frame = frame
        self._running = True
        """Whether what is read is executed, and not passed over."""

    # Statements.

    def run(self) -> Value | None:
        """Execute all statements, and return what they return; None if they do not."""
        while self._at < len(self._code):
            result = self._statement()
            if result is not None:
                return result
        return None

    def _statement(self) -> Value | None:
        if self._next("{"):
            while not self._next("}"):
                result = self._statement()
                if result is not None:
                    return result
            return None
        if self._next("if"):
            return self._if()
        if self._next("return"):
            value = self.expression()
            self._take(";")
            return value if self._running else None
        if self._code[self._at] in ("for", "while", "do", "switch", "goto", "else", "throw"):
            raise NotInterpreted(f"a statement with '{self._code[self._at]}'")
        self._declaration() if self._declares() else self._effect()
        return None

    def _if(self) -> Value | None:
        self._next("constexpr")
        self._take("(")
        holds = self._is_true(self.expression())
        self._take(")")
        result = self._branch(holds)
        if result is None and self._next("else"):
            return self._branch(not holds)
        return result

    def _branch(self, taken: bool) -> Value | None:
        before, self._running = self._running, self._running and taken
        result = self._statement()
        self._running = before
        return result

    def _declares(self) -> bool:
        """Return whether two words, or a type and a sign, follow one another, as in `int a`."""
        end = self._at
        while end < len(self._code) and re.fullmatch(r"[\w:*&]+", self._code[end]):
            end += 1
        words = self._code[self._at : end]
        return len(words) > 1 and self._code[end : end + 1] in (["="], ["{"], [";"])

    def _declaration(self) -> None:
        start = self._at
        while self._code[self._at] not in ("=", "{", ";"):
            self._at += 1
        *words, name = self._code[start : self._at]
        if self._next("{"):
            self._take("}")
            value: Value = Number(0)
        else:
            self._take("=")
            value = self.expression()
        self._take(";")
        if self._running:
            self._frame.declare(name, words, value)

    def _effect(self) -> None:
        """Execute an assignment, a launch or a call."""
        if self._code[self._at + 1 : self._at + 2] == ["<<<"]:
            self._launch()
            return
        start, name = self._at, self._name()
        if self._next("="):
            value = self.expression()
            if self._running:
                self._frame.assign(name, value)
        else:
            self._at = start
            self.expression()
        self._take(";")

    def _launch(self) -> None:
        entry = self._name()
        of = self._list("<<<", ">>>")
        arguments = self._list("(", ")")
        self._take(";")
        if self._running:
            self._frame.launch(entry, of, arguments)

    # Expressions.

    def whole_expression(self) -> Value:
        """Return the value of the code, which is one expression."""
        value = self.expression()
        if self._at < len(self._code):
            raise NotInterpreted(f"{self._code[self._at]} in an expression")
        return value

    def expression(self, level: int = 0) -> Value:
        """Return the value of what binds at least as strongly as `level`."""
        value = self._unary()
        while True:
            symbol = self._code[self._at] if self._at < len(self._code) else ""
            if symbol == "?" and level <= 1:
                value = self._choice(value)
            elif symbol in _LEVELS and _LEVELS[symbol] > level:
                self._at += 1
                value = self._binary(symbol, value)
            else:
                return value

    def _choice(self, condition: Value) -> Value:
        self._take("?")
        holds = self._is_true(condition)
        first = self._unless_skipped(holds, lambda: self.expression())
        self._take(":")
        second = self._unless_skipped(not holds, lambda: self.expression(1))
        chosen, other = (first, second) if holds else (second, first)
        if isinstance(chosen, Number) and isinstance(other, Number):
            return chosen.to(_common(chosen, other))
        return chosen

    def _unless_skipped(self, wanted: bool, read: Callable[[], Value]) -> Value:
        before, self._running = self._running, self._running and wanted
        value = read()
        self._running = before
        return value

    def _binary(self, symbol: str, first: Value) -> Value:
        level = _LEVELS[symbol]
        if symbol in ("&&", "||"):
            decided = self._is_true(first) == (symbol == "||")
            second = self._unless_skipped(not decided, lambda: self.expression(level))
            return Number(int(self._is_true(first if decided else second)))
        second = self.expression(level)
        if not self._running:
            return first
        if symbol in _COMPARISONS and not isinstance(first, Number | float):
            return Number(int(_COMPARISONS[symbol](first == second, True)))
        return _combined(symbol, first, second)

    def _is_true(self, value: Value) -> bool:
        return isinstance(value, Number | float) and bool(
            value.value if isinstance(value, Number) else value
        )

    def _unary(self) -> Value:
        for symbol in ("!", "-", "+", "&"):
            if self._next(symbol):
                if symbol == "&":
                    return f"&{self._name()}"
                value = self._unary()
                if symbol == "!":
                    return Number(int(not self._is_true(value)))
                return _combined("-", Number(0), value) if symbol == "-" else value
        if self._next("("):
            value = self.expression()
            self._take(")")
            return value
        return self._primary()

    def _primary(self) -> Value:
        word = self._code[self._at] if self._at < len(self._code) else ""
        if word[:1].isdigit():
            self._at += 1
            return _literal(word)
        if word in ("static_cast", "reinterpret_cast"):
            return self._cast()
        if self._next("sizeof"):
            self._take("(")
            kind = self._name()
            self._take(")")
            return Number(self._frame.part.size(kind), 64, signed=False)
        name = self._name()
        if self._code[self._at : self._at + 1] == ["("]:
            return self._call(name)
        return name if name in self._frame.part.kernels else self._frame.value(name)

    def _cast(self) -> Value:
        self._at += 1
        self._take("<")
        start = self._at
        while self._code[self._at] != ">":
            self._at += 1
        kind = type_of(self._code[start : self._at], self._frame.part)
        self._at += 1
        self._take("(")
        value = self.expression()
        self._take(")")
        return value.to(kind) if kind and isinstance(value, Number) else value

    def _call(self, name: str) -> Value:
        arguments = self._list("(", ")")
        if not self._running:
            return Number(0)
        if name.startswith("cuda"):
            return self._frame.cuda(name, arguments)
        return self._frame.part.call(name, arguments, self._frame.device)

    def _list(self, opened: str, closed: str) -> list[Value]:
        self._take(opened)
        values: list[Value] = []
        while not self._next(closed):
            values.append(self.expression(8 if closed == ">>>" else 0))
            if self._code[self._at] != closed:
                self._take(",")
        return values

    # Words.

    def _next(self, symbol: str) -> bool:
        found = self._at < len(self._code) and self._code[self._at] == symbol
        self._at += found
        return found

    def _take(self, symbol: str) -> None:
        if not self._next(symbol):
            there = self._code[self._at] if self._at < len(self._code) else "the end"
            raise NotInterpreted(f"{there!r} where {symbol!r} would stand")

    def _name(self) -> str:
        """Return a name, with those of members behind it."""
        word = self._code[self._at] if self._at < len(self._code) else "the end"
        if not re.match(r"[A-Za-z_]", word):
            raise NotInterpreted(f"{word!r} where a name would stand")
        self._at += 1
        while self._next("."):
            word += f".{self._code[self._at]}"
            self._at += 1
        return word


def _literal(word: str) -> Value:
    if "." in word:
        return float(word.rstrip("fF"))
    digits = word.rstrip("uUlL")
    value, suffix = int(digits, 0), word[len(digits) :].lower()
    unsigned = "u" in suffix
    wide = "l" in suffix or value >= 1 << (32 if unsigned else 31)
    return Number(value, 64 if wide else 32, not unsigned)


def _common(first: Number, second: Number) -> Number:
    """Return a number of the type in which C++ combines two: none narrower than int."""
    bits = max(32, first.bits, second.bits)
    unsigned = any(not n.signed and n.bits == bits for n in (first, second))
    return Number(0, bits, not unsigned)


def _combined(symbol: str, first: Value, second: Value) -> Value:
    if not (isinstance(first, Number) and isinstance(second, Number)):
        raise NotInterpreted(f"{symbol} of {first} and {second}")
    kind = _common(first, first if symbol in ("<<", ">>") else second)
    a, b = first.to(kind).value, second.to(kind).value
    if symbol in _COMPARISONS:
        return Number(int(_COMPARISONS[symbol](a, b)))
    if symbol in ("/", "%") and b == 0:
        raise Undefined("a division by 0")
    if symbol in ("<<", ">>") and not 0 <= b < kind.bits:
        raise Undefined(f"a shift by {b} bits")
    value = _OPERATIONS[symbol](a, b)
    if kind.signed and not -(1 << kind.bits - 1) <= value < 1 << kind.bits - 1:
        raise Undefined(f"{a} {symbol} {b} is more than {kind.bits} bits hold")
    return Number.of(value, kind.bits, kind.signed)
