"""A problem as a user names it, by options or by keywords: rows may be left out."""

import shlex
from collections.abc import Mapping, Sequence
from math import isfinite, lcm, prod
from numbers import Real
from typing import Any

from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import OPTIONS, USUAL, Mask, Option, Problem, check_extent, default_rows
from explorer.system.plain_data import shown, whole_of

# ------------------------------------------------------------------ the problem asked for


class AskedProblem:
    """What is said of a `Problem`, with `rows` None for as many as make 256 MiB of traffic.

    `more` are other fields of it; a value that is the usual one says nothing. Under a causal mask
    without `mask_rows` the mask is square, as of attention's scores, where rows are whole squares.
    """

    def __init__(
        self, cols: int, dtype: DType = DType.F32, rows: int | None = None, **more: Any
    ) -> None:
        self.cols = cols
        self.dtype = dtype
        self.rows = rows
        said = {"dtype": dtype, **more}
        unknown = sorted(said.keys() - OPTIONS.keys())
        if unknown:
            raise TypeError(f"a problem has no field {unknown[0]}")
        self._said = {
            name: said[name]
            for name in OPTIONS
            if said.get(name) is not None and said[name] != USUAL[name]
        }

    @classmethod
    def of(cls, problem: Problem) -> "AskedProblem":
        """What a user would ask for to get `problem`."""
        said = problem.as_dict().keys() - {"rows", "cols", "dtype"}
        more = {name: getattr(problem, name) for name in said}
        return cls(problem.cols, problem.dtype, problem.rows, **more)

    def problem(self) -> Problem:
        """The problem; raises InvalidInput where what was asked does not go together."""
        return self.of_rows(self._usual_rows() if self.rows is None else self.rows)

    def of_rows(self, rows: int) -> Problem:
        """The problem with so many rows, whatever was asked; raises InvalidInput."""
        square = self._is_square and self.cols > 0 and rows % self.cols == 0
        mask_rows = {"mask_rows": self.cols} if square else {}
        return Problem(rows, self.cols, **{**self._said, **mask_rows})

    def matches(self, problem: Problem) -> bool:
        """Whether `problem` is what was asked, or one such where rows were left out."""
        if self.cols != problem.cols:
            return False
        try:
            return self.of_rows(problem.rows if self.rows is None else self.rows) == problem
        except InvalidInput:
            return False

    def without_rows(self) -> "AskedProblem":
        """The same, with rows left out."""
        return AskedProblem(self.cols, **self._said)

    @property
    def options(self) -> list[str]:
        """The words of a command line that ask for it; what is as usual is left out."""
        words = ["--cols", str(self.cols)]
        words += [] if self.rows is None else ["--rows", str(self.rows)]
        for name, value in {"dtype": self.dtype, **self._said}.items():
            words.append(option_of(name))
            if not isinstance(value, bool):
                words.append(repr(value) if isinstance(value, float) else str(value))
        return words

    @property
    def without_search(self) -> str:
        """Return the command that writes a kernel where nothing was searched or recorded."""
        return command("emit", "heuristic", *self.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AskedProblem) and self.options == other.options

    def __hash__(self) -> int:
        return hash(tuple(self.options))

    def __str__(self) -> str:
        problem = self.problem()
        if self.rows is not None:
            return str(problem)
        return str(problem).replace(f"{problem.rows}x{self.cols}", f"{self.cols} cols")

    @property
    def _is_square(self) -> bool:
        """Whether a causal mask is to be square where it can."""
        return self._said.get("mask") is Mask.CAUSAL and "mask_rows" not in self._said

    def _usual_rows(self) -> int:
        """Rows for 256 MiB of traffic, whole squares of a mask and whole inner axes."""
        period = self.cols if self._is_square else self._said.get("mask_rows", 1)
        step = lcm(max(1, period), self._said.get("inner", 1))
        return max(1, default_rows(self.cols, self.dtype) // step) * step


def rows_notice(problem: Problem, rows: int | None) -> list[str]:
    """What to tell a user who left rows out."""
    if rows is not None:
        return []
    traffic = problem.bytes / 2**20
    shown_mib = f"{traffic:.0f}" if traffic >= 10 else f"{traffic:.3g}"
    return [f"--rows not given: using {problem.rows} ({shown_mib} MiB of traffic)"]


# ------------------------------------------------------------------ an array of any shape


MOST_AXES = 64
"""As NumPy and PyTorch allow."""


def array_extents(shape: Sequence[int], axis: int) -> dict[str, int]:
    """Rows, cols and inner of an op over one axis of an array: it is (outer, axis, inner)."""
    if len(shape) > MOST_AXES:
        raise InvalidInput(f"shape has {len(shape)} axes; it may have {MOST_AXES} at most")
    if not -len(shape) <= axis < len(shape):
        raise InvalidInput(
            f"axis is {axis}; an array of {len(shape)} axes has {-len(shape)} to {len(shape) - 1}"
        )
    axis %= len(shape)
    inner = prod(shape[axis + 1 :])
    return {"cols": shape[axis], "rows": prod(shape[:axis]) * inner, "inner": inner}


# ------------------------------------------------------------------ words of a command line


def command(*words: str) -> str:
    """Return a command of `explorer` as a shell reads it."""
    return shlex.join(["explorer", *words])


def command_of(verb: str, what: str, problem: Problem, end: str = " ") -> str:
    """The command `explorer VERB WHAT` for a problem, with `end` before the problem's options."""
    return f"{command(verb, what)}{end}{shlex.join(AskedProblem.of(problem).options)}"


def option_of(name: str) -> str:
    """The option by which a user says the field `name`."""
    return f"--{name.replace('_', '-')}"


def asked_from(words: list[str]) -> AskedProblem:
    """Read what `options` writes.

    Raises InvalidInput for a word that is none of its options, for one that stands twice, and for a
    value; KeyError where there is no --cols.
    """
    known = {option_of(name): (name, option) for name, option in OPTIONS.items()}
    values: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if word not in known:
            raise InvalidInput(f"{shown(word)} is no option of a problem: take it out")
        name, option = known[word]
        if name in values:
            raise InvalidInput(f"{word} stands twice: take one of them out")
        values[name] = option.read(name, "" if option.kind is bool else next(rest, ""))
    return AskedProblem(values.pop("cols"), **values)


# ------------------------------------------------------------------ keywords of a program


def asked_by(keywords: Mapping[str, Any]) -> AskedProblem | None:
    """What the keywords of a call ask for; None where they name no columns.

    They are fields of a `Problem`, and `shape` with `axis` in place of rows, cols and inner; None
    says nothing. Raises InvalidInput for a value, TypeError for a name.
    """
    given = {name: value for name, value in keywords.items() if value is not None}
    unknown = sorted(given.keys() - OPTIONS.keys() - {"shape", "axis"})
    if unknown:
        names = ", ".join([*OPTIONS, "shape", "axis"])
        raise TypeError(f"a problem has no keyword {unknown[0]!r}; it has {names}")
    shape, axis = given.pop("shape", None), given.pop("axis", None)
    said = {name: _value(name, value, OPTIONS[name]) for name, value in given.items()}
    if shape is not None:
        taken = [name for name in ("cols", "rows", "inner") if name in said]
        if taken:
            raise InvalidInput(f"shape says rows, cols and inner; leave {taken[0]} out")
        said |= array_extents(_shape(shape), -1 if axis is None else as_whole("axis", axis))
    elif axis is not None:
        raise InvalidInput(f"axis is {shown(axis)}; it is an axis of an array: give its shape")
    if "cols" not in said:
        return None
    asked = AskedProblem(**said)
    asked.problem()  # what does not go together is said before anything else
    return asked


def _value(name: str, value: Any, option: Option) -> Any:
    """A keyword's value as the field has it. Raises InvalidInput."""
    if option.kind is bool:
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {shown(value)}; it must be True or False")
        return value
    if option.kind is int:
        number = as_whole(name, value)
        check_extent(name, number, option.most)
        return number
    if option.kind is float:
        if not isinstance(value, Real) or isinstance(value, bool) or not isfinite(value):
            raise InvalidInput(f"{name} is {shown(value)}; it must be a finite number")
        return float(value)
    kind: Any = option.kind
    if kind is DType and not isinstance(value, str):
        value = DType.meant_by(value) or value
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is {shown(value)}; it must be one of {', '.join(kind)}")
    return kind.parse(value)


def as_whole(name: str, value: Any) -> int:
    """A keyword's whole number, also NumPy's. Raises InvalidInput."""
    number = whole_of(value)
    if number is None:
        raise InvalidInput(f"{name} is {shown(value)}; it must be a whole number")
    return number


def _shape(shape: Any) -> list[int]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise InvalidInput(f"shape is {shown(shape)}; it must be a sequence such as (8, 3, 224)")
    extents = [as_whole("shape", extent) for extent in shape]
    for extent in extents:
        check_extent("shape", extent, OPTIONS["rows"].most)
    return extents
