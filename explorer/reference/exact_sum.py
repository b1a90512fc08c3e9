"""Sums of float64 that lose nothing, and a rounding of them that a second one does not disturb.

Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
to odd", IEEE Trans. Computers 57(4), 2008.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def exact_sum(first: Array, second: Array) -> tuple[Array, Array]:
    """The float64 sum and its rounding error (Knuth's TwoSum)."""
    total = first + second
    virtual = total - first
    error = (first - (total - virtual)) + (second - virtual)
    return total, error


def round_to_odd(total: Array, error: Array) -> Array:
    """The float64 next to total + error whose last bit is 1, unless the sum is exact."""
    bits = np.asarray(total).view(np.int64)
    # The error of an infinite or undefined sum is no number.
    inexact = np.abs(error) > 0
    smaller = (error < 0) == (total > 0)
    odd = (bits - smaller) | 1
    return np.where(inexact, odd, bits).view(np.float64)
