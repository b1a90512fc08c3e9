"""The truth of an operator's results: float64, and extended precision for float64 problems.

An element that counts is scale * x + mask, rounded once to the precision of the arithmetic (fp32,
or fp64 for `f64`), as if it had been computed beforehand; x = -inf is a mask by itself and stays
-inf whatever the scale. What a causal mask or a row's length hides is -inf too.
"""

from dataclasses import replace
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Mask, Problem
from explorer.ops.truth import Truth, Underflow, Wide, capped
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


SUBNORMAL_SPACINGS = 16
"""Spacings of the arithmetic's subnormal numbers by which a number may be off that is not normal.

Rounding factors that are subnormal themselves loses only a few of them.
"""


def underflow(problem: Problem) -> Underflow:
    """Return what becomes of exponentials that are no normal numbers: fp64 flushes none to 0.

    An exponential that rounding makes a normal number, or not, is both.
    """
    arithmetic = problem.dtype.arithmetic
    error = _wide(problem)(SUBNORMAL_SPACINGS * arithmetic.smallest_subnormal)
    flushes_below = 0.0 if problem.dtype.in_double else arithmetic.smallest_normal * (1 + 1e-3)
    return Underflow(error, flushes_below)


ROUNDINGS_OF_HALVES = 4.0
"""What 16-bit probabilities in two parts lose, in the errors that arithmetic in fp32 is allowed:
2^-16 of the values' magnitudes."""


@np.errstate(invalid="ignore")  # of NaN that signal
def truths_of(problem: Problem, arrays: dict[str, Array]) -> dict[str, Truth]:
    """Return the truth of each result by its name, for inputs named as in `problem.inputs`.

    Matrices are (rows, cols), and ids (rows, ids_per_row).
    """
    wide, operator = _wide(problem), problem.operator
    converted = operator.operands if problem.attends else operator.matrices
    operands: dict[str, Any] = {
        name: arrays[name].astype(wide) if name in converted else arrays[name]
        for name in operator.operands
    }
    operands |= {name: getattr(problem, name) for name in operator.options}
    if problem.attends:
        operands["roundings"] = roundings(problem)
        if "lengths" in arrays:
            operands["lengths"] = arrays["lengths"]
    elif not operator.is_gradient:
        operands["input"] = counted(problem, arrays)
        if problem.softcap:
            operands |= capped(operands["input"], problem.softcap)
    factor = wide(factor_of(problem))
    return {
        result.name: result.truth(operands, factor, underflow(problem))
        for result in problem.results
    }


def factor_of(problem: Problem) -> float:
    """Return the problem's scale, rounded as kernels take it, or what is meant by none."""
    if problem.scale is None:
        return float(problem.of_head) ** -0.5 if problem.attends else 1.0
    return float(_rounded(np.float64(problem.scale), problem))


def roundings(problem: Problem) -> float:
    """Return how often the error that arithmetic is allowed counts for attention."""
    return ROUNDINGS_OF_HALVES if problem.dtype.is_half else 1.0


def truth_of(problem: Problem, arrays: dict[str, Array]) -> Truth:
    """Return the truth of a problem's first result (`truths_of`)."""
    return truths_of(replace(problem, also=""), arrays)[problem.results[0].name]


def counted(problem: Problem, arrays: dict[str, Array]) -> Wide:
    """Return the elements that enter the op: scaled, masked and rounded to the arithmetic."""
    x: NDArray[np.float64] = arrays["input"].astype(np.float64)
    scale = factor_of(problem)
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
