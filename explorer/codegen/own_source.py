"""A CUDA file that a person wrote, made into a source that is launched as an emitted one is.

The chosen kernel becomes a device function, with the lines that it has in its file. A kernel of our
own calls it: its arguments are a problem's operands by their names, in the types in which every
device passes them. It is what a launch in host code does: it converts each argument to the type of
its parameter, and chooses a template's arguments. Only what the kernel names, directly or through
others, is compiled. The host code is left out, and so are other kernels.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from explorer.codegen.own_launches import HostLaunches, closed, split
from explorer.model.errors import InvalidInput
from explorer.system.plain_data import nearest, shown

ENTRY = "explorer_own_kernel"
"""The name of the kernel that calls a person's own."""

# ------------------------------------------------------------------ what a file declares


@dataclass(frozen=True, slots=True)
class _Item:
    """A declaration or a directive of a file: `text` of its code, from `start` on."""

    text: str
    start: int
    scope: str = ""
    """The namespaces around it, as `a::b::`."""

    @property
    def end(self) -> int:
        """The place behind its last character."""
        return self.start + len(self.text)


_COMMENT = re.compile(r"//(?:[^\n\\]|\\.|\\\n)*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DIRECTIVE = re.compile(r"[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.DOTALL)
_SCOPE = re.compile(r"(?:inline\s+)?namespace\s*([\w:]*)\s*\{|extern\s*\"[^\"]*\"\s*\{")
_DEFINE = re.compile(r"\s*#\s*define\s+(\w+)(.*)", re.DOTALL)
_INCLUDE = re.compile(r"\s*#\s*include\s*([<\"])([^>\"]*)[>\"]")
_CONDITION = re.compile(r"\s*#\s*(?:el)?if")
_OF_A_COMPILER = re.compile(
    r"__has_include|__CUDACC_RTC__|__NVCC__|__GNUC__|__clang__|_MSC_VER|__CUDACC_VER_\w+"
)
_TEMPLATE = re.compile(r"\s*template\s*<")
_TYPE = re.compile(
    r"\s*(?:template\s*<[^{;]*>\s*)?(?:typedef\s+)?(struct|class|union|enum(?:\s+class)?)\b"
)
_CONSTANT = re.compile(
    r"\s*(?:static\s+|inline\s+|extern\s+|__align__\([^)]*\)\s*)*"
    r"(?:constexpr|const|__constant__|__device__|__shared__)\b"
)
_QUALIFIER = re.compile(r"__(launch_bounds|align|maxnreg|cluster_dims|attribute)__\s*\(")
_OF_TORCH = re.compile(r"(torch|ATen|c10|pybind11)(/|\.h)")

_BLANK = re.compile(r"[^\n]")


def _blanked(text: str) -> str:
    """Return as many blanks and line ends."""
    return _BLANK.sub(" ", text)


def _code(source: str) -> str:
    """Return a source with blanks in place of comments; of strings the quotes stay."""

    def kept(match: re.Match[str]) -> str:
        text = match[0]
        return text if text.startswith('"') else _blanked(text)

    return _COMMENT.sub(kept, source)


def _items(code: str, start: int, end: int, scope: str = "") -> Iterator[_Item]:
    """Yield the directives and declarations of a stretch of code, within namespaces too."""
    at = start
    while at < end:
        if code[at].isspace() or code[at] in ";}":
            at += 1
            continue
        directive, inner = _DIRECTIVE.match(code, at), _SCOPE.match(code, at)
        if directive:
            yield _Item(directive[0], at, scope)
            at = directive.end()
        elif inner:
            closing = closed(code, inner.end() - 1)
            yield _Item(inner[0], at, "{")
            name = f"{inner[1]}::" if inner[1] else ""
            yield from _items(code, inner.end(), closing - 1, scope + name)
            yield _Item("}", closing - 1, "{")
            at = closing
        else:
            item = _Item(code[at : _end_of_declaration(code, at, end)], at, scope)
            yield item
            at = item.end


def _end_of_declaration(code: str, start: int, end: int) -> int:
    """Return where a declaration ends: at its semicolon, or with a function's body."""
    at, has_list = start, False
    while at < end:
        character = code[at]
        if character == ";":
            return at + 1
        if character == "\n" and re.match(r"\n[ \t]*#", code[at:end]):
            at += 1
            at += len(_DIRECTIVE.match(code, at)[0])  # type: ignore[index]
            continue
        if character in "([":
            has_list |= character == "("
            at = closed(code, at)
        elif character == "{":
            at = closed(code, at)
            if has_list and _is_function(code[start:at].partition("{")[0]):
                return at
        else:
            at += 1
    return end


def _is_function(head: str) -> bool:
    """Return whether what stands before a body is of a function, and not of a type or a value."""
    before_list = _without_template(head).partition("(")[0]
    is_value = "=" in before_list and "operator" not in before_list
    return _TYPE.match(head) is None and not is_value


# ------------------------------------------------------------------ kernels


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel."""

    type: str
    name: str

    @property
    def is_pointer(self) -> bool:
        """Whether it is an array's address."""
        return "*" in self.type or "[" in self.type

    @property
    def pointee(self) -> str:
        """What it points to, without qualifiers."""
        words = re.sub(r"\b(const|volatile|restrict|__restrict__|__restrict)\b|\*", " ", self.type)
        return " ".join(words.split())

    @property
    def is_constant(self) -> bool:
        """Whether it points to what it does not write."""
        return re.search(r"\bconst\b", self.type.partition("*")[0]) is not None

    @property
    def is_restricted(self) -> bool:
        """Whether no other pointer leads where it does."""
        return "restrict" in self.type


@dataclass(frozen=True, slots=True)
class OwnKernel:
    """A kernel of a file."""

    name: str
    """With its namespaces."""
    parameters: tuple[Parameter, ...]
    template: tuple[str, ...] = ()
    """The names of its template's parameters."""
    defaults: dict[str, str] = field(default_factory=dict)
    """What those of them are that need not be given: in its text, or empty if a call tells it."""
    bounds: str = ""
    """What its launch bounds are, in its own text."""
    item: _Item = field(default=_Item("", 0), repr=False)

    @property
    def signature(self) -> str:
        """How it is declared, without types of its template."""
        listed = ", ".join(f"{one.type} {one.name}" for one in self.parameters)
        return f"{self.name}({listed})"


@dataclass(frozen=True)
class OwnSource:
    """A file's text, and what it declares."""

    text: str
    file: str
    """Its name in messages."""
    items: tuple[_Item, ...]
    kernels: tuple[OwnKernel, ...]
    markers: frozenset[str]
    """Words that make a function one of the GPU's: `__device__`, and macros that hold it."""

    @classmethod
    def read(cls, text: str, file: str) -> "OwnSource":
        """Read a file. Raises InvalidInput if it has no kernel, or includes what is not here."""
        code = _code(text)
        items = tuple(_items(code, 0, len(code)))
        defines = [match for item in items if (match := _DEFINE.match(item.text))]
        aliases = dict(pair for item in items for pair in _aliases(item.text))
        markers = {"__device__", "__global__"}
        markers |= {m[1] for m in defines if re.search(r"__(device|global)__", m[2])}
        kernels = tuple(
            kernel
            for item in items
            if re.search(r"\b__global__\b", item.text.partition("{")[0])
            and not item.text.lstrip().startswith("#")
            and "{" in item.text
            and (kernel := _kernel_of(item, aliases)) is not None
        )
        source = cls(text, file, items, kernels, frozenset(markers))
        source._check_includes()
        if not kernels:
            raise InvalidInput(
                f"{file} has no kernel, which is a function that begins with __global__ void: name "
                "a file with one"
            )
        return source

    def line(self, place: int) -> int:
        """Return the number of the line of a place in the text, from 1."""
        return self.text.count("\n", 0, place) + 1

    def _check_includes(self) -> None:
        """Raise InvalidInput for headers whose text is not at hand, and for compilers' names."""
        for item in self.items:
            include = _INCLUDE.match(item.text)
            where = f"{self.file}, line {self.line(item.start)}, "
            if include and _OF_TORCH.match(include[2]):
                raise InvalidInput(
                    f"{where}includes {include[2]}, and PyTorch's headers cannot be compiled here: "
                    "put the kernel into a file without them"
                )
            if include and include[1] == '"':
                known = include[2].startswith("cuda") or include[2].endswith((".hpp", ".cuh"))
                if "/" in include[2] or not known or include[2] == "cuda_utils.h":
                    raise InvalidInput(
                        f"{where}includes {shown(include[2])}, which is no header of CUDA's: put "
                        "what the kernel needs of it into the file"
                    )
            compiler = _CONDITION.match(item.text) and _OF_A_COMPILER.search(item.text)
            if compiler:
                raise InvalidInput(
                    f"{where}asks for {compiler[0]}, so that nvcc may compile another kernel than "
                    "the one that is checked: take the condition out"
                )

    def kernel(self, named: str | None) -> tuple[OwnKernel, tuple[str, ...]]:
        """Return the kernel that is named, with a template's arguments; raises InvalidInput.

        Without a name it is the only one there is.
        """
        names = ", ".join(dict.fromkeys(kernel.name for kernel in self.kernels))
        if named is None:
            if len({kernel.name for kernel in self.kernels}) > 1:
                raise InvalidInput(
                    f"{self.file} has several kernels, {names}: name one by --kernel; a softmax "
                    "that takes several launches cannot be checked as one"
                )
            return self._with_arguments(self.kernels[0], None)
        if re.search(r",(?![^<]*>)", named):
            raise InvalidInput(
                f"kernel is {shown(named)}; one kernel in one launch is checked, and a softmax "
                "that takes several launches cannot be: name one"
            )
        match = re.fullmatch(r"\s*([\w:]+)\s*(?:<(.*)>)?\s*", named)
        name = match[1].removeprefix("::") if match else named
        found = [one for one in self.kernels if name in (one.name, one.name.rpartition("::")[2])]
        if match is None or not found:
            near = nearest(name, [kernel.name for kernel in self.kernels])
            raise InvalidInput(
                f"{self.file} has no kernel {shown(named)}; it has {names}{near and '; '}{near}"
            )
        if len(found) > 1:
            raise InvalidInput(
                f"{self.file} has {len(found)} kernels of the name {name}, on lines "
                f"{', '.join(str(self.line(one.item.start)) for one in found)}: give each a name "
                "of its own"
            )
        return self._with_arguments(found[0], match[2])

    def _with_arguments(
        self, kernel: OwnKernel, given: str | None
    ) -> tuple[OwnKernel, tuple[str, ...]]:
        """Return a kernel with the arguments of its template; raises InvalidInput."""
        if given is None and kernel.template:
            launched = HostLaunches.of(self.text, kernel.name).templates()
            if len(launched) == 1:
                given = launched[0]
        if given is None:
            needed = [name for name in kernel.template if name not in kernel.defaults]
            if needed:
                listed = ", ".join(kernel.template[: 1 + kernel.template.index(needed[-1])])
                raise InvalidInput(
                    f"{kernel.name} is a template of {', '.join(kernel.template)}, and {self.file} "
                    f"does not say what {' and '.join(needed)} is: write --kernel "
                    f"'{kernel.name}<{listed}>' with a type or a number for each"
                )
            return kernel, ()
        if not kernel.template:
            raise InvalidInput(f"{kernel.name} is no template: write --kernel {kernel.name}")
        arguments = tuple(split(given))
        if len(arguments) > len(kernel.template):
            raise InvalidInput(
                f"{kernel.name} is a template of {', '.join(kernel.template)}, and "
                f"{len(arguments)} arguments were given, {given}"
            )
        return kernel, arguments

    # -------------------------------------------------------------- what is compiled

    def reached(self, kernel: OwnKernel) -> list[_Item]:
        """Return the declarations that a kernel names, directly or through others, and itself."""
        by_name: dict[str, list[_Item]] = {}
        for item in self.items:
            for name in self._names(item):
                by_name.setdefault(name, []).append(item)
        found, waiting = {id(kernel.item): kernel.item}, [kernel.item]
        while waiting:
            for word in set(_WORD.findall(waiting.pop().text)):
                for item in by_name.get(word, ()):
                    if id(item) not in found:
                        found[id(item)] = item
                        waiting.append(item)
        return list(found.values())

    def _names(self, item: _Item) -> list[str]:
        """Return the names by which others reach an item; none of what only host code uses."""
        text = item.text
        define = _DEFINE.match(text)
        if define:
            return [define[1]]
        if text.lstrip().startswith("#") or item.scope == "{":
            return []
        head = text.partition("{")[0]
        is_type = _TYPE.match(text)
        if is_type and "(" not in _without_qualifiers(head):
            listed = _WORD.findall(text) if is_type[1].startswith("enum") else []
            tail = re.findall(r"\}\s*(\w+)", text)
            return [
                *_WORD.findall(_without_qualifiers(head))[-1:],
                *_before_colon(head),
                *listed,
                *tail,
            ]
        if re.match(r"\s*(template\s*<[^;]*>\s*)?(using|typedef|namespace)\b", text):
            return _WORD.findall(text)
        if function := self._function(item):
            words = _words(head)
            on_gpu = words & self.markers or "constexpr" in words
            return [function] if on_gpu and "__global__" not in words else []
        return _WORD.findall(text.partition("{")[0]) if _CONSTANT.match(text) else []

    @staticmethod
    def _function(item: _Item) -> str:
        """Return the name of the function that an item declares; empty if it is none."""
        head = item.text.partition("{")[0]
        if head.lstrip().startswith("#"):
            return ""
        named = re.search(r"([A-Za-z_]\w*)\s*\(", _without_qualifiers(_without_template(head)))
        return named[1] if named and _is_function(head) else ""

    def device_text(self, kernel: OwnKernel) -> str:
        """Return the text with blanks for all that the kernel does not name, line by line.

        The kernel is a device function there, without launch bounds.
        """
        kept = {item.start for item in self.reached(kernel)}
        code, parts, at = _code(self.text), list[str](), 0
        for item in self.items:
            parts.append(_blanked(code[at : item.start]))
            at = item.end
            parts.append(
                self._kept(item, kernel) if self._is_kept(item, kept) else _blanked(item.text)
            )
        return "".join([*parts, _blanked(code[at:])])

    def _is_kept(self, item: _Item, kept: set[int]) -> bool:
        """Return whether an item is compiled: what is reached, directives, namespaces."""
        text = item.text.lstrip()
        is_using = text.startswith("using namespace") and not re.search(r"\bstd\b", text)
        return item.start in kept or text.startswith("#") or item.scope == "{" or is_using

    def _kept(self, item: _Item, kernel: OwnKernel) -> str:
        if item is not kernel.item:
            # nvcc evaluates it while it compiles, and NVRTC needs to be told that it may.
            rest = _without_template(item.text)
            if not self._function(item) or not self.markers.isdisjoint(_words(rest)):
                return item.text
            return f"{item.text.removesuffix(rest)} __host__ __device__ {rest}"
        head, brace, body = item.text.partition("{")
        bounds = _QUALIFIER.search(head)
        while bounds:
            end = closed(head, bounds.end() - 1)
            head = head[: bounds.start()] + _blanked(head[bounds.start() : end]) + head[end:]
            bounds = _QUALIFIER.search(head)
        inlined = re.sub(r"\b__global__\b", "__device__ __forceinline__", head)
        return inlined.replace("static", "      ") + brace + body


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.partition("{")[0]))


def _without_template(head: str) -> str:
    """Return a declaration's head without its list of template parameters."""
    while match := _TEMPLATE.match(head):
        head = head[closed(head, match.end() - 1) :]
    return head


def _without_qualifiers(head: str) -> str:
    """Return a declaration's head without qualifiers that have brackets."""
    while match := _QUALIFIER.search(head):
        head = head[: match.start()] + head[closed(head, match.end() - 1) :]
    return re.sub(r"\balignas\s*\([^)]*\)", " ", head)


def _before_colon(head: str) -> list[str]:
    """Return the name of a type with a base, which stands before a colon."""
    return re.findall(r"(\w+)\s*:(?!:)", head)[:1]


def _aliases(text: str) -> Iterator[tuple[str, str]]:
    """Yield the other name that a declaration gives to a type, and the type."""
    using = re.fullmatch(r"\s*using\s+(\w+)\s*=\s*([\w:]+)\s*;", text)
    typedef = re.fullmatch(r"\s*typedef\s+([\w:\s]+?)\s+(\w+)\s*;", text)
    if using:
        yield using[1], using[2]
    if typedef:
        yield typedef[2], typedef[1]


def _kernel_of(item: _Item, aliases: Mapping[str, str]) -> OwnKernel | None:
    """Return the kernel that an item defines, with types by their own names; None if it has none.

    That is so where it is not understood.
    """
    head = item.text
    template, defaults = tuple[str, ...](), dict[str, str]()
    match, types = _TEMPLATE.match(head), set[str]()
    if match:
        end = closed(head, match.end() - 1)
        listed = split(head[match.end() : end - 1])
        halves = [one.partition("=") for one in listed]
        template = tuple(_WORD.findall(one)[-1] for one, _, _ in halves)
        defaults = {
            name: told.strip() for name, (_, _, told) in zip(template, halves, strict=True) if told
        }
        types = {
            name
            for name, one in zip(template, listed, strict=True)
            if re.match("typename|class", one)
        }
        head = head[end:]
    bounds = re.search(r"__launch_bounds__\s*\(", head)
    told = head[bounds.end() : closed(head, bounds.end() - 1) - 1] if bounds else ""
    head = _without_qualifiers(head)
    name = re.search(r"([A-Za-z_]\w*)\s*\(", head)
    if name is None:
        return None
    listed = split(head[name.end() : closed(head, name.end() - 1) - 1])
    parameters = tuple(_parameter(one, aliases) for one in listed if one != "void")
    defaults |= dict.fromkeys({one.pointee for one in parameters} & types, "")
    bounds_told = " ".join(told.split())
    return OwnKernel(item.scope + name[1], parameters, template, defaults, bounds_told, item)


def _parameter(text: str, aliases: Mapping[str, str]) -> Parameter:
    """Return a parameter of a list."""
    declared = " ".join(text.partition("=")[0].split())
    array = re.search(r"\[[^\]]*\]$", declared)
    declared = declared[: array.start()] if array else declared
    name = re.search(r"(\w+)$", declared)
    kind = declared[: name.start()].strip() if name else declared
    kind = _WORD.sub(lambda word: aliases.get(word[0], word[0]), kind)
    return Parameter(kind + ("*" if array else ""), name[1] if name else "")


# ------------------------------------------------------------------ the kernel that calls it


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument that a device passes."""

    type: str
    """What CUDA C++ calls its elements, or itself if it is a number."""
    is_array: bool
    is_read_only: bool = False


_FUNDAMENTAL = {
    *("float", "double", "__half", "half", "__nv_bfloat16", "nv_bfloat16", "int", "long long"),
    *("int32_t", "int64_t", "long", "unsigned", "unsigned int", "short", "char", "uint8_t"),
}
_ALIASES = {
    "half": "__half",
    "nv_bfloat16": "__nv_bfloat16",
    "int64_t": "long long",
    "int32_t": "int",
    "__nv_half": "__half",
    "__half_raw": "__half",
}
_VECTORS = re.compile(
    r"(?:u?(?:char|short|int|long|longlong)|float|double)[1-4]|(?:__)?half2|(?:__)?nv_bfloat162|void"
)


def with_entry(
    source: OwnSource,
    kernel: OwnKernel,
    arguments: tuple[str, ...],
    passed: Sequence[str],
    operands: Mapping[str, Operand],
) -> tuple[str, tuple[str, ...]]:
    """Return a source whose kernel ENTRY calls the file's own, and what ENTRY is launched with.

    `arguments` are of its template. `passed` says what each parameter gets: an operand's name, a
    number, or an expression of numbers that are operands. Raises InvalidInput for what does not
    fit.
    """
    for one in kernel.parameters:
        if re.search(rf"\b(?:struct|class)\s+{re.escape(one.pointee.rstrip(' &'))}\b", source.text):
            raise InvalidInput(
                f"{one.type} {one.name} of {kernel.name} is a structure of {source.file}, which is "
                "not served: give its members as parameters of their own"
            )
    _check_number_of(kernel, passed, operands)
    given = dict(zip(kernel.template, arguments, strict=False))
    called = [
        _converted(kernel, one, text, operands, given)
        for one, text in zip(kernel.parameters, passed, strict=True)
    ]
    named = {word for text in passed for word in _WORD.findall(text)}
    taken = [name for name in operands if name in named]
    restricted = {
        text for one, text in zip(kernel.parameters, passed, strict=True) if one.is_restricted
    }
    listed = ", ".join(_declared(name, operands[name], name in restricted) for name in taken)
    bounds = kernel.bounds
    for name, value in {**kernel.defaults, **given}.items():
        bounds = re.sub(rf"\b{name}\b", value, bounds)
    limits = f"__launch_bounds__({bounds}) " if bounds else ""
    template = f"<{', '.join(arguments)}>" if kernel.template else ""
    entry = (
        f'extern "C" __global__ void {limits}{ENTRY}({listed}) '
        f"{{ ::{kernel.name}{template}({', '.join(called)}); }}"
    )
    # Behind the file's last line, so that no line of it is taken for the call of its kernel.
    return f"{source.device_text(kernel)}\n{entry}\n", tuple(taken)


def _check_number_of(
    kernel: OwnKernel, passed: Sequence[str], operands: Mapping[str, Operand]
) -> None:
    if len(passed) != len(kernel.parameters):
        raise InvalidInput(
            f"args are {','.join(passed)}, {len(passed)} of them, and {kernel.signature} takes "
            f"{len(kernel.parameters)}: give one for each, in order"
        )
    for text in passed:
        unknown = [word for word in _WORD.findall(text) if word not in (*operands, *_LITERALS)]
        if unknown:
            raise InvalidInput(
                f"args name {unknown[0]}, which is no operand: there are {', '.join(operands)}, "
                "numbers such as 1.0f, and expressions such as cols/4"
            )


_LITERALS = ("nullptr", "true", "false", "min", "max", "f", "e", "u")


def _converted(
    kernel: OwnKernel,
    one: Parameter,
    text: str,
    operands: Mapping[str, Operand],
    chosen: Mapping[str, str],
) -> str:
    """Return an argument as C++ text; raises InvalidInput if it cannot be the parameter's.

    `chosen` are the arguments of the kernel's template.
    """
    operand = operands.get(text)
    if operand is None or not operand.is_array:
        if one.is_pointer and text not in ("nullptr", "0"):
            raise InvalidInput(
                f"args pass {text}, a number, for {one.type} {one.name} of {kernel.name}: name an "
                "array there"
            )
        return "nullptr" if one.is_pointer else text
    if not one.is_pointer and one.type not in kernel.template and "auto" not in one.type:
        raise InvalidInput(
            f"args pass {text}, an array, for {one.type} {one.name} of {kernel.name}: name a "
            "number there, such as cols"
        )
    if text == "output" and one.is_constant:
        raise InvalidInput(
            f"args pass output for {one.type} {one.name} of {kernel.name}, through which nothing "
            "is written: name what it reads, such as input"
        )
    kind = one.pointee.replace("struct ", "")
    kind = chosen.get(kind, kind)
    plain = _ALIASES.get(kind, kind)
    if plain in _FUNDAMENTAL and plain != operand.type:
        raise InvalidInput(
            f"{one.type} {one.name} of {kernel.name} points to {kind}, and {text} has elements of "
            f"{operand.type}: give the kernel's --dtype, and --out-dtype for its output"
        )
    if _VECTORS.fullmatch(kind):
        return f"({'const ' if operand.is_read_only and one.is_constant else ''}{kind}*){text}"
    if operand.is_read_only and one.is_pointer and not one.is_constant:
        return f"({operand.type}*){text}"
    return text


def _declared(name: str, operand: Operand, is_restricted: bool) -> str:
    if not operand.is_array:
        return f"{operand.type} {name}"
    constant = "const " if operand.is_read_only else ""
    return f"{constant}{operand.type}*{' __restrict__' if is_restricted else ''} {name}"


def element_of(kernel: OwnKernel, arguments: Sequence[str]) -> str | None:
    """Return the CUDA type of the first array that a kernel takes; None if it is no element's."""
    chosen = dict(zip(kernel.template, arguments, strict=False))
    for one in kernel.parameters:
        if one.is_pointer:
            kind = chosen.get(one.pointee, one.pointee)
            kind = re.sub(r"(?<=float|ouble)[1-4]$|2$", "", kind)
            return _ALIASES.get(kind, kind)
    return None
