"""The problem that a call on an array is: its rows, columns and strides."""

import itertools
import math
from dataclasses import dataclass

from explorer.dtype import DType
from explorer.problem import Mask, Op, Problem

Shape = tuple[int, ...]

DTYPES = {
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
}
"""Types of elements that kernels have, by the names that array libraries give them."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """An array as rows that an op runs over: (rows / inner, cols, inner), or rows of a stride."""

    rows: int
    cols: int
    inner: int
    stride: int
    """Elements from the start of a row to the next; `cols` where the array is dense."""


def positive(dim: int, rank: int) -> int:
    """Return an axis counted from the first; an array of no axes counts as of one element.

    Raises IndexError for one that the array has not.
    """
    axes = max(1, rank)
    if not -axes <= dim < axes:
        raise IndexError(f"dim is {dim}; an array of {rank} axes has {-axes} to {axes - 1}")
    return dim % axes


def matrix_of(shape: Shape, strides: Shape, dim: int) -> Matrix | None:
    """Return how a kernel sees an array whose `dim` it runs over, counted from the first axis.

    `strides` are in elements. None where no kernel can read the array as it lies: a dense copy of
    it always can be read. Axes of one element may have any stride.
    """
    dense = dense_matrix(shape, dim)
    if _is_dense(shape, strides):
        return dense
    outer, cols = math.prod(shape[:dim]), dense.cols
    if dense.inner > 1 or (cols > 1 and strides[dim] != 1):
        return None
    leading = [(n, s) for n, s in zip(shape[:dim], strides, strict=False) if n > 1]
    for (_, step), (count, below) in itertools.pairwise(leading):
        if step != count * below:
            return None
    stride = leading[-1][1] if leading else cols
    return Matrix(outer, cols, 1, stride) if stride >= cols else None


def dense_matrix(shape: Shape, dim: int) -> Matrix:
    """Return how a kernel sees a dense array of a shape."""
    if not shape:
        return Matrix(1, 1, 1, 1)
    outer, cols, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    return Matrix(outer * inner, cols, inner, cols)


def _is_dense(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count > 1:
            if stride != expected:
                return False
            expected *= count
    return True


def is_converted(dtype: DType, target: DType, mask: DType | None) -> bool:
    """Return whether an input is converted to the output's type before a launch.

    Kernels compute in fp32, and round the output. What a call says is to convert the input first:
    the same where the output's type holds all numbers of the input's. A mask counts in the output's
    type, and kernels take it in the input's: `mask` is its type, None for one that no kernel has.
    """
    if target is dtype:
        return False
    is_exact = target is DType.F32 and dtype.itemsize < target.itemsize
    return not is_exact or mask is not dtype


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Return whether an array of a shape can be repeated to be of another one."""
    last = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(
        n in (1, most) for n, most in zip(shape, last, strict=True)
    )


def mask_rows_of(shape: Shape, mask: Shape) -> int | None:
    """Return after how many rows of an array an additive mask repeats; None where it does not.

    The mask's axes are the array's last ones, as in broadcasting: of those, leading ones may have
    one element, and the others must be the array's own.
    """
    if len(mask) > len(shape) or not mask or mask[-1] != shape[-1]:
        return None
    own = list(mask)
    while len(own) > 1 and own[0] == 1:
        own.pop(0)
    return math.prod(own[:-1]) if tuple(own) == shape[len(shape) - len(own) :] else None


def problem_of(
    op: Op,
    dtype: DType,
    source: Matrix,
    *,
    out_dtype: DType | None = None,
    output: Matrix | None = None,
    scaled: bool = False,
    mask: Mask = Mask.NONE,
    mask_rows: int = 0,
    in_place: bool = False,
) -> Problem:
    """Return the problem of a call; the output is dense where nothing else is said.

    A scale is passed at run time: that of the problem is 1. Raises InvalidInput for what no kernel
    does, such as a mask over a middle axis.
    """
    if output is None:
        output = source if in_place else Matrix(source.rows, source.cols, source.inner, source.cols)
    return Problem(
        rows=source.rows,
        cols=source.cols,
        dtype=dtype,
        op=op,
        out_dtype=out_dtype,
        scale=1.0 if scaled else None,
        mask=mask,
        mask_rows=mask_rows,
        inner=source.inner,
        input_stride=source.stride,
        output_stride=output.stride,
        in_place=in_place,
    )
