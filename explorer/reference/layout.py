"""The layout of matrices in memory, and how their types hold numbers."""

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.model.element import DType
from explorer.model.problem import Layout, Operand, Problem, inputs, results
from explorer.ops import Extent

Array = NDArray[Any]
"""A NumPy array of any element type."""

# ------------------------------------------------------------------ layout


ALIGNED_INPUT = 3
"""The distance in elements from input to output for which only the input is aligned: it begins at a
16-byte boundary, and the other two matrices do not, whether elements have 16 or 32 bits."""


class Promise(NamedTuple):
    """The bytes of which the addresses of a kernel's matrices are multiples, and of no more."""

    inputs: int
    output: int


def first_elements(
    problem: Problem, misaligned_by: int, promise: Promise | None = None
) -> dict[str, int]:
    """Return how many elements past the start of its memory each array begins; no entry means 0.

    With a `promise`, aligned matrices are at another odd multiple of it each, and other arrays at
    an odd element; `misaligned_by` says where else some are. For 0 all matrices are aligned.
    Otherwise the input begins one element past an aligned address, the output `misaligned_by`
    elements after that, and the gradient 3 * (misaligned_by - 1) elements after that: the numbers 1
    to 8 put it at all 8 places of a vector of 8 elements. For 1 the gradient is misaligned as the
    input is, and the output is not. For ALIGNED_INPUT these matrices begin one element earlier,
    because a kernel must not conclude from the input alone that all matrices are aligned. Ids, and
    results beside the output, begin at their second element.
    """
    places = _as_promised(problem, promise) if promise else {}
    return places | _misaligned(problem, misaligned_by)


def _as_promised(problem: Problem, promise: Promise) -> dict[str, int]:
    """Return the first element of each array, at an odd multiple of what it is a multiple of."""
    operands = problem.operator.operands if problem.attends else problem.operator.matrices
    units = dict.fromkeys((*operands, "mask"), promise.inputs)
    if problem.fills_rows or problem.attends:
        units["output"] = promise.output
    return {
        operand.name: (2 * number + 1)
        * max(1, units.get(operand.name, 1) // operand.dtype.itemsize)
        for number, operand in enumerate((*inputs(problem), *results(problem)))
    }


def _misaligned(problem: Problem, misaligned_by: int) -> dict[str, int]:
    """Return how many elements past an aligned address each array begins."""
    if not misaligned_by:
        return {}
    first = 0 if misaligned_by == ALIGNED_INPUT else 1
    return {
        **dict.fromkeys(("ids", *problem.operator.on_request), 1),
        "input": first,
        "grad": first + 3 * (misaligned_by - 1),
        "output": first + misaligned_by,
    }


def misalignment(misaligned_by: int) -> str:
    """Return a suffix of a problem's name that says where its matrices begin; "" if aligned."""
    if not misaligned_by:
        return ""
    where = "an aligned input" if misaligned_by == ALIGNED_INPUT else "odd elements"
    return f" at {where}, the output {misaligned_by} beyond the input"


def called(result: str) -> str:
    """Return what a sentence calls a result of this name: `the output`, or by its name."""
    return "the output" if result == "output" else result


def of_result(result: str) -> str:
    """Return a suffix of `elements` that names their result; empty for the output's."""
    return "" if result == "output" else f" of {result}"


def laid_out(problem: Problem, matrix: Array, stride: int, gap: Any = 0) -> Array:
    """Return the elements of a (rows, k) array in the order of memory; gaps hold `gap`."""
    cols = matrix.shape[1]
    if problem.inner > 1:
        grouped = matrix.reshape(-1, problem.inner, cols)
        return np.ascontiguousarray(grouped.transpose(0, 2, 1)).reshape(-1)
    flat = np.full(problem.rows * stride, gap, matrix.dtype)
    flat.reshape(problem.rows, stride)[:, :cols] = matrix
    return flat[: (problem.rows - 1) * stride + cols]


def in_memory(problem: Problem, operand: Operand, array: Array, gap: Any = 0) -> Array:
    """Return an array of rows in the order of memory, where gaps between rows hold `gap`."""
    if problem.layout is Layout.NHD and problem.operator.operands.get(operand.name) is Extent.CACHE:
        cache = array.reshape(-1, problem.key_heads or 1, problem.cols, operand.cols)
        return np.ascontiguousarray(cache.swapaxes(1, 2)).reshape(array.shape)
    if operand.stride == operand.cols and problem.inner == 1:
        return np.ascontiguousarray(array)
    return laid_out(problem, array, operand.stride, gap)


def as_rows(problem: Problem, flat: Array, cols: int, stride: int) -> Array:
    """Return the (rows, cols) array whose elements have the order `flat` in memory."""
    if problem.inner > 1:
        grouped = flat.reshape(-1, cols, problem.inner)
        return np.ascontiguousarray(grouped.transpose(0, 2, 1)).reshape(problem.rows, cols)
    if stride > cols:  # the last row's gap may be missing
        flat = np.resize(flat, problem.rows * stride)
    return flat[: problem.rows * stride].reshape(problem.rows, stride)[:, :cols]


def between_rows(problem: Problem, operand: Operand) -> NDArray[np.bool_]:
    """Return which bytes of an array with a row for each of the problem's lie between its rows."""
    inside = np.ones((problem.rows, operand.cols), np.bool_)
    return np.repeat(~in_memory(problem, operand, inside, gap=False), operand.dtype.itemsize)


def as_held(values: NDArray[np.float64], dtype: DType) -> NDArray[np.float64]:
    """Return float64 numbers rounded to a narrow type; those of other types are unchanged."""
    return values.astype(dtype.numpy).astype(np.float64) if dtype.is_narrow else values


def saturated(values: Array, dtype: Any) -> Array:
    """Return float64 numbers converted to a type; finite ones that overflow become its largest."""
    largest = float(ml_dtypes.finfo(dtype).max)
    finite = np.clip(values, -largest, largest)
    return np.asarray(np.where(np.isinf(values), values, finite).astype(dtype))
