"""Compare a result with the truth, and decide which elements are wrong."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from explorer.model.accuracy import Accuracy, Tolerance
from explorer.model.element import DType, ElementType
from explorer.ops.truth import Truth, Wide
from explorer.reference.layout import Array
from explorer.reference.truth import SUBNORMAL_SPACINGS

Flags = NDArray[np.bool_]

FLUSHED_BELOW = 2.0**-126
"""fp32 arithmetic may flush a result of a smaller magnitude to zero; fp64 arithmetic never does."""


@dataclass(frozen=True, slots=True)
class Check:
    """How a result compares with the truth."""

    wrong: int
    """Number of elements outside the accuracy's limits, with those that are NaN where the truth is
    not, or the other way round."""
    error: float
    """Largest relative error of the elements whose magnitude is a normal number of the dtype and
    which were not flushed to zero where that is allowed."""
    first: tuple[int, int] | None
    """Row and column of the first wrong element."""
    max_ulp: float
    """Largest distance from the truth in spacings of the dtype at the element's magnitude, of the
    elements whose truth is finite."""
    mean_ulp: float
    """Mean of those distances."""
    deviation: float = 0.0
    """Largest relative error of a wrong element; infinite where rounding cannot explain it: a NaN
    or an infinity is missing or out of place, a result is not the exact 0 that is due, or the row's
    sum is exact."""
    got: float | None = None
    """Value of the first wrong element, an int of whole numbers; None where there is none."""
    due: float | None = None
    """The true value of that element."""

    @classmethod
    def largest(cls, checks: Sequence["Check"]) -> "Check":
        """Return the largest errors of checks without wrong elements, the largest mean included."""
        return cls(
            wrong=0,
            error=max(one.error for one in checks),
            first=None,
            max_ulp=max(one.max_ulp for one in checks),
            mean_ulp=max(one.mean_ulp for one in checks),
        )


@np.errstate(invalid="ignore")  # of NaN that signal
def check(
    output: Array, truth: Truth, dtype: ElementType, accuracy: Accuracy = Accuracy.DEFAULT
) -> Check:
    """Compare a (rows, cols) result of `dtype` with the truth, element by element.

    Whole numbers are right only if they are equal; the rules of others are in SEMANTICS.md.
    `devices/cuda/check.cu` has the same ones for the GPU.
    """
    if not isinstance(dtype, DType):
        return _check_whole(output, truth.values.astype(output.dtype))
    values = output.astype(truth.values.dtype)
    same = (values == truth.values) | (np.isnan(values) & np.isnan(truth.values))
    made = np.isinf(values) & np.isfinite(truth.values)
    same[made] = values[made] == _rounded(truth.values[made], dtype)
    negative = truth.lacks_plus_zero(values)
    same &= ~negative
    finite = int(np.count_nonzero(np.isfinite(truth.values) & np.isfinite(values)))
    # Most rows equal the truth, such as those of one peak: only the others are compared closely.
    rows = np.flatnonzero(~same.all(axis=1))
    if len(rows) < len(values):
        output, values, same, truth = output[rows], values[rows], same[rows], truth.of_rows(rows)
        negative = negative[rows]
    tolerance, exactly = accuracy.tolerance(dtype), truth.values
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        truth = truth.nearest(values)
        off = np.where(same, 0.0, np.abs(values - truth.values))
        flushed = _may_be_flushed(truth, dtype) & (values == 0)
        right = same | flushed | _is_close(output, off, truth, dtype, tolerance)
        right &= ~negative
        counted = (truth.magnitude >= dtype.smallest_normal) & ~flushed
        relative = np.where(counted, off / truth.magnitude, 0.0)
    wrong = np.argwhere(~right)
    first = (int(rows[wrong[0][0]]), int(wrong[0][1])) if len(wrong) else None
    got, due = (float(of[tuple(wrong[0])]) if first else None for of in (values, exactly))
    max_ulp, sum_ulp = _ulps(values, np.where(flushed, 0.0, off), truth, dtype)
    return Check(
        wrong=len(wrong),
        error=float(relative[np.isfinite(relative)].max(initial=0.0)),
        first=first,
        max_ulp=max_ulp,
        mean_ulp=sum_ulp / max(1, finite),
        deviation=float("inf") if negative.any() else _deviation(off, truth, ~right),
        got=got,
        due=due,
    )


def _check_whole(output: Array, due: Array) -> Check:
    """Compare whole numbers, none of which rounding explains."""
    wrong = np.argwhere(output != due)
    if not len(wrong):
        return Check(wrong=0, error=0.0, first=None, max_ulp=0.0, mean_ulp=0.0)
    row, col = map(int, wrong[0])
    return Check(
        wrong=len(wrong),
        error=0.0,
        first=(row, col),
        max_ulp=0.0,
        mean_ulp=0.0,
        deviation=float("inf"),
        got=int(output[row, col]),
        due=int(due[row, col]),
    )


def _is_close(output: Array, off: Wide, truth: Truth, dtype: DType, tolerance: Tolerance) -> Flags:
    """Return which results are right although they are not the truth itself."""
    exact = truth.exact_rows()
    subnormal = SUBNORMAL_SPACINGS * dtype.arithmetic.smallest_subnormal
    relative = np.where(exact, tolerance.exact_relative, tolerance.relative)
    allowed = np.where(truth.magnitude > 0, relative * truth.magnitude + subnormal, 0.0)
    close = off <= allowed
    if dtype.is_half:
        beside = ~exact & _is_beside(output, truth, tolerance.steps, dtype)
        close |= beside & (truth.magnitude > 0)
    values = output.astype(truth.values.dtype)
    at_the_end = np.isinf(values) | (np.abs(truth.values) > dtype.greatest)
    places = np.nonzero(at_the_end | (exact & ~close) if dtype.is_half else at_the_end)
    of_places = values[places], truth.values[places], allowed[places]
    close[places] = _as_rounded(*of_places, close[places], exact[places[0], 0], dtype)
    # Nothing is near an infinity but itself.
    return np.asarray(close & np.isfinite(truth.values))


def _as_rounded(
    values: Wide, due: Wide, allowed: Wide, close: Flags, exact: Flags, dtype: DType
) -> Flags:
    """Return which of some results are right that are at a type's end, or in 16 bits in exact rows.

    There a result is right if a number within `allowed` of the truth rounds to it. A number stands
    for an infinity, or the reverse, only where that is so.
    """
    least, most = (_rounded(due + off, dtype) for off in (-allowed, allowed))
    within = (least <= values) & (values <= most) & (allowed > 0)
    crosses = np.isinf(values) != np.isinf(_rounded(due, dtype))
    decides = crosses | exact if dtype.is_half else crosses
    return np.where(decides, within | (close & ~crosses), close)


def _rounded(values: Wide, dtype: DType) -> Wide:
    """Return numbers rounded to the type: what is beyond its greatest one is an infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(dtype.numpy).astype(values.dtype)


def _may_be_flushed(truth: Truth, dtype: DType) -> Flags:
    """Return which results fp32 arithmetic may flush to zero, with a margin of one rounding."""
    if dtype.in_double:
        return np.zeros(truth.values.shape, np.bool_)
    return np.asarray((np.abs(truth.values) < FLUSHED_BELOW * (1 + 1e-6)) & (truth.magnitude > 0))


def _ulps(values: Wide, off: Wide, truth: Truth, dtype: DType) -> tuple[float, float]:
    """Return the largest error in ulps, and the sum of all, of elements that are rightly finite."""
    finite = np.isfinite(truth.values) & np.isfinite(values)
    inexact = finite & (off > 0)
    if not inexact.any():
        return 0.0, 0.0
    ulps = off[inexact] / _spacing(truth.magnitude[inexact], dtype)
    return float(ulps.max()), float(ulps.sum())


def _spacing(magnitude: Wide, dtype: DType) -> Wide:
    """Return the spacing of `dtype`'s numbers at these magnitudes, at least that of subnormals."""
    more_bits = np.finfo(magnitude.dtype).nmant - dtype.mantissa_bits
    with np.errstate(invalid="ignore"):  # the spacing of an infinite magnitude is no number
        spacing = np.spacing(np.maximum(magnitude, dtype.smallest_normal)) * 2.0**more_bits
    return np.asarray(np.where(np.isinf(magnitude), np.inf, spacing))


def _is_beside(output: Array, truth: Truth, steps: int, dtype: DType) -> Flags:
    """Return which 16-bit outputs are within `steps` representable numbers of the rounded truth."""
    with np.errstate(over="ignore", invalid="ignore"):
        distance = _order(output) - _order(truth.values.astype(dtype.numpy))
    return np.asarray((np.abs(distance) <= steps) & ~np.isnan(output.astype(np.float32)))


def _order(numbers: Array) -> NDArray[np.int32]:
    """Return integers that are ordered as numbers of a 16-bit format: neighbours differ by 1."""
    bits = numbers.view(np.int16).astype(np.int32)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


def _deviation(off: Wide, truth: Truth, wrong: Flags) -> float:
    """Return the largest relative error of the wrong elements (`Check.deviation`)."""
    if not wrong.any():
        return 0.0
    beyond_rounding = wrong & (truth.exact_rows() | (truth.magnitude == 0) | ~np.isfinite(off))
    if beyond_rounding.any():
        return float("inf")
    return float((off[wrong] / truth.magnitude[wrong]).max())
