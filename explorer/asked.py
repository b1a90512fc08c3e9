"""A problem as a user names it: rows may be left out, and words of a command line say the rest."""

from math import lcm
from typing import Any

from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.plain_data import shown
from explorer.problem import OPTIONS, USUAL, Mask, Problem, default_rows


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
