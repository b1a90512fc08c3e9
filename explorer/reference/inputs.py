"""Inputs of verification, for any problem; rows of a matrix as arrays of (rows, cols)."""

from dataclasses import replace
from functools import lru_cache
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.dtype import DType
from explorer.op import Mask
from explorer.problem import Problem
from explorer.reference.number_types import NUMPY_DTYPES
from explorer.reference.patterns import PATTERN_COUNT, pattern_of
from explorer.reference.truth import truth_of

Array = NDArray[Any]

PATTERN_COLS = 2**20
"""Wider rows repeat their pattern, which the host could not hold otherwise."""


def verification_input(rows: int, cols: int, dtype: DType, seed: int = 0) -> Array:
    """A (rows, cols) matrix of `dtype` whose rows run through all patterns in turn.

    Where they are fewer than the patterns, the most telling of them come first.

    Exponents stay within 32 of the row's maximum (or are -inf), where fp32 can keep the
    tolerance: e^d carries the rounding of d, half an ulp of 32 being 2e-6.
    """
    rng = np.random.default_rng([seed, rows, cols])
    matrix = np.empty((rows, cols), NUMPY_DTYPES[dtype])
    largest = float(ml_dtypes.finfo(matrix.dtype).max)
    for row in range(rows):
        values = pattern_of(row, rows)(rng, cols)
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


def rows_that_repeat(problem: Problem, rows: int, rows_per_block: int) -> int:
    """`rows`, or some more: a mask that repeats is to do so in them, and a block to be in part."""
    if not 0 < problem.mask_rows < problem.rows:
        return rows
    while _is_prime(rows) or (rows_per_block > 1 and rows % rows_per_block == 0):
        rows += 1
    return rows


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))


def verification_problem(problem: Problem, rows_per_block: int, together: int = 1) -> Problem:
    """A problem of few rows to verify a kernel with: whole blocks, and one that is not.

    With an inner axis: some slices of it, which begin within blocks. `together` neighbouring rows
    are read at once: they divide the axis, but nothing more than that does.
    """
    if problem.inner == 1:
        rows = verification_rows(problem.cols, rows_per_block)
        return problem.resized(rows_that_repeat(problem, rows, rows_per_block))
    block = rows_per_block // together
    slices = 3 if block % 3 else 5
    groups = max(3, block // slices + 1, -(-PATTERN_COUNT // (slices * together))) | 1
    while block > 1 and slices * groups % block == 0:
        groups += 2
    inner = groups * together
    return replace(problem, rows=slices * inner, inner=inner)


def normal_input(rows: int, cols: int, dtype: DType, seed: int = 0) -> Array:
    """A (rows, cols) matrix of `dtype` of normal deviates: what a profile is made with."""
    rng = np.random.default_rng([seed, rows, cols])
    return rng.standard_normal((rows, cols), np.float32).astype(NUMPY_DTYPES[dtype])


def verification_inputs(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """Every array that the problem's kernel reads, by the names of `operands.inputs`.

    Matrices are (rows, cols), whatever their layout in memory. A backward op gets the forward's
    output on the patterns, as the forward would have rounded it, and a gradient of noise.
    """
    rows, cols = min(problem.rows, base_rows(problem.cols)), min(problem.cols, PATTERN_COLS)
    patterns = _patterns(rows, cols, problem.dtype, seed)
    if cols < problem.cols:
        patterns = np.stack([np.resize(row, problem.cols) for row in patterns])
    if rows < problem.rows:
        patterns = patterns[np.arange(problem.rows) % rows]
    if problem.scale is not None and abs(problem.scale) > 1 and not problem.op.is_backward:
        # Exponents are to stay where fp32 can keep the tolerance once they are scaled, too.
        smaller = patterns.astype(np.float64) / abs(problem.scale)
        patterns = smaller.astype(patterns.dtype)
    return _with_the_rest(problem, patterns, seed)


@lru_cache(maxsize=2)
def _patterns(rows: int, cols: int, dtype: DType, seed: int) -> Array:
    """Kernels with other rows a block ask for the same once more."""
    return verification_input(rows, cols, dtype, seed)


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
