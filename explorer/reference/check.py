"""How far an output is from the truth, and how far is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.accuracy import Accuracy, Limits
from explorer.model.dtype import DType
from explorer.reference.layout import NUMPY_DTYPES
from explorer.reference.truth import Truth, Wide

Array = NDArray[Any]
Flags = NDArray[np.bool_]

FLUSHED_BELOW = 2.0**-126
"""fp32 arithmetic may flush a result of a smaller magnitude to zero; fp64 arithmetic never does."""

SUBNORMAL_ERROR = {DType.F32: 2.0**-145, DType.F64: 2.0**-1070}
"""Absolute error that is right where a result is not a normal number: 16 spacings of subnormals.

Few of them are lost where factors are rounded that are subnormal themselves.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """How an output compares with the truth."""

    wrong: int
    """Elements outside the accuracy's limits; NaN where none is due, or none where one is."""
    error: float
    """Largest error relative to its magnitude, of those that are normal numbers of the dtype and
    were not flushed to zero where they may be."""
    first: tuple[int, int] | None
    """Row and column of the first wrong element."""
    max_ulp: float
    """Largest distance from the truth in spacings of the dtype at the element's magnitude, of the
    elements whose truth is finite."""
    mean_ulp: float
    """Mean of those distances."""
    deviation: float = 0.0
    """Largest error of a wrong element relative to its magnitude; infinite where it is no matter of
    rounding: a NaN or an infinity missing or out of place, something where 0 is due, or a wrong
    element in a row whose sum is exact."""
    got: float | None = None
    """The first wrong element; None where there is none."""
    due: float | None = None
    """What it should be."""

    @classmethod
    def largest(cls, checks: Sequence["Check"]) -> "Check":
        """The largest errors of checks that found nothing wrong; of averages the largest, too."""
        return cls(
            wrong=0,
            error=max(one.error for one in checks),
            first=None,
            max_ulp=max(one.max_ulp for one in checks),
            mean_ulp=max(one.mean_ulp for one in checks),
        )


def check(
    output: Array, truth: Truth, dtype: DType, accuracy: Accuracy = Accuracy.DEFAULT
) -> Check:
    """Compare a (rows, cols) output of `dtype` with the truth, element by element.

    The rules are in SEMANTICS.md. `devices/cuda/check.cu` has the same ones for the GPU.
    """
    values = output.astype(truth.values.dtype)
    same = (values == truth.values) | (np.isnan(values) & np.isnan(truth.values))
    finite = int(np.count_nonzero(np.isfinite(truth.values) & np.isfinite(values)))
    # Most rows are the truth itself, such as those of one peak: the others are looked at closely.
    rows = np.flatnonzero(~same.all(axis=1))
    if len(rows) < len(values):
        output, values, same, truth = output[rows], values[rows], same[rows], truth.of_rows(rows)
    limits = accuracy.limits(dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        off = np.where(same, 0.0, truth.error_of(values))
        flushed = _may_be_flushed(truth, dtype) & (values == 0)
        right = same | flushed | _is_close(output, off, truth, dtype, limits)
        counted = (truth.magnitude >= dtype.smallest_normal) & ~flushed
        relative = np.where(counted, off / truth.magnitude, 0.0)
    wrong = np.argwhere(~right)
    first = (int(rows[wrong[0][0]]), int(wrong[0][1])) if len(wrong) else None
    got, due = (float(of[tuple(wrong[0])]) if first else None for of in (values, truth.values))
    max_ulp, sum_ulp = _ulps(values, np.where(flushed, 0.0, off), truth, dtype)
    return Check(
        wrong=len(wrong),
        error=float(relative[np.isfinite(relative)].max(initial=0.0)),
        first=first,
        max_ulp=max_ulp,
        mean_ulp=sum_ulp / max(1, finite),
        deviation=_deviation(off, truth, ~right),
        got=got,
        due=due,
    )


def _is_close(output: Array, off: Wide, truth: Truth, dtype: DType, limits: Limits) -> Flags:
    """Return which finite numbers are right although they are not the truth itself."""
    exact = truth.exact_rows()
    subnormal = SUBNORMAL_ERROR[dtype.arithmetic]
    relative = np.where(exact, limits.exact_relative, limits.relative)
    allowed = np.where(truth.magnitude > 0, relative * truth.magnitude + subnormal, 0.0)
    close = off <= allowed
    if dtype.itemsize == 2:
        beside = np.where(
            exact,
            _is_rounded_within(output, truth, allowed, dtype),
            _is_beside(output, truth, limits.steps, dtype),
        )
        close |= beside & (truth.magnitude > 0)
    # Nothing is near an infinity but itself.
    return np.asarray(close & np.isfinite(truth.values))


def _may_be_flushed(truth: Truth, dtype: DType) -> Flags:
    """Return which results fp32 arithmetic may flush to zero; a rounding less is as good."""
    if dtype is DType.F64:
        return np.zeros(truth.values.shape, np.bool_)
    return np.asarray((np.abs(truth.values) < FLUSHED_BELOW * (1 + 1e-6)) & (truth.magnitude > 0))


def _ulps(values: Wide, off: Wide, truth: Truth, dtype: DType) -> tuple[float, float]:
    """The largest error in ulps of the elements that are finite, and due to be, and their sum."""
    finite = np.isfinite(truth.values) & np.isfinite(values)
    inexact = finite & (off > 0)
    if not inexact.any():
        return 0.0, 0.0
    ulps = off[inexact] / _spacing(truth.magnitude[inexact], dtype)
    return float(ulps.max()), float(ulps.sum())


def _spacing(magnitude: Wide, dtype: DType) -> Wide:
    """From one number of `dtype` to the next at these magnitudes; of subnormals below normal."""
    more_bits = np.finfo(magnitude.dtype).nmant - dtype.mantissa_bits
    with np.errstate(
        invalid="ignore"
    ):  # of an infinite magnitude, beside which nothing is an error
        spacing = np.spacing(np.maximum(magnitude, dtype.smallest_normal)) * 2.0**more_bits
    return np.asarray(np.where(np.isinf(magnitude), np.inf, spacing))


def _is_beside(output: Array, truth: Truth, steps: int, dtype: DType) -> Flags:
    """Return which 16-bit outputs are the rounded truth, or at most `steps` numbers beside it."""
    with np.errstate(over="ignore", invalid="ignore"):
        distance = _order(output) - _order(truth.values.astype(NUMPY_DTYPES[dtype]))
    return np.asarray((np.abs(distance) <= steps) & ~np.isnan(output.astype(np.float32)))


def _is_rounded_within(output: Array, truth: Truth, allowed: Wide, dtype: DType) -> Flags:
    """Return which 16-bit outputs some number within `allowed` of the truth rounds to."""
    with np.errstate(over="ignore", invalid="ignore"):
        least = _order((truth.values - allowed).astype(NUMPY_DTYPES[dtype]))
        most = _order((truth.values + allowed).astype(NUMPY_DTYPES[dtype]))
    order = _order(output)
    return np.asarray((least <= order) & (order <= most) & ~np.isnan(output.astype(np.float32)))


def _order(numbers: Array) -> NDArray[np.int32]:
    """Numbers of a 16-bit format to integers that are ordered, and as dense, as they are."""
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
