"""The launches of a kernel in the host code of a person's file, and what their expressions mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from explorer.model.element import TYPE_BYTES

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\(([\w\s,]*)\))?[ \t]+([^\n]+?)[ \t]*$", re.M
)
_WHOLE = r"(?:(?:std::)?u?int(?:32|64)?_t|int|unsigned|(?:std::)?size_t|long|dim3|auto)"
_DECLARED = re.compile(rf"\b{_WHOLE}\s+(\w+\s*[=({{][^;]*);")
_DECLARATOR = re.compile(r"(\w+)\s*(?:=\s*([^{}]+)|\(([^{}]+)\)|\{([^{}]+)\})")
_DEFAULT = re.compile(rf"\b{_WHOLE}\s+(\w+)\s*=\s*([^,;(){{}}]+)(?=[,)])")
_ENUM = re.compile(r"\benum\b[^{;]*\{([^}]*)\}")
_RETURNS = re.compile(rf"\b{_WHOLE}\s+(\w+)\s*\(([^(){{}}]*)\)[\s\w]*\{{\s*return\s+([^;]*);\s*\}}")

_ALIAS = re.compile(r"\bauto\s*\*?\s*(\w+)\s*=\s*&?(\w+\s*(?:<[^;]*>)?)\s*;")
_VOID = r"(?:\(\s*(?:const\s+)?void\s*\*\s*\)|&)?\s*"
_BY_FUNCTION = re.compile(
    rf"\bcudaLaunchKernel\s*\(\s*{_VOID}(\w+\s*(?:<[^;{{}}]*?>)?)\s*,([^;]*)\)\s*;"
)
_BY_CONFIG = re.compile(
    r"\bcudaLaunchKernelEx\s*\(\s*&?(\w+)\s*,\s*&?(\w+\s*(?:<[^;{}]*?>)?)\s*,([^;]*)\)\s*;"
)
"""Launches by functions of CUDA's runtime: the kernel, what else they are given."""

_DEEPEST = 8
"""Names of which each is defined by the next."""

_KNOWN = {
    *("rows", "cols", "sizeof", "min", "max", "dim3", "true", "false", "half", "nv_bfloat16"),
    *" ".join(TYPE_BYTES).split(),
}
"""Words that need no definition."""


def split(text: str) -> list[str]:
    """Return the parts between commas that are in no brackets, without blanks around them."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [" ".join(part.split()) for part in parts if part.strip()]


@dataclass(frozen=True, slots=True)
class HostLaunches:
    """The launches of one kernel in a file, each once, and what the names of a file are."""

    found: tuple[tuple[str, str, str], ...]
    """Of each the template's arguments, what stands between <<< and >>>, and the arguments."""
    names: dict[str, str]
    """Expressions by the names that a file gives them."""
    functions: dict[str, tuple[list[str], str]]
    """Parameters and result of the macros and functions of whole numbers."""

    @classmethod
    def of(cls, text: str, kernel: str) -> "HostLaunches":
        """Read the launches of a kernel, whose namespaces do not matter."""
        code = _plainly_launched(_COMMENT.sub(" ", text))
        bare = re.escape(kernel.rpartition("::")[2])
        launch = rf"\b{bare}\s*(?:<([^;{{}}]*?)>)?\s*<<<([^;]*?)>>>\s*\(([^;]*)\)\s*;"
        found = tuple(dict.fromkeys(re.findall(launch, code)))
        return cls(found, _definitions(code), _functions(code))

    def templates(self) -> list[str]:
        """Return the template's arguments of the launches that are constants, each list once."""
        lists = ([self.resolved(one) for one in split(template)] for template, _, _ in self.found)
        return list(dict.fromkeys(", ".join(map(str, one)) for one in lists if None not in one))

    def with_template(self, arguments: tuple[str, ...]) -> "HostLaunches":
        """Return the launches with these arguments of the template.

        Names in their place, as of the template of a function that launches, are these arguments.
        """
        kept, names = list[tuple[str, str, str]](), dict(self.names)
        for one in self.found:
            listed = split(one[0])
            unknown = {
                text: argument
                for text, argument in zip(listed, arguments, strict=False)
                if text.isidentifier() and self.resolved(text) is None
            }
            told = [unknown.get(text) or self.resolved(text) or text for text in listed]
            if told == list(arguments):
                kept.append(one)
                names |= unknown
        return replace(self, found=tuple(kept), names=names)

    def named(self, operands: Mapping[str, str]) -> "HostLaunches":
        """Return the same with the names of operands, by the file's names for them."""
        return replace(self, names={**self.names, **operands})

    def configured(self, place: int) -> list[str]:
        """Return the expressions at a place between <<< and >>>, each once; 0 for one left out."""
        listed = (split(launch) for _, launch, _ in self.found)
        return list(dict.fromkeys(one[place] if len(one) > place else "0" for one in listed))

    def resolved(self, expression: str) -> str | None:
        """Return an expression in rows, cols and numbers; None if a name of it is not known."""
        text = expression
        for _ in range(_DEEPEST):
            text = self._with_calls_replaced(text)
            words = set(_WORD.findall(text)) - _KNOWN
            if not words:
                return _plain(text)
            if not words <= self.names.keys() | self.functions.keys():
                return None
            text = _replaced(text, self.names)
        return None

    def _with_calls_replaced(self, text: str) -> str:
        """Return an expression with the results in place of calls of the file's own functions."""
        for name, (parameters, result) in self.functions.items():
            call = re.search(rf"\b{name}\s*(?:<[^<>()]*>\s*)?\(", text)
            if call is None:
                continue
            end = closed(text, call.end() - 1)
            given = split(text[call.end() : end - 1])
            if len(given) == len(parameters):
                values = dict(zip(parameters, given, strict=True))
                text = f"{text[: call.start()]}({_replaced(result, values)}){text[end:]}"
        return text


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """Return a text with values in place of names, in brackets where they are expressions."""

    def value_of(word: re.Match[str]) -> str:
        value = values.get(word[0], word[0])
        return value if re.fullmatch(r"\w+", value) else f"({value})"

    return _WORD.sub(value_of, text)


def closed(code: str, at: int) -> int:
    """Return the place behind the bracket that closes the one at `at`; the end without one."""
    pairs = {"(": ")", "{": "}", "[": "]", "<": ">"}
    opening, depth = code[at], 0
    for place in range(at, len(code)):
        depth += {opening: 1, pairs[opening]: -1}.get(code[place], 0)
        if depth == 0:
            return place + 1
    return len(code)


def _plainly_launched(code: str) -> str:
    """Return a code with <<<>>> in place of other ways to launch, and without namespaces."""
    code = re.sub(r"\b\w+::(?=\w)", "", code)
    for name, meant in _ALIAS.findall(code):
        code = re.sub(rf"\b{name}\s*<<<", f"{meant}<<<", code)

    def by_function(call: re.Match[str]) -> str:
        grid, block, listed, *more = split(call[2])
        array = rf"\b{re.escape(listed)}\s*\[\s*\d*\s*\]\s*=\s*\{{([^{{}}]*)\}}"
        found = re.search(array, code)
        theirs = re.sub(r"\(\s*void\s*\*\s*\)|&", "", found[1]) if found else ""
        return f"{call[1]}<<<{', '.join([grid, block, *more])}>>>({theirs});"

    def by_config(call: re.Match[str]) -> str:
        told = ["1", "1", "0"]
        for place, member in enumerate(("gridDim", "blockDim", "dynamicSmemBytes")):
            for value in re.findall(rf"\b{call[1]}\.{member}(?:\.x)?\s*=\s*([^;=]+);", code):
                told[place] = value
        return f"{call[2]}<<<{', '.join(told)}>>>({call[3]});"

    return _BY_CONFIG.sub(by_config, _BY_FUNCTION.sub(by_function, code))


def _definitions(code: str) -> dict[str, str]:
    """Return the expressions of a code's names that have one value each."""
    found = [(name, body) for name, parameters, body in _MACRO.findall(code) if not parameters]
    for listed in _DECLARED.findall(code):
        declared = map(_DECLARATOR.fullmatch, split(listed))
        found += [(one[1], one[2] or one[3] or one[4]) for one in declared if one is not None]
    for listed in _ENUM.findall(code):
        found += [
            (name.strip(), value)
            for name, _, value in (one.partition("=") for one in split(listed))
        ]
    found += _DEFAULT.findall(code)
    names: dict[str, str] = {}
    doubtful: set[str] = set()
    for name, text in found:
        value = " ".join(text.split())
        if names.setdefault(name, value) != value:
            doubtful.add(name)
    return {name: value for name, value in names.items() if name not in doubtful}


def _functions(code: str) -> dict[str, tuple[list[str], str]]:
    """Return parameters and result of macros with parameters, and of functions that only return."""
    macros = [one for one in _MACRO.findall(code) if one[1]]
    return {
        name: ([_WORD.findall(one)[-1] for one in parameters.split(",") if one.strip()], result)
        for name, parameters, result in [*macros, *_RETURNS.findall(code)]
    }


def _plain(text: str) -> str | None:
    """Return an expression that can be evaluated, without brackets around the whole of it."""
    text = re.sub(r"(?<=\d)[uUlL]+\b", "", " ".join(text.split()))
    text = re.sub(r"^dim3\s*\((.*)\)$|^\(([^()]*)\)$", lambda m: m[1] or m[2], text)
    return text if re.fullmatch(r"[\w\s+\-*/%(),]+", text) else None
