"""The arguments of a kernel: the arrays and numbers of a problem that its launches name."""

from dataclasses import dataclass
from enum import StrEnum

from explorer.model.dtype import DType
from explorer.model.problem import Mask, Problem


@dataclass(frozen=True, slots=True)
class Operand:
    """An array in device memory: `count` elements from its address on; lengths are int32."""

    name: str
    dtype: DType | None
    count: int

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self.dtype is None else self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last."""
        return self.count * self.itemsize


class ScalarType(StrEnum):
    """Type of a number that is passed by value."""

    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number that a launch can name, and the type in which it is passed."""

    kind: ScalarType
    value: int | float


def inputs(problem: Problem) -> tuple[Operand, ...]:
    """Return the arrays that a problem's kernel reads.

    `input` is the matrix, or for a backward op the forward's output; `grad` that output's
    gradient, of the same type and place; `lengths` a number of columns a row; `mask` a dense
    (mask_rows, cols) matrix that is added.
    """
    matrix = Operand("input", problem.dtype, problem.input_elements)
    more: list[Operand] = []
    if problem.op.is_backward:
        more.append(Operand("grad", problem.dtype, problem.input_elements))
    if problem.mask is Mask.LENGTHS:
        more.append(Operand("lengths", None, problem.rows))
    if problem.mask is Mask.ADDITIVE:
        more.append(Operand("mask", problem.dtype, problem.mask_rows * problem.cols))
    return (matrix, *more)


def output(problem: Problem) -> Operand:
    """Return the array that a problem's kernel writes; in place it has the input's address."""
    return Operand("output", problem.output_dtype, problem.output_elements)


def scalars(problem: Problem) -> dict[str, Scalar]:
    """Return the numbers that a launch can name."""
    wide = problem.dtype is DType.F64
    return {
        "rows": Scalar(ScalarType.INT64, problem.rows),
        "cols": Scalar(ScalarType.INT32, problem.cols),
        "inner": Scalar(ScalarType.INT64, problem.inner),
        "mask_rows": Scalar(ScalarType.INT64, problem.mask_rows),
        "input_stride": Scalar(ScalarType.INT64, problem.input_stride),
        "output_stride": Scalar(ScalarType.INT64, problem.output_stride),
        "scale": Scalar(
            ScalarType.FLOAT64 if wide else ScalarType.FLOAT32,
            1.0 if problem.scale is None else problem.scale,
        ),
    }
