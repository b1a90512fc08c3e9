"""ex2.approx.f32 as the hardware computes it, bit for bit.

The unit takes |x| in fixed point, 23 bits after the point, the rest cut off. Its whole part shifts
the result; its fraction, with the sign of x, decides the mantissa, from a table with interpolation
(Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator", ARITH 2005). What
that gives was read from an NVIDIA H200 for all 2 x 2^23 fractions, and is kept as its distance, in
ulps, from the correctly rounded result: -2 to 1. On 7 million other arguments, of all magnitudes
and both signs, this model and that GPU gave the same bits.
"""

import lzma
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_FRACTION_BITS = 23
_FRACTIONS = 1 << _FRACTION_BITS
_LOWEST_NORMAL = -126.0

Floats = NDArray[np.float32]


@cache
def _corrections() -> NDArray[np.int8]:
    """Ulps by fraction: a row for x >= 0 and one for x < 0."""
    data = lzma.decompress(Path(__file__).with_name("ex2_h200.xz").read_bytes())
    return np.frombuffer(data, np.int8).reshape(2, _FRACTIONS)


def ex2_approx(x: Floats) -> Floats:
    """2^x of fp32 numbers of any shape; a subnormal result is the square of 2^(x/2)."""
    x = np.asarray(x, np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        is_small = x < _LOWEST_NORMAL
        if not is_small.any():
            return _normal(x)
        result = _normal(np.where(is_small, x * np.float32(0.5), x))
        return np.where(is_small, result * result, result)


def _normal(x: Floats) -> Floats:
    """2^x where the result is no subnormal number; 0, infinity and NaN included."""
    # fmin takes NaN for 200: what it gives is not used.
    magnitude = np.fmin(np.abs(x), np.float32(200.0)).astype(np.float64)
    fixed = (magnitude * _FRACTIONS).astype(np.int32)
    whole, fraction = fixed >> _FRACTION_BITS, fixed & (_FRACTIONS - 1)
    is_negative = np.signbit(x)
    sign = np.where(is_negative, -1.0, 1.0)
    # The table was read at 1 <= |x| < 2.
    rounded = np.exp2(sign * (1.0 + fraction / _FRACTIONS)).astype(np.float32)
    bits = rounded.view(np.int32) + _corrections()[is_negative.astype(np.int8), fraction]
    result = np.ldexp(bits.view(np.float32), np.where(is_negative, 1 - whole, whole - 1))
    return np.where(np.isnan(x), x, result).astype(np.float32)
