"""The truth: each op in float64, and in extended precision for float64 problems.

An element that counts is scale * x + mask, rounded once to the precision of the arithmetic (fp32,
or fp64 for `f64`), as if it had been computed beforehand; x = -inf is a mask by itself and stays
-inf whatever the scale. What a causal mask or a row's length hides is -inf too.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.element import DType
from explorer.model.problem import Mask, Op, Problem
from explorer.reference.layout import Array

# ------------------------------------------------------------------ sums that lose nothing


def exact_sum(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the float64 sum and its rounding error (Knuth's TwoSum)."""
    total = first + second
    virtual = total - first
    error = (first - (total - virtual)) + (second - virtual)
    return total, error


def round_to_odd(total: Array, error: Array) -> Array:
    """Return the float64 next to total + error whose last bit is 1, or an exact sum itself.

    A second rounding does not disturb it: Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums: proved algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008.
    """
    bits = np.asarray(total).view(np.int64)
    # The error of an infinite or undefined sum is no number.
    inexact = np.abs(error) > 0
    smaller = (error < 0) == (total > 0)
    odd = (bits - smaller) | 1
    return np.where(inexact, odd, bits).view(np.float64)


# ------------------------------------------------------------------ multiply-adds with one rounding


Doubles = NDArray[np.float64]


def fused_multiply_add_32(x: Doubles, factor: float, added: Doubles) -> NDArray[np.float32]:
    """Return factor * x + added of numbers that float32 holds, rounded once to float32.

    The product is exact in float64. The sum is rounded to odd there, so that its rounding to
    float32 is the only one that shows.
    """
    return round_to_odd(*exact_sum(x * factor, added)).astype(np.float32)


def fused_multiply_add(x: Doubles, factor: float, added: Doubles) -> Doubles:
    """Return factor * x + added, rounded once to float64.

    Extended precision decides, except for the few sums so near the middle of two numbers that its
    own rounding could have moved them across it. Those are computed as fractions.
    """
    product: NDArray[Any] = x.astype(np.longdouble) * np.longdouble(factor)
    total = product + added
    result = np.asarray(total.astype(np.float64))
    doubt = 4 * np.finfo(np.longdouble).eps * (np.abs(product) + np.abs(added))
    unsure = np.zeros(result.shape, np.bool_)
    for direction in (-np.inf, np.inf):
        beside = _beyond_the_type(np.nextafter(result, direction))
        unsure |= np.abs(total - (_beyond_the_type(result) + beside) / 2) <= doubt
    for place in zip(*np.nonzero(unsure & np.isfinite(total)), strict=True):
        exact = Fraction(float(x[place])) * Fraction(factor) + Fraction(float(added[place]))
        result[place] = _nearest(exact)
    return result


def _beyond_the_type(numbers: Doubles) -> NDArray[Any]:
    """Return `numbers` as long doubles, and for an infinity the first number that float64 lacks.

    A sum overflows from the middle between that number and the greatest finite one on.
    """
    wide = numbers.astype(np.longdouble)
    first_beyond = np.ldexp(np.longdouble(1), np.finfo(np.float64).maxexp)
    return np.where(np.isinf(wide), np.copysign(first_beyond, wide), wide)


def _nearest(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:  # Python raises where IEEE 754 rounds to infinity
        return inf if exact > 0 else -inf


# ------------------------------------------------------------------ truth


Wide = NDArray[np.floating[Any]]
"""Arrays of float64, or of extended precision."""


NEAR_GAP = 32.0
"""Distance below a row's maximum up to which an exponential's error is relative to its value alone.

fp32 rounds the argument of e^(x - max) by up to half a spacing of the numbers at x - max, which is
2e-6 of the result just above this distance and doubles at each power of two from there on.
"""

GONE_GAP = 1000.0
"""Distance from the maximum beyond which an exponential is 0 in every type."""

CACHED_ELEMENTS = 2**16
"""Elements of the rows that are computed together, so that they stay in the CPU's cache."""

EXACT_TERMS = 2**24
"""Most terms of 1 that fp32 adds up without rounding, in whatever order."""


def underflow(dtype: DType) -> float:
    """Return the absolute error of an exponential that is no normal number of the arithmetic.

    fp32 may flush it to 0, and a result rounded to 16 bits may be off by as much again. fp64
    flushes nothing, so the error is some spacings of subnormal numbers.
    """
    arithmetic = dtype.arithmetic
    return 16 * arithmetic.smallest_subnormal if dtype.in_double else 2 * arithmetic.smallest_normal


@dataclass(frozen=True, slots=True)
class Truth:
    """The values of an op, of shape (rows, cols), and the magnitude that errors are relative to.

    `magnitude` has the shape of `values`. It is 0 only where the output must be exactly 0. Where
    differences cancel, it is the magnitude of the subtracted terms. The magnitude of an exponential
    doubles at each power of two that its distance from the row's maximum passes, from `NEAR_GAP`
    on.
    """

    values: Wide
    magnitude: Wide
    exact: NDArray[np.bool_] | None = None
    """For each row, whether its terms are all 0 or 1, of shape (rows,); None if no row is so.

    fp32 adds such terms up without rounding. A check therefore sees a single lost term among many.
    """
    underflow: Wide | None = None
    """For each row, of shape (rows,), the absolute error (`underflow`) of exponentials that are no
    normal numbers and are then multiplied; None where none is multiplied."""

    def exact_rows(self) -> NDArray[np.bool_]:
        """Return `exact` of shape (rows, 1)."""
        if self.exact is None:
            return np.zeros((len(self.values), 1), np.bool_)
        return self.exact[:, None]

    def error_of(self, values: Wide) -> Wide:
        """Return how far numbers of shape (rows, cols) are from the truth, beyond `underflow`."""
        off = np.abs(values - self.values)
        if self.underflow is None:
            return off
        return np.asarray(np.maximum(off - self.underflow[:, None], 0.0))

    def of_rows(self, rows: NDArray[np.int64] | slice) -> "Truth":
        """Return the truth of some rows alone, by their numbers."""
        exact = None if self.exact is None else self.exact[rows]
        underflow = None if self.underflow is None else self.underflow[rows]
        return Truth(self.values[rows], self.magnitude[rows], exact, underflow)


def softmax(x: Array) -> NDArray[np.float64]:
    """Softmax of each row of a (rows, cols) array, in float64.

    A -inf gives 0; a row of -inf only, or with a NaN or a +inf, gives NaN throughout, as in
    PyTorch.
    """
    return np.asarray(_softmax(x.astype(np.float64))[0], np.float64)


def truth_of(problem: Problem, arrays: dict[str, Array]) -> Truth:
    """Return the truth for inputs named as in `operands.inputs`, matrices as (rows, cols)."""
    wide = _wide(problem)
    if problem.op.is_backward:
        factor = 1.0 if problem.scale is None else _rounded(np.float64(problem.scale), problem)
        y: Wide = arrays["input"].astype(wide)
        grad: Wide = arrays["grad"].astype(wide)
        lost = underflow(problem.dtype)
        return _backward(problem.op, y, grad, wide(factor), wide(lost))
    x = counted(problem, arrays)
    exact = _all_equal(x, 0.0, -np.inf) & (x.max(axis=1, initial=-np.inf) == 0.0)
    if problem.op is Op.LOG_SOFTMAX:
        values = _log_softmax(x)
        return Truth(values, 1.0 + np.abs(values), exact)
    values, magnitude = _softmax(x)
    return Truth(values, magnitude, exact)


def _growth(shifted: Wide) -> Wide:
    """Return the factor by which each exponential's error may grow with its distance from the max.

    `shifted` is the row minus its maximum: infinite or NaN where either of them is.
    """
    growth = np.ones_like(shifted)
    with np.errstate(invalid="ignore"):
        far = (shifted < -NEAR_GAP) & (shifted > -GONE_GAP)
    some = np.flatnonzero(far.any(axis=1))
    _, exponent = np.frexp(shifted[some] / NEAR_GAP)
    growth[some] = np.where(far[some], np.ldexp(1.0, np.maximum(exponent, 0)), 1.0)
    return growth


def _all_equal(x: Wide, one: float, other: float) -> NDArray[np.bool_]:
    """Return which rows consist of two numbers only, and are short enough for exact sums."""
    if x.shape[1] > EXACT_TERMS:
        return np.zeros(len(x), np.bool_)
    return np.asarray(((x == one) | (x == other)).all(axis=1))


def counted(problem: Problem, arrays: dict[str, Array]) -> Wide:
    """Return the elements that enter the op: scaled, masked and rounded to the arithmetic."""
    x: NDArray[np.float64] = arrays["input"].astype(np.float64)
    scale = 1.0 if problem.scale is None else float(_rounded(np.float64(problem.scale), problem))
    with np.errstate(invalid="ignore", over="ignore"):
        if problem.mask is Mask.ADDITIVE:
            mask = arrays["mask"].astype(np.float64)
            added = np.tile(mask, (problem.rows // problem.mask_rows, 1))
            fused = fused_multiply_add if problem.dtype.in_double else fused_multiply_add_32
            x = np.where(np.isneginf(x), x + added, fused(x, scale, added))
        elif problem.scale is not None:
            x = np.where(np.isneginf(x), x, x * scale)
        values: Wide = _rounded(x, problem).astype(_wide(problem))
    hidden = hidden_elements(problem, arrays)
    return values if hidden is None else np.where(hidden, -np.inf, values)


def _wide(problem: Problem) -> Any:
    """Return the NumPy type in which the truth is computed."""
    return np.longdouble if problem.dtype.in_double else np.float64


def hidden_elements(problem: Problem, arrays: dict[str, Array]) -> NDArray[np.bool_] | None:
    """Return which elements a causal mask or the rows' lengths hide; None without such a mask."""
    if problem.mask is Mask.CAUSAL:
        row = np.arange(problem.rows) % problem.mask_rows
        limit = row + 1 + problem.cols - problem.mask_rows
    elif problem.mask is Mask.LENGTHS:
        limit = arrays["lengths"]
    else:
        return None
    return np.asarray(np.arange(problem.cols)[None, :] >= limit[:, None])


def _rounded(values: Any, problem: Problem) -> Any:
    """Return the values rounded to the arithmetic's precision."""
    with np.errstate(over="ignore"):
        return values.astype(problem.dtype.arithmetic.numpy)


def _softmax(x: Wide) -> tuple[Wide, Wide]:
    """Return each row's softmax and its magnitude, computed for `CACHED_ELEMENTS` at a time."""
    values, magnitude = np.empty_like(x), np.empty_like(x)
    each = max(1, CACHED_ELEMENTS // max(1, x.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(x), each):
            rows = slice(first, first + each)
            shifted = x[rows] - x[rows].max(axis=1, keepdims=True)
            exponentials = np.exp(shifted)
            values[rows] = exponentials / exponentials.sum(axis=1, keepdims=True)
            magnitude[rows] = values[rows] * _growth(shifted)
    return values, magnitude


def _log_softmax(x: Wide) -> Wide:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        shifted = x - x.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _backward(op: Op, y: Wide, grad: Wide, factor: Any, lost: Any) -> Truth:
    """Return y (dy - sum(y dy)), or for the logarithm dy - exp(y) sum(dy), times the scale.

    The arithmetic may lose `lost` of exp(y); the sum and the scale multiply that loss.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if op is Op.SOFTMAX_BACKWARD:
            terms = y * grad
            values = y * (grad - terms.sum(axis=1, keepdims=True))
            size = np.abs(y) * (np.abs(grad) + np.abs(terms).sum(axis=1, keepdims=True))
            exact = _all_equal(y, 0.0, 1.0) & _all_equal(grad, 0.0, 1.0)
            return Truth(factor * values, np.abs(factor) * size, exact)
        shares = np.exp(y)
        sizes = np.abs(grad).sum(axis=1, keepdims=True)
        values = grad - shares * grad.sum(axis=1, keepdims=True)
        exact = _all_equal(y, 0.0, -np.inf) & _all_equal(grad, 0.0, 1.0)
        magnitude = np.abs(factor) * (np.abs(grad) + shares * sizes)
        return Truth(factor * values, magnitude, exact, np.abs(factor) * lost * sizes[:, 0])
