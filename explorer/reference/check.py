"""How far an output is from the truth, and how far is wrong."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.accuracy import Accuracy
from explorer.dtype import DType
from explorer.reference.number_types import MANTISSA_BITS, NUMPY_DTYPES, SMALLEST_NORMAL
from explorer.reference.truth import Truth, Wide

Array = NDArray[Any]

FLUSHED = 2.0**-126
"""Results of fp32 arithmetic up to this small may be flushed to zero."""


@dataclass(frozen=True, slots=True)
class Check:
    """How an output compares with the truth."""

    wrong: int
    """Elements outside the accuracy's limits; NaN where none is due, or none where one is."""
    error: float
    """Largest error relative to its magnitude, of those that are normal numbers of the dtype."""
    first: tuple[int, int] | None
    """Row and column of the first wrong element."""
    max_ulp: float
    """Largest distance from the truth in spacings of the dtype at the element's magnitude, of the
    elements whose truth is finite."""
    mean_ulp: float
    """Mean of those distances."""


def check(
    output: Array, truth: Truth, dtype: DType, accuracy: Accuracy = Accuracy.DEFAULT
) -> Check:
    """Compare a (rows, cols) output of `dtype` with the truth, element by element."""
    limits = accuracy.limits(dtype)
    values = output.astype(truth.values.dtype)
    both_nan = np.isnan(values) & np.isnan(truth.values)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = values == truth.values  # an infinity has no distance from itself
        off = np.where(same, 0.0, np.abs(values - truth.values))
        close = off <= np.maximum(FLUSHED, limits.relative * truth.magnitude)
        close &= np.isfinite(truth.values)  # nothing is near an infinity but itself
        beside = _neighbours(output, truth.values, dtype, limits.steps)
        right = both_nan | same | close | beside
        normal = truth.magnitude >= SMALLEST_NORMAL[dtype]
        relative = np.where(normal, off / truth.magnitude, 0.0)
    wrong = np.argwhere(~right)
    first = (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None
    finite = relative[np.isfinite(relative)]
    ulps = _ulps(values, truth, dtype)
    mean = float(ulps.mean()) if ulps.size else 0.0
    error = float(finite.max(initial=0.0))
    return Check(len(wrong), error, first, float(ulps.max(initial=0.0)), mean)


def _ulps(values: Wide, truth: Truth, dtype: DType) -> Wide:
    """Errors in ulps of the elements that are finite, and due to be."""
    finite = np.isfinite(truth.values) & np.isfinite(values)
    got, due, magnitude = values[finite], truth.values[finite], truth.magnitude[finite]
    off = np.abs(got - due)
    if dtype is not DType.F64:
        off[(got == 0) & (off <= FLUSHED)] = 0.0  # as fp32 arithmetic may
    return np.asarray(off / _spacing(magnitude, dtype))


def _spacing(magnitude: Wide, dtype: DType) -> Wide:
    """From one number of `dtype` to the next at these magnitudes; of subnormals below normal."""
    _, exponent = np.frexp(np.maximum(magnitude, SMALLEST_NORMAL[dtype]))
    return np.asarray(np.ldexp(np.ones_like(magnitude), exponent - 1 - MANTISSA_BITS[dtype]))


def _neighbours(output: Array, values: Array, dtype: DType, most: int) -> NDArray[np.bool_]:
    """Which 16-bit outputs are the rounded truth, or at most so many numbers beside it."""
    if dtype.itemsize != 2:
        return np.zeros(output.shape, np.bool_)
    with np.errstate(over="ignore"):
        rounded = values.astype(NUMPY_DTYPES[dtype])
    steps = _order(output) - _order(rounded)
    number = np.isfinite(values) & ~np.isnan(output.astype(np.float32))
    return np.asarray((np.abs(steps) <= most) & number)


def _order(numbers: Array) -> NDArray[np.int32]:
    """Numbers of a 16-bit format to integers that are ordered, and as dense, as they are."""
    bits = numbers.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)
