"""The launches of a kernel in the host code of a person's file, and what their expressions mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from explorer.model.element import TYPE_BYTES

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINITION = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+([^\n]+?)[ \t]*$"
    r"|\b(?:int|unsigned|size_t|long|dim3|auto|uint32_t)\s+(\w+)\s*(?:=\s*([^;,{}]+);"
    r"|\(([^;{}]+)\);|\{([^;{}]+)\};)",
    re.MULTILINE,
)
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

    @classmethod
    def of(cls, text: str, kernel: str) -> "HostLaunches":
        """Read the launches of a kernel, whose namespaces do not matter."""
        code = _COMMENT.sub(" ", text)
        bare = re.escape(kernel.rpartition("::")[2])
        launch = rf"\b{bare}\s*(?:<([^;{{}}]*?)>)?\s*<<<([^;]*?)>>>\s*\(([^;]*)\)\s*;"
        return cls(tuple(dict.fromkeys(re.findall(launch, code))), _definitions(code))

    def templates(self) -> list[str]:
        """Return the template's arguments of the launches that are constants, each list once."""
        lists = ([self.resolved(one) for one in split(template)] for template, _, _ in self.found)
        return list(dict.fromkeys(", ".join(map(str, one)) for one in lists if None not in one))

    def with_template(self, arguments: tuple[str, ...]) -> "HostLaunches":
        """Return the launches with these arguments of the template."""
        kept = [
            one
            for one in self.found
            if [self.resolved(text) or text for text in split(one[0])] == list(arguments)
        ]
        return HostLaunches(tuple(kept), self.names)

    def named(self, operands: Mapping[str, str]) -> "HostLaunches":
        """Return the same with the names of operands, by the file's names for them."""
        return HostLaunches(self.found, {**self.names, **operands})

    def configured(self, place: int) -> list[str]:
        """Return the expressions at a place between <<< and >>>, each once; 0 for one left out."""
        listed = (split(launch) for _, launch, _ in self.found)
        return list(dict.fromkeys(one[place] if len(one) > place else "0" for one in listed))

    def resolved(self, expression: str) -> str | None:
        """Return an expression in rows, cols and numbers; None if a name of it is not known."""
        text = expression
        for _ in range(_DEEPEST):
            words = set(_WORD.findall(text)) - _KNOWN
            if not words:
                return _plain(text)
            if not words <= self.names.keys():
                return None
            for word in words:
                value = self.names[word]
                in_brackets = value if re.fullmatch(r"\w+", value) else f"({value})"
                text = re.sub(rf"\b{word}\b", in_brackets, text)
        return None


def _definitions(code: str) -> dict[str, str]:
    """Return the expressions of a code's names that have one value each."""
    names: dict[str, str] = {}
    doubtful: set[str] = set()
    for macro, body, name, *values in _DEFINITION.findall(code):
        value = " ".join((body or next(filter(None, values), "")).split())
        if names.setdefault(macro or name, value) != value:
            doubtful.add(macro or name)
    return {name: value for name, value in names.items() if name not in doubtful}


def _plain(text: str) -> str | None:
    """Return an expression that can be evaluated, without brackets around the whole of it."""
    text = re.sub(r"(?<=\d)[uUlL]+\b", "", " ".join(text.split()))
    text = re.sub(r"^dim3\s*\((.*)\)$|^\(([^()]*)\)$", lambda m: m[1] or m[2], text)
    return text if re.fullmatch(r"[\w\s+\-*/%(),]+", text) else None
