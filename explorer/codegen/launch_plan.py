"""How a file's kernels are launched: read from, and written into, the comment at its head.

    // Launch:
    //   blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock
    //   softmax_f32_4096_kernel<<<blocks, kThreads>>>(input, output, rows)

A number is an expression of the file's own constants and of `rows` and `cols`, so that it stays
true where a person edits the constants. Whoever launches the file needs nothing else.
"""

import ast
import operator
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from explorer.codegen.variant import Launch, has_one_row, launches
from explorer.model.config import Config
from explorer.model.element import TYPE_BYTES
from explorer.model.errors import InvalidInput
from explorer.model.key_split import SCORE_BYTES
from explorer.model.problem import Problem
from explorer.model.work_split import LINE_BYTES, WorkSplit

HEADING = "// Launch:"

LONGEST_EXPRESSION = 400
"""Characters of an expression in a header; those of emitted files have a fifth of it."""

DEEPEST_DEFINITION = 32
"""Constants of which each is defined by the next; emitted files have six."""

LARGEST_NUMBER = 2**62

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

LINE = 100
"""Columns of a line, slashes included; a longer list of arguments has lines of its own."""

_LIST = "//   arguments = "

_LINE = re.compile(r"//\s{1,9}(\w+)\s*=\s*([^=]+)$")
_ARGUMENTS = re.compile(r"//\s{1,9}arguments = ([\w, ]+)$")
_LAUNCH = re.compile(
    r"//\s{1,9}(\w+)<<<blocks,\s*([^,>]+)(,\s*shared)?>>>\(([\w, ]*)\)(, overlapped)?$"
)
_CONSTANT = re.compile(r"^constexpr int (k\w+) = ([^;]+);", re.MULTILINE)
_TYPE = re.compile(r"^using (\w+) = ([\w ]+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
    """One `entry<<<blocks, threads, shared>>>(arguments)` of a header."""

    entry: str
    threads: str
    arguments: tuple[str, ...]
    overlaps: bool = False
    """It may begin before the launch before it has ended."""
    takes_shared: bool = False
    """Its blocks have the bytes of dynamic shared memory that the header names."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The launches of a file, in order, and the expressions of their numbers."""

    steps: tuple[PlannedLaunch, ...]
    numbers: Mapping[str, str]
    """Expressions by name: blocks; where they are not 0, blocks_per_sm, cluster, shared (bytes a
    block) and scratch (bytes); and names that others of them use."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Expressions of the file's constants, and `sizeof` of its types in bytes."""

    @classmethod
    def of(cls, problem: Problem, config: Config, overlapped: bool = False) -> "LaunchPlan":
        """Return the plan that a config's file has, its constants not known yet."""
        steps = tuple(
            PlannedLaunch(
                launch.entry, "kThreads", launch.arguments, launch.overlaps, launch.shared_bytes > 0
            )
            for launch in launches(problem, config, overlapped)
        )
        return cls(steps, _numbers(problem, config))

    @classmethod
    def read(cls, source: str) -> "LaunchPlan | None":
        """Return the plan in a file's head, or None where the file has none.

        Raises InvalidInput for a line of it that is not understood.
        """
        head = source[: _end_of_head(source)]
        if HEADING not in head:
            return None
        steps: list[PlannedLaunch] = []
        numbers: dict[str, str] = {}
        listed: tuple[str, ...] = ()
        for line in head[head.index(HEADING) :].splitlines()[1:]:
            launch, number = _LAUNCH.match(line), _LINE.match(line)
            if launch:
                named = listed if launch[4] == "arguments" else _names(launch[4])
                marks = bool(launch[5]), bool(launch[3])
                steps.append(PlannedLaunch(launch[1], launch[2].strip(), named, *marks))
            elif taken := _ARGUMENTS.match(line):
                listed += _names(taken[1])
            elif number:
                numbers[number[1]] = number[2].strip()
            elif line.startswith("//   "):
                raise InvalidInput(f"the line {line!r} under '{HEADING}' is not understood")
            else:
                break
        if not steps or "blocks" not in numbers:
            raise InvalidInput(
                f"'{HEADING}' in the header names no {'kernel' if not steps else 'blocks'}: write "
                "'blocks = ...' and 'kernel<<<blocks, kThreads>>>(input, output, rows)' below it"
            )
        if not any(step.takes_shared for step in steps):  # a person has named its bytes alone
            steps = [replace(step, takes_shared="shared" in numbers) for step in steps]
        return cls(tuple(steps), numbers).bound(source)

    def bound(self, source: str) -> "LaunchPlan":
        """Return the same plan with the constants of a file."""
        constants = dict(_CONSTANT.findall(source))
        sizes = {
            f"sizeof({name})": str(TYPE_BYTES[kind])
            for name, kind in _TYPE.findall(source)
            if kind in TYPE_BYTES
        }
        return LaunchPlan(self.steps, self.numbers, constants | sizes)

    @property
    def lines(self) -> list[str]:
        """The lines of the header's comment below its heading."""
        arguments = ", ".join(self.steps[0].arguments)
        numbers = [f"//   {name} = {text}" for name, text in self.numbers.items()]
        whole = [self._line(step, arguments) for step in self.steps]
        if max(map(len, whole)) <= LINE:
            return [*numbers, *whole]
        short = [self._line(step, "arguments") for step in self.steps]
        lists = textwrap.wrap(arguments, LINE - len(_LIST))
        return [*numbers, *(f"{_LIST}{names.removesuffix(',')}" for names in lists), *short]

    def _line(self, step: PlannedLaunch, arguments: str) -> str:
        shared = ", shared" if step.takes_shared else ""
        overlapped = ", overlapped" if step.overlaps else ""
        return f"//   {step.entry}<<<blocks, {step.threads}{shared}>>>({arguments}){overlapped}"

    def launches(self, rows: int, cols: int) -> tuple[Launch, ...]:
        """Return the launches for so many rows and columns; raises InvalidInput.

        Where blocks stride over the rows, a launch's grid is of as many as there are tiles.
        """
        values = self._evaluation({"rows": rows, "cols": cols})
        return tuple(
            Launch(
                entry=step.entry,
                grid=self._number("blocks", values),
                block=values.of(step.threads),
                shared_bytes=self._number("shared", values) if step.takes_shared else 0,
                arguments=step.arguments,
                blocks_per_sm=self._number("blocks_per_sm", values),
                cluster=max(1, self._number("cluster", values)),
                overlaps=step.overlaps,
            )
            for step in self.steps
        )

    def scratch_bytes(self, rows: int, cols: int) -> int:
        """Return the bytes of scratch memory that the launches share."""
        return self._number("scratch", self._evaluation({"rows": rows, "cols": cols}))

    def value(self, expression: str, known: Mapping[str, int] | None = None) -> int:
        """Return the value of an expression or of a constant of the file; raises InvalidInput."""
        return self._evaluation(known or {}).of(expression)

    def _number(self, name: str, values: "_Evaluation") -> int:
        return values.of(self.numbers[name]) if name in self.numbers else 0

    def _evaluation(self, known: Mapping[str, int]) -> "_Evaluation":
        """Return what evaluates expressions, and each constant once."""
        values = {name: str(value) for name, value in known.items()}
        return _Evaluation({**self.constants, **self.numbers, **values})


def _numbers_of_keys(config: Config) -> dict[str, str]:
    """Return the numbers of attention, whose blocks each have a part of the keys."""
    numbers = {"blocks": "rows / kGroup * kHeadParts * kSplits"}
    if config.cluster > 1:
        numbers["cluster"] = "kCluster"
    if config.cache == "shared" and config.splits > 1:
        even = "max((cols - 1) / kSplits + 1, kPartKeys)"
        numbers["keys"] = f"({even} + kBlockKeys - 1) / kBlockKeys * kBlockKeys"
    if config.cache == "shared":
        numbers["shared"] = f"{'min(keys, cols)' if config.splits > 1 else 'cols'} * {SCORE_BYTES}"
    if config.splits_launches:
        numbers["scratch"] = "rows * kSplits * (kHeadDim + 2) * 4"
    elif config.launches == "three":
        numbers["scratch"] = f"rows * cols * {SCORE_BYTES}"
    if config.staging != "direct":
        numbers["shared"] = "kStages * kBlockKeys * 2 * kHeadDim * sizeof(Element)"
    return numbers


def _numbers(problem: Problem, config: Config) -> dict[str, str]:
    if problem.attends:
        return _numbers_of_keys(config)
    shares = " * kCluster" if config.cluster > 1 else " * kParts" if config.splits_launches else ""
    tiles = "rows" if has_one_row(problem, config) else "(rows + kRowsPerBlock - 1) / kRowsPerBlock"
    numbers = {"blocks": f"{tiles}{shares}"}
    if config.persistent:
        numbers["blocks_per_sm"] = "kBlocksPerSm"
    if config.cluster > 1:
        numbers["cluster"] = "kCluster"
    if config.cache == "shared":
        numbers |= _shared(problem, config)
    arithmetic = problem.dtype.arithmetic.itemsize
    cols = "kCols" if config.static_cols else "cols"
    if config.splits_launches:
        numbers["scratch"] = f"rows * kParts * {2 * arithmetic}"
    elif config.launches == "three":
        row = f"(({cols} + 2 * (kWidth - 1)) / kWidth * kWidth + 1)"
        numbers["scratch"] = f"rows * {row} * {arithmetic}"
    return numbers


def _shared(problem: Problem, config: Config) -> dict[str, str]:
    """Return dynamic shared memory a block in bytes, as `WorkSplit.cache_bytes` counts it.

    And what it is made of: the vectors of a row, or of a block's part of one.
    """
    split = WorkSplit(problem, config)
    cols = "kCols" if config.static_cols else "cols"
    if split.across_rows:
        vectors = cols
    elif split.aligned:
        vectors = f"{cols} / kWidth"
    else:
        vectors = f"({cols} + 2 * (kWidth - 1)) / kWidth"
    numbers, part = {"vectors": vectors}, "vectors"
    if config.cluster > 1:
        line = 1 if split.across_rows else LINE_BYTES // config.vector_bytes
        numbers["part"] = f"(vectors + kCluster * {line} - 1) / (kCluster * {line}) * {line}"
        part = "part"
    tiles = ["kGroups"] if split.across_rows else ["kRowsPerBlock"]
    factors = [
        *([str(split.cached_matrices)] if split.cached_matrices > 1 else []),
        *([] if has_one_row(problem, config) else tiles),
        *(["kStages"] if config.stages > 1 else []),
        f"{part} * kWidth * {split.cached_element_bytes}",
    ]
    return {**numbers, "shared": " * ".join(factors)}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _end_of_head(source: str) -> int:
    """Return where the comment at a file's head ends."""
    end = 0
    for line in source.splitlines(keepends=True):
        if not line.startswith("//"):
            break
        end += len(line)
    return end


@lru_cache(maxsize=4096)  # a search asks for the launches of each kernel on a dozen problems
def _parsed(expression: str) -> ast.expr:
    """Return the tree of an expression, which nobody changes; raises InvalidInput."""
    text = re.sub(r"sizeof\((\w+)\)", r"sizeof_\1", expression)
    if len(text) > LONGEST_EXPRESSION:
        raise InvalidInput(
            f"an expression of the file has {len(text)} characters; {LONGEST_EXPRESSION} are "
            "read at most"
        )
    try:
        return ast.parse(text.replace("/", "//").strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InvalidInput(f"{expression!r} is no expression of whole numbers") from None


class _Evaluation:
    """Values of whole-number expressions: + - * / % min max, names, and sizeof(type)."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._values: dict[str, int] = {}
        self._open: list[str] = []

    def of(self, expression: str) -> int:
        """Return an expression's value, as C++ has it for numbers that are not negative."""
        return self._value(_parsed(expression), expression)

    def _value(self, node: ast.expr, expression: str) -> int:
        if (
            isinstance(node, ast.Constant)
            and type(node.value) is int
            and node.value <= LARGEST_NUMBER
        ):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.BinOp):
            first, second = (self._value(side, expression) for side in (node.left, node.right))
            return self._combined(node.op, first, second, expression)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            values = [self._value(argument, expression) for argument in node.args]
            if node.func.id in ("min", "max") and values:
                return min(values) if node.func.id == "min" else max(values)
        raise InvalidInput(
            f"{expression!r} is more than whole numbers, names, + - * / %, min and max, which is "
            "what explorer evaluates"
        )

    @staticmethod
    def _combined(symbol: ast.operator, first: int, second: int, expression: str) -> int:
        if isinstance(symbol, ast.FloorDiv | ast.Mod) and second == 0:
            raise InvalidInput(f"{expression!r} divides by 0")
        if type(symbol) not in _OPERATORS:
            raise InvalidInput(f"{expression!r} has an operator other than + - * / %")
        value = _OPERATORS[type(symbol)](first, second)
        if abs(value) > LARGEST_NUMBER:
            raise InvalidInput(f"{expression!r} is more than {LARGEST_NUMBER}")
        return value

    def _named(self, name: str) -> int:
        """Return the value of a constant, whose own expression may name others."""
        name = re.sub(r"^sizeof_(\w+)$", r"sizeof(\1)", name)
        if name not in self._names:
            raise InvalidInput(
                f"{name} is not known: write 'constexpr int {name} = 256;' in the file's "
                "parameters block"
                if name.startswith("k")
                else f"{name} is not known; the header's expressions are of rows, cols and "
                "constants of the file"
            )
        if name not in self._values:
            if name in self._open or len(self._open) >= DEEPEST_DEFINITION:
                raise InvalidInput(f"{name} is defined by itself, or by too many other constants")
            self._open.append(name)
            self._values[name] = self.of(self._names[name])
            self._open.pop()
        return self._values[name]
