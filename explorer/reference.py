"""The truth in float64, inputs that can tell right from wrong, and how far off is wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.problem import DType

NUMPY_DTYPES: dict[DType, Any] = {
    DType.F32: np.dtype(np.float32),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
}
"""NumPy's dtype of each element type."""

RELATIVE_TOLERANCE_F32 = 4e-6
"""Largest relative error of an f32 output: some 32 roundings of half an ulp each."""

ULPS_16_BIT = 1
"""A 16-bit output may lie one representable number beside the rounded truth."""

SMALLEST_NORMAL = {DType.F32: 2.0**-126, DType.F16: 2.0**-14, DType.BF16: 2.0**-126}
"""Smallest normal number of each element type; errors are relative to nothing smaller."""

FLUSHED = 2.0**-126
"""Results of fp32 arithmetic up to this small may be flushed to zero."""

Array = NDArray[Any]


def softmax(x: Array) -> NDArray[np.float64]:
    """Softmax of each row of a (rows, cols) array, in float64.

    A -inf gives 0; a row of -inf only, or with a NaN or a +inf, gives NaN throughout, as in
    PyTorch.
    """
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        exponentials = np.exp(wide - wide.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True), np.float64)


@dataclass(frozen=True, slots=True)
class Check:
    """How an output compares with the truth."""

    wrong: int
    """Elements outside the tolerance; NaN where none is due, or none where one is."""
    error: float
    """Largest relative error over the elements whose truth is a normal number of the dtype."""
    first: tuple[int, int] | None
    """Row and column of the first wrong element."""


def check(output: Array, truth: NDArray[np.float64], dtype: DType) -> Check:
    """Compare an output of `dtype` with the float64 truth, element by element."""
    values = output.astype(np.float64)
    both_nan = np.isnan(values) & np.isnan(truth)
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.abs(values - truth)
        right = both_nan | (off <= FLUSHED) | _within(output, truth, off, dtype)
        relative = np.where(truth >= SMALLEST_NORMAL[dtype], off / truth, 0.0)
    wrong = np.argwhere(~right)
    first = (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None
    finite = relative[np.isfinite(relative)]
    return Check(len(wrong), float(finite.max(initial=0.0)), first)


def _within(output: Array, truth: Array, off: Array, dtype: DType) -> NDArray[np.bool_]:
    if dtype is DType.F32:
        return np.asarray(off <= RELATIVE_TOLERANCE_F32 * truth)
    rounded = truth.astype(NUMPY_DTYPES[dtype])
    # Non-negative numbers of one 16-bit format are ordered as their bits are.
    steps = output.view(np.int16).astype(np.int32) - rounded.view(np.int16).astype(np.int32)
    return (np.abs(steps) <= ULPS_16_BIT) & ~np.isnan(truth) & ~np.isnan(output.astype(np.float32))


_Pattern = Callable[[np.random.Generator, int], Array]

_PATTERNS: list[_Pattern] = []
"""One row each; what it would expose is said beside it."""


def _pattern(make: _Pattern) -> _Pattern:
    _PATTERNS.append(make)
    return make


@_pattern
def _noise(rng: np.random.Generator, cols: int) -> Array:
    return rng.standard_normal(cols)


@_pattern
def _outliers(rng: np.random.Generator, cols: int) -> Array:
    """Uniform noise makes all outputs nearly equal; outliers make maxima matter."""
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols, max(1, cols // 64))] += rng.uniform(8, 20)
    return row


@_pattern
def _offset_up(rng: np.random.Generator, cols: int) -> Array:
    """Overflows without the maximum subtracted; loses bits where it is subtracted too late."""
    return rng.standard_normal(cols) + 1e4


@_pattern
def _offset_down(rng: np.random.Generator, cols: int) -> Array:
    """All far below 0: wrong where 0 serves as the identity of max."""
    return rng.standard_normal(cols) - 1e4


@_pattern
def _all_equal(rng: np.random.Generator, cols: int) -> Array:
    return np.full(cols, rng.uniform(-50, 50))


@_pattern
def _ascending(rng: np.random.Generator, cols: int) -> Array:
    """The maximum moves at every element, and is the last: the tail's."""
    return np.linspace(-12, 12, cols) if cols > 1 else np.zeros(1)


@_pattern
def _descending(rng: np.random.Generator, cols: int) -> Array:
    """The maximum is the first element and never moves."""
    return np.linspace(12, -12, cols) if cols > 1 else np.zeros(1)


@_pattern
def _some_masked(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.3] = -np.inf
    return row


@_pattern
def _one_left(rng: np.random.Generator, cols: int) -> Array:
    """One finite element: every thread's share but one is -inf only."""
    row = np.full(cols, -np.inf)
    row[rng.integers(0, cols)] = 3.0
    return row


@_pattern
def _start_masked(rng: np.random.Generator, cols: int) -> Array:
    """Online sums begin with -inf: -inf - -inf must not be computed."""
    row = rng.standard_normal(cols)
    row[: cols // 2] = -np.inf
    return row


@_pattern
def _end_masked(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[(cols + 1) // 2 :] = -np.inf
    return row


@_pattern
def _all_masked(rng: np.random.Generator, cols: int) -> Array:
    return np.full(cols, -np.inf)


@_pattern
def _plus_infinity(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.inf
    return row


@_pattern
def _not_a_number(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.nan
    return row


@_pattern
def _last_not_a_number(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[-1] = np.nan
    return row


@_pattern
def _huge_and_equal(rng: np.random.Generator, cols: int) -> Array:
    """As under a mask of -1e10: x - maximum is 0 throughout, and must come out as 0."""
    return np.full(cols, rng.choice([-1e10, 1e10, -3e38, 3e38]))


@_pattern
def _masked_by_a_number(rng: np.random.Generator, cols: int) -> Array:
    """Masks are often a large finite number instead of -inf."""
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.5] = -3e38
    return row


PATTERN_COUNT = len(_PATTERNS)
"""Rows after which the patterns repeat, with other random numbers."""


def verification_input(rows: int, cols: int, dtype: DType, seed: int = 0) -> Array:
    """A (rows, cols) matrix of `dtype` whose rows run through all patterns in turn.

    Exponents stay within 32 of the row's maximum (or are -inf), where fp32 can keep the
    tolerance: e^d carries the rounding of d, half an ulp of 32 being 2e-6.
    """
    rng = np.random.default_rng([seed, rows, cols])
    matrix = np.empty((rows, cols), NUMPY_DTYPES[dtype])
    largest = float(ml_dtypes.finfo(matrix.dtype).max)
    for row in range(rows):
        values = _PATTERNS[row % PATTERN_COUNT](rng, cols)
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
