"""A problem as a user names it: rows may be left out, and words of a command line say the rest."""

from dataclasses import dataclass, fields, replace
from math import lcm
from typing import Any

from explorer.dtype import DType
from explorer.errors import InvalidInput
from explorer.op import Mask, Op
from explorer.problem import Problem, default_rows


@dataclass(frozen=True, slots=True)
class AskedProblem:
    """What `Problem` has, with `rows` None for as many as make 256 MiB of traffic."""

    cols: int
    dtype: DType = DType.F32
    rows: int | None = None
    op: Op = Op.SOFTMAX
    out_dtype: DType | None = None
    scale: float | None = None
    mask: Mask = Mask.NONE
    mask_rows: int = 0
    """0 under a causal mask: square, as of attention's scores, where rows are whole squares."""
    inner: int = 1
    input_stride: int = 0
    output_stride: int = 0
    in_place: bool = False

    @classmethod
    def of(cls, problem: Problem) -> "AskedProblem":
        """What a user would ask for to get `problem`."""
        plain = {f.name: getattr(problem, f.name) for f in fields(cls)}
        usual: dict[str, Any] = {
            "out_dtype": None if problem.output_dtype is problem.dtype else problem.output_dtype,
            "input_stride": 0 if problem.input_stride == problem.cols else problem.input_stride,
            "output_stride": 0 if problem.output_stride == problem.cols else problem.output_stride,
        }
        return cls(**{**plain, **usual})

    def problem(self) -> Problem:
        """The problem; raises InvalidInput where what was asked does not go together."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        rows = self._usual_rows() if self.rows is None else self.rows
        square = self.mask is Mask.CAUSAL and not self.mask_rows and rows % self.cols == 0
        return Problem(
            **{**values, "rows": rows, "mask_rows": self.cols if square else self.mask_rows}
        )

    def matches(self, problem: Problem) -> bool:
        """Whether `problem` is what was asked, or one such where rows were left out."""
        if self.cols != problem.cols:
            return False
        try:
            rows = problem.rows if self.rows is None else self.rows
            return replace(self, rows=rows).problem() == problem
        except InvalidInput:
            return False

    @property
    def options(self) -> list[str]:
        """The words of a command line that ask for it; what is as usual is left out."""
        words = ["--cols", str(self.cols)]
        words += [] if self.rows is None else ["--rows", str(self.rows)]
        words += ["--dtype", str(self.dtype)]
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if name == "dtype" or value == getattr(_USUAL, name):
                continue
            words.append(option)
            if not isinstance(value, bool):
                words.append(repr(value) if isinstance(value, float) else str(value))
        return words

    def __str__(self) -> str:
        problem = self.problem()
        if self.rows is not None:
            return str(problem)
        return str(problem).replace(f"{problem.rows}x{self.cols}", f"{self.cols} cols")

    def _usual_rows(self) -> int:
        """Rows for 256 MiB of traffic, whole squares of a mask and whole inner axes."""
        period = self.cols if self.mask is Mask.CAUSAL and not self.mask_rows else self.mask_rows
        step = lcm(max(1, period), self.inner)
        return max(1, default_rows(self.cols, self.dtype) // step) * step


_USUAL = AskedProblem(1)

_OPTIONS = {
    "dtype": "--dtype",
    "op": "--op",
    "out_dtype": "--out-dtype",
    "scale": "--scale",
    "mask": "--mask",
    "mask_rows": "--mask-rows",
    "inner": "--inner",
    "input_stride": "--input-stride",
    "output_stride": "--output-stride",
    "in_place": "--in-place",
}
"""The option that sets each field."""


def asked_from(words: list[str]) -> AskedProblem:
    """Read what `options` writes; words that are none of its options are passed over.

    Raises InvalidInput for a value, and KeyError where there is no --cols.
    """
    names = {option: name for name, option in _OPTIONS.items()}
    names |= {"--cols": "cols", "--rows": "rows"}
    values: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in names:
            values[names[word]] = _read(names[word], following)
    return AskedProblem(values.pop("cols"), **values)


def _read(name: str, text: str) -> Any:
    readers: dict[str, Any] = {
        "dtype": DType.parse,
        "out_dtype": DType.parse,
        "op": Op.parse,
        "mask": Mask.parse,
        "scale": float,
        "in_place": lambda _: True,
    }
    try:
        return readers.get(name, int)(text)
    except ValueError:
        raise InvalidInput(f"{name} is {text!r}; it must be a number") from None
