"""Templates as units, and the program that is assembled of those that a kernel needs.

A *unit* is a device function, a type, a constant or a kernel. A comment before it says which names
it provides, and for which kernels:

    {# unit reduce_row if config.reduction == "shared-tree" and not across_rows #}

What a unit needs is what its text names. From the kernel on, the one unit that provides a name is
taken for each name that occurs, so that what nobody calls is left out. None or two are an error.
Sections, and within them files by name, order the units; where one needs another of its section,
that comes first. Text between units that several of them include is a *part*, and has a name too:

    {# part load_slots #}
"""

import hashlib
import re
import shlex
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound

from explorer.codegen.attention import AttentionTraits
from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.traits import Traits, each_of, renamed
from explorer.codegen.variant import (
    HOST_HEADING,
    Variant,
    can_overlap,
    launches,
    scratch_bytes,
)
from explorer.model.config import COHERENT_HINTS, Config
from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import Problem
from explorer.model.query import ProblemQuery
from explorer.system.user_files import template_dir

# ------------------------------------------------------------------ digest


_NOT_RUN_BY_GPU = {"header", "host", "programs"}
"""Folders of what is only compiled for the host, is a comment, or a program of its own."""


@cache
def template_digest() -> str:
    """Twelve hexadecimal digits over the templates of what the GPU runs: names and texts."""
    digest = hashlib.sha256()
    root = template_dir()
    for path in sorted(p for p in root.rglob("*.j2") if p.parent.name not in _NOT_RUN_BY_GPU):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


# ------------------------------------------------------------------ long lines


LINE = 100
"""Columns of an emitted line."""

DEEPER = 4
"""Columns by which a wrapped line is indented more than the first."""


def wrap(
    items: Iterable[str],
    head: str,
    tail: str,
    indent: int = 0,
    *,
    before: str = "",
    hang: int = DEEPER,
) -> str:
    """`before`, `head`, the items, `tail`: on one line if they fit.

    Else `before` keeps the first line and the rest hangs `hang` columns below it if that fits;
    else the items have lines of their own, and `head` too if it does not fit behind `before`.
    `indent` is how far the template indents the first.
    """
    words = [f"{item}," for item in items]
    words[-1] = words[-1][:-1] + tail
    call = f"{head}{' '.join(words)}"
    space = f"{before} " if before else ""
    if indent + len(space) + len(call) <= LINE:
        return space + call
    if before and indent + hang + len(call) <= LINE:
        return f"{before}\n{' ' * (indent + hang)}{call}"
    lines = [space + head]
    if before and indent + len(lines[0]) > LINE:
        indent += hang
        lines = [before, " " * indent + head]
    first = len(lines)
    for word in words:
        if len(lines) > first and len(lines[-1]) + 1 + len(word) <= LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * (indent + DEEPER) + word)
    return "\n".join(lines)


def comment(text: str) -> str:
    """Return a comment of sentences, whose lines are as long as emitted ones may be."""
    begin = "// "
    return textwrap.fill(
        text, LINE, initial_indent=begin, subsequent_indent=begin, break_on_hyphens=False
    )


def in_braces(head: str, statement: str, indent: int = 0, end: str = "}") -> str:
    """Return a function of one statement: on one line if that fits, else on three.

    `indent` is how far the template indents the first.
    """
    line = f"{head} {{ {statement} {end}"
    if indent + len(line) <= LINE:
        return line
    space = " " * indent
    return f"{head} {{\n{space}  {statement}\n{space}{end}"


def returns(head: str, expression: str, indent: int = 0) -> str:
    """Return a function that returns an expression."""
    return in_braces(head, f"return {expression};", indent)


# ------------------------------------------------------------------ units


SECTIONS = {
    "elements": "elements",
    "access": "load, store",
    "exponential": "exponentiate, normalise",
    "reduce": "reduce",
    "kernel": "kernel",
    "attention": "attend",
}
"""Folders of units, in the order in which a file has them, and the headings there."""

SCREEN_LINES = 70
"""Lines of device code that are seen at once: so few need no headings."""

_MARK = re.compile(
    r"^\{# (?P<kind>unit|part) (?P<names>\w+(?:, \w+)*)(?:\s+if (?P<condition>.*?))? #\}\n",
    re.MULTILINE | re.DOTALL,
)
_WORD = re.compile(r"(?<![.\w])(?<!->)[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*")
_UNROLLED = re.compile(r"^( *)unrolled for\b", re.MULTILINE)
"""A loop with a pragma before it, in the text of units; CUDA knows no such word."""


class Unit:
    """A text, when it applies, and the names that it defines."""

    def __init__(
        self, mark: re.Match[str], body: str, section: str, file: str, environment: Environment
    ) -> None:
        self.names = tuple(mark["names"].split(", "))
        self.section = section
        self._body = body
        self._environment = environment
        self._condition = " ".join((mark["condition"] or "True").split())
        self._place = f"{section}/{file}: {mark['names']} if {self._condition}"

    def __str__(self) -> str:
        """Return its file, what it provides, and when: to find it by."""
        return self._place

    def applies(self, context: dict[str, Any]) -> bool:
        """Return whether the unit is for a kernel. Its condition is Python as well as Jinja."""
        return bool(eval(self._code, {}, context))

    def render(self, context: dict[str, Any]) -> str:
        """Return the unit's text for a kernel, without empty lines around it."""
        # Not copied, as render() would: a kernel is made of some thirty units.
        shared = self._template.new_context(context, shared=True)
        text = "".join(self._template.root_render_func(shared)).strip("\n")
        return _UNROLLED.sub(r"#pragma unroll\n\1for", text)

    @cached_property
    def _code(self) -> CodeType:
        return compile(self._condition, self._place, "eval")

    @cached_property
    def _template(self) -> Template:
        """Compiled when first needed: of some hundred and fifty, a kernel needs thirty."""
        return self._environment.from_string(self._body)


@dataclass(slots=True)
class Library:
    """All units by the names that they provide, in order, and the environment of all templates."""

    environment: Environment
    units: list[Unit] = field(default_factory=list)
    providers: dict[str, list[Unit]] = field(default_factory=dict)

    def provider(self, name: str, context: dict[str, Any]) -> Unit:
        """Return the one unit that provides a name; raises ExplorerError for none or several."""
        found = [unit for unit in self.providers[name] if unit.applies(context)]
        if len(found) != 1:
            raise ExplorerError(
                f"{len(found)} units provide {name} for {context['problem']} and the config "
                f"{context['config'].to_json(brief=True)}; there must be one: see the conditions "
                f"of '{{# unit {name} if ... #}}' in the templates"
            )
        return found[0]


class _Loader(BaseLoader):
    """Templates from their folder, and the parts of files of units by their names."""

    def __init__(self) -> None:
        self.parts: dict[str, str] = {}

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Any]:
        if template in self.parts:
            return self.parts[template], template, lambda: True
        path = template_dir() / template
        if not path.is_file():
            raise TemplateNotFound(template)
        return path.read_text(), str(path), lambda: True


@cache
def library() -> Library:
    """Return the units of all templates, read once."""
    loader = _Loader()
    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"wrap": wrap, "comment": comment, "in_braces": in_braces}
    environment.filters |= {"returns": returns, "renamed": renamed, "each_of": each_of}
    read = Library(environment)
    for section in SECTIONS:
        for path in sorted((template_dir() / section).glob("*.j2")):
            _read(path, section, loader, read)
    return read


def _read(path: Path, section: str, loader: _Loader, read: Library) -> None:
    """Add the units and parts of a file."""
    text = path.read_text()
    marks = list(_MARK.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : after.start() if after else len(text)].strip("\n") + "\n"
        if mark["kind"] == "part":
            loader.parts[mark["names"]] = body
            continue
        unit = Unit(mark, body, section, path.name, read.environment)
        read.units.append(unit)
        for name in unit.names:
            read.providers.setdefault(name, []).append(unit)


def heading(title: str) -> str:
    """Return the line that begins a section of a file."""
    return f"// {'-' * 66} {title}"


@lru_cache(maxsize=4096)  # the units of different kernels are mostly the same texts
def words(text: str) -> frozenset[str]:
    """Return the names in C++ text: not those in comments, nor members of what they follow."""
    return frozenset(_WORD.findall(_COMMENT.sub("", text)))


@dataclass(slots=True)
class Assembly:
    """The units that a program needs, rendered, and the names in their text."""

    context: dict[str, Any]
    texts: dict[Unit, str] = field(default_factory=dict)
    needs: dict[Unit, list[Unit]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def require(self, names: Iterable[str]) -> list[Unit]:
        """Take the units that provide those of `names` which units provide, and what they need."""
        read = library()
        taken = []
        for name in sorted(name for name in names if name in read.providers):
            unit = read.provider(name, self.context)
            taken.append(unit)
            if unit not in self.texts:
                text = unit.render(self.context)
                self.texts[unit] = text
                found = words(text)
                self.names |= found
                self.needs[unit] = self.require(found - set(unit.names))
        return taken

    def text(self) -> str:
        """Return all units that were taken, under the headings of their sections."""
        ordered: dict[Unit, None] = {}
        for unit in library().units:
            if unit in self.texts:
                self._visit(unit, ordered)
        parts, section = [], ""
        lines = sum(text.count("\n") + 2 for text in self.texts.values())
        for unit in ordered:
            if unit.section != section and lines > SCREEN_LINES:
                section = unit.section
                stores = not self.context["per_row"] or section != "exponential"
                parts.append(heading(SECTIONS[section] if stores else "exponentiate"))
            parts.append(self.texts[unit])
        return "\n\n".join(parts)

    def _visit(self, unit: Unit, ordered: dict[Unit, None]) -> None:
        """Add a unit, those of its section first that it needs."""
        for need in self.needs[unit]:
            if need not in ordered and need.section == unit.section and need is not unit:
                self._visit(need, ordered)
        ordered[unit] = None


# ------------------------------------------------------------------ constants

_DEFINES = re.compile(r"^(?:using|constexpr \w+|__host__ __device__ constexpr \w+) (\w+)", re.M)


def constants(text: str, names: set[str]) -> str:
    """Return of a block of constants those that `names` name, and what these are defined by.

    Each statement goes with the comment above it. An assertion stays where all that it names does.
    """
    statements = _statements(text)
    defined = {m[1]: s for s in statements if (m := _DEFINES.search(s))}
    kept: set[str] = set()
    open_names = names & set(defined)
    while open_names:
        kept |= open_names
        open_names = {
            word for name in open_names for word in words(defined[name]) & set(defined)
        } - kept
    chosen = []
    for statement in statements:
        named = words(statement) & set(defined)
        definition = _DEFINES.search(statement)
        if (definition[1] in kept) if definition else named <= kept:
            chosen.append(statement)
    return "".join(chosen).strip("\n")


def _statements(text: str) -> list[str]:
    """Split a block at the ends of its statements; empty lines go with what follows."""
    found, current = [], ""
    for line in text.splitlines(keepends=True):
        current += line
        ends = line.rstrip().split("//")[0].rstrip().endswith((";", "}"))
        if ends and not line.startswith(" "):
            found.append(current)
            current = ""
    return found


# ------------------------------------------------------------------ programs


KEPT = 512
"""Variants that are kept, of 30 KB each: a search asks for each of them several times."""


@lru_cache(maxsize=KEPT)
def emit(
    problem: Problem, config: Config, *, overlapped: bool = False, main: bool = False
) -> Variant:
    """Return the variant of a config; one that a rule excludes may not compile.

    If it is `overlapped`, its launch may begin before the one before it on its stream has ended,
    whatever that is, and waits in its code for the end of that (programmatic dependent launch, in
    the CUDA Programming Guide). With `main`, the file has a program that checks and times the
    kernel. Raises InvalidInput for a value that no template knows, and for an overlapped config
    that `can_overlap` refuses.
    """
    if overlapped and not can_overlap(config):
        raise InvalidInput(
            f"launches is {config.launches} and load_hint {config.load_hint}; to be overlapped, a "
            f"config needs one launch, and loads with hint {' or '.join(COHERENT_HINTS)}"
        )
    return Variant(
        problem,
        config,
        assembled(problem, config, overlapped, main).program(),
        launches(problem, config, overlapped),
        scratch_bytes(problem, config),
    )


def context_of(problem: Problem, config: Config, overlapped: bool = False) -> dict[str, Any]:
    """Return what templates may name of a kernel, by the family that its templates are of."""
    if problem.attends:
        traits: Traits | AttentionTraits = AttentionTraits(problem, config, overlapped)
        return traits.context() | {"family": "attention"}
    return Traits(problem, config, overlapped).context() | {"family": "rows"}


def assembled(
    problem: Problem, config: Config, overlapped: bool = False, main: bool = False
) -> "Assembled":
    """Return a config's program in its parts. Raises InvalidInput as `emit` does."""
    config.check_known()
    options = [*ProblemQuery.of(problem).options, *(["--main"] if main else [])]
    context = context_of(problem, config, overlapped) | {
        "has_main": main,
        "options": shlex.join(options),
        "launch_lines": LaunchPlan.of(problem, config, overlapped).lines,
    }
    macros = library().environment.get_template("fragments.cu.j2").make_module(context)
    context |= {name: macro for name, macro in vars(macros).items() if not name.startswith("_")}
    family = context["family"]
    host = {
        "launch": rendered(f"host/{family}.cu.j2", context),
        "library": rendered("host/library.cu.j2", context),
    }
    device = Assembly(context)
    strides = config.persistent or config.staging == "span"
    kernel = "attention_kernel" if problem.attends else "launched_kernel" if strides else "kernel"
    device.require([kernel, *words("".join(host.values()))])
    host["main"] = rendered(f"host/{family}_main.cu.j2", context) if main else ""
    return Assembled(context, rendered(f"header/{family}.cu.j2", context), device, host)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a program."""

    context: dict[str, Any]
    header: str
    device: Assembly
    host: dict[str, str]
    """The functions that a program calls, those of a library, and the main program, if any."""

    def program(self) -> str:
        """Return the file: its header, what the GPU runs, and the host's part."""
        lines = "\n".join(line.removeprefix("//") for line in self.context["launch_lines"])
        named = self.device.names | words("".join(self.host.values())) | words(lines)
        defined = constants(
            rendered(f"parameters/{self.context['family']}.cu.j2", self.context), named
        )
        units = self.device.text()
        title = f"{heading('parameters')}\n\n" if "\n// ---" in f"\n{units}" else ""
        device = f"{title}{defined}\n\n{units}"
        digest = hashlib.sha256(f"{device}\0{self.host['launch']}".encode()).hexdigest()[:8]
        unique = f"{self.context['name']}_{digest}"
        parts = {"header": self.header, "device": device, **self.host, "unique": unique}
        return (
            rendered("program.cu.j2", self.context | parts | {"host_heading": HOST_HEADING}) + "\n"
        )


def rendered(name: str, context: dict[str, Any]) -> str:
    """Return a template's text, without empty lines around it."""
    return library().environment.get_template(name).render(context).strip("\n")
