"""Inputs of verification, for any problem; rows of a matrix as arrays of (rows, cols)."""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.dtype import DType
from explorer.op import Mask
from explorer.problem import Problem
from explorer.reference.number_types import NUMPY_DTYPES
from explorer.reference.patterns import PATTERN_COUNT, PATTERNS
from explorer.reference.truth import truth_of

Array = NDArray[Any]


def verification_input(rows: int, cols: int, dtype: DType, seed: int = 0) -> Array:
    """A (rows, cols) matrix of `dtype` whose rows run through all patterns in turn.

    Exponents stay within 32 of the row's maximum (or are -inf), where fp32 can keep the
    tolerance: e^d carries the rounding of d, half an ulp of 32 being 2e-6.
    """
    rng = np.random.default_rng([seed, rows, cols])
    matrix = np.empty((rows, cols), NUMPY_DTYPES[dtype])
    largest = float(ml_dtypes.finfo(matrix.dtype).max)
    for row in range(rows):
        values = PATTERNS[row % PATTERN_COUNT](rng, cols)
        finite = np.clip(values, -largest, largest)  # large numbers stay finite in fp16
        matrix[row] = np.where(np.isinf(values), values, finite).astype(matrix.dtype)
    return matrix


def base_rows(cols: int) -> int:
    """Rows of the verification input: every pattern four times, once where rows are wide.

    An odd number and some more than the patterns: blocks of several rows do not divide it.
    """
    rows = min(4 * PATTERN_COUNT, max(PATTERN_COUNT, 2**21 // cols))
    return rows + 1 + rows % 2


def verification_rows(cols: int, rows_per_block: int) -> int:
    """Rows to verify a kernel with: at least one whole block, and one that is not."""
    blocks = 2 if cols <= 4096 else 1
    return max(base_rows(cols), blocks * rows_per_block + 1)


def normal_input(rows: int, cols: int, dtype: DType, seed: int = 0) -> Array:
    """A (rows, cols) matrix of `dtype` of normal deviates: what a profile is made with."""
    rng = np.random.default_rng([seed, rows, cols])
    return rng.standard_normal((rows, cols), np.float32).astype(NUMPY_DTYPES[dtype])


def verification_inputs(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """Every array that the problem's kernel reads, by the names of `operands.inputs`.

    Matrices are (rows, cols), whatever their layout in memory. A backward op gets the forward's
    output on the patterns, as the forward would have rounded it, and a gradient of noise.
    """
    matrix = verification_input(problem.rows, problem.cols, problem.dtype, seed)
    return _with_the_rest(problem, matrix, seed)


def normal_inputs(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """As `verification_inputs`, of normal deviates."""
    matrix = normal_input(problem.rows, problem.cols, problem.dtype, seed)
    return _with_the_rest(problem, matrix, seed)


def _with_the_rest(problem: Problem, matrix: Array, seed: int) -> dict[str, Array]:
    """The arrays that go with a forward op's input."""
    rng = np.random.default_rng([seed, problem.rows, problem.cols, 1])
    arrays = {"input": matrix}
    if problem.op.is_backward:
        forward = Problem(problem.rows, problem.cols, problem.dtype, problem.op.forward)
        arrays["input"] = truth_of(forward, arrays).values.astype(matrix.dtype)
        arrays["grad"] = rng.standard_normal(matrix.shape).astype(matrix.dtype)
    if problem.mask is Mask.LENGTHS:
        lengths = rng.integers(0, problem.cols + 1, problem.rows, np.int32)
        arrays["lengths"] = lengths
        lengths[: len(lengths) // 4] = problem.cols
        lengths[-1:] = 0
    if problem.mask is Mask.ADDITIVE:
        added = rng.standard_normal((problem.mask_rows, problem.cols))
        added[rng.random(added.shape) < 0.2] = -np.inf
        arrays["mask"] = added.astype(matrix.dtype)
    return arrays
