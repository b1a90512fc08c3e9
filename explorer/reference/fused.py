"""Multiply-adds with one rounding, which NumPy has not."""

from fractions import Fraction
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.reference.exact_sum import exact_sum, round_to_odd

Array = NDArray[np.float64]


def fused_multiply_add_32(x: Array, factor: float, added: Array) -> NDArray[np.float32]:
    """factor * x + added of numbers that float32 holds, rounded once to float32.

    The product is exact in float64. The sum is rounded to odd there, so that its rounding to
    float32 is the only one that shows.
    """
    return round_to_odd(*exact_sum(x * factor, added)).astype(np.float32)


def fused_multiply_add(x: Array, factor: float, added: Array) -> Array:
    """factor * x + added, rounded once.

    Extended precision decides, but for sums so near the middle of two numbers that its own
    rounding could have moved them across: those few are computed as fractions.
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


def _beyond_the_type(numbers: Array) -> NDArray[Any]:
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
