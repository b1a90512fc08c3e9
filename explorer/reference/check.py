"""How far an output is from the truth, and how far is wrong."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.dtype import DType
from explorer.reference.number_types import NUMPY_DTYPES, SMALLEST_NORMAL
from explorer.reference.truth import Truth

Array = NDArray[Any]

RELATIVE_TOLERANCE_F32 = 4e-6
"""Largest relative error of an f32 output: some 32 roundings of half an ulp each."""

RELATIVE_TOLERANCE_F64 = 1e-13
"""Largest relative error of an f64 output: the truth on a GPU is in float64 itself."""

ULPS_16_BIT = 1
"""A 16-bit output may lie one representable number beside the rounded truth."""

FLUSHED = 2.0**-126
"""Results of fp32 arithmetic up to this small may be flushed to zero."""


@dataclass(frozen=True, slots=True)
class Check:
    """How an output compares with the truth."""

    wrong: int
    """Elements outside the tolerance; NaN where none is due, or none where one is."""
    error: float
    """Largest error relative to its magnitude, of those that are normal numbers of the dtype."""
    first: tuple[int, int] | None
    """Row and column of the first wrong element."""


def check(output: Array, truth: Truth, dtype: DType) -> Check:
    """Compare a (rows, cols) output of `dtype` with the truth, element by element."""
    values = output.astype(truth.values.dtype)
    both_nan = np.isnan(values) & np.isnan(truth.values)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = values == truth.values  # an infinity has no distance from itself
        off = np.where(same, 0.0, np.abs(values - truth.values))
        close = off <= np.maximum(FLUSHED, tolerance(dtype) * truth.magnitude)
        right = both_nan | same | close | _neighbours(output, truth.values, dtype)
        normal = truth.magnitude >= SMALLEST_NORMAL[dtype]
        relative = np.where(normal, off / truth.magnitude, 0.0)
    wrong = np.argwhere(~right)
    first = (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None
    finite = relative[np.isfinite(relative)]
    return Check(len(wrong), float(finite.max(initial=0.0)), first)


def tolerance(dtype: DType) -> float:
    """Largest error of the arithmetic, relative to an element's magnitude."""
    return RELATIVE_TOLERANCE_F64 if dtype is DType.F64 else RELATIVE_TOLERANCE_F32


def _neighbours(output: Array, values: Array, dtype: DType) -> NDArray[np.bool_]:
    """Which 16-bit outputs are the rounded truth or the number beside it."""
    if dtype.itemsize != 2:
        return np.zeros(output.shape, np.bool_)
    with np.errstate(over="ignore"):
        rounded = values.astype(NUMPY_DTYPES[dtype])
    steps = _order(output) - _order(rounded)
    number = ~np.isnan(values) & ~np.isnan(output.astype(np.float32))
    return np.asarray((np.abs(steps) <= ULPS_16_BIT) & number)


def _order(numbers: Array) -> NDArray[np.int32]:
    """Numbers of a 16-bit format to integers that are ordered, and as dense, as they are."""
    bits = numbers.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)
