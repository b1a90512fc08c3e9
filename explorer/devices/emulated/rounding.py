"""Floating-point arithmetic with PTX's rounding modes, exact in the last place.

float32 results are formed in float64 together with the error of that sum, so that the final
rounding is done once, by the algorithms of Boldo and Melquiond that `exact_sum` names.
"""

from typing import Any

import numpy as np

from explorer.devices.emulated.ptx_types import BFLOAT16, Array
from explorer.reference.exact_sum import exact_sum, round_to_odd

FLOAT32_TINY = np.float32(2.0**-126)
_SMALLEST_NORMAL: dict[np.dtype[Any], Any] = {
    np.dtype(np.float16): np.float16(2.0**-14),
    np.dtype(np.float32): FLOAT32_TINY,
    np.dtype(np.float64): np.float64(2.0**-1022),
    BFLOAT16: BFLOAT16.type(2.0**-126),
}

_DROPPED_BITS = np.int64((1 << 29) - 1)
_HALFWAY = np.int64(1 << 28)


def _nearest(product: Array, addend: Array) -> Array:
    """product + addend rounded once to float32, ties to even."""
    total = np.asarray(product + addend)
    # Rounding twice can differ only where float64's sum lies halfway between two float32, or
    # where the result is subnormal and float32 keeps fewer bits.
    doubtful = (total.view(np.int64) & _DROPPED_BITS) == _HALFWAY
    size = np.abs(total)
    doubtful |= (size < FLOAT32_TINY) & (size > 0)
    if doubtful.any():
        total[doubtful] = round_to_odd(*_exact_sum_of(product, addend, doubtful))
    return total.astype(np.float32)


def _exact_sum_of(product: Array, addend: Array, chosen: Array) -> tuple[Array, Array]:
    """The exact sum of some elements; an operand may be a scalar."""
    if product.shape == chosen.shape:
        product = product[chosen]
    if addend.shape == chosen.shape:
        addend = addend[chosen]
    return exact_sum(product, addend)


def _directed(total: Array, error: Array, mode: str) -> Array:
    """total + error rounded down (rm), up (rp) or toward zero (rz) to float32."""
    rounded = np.asarray(total.astype(np.float32))
    wide = rounded.astype(np.float64)
    above = (wide > total) | ((wide == total) & (error < 0))
    below = (wide < total) | ((wide == total) & (error > 0))
    return _step(rounded, above, below, total, mode)


def _step(rounded: Array, above: Array, below: Array, total: Array, mode: str) -> Array:
    """Go to the next float32 where the nearest lies on the wrong side of the exact value."""
    down = above if mode == "rm" else above & (total > 0) if mode == "rz" else None
    up = below if mode == "rp" else below & (total < 0) if mode == "rz" else None
    if down is not None:
        rounded = np.where(down, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    if up is not None:
        rounded = np.where(up, np.nextafter(rounded, np.float32(np.inf)), rounded)
    return rounded


def _round_sum(product: Array, addend: Array, mode: str) -> Array:
    if mode == "rn":
        return _nearest(product, addend)
    total = np.asarray(product + addend)
    rounded = np.asarray(total.astype(np.float32))
    wide = rounded.astype(np.float64)
    above, below = wide > total, wide < total
    # float64's own rounding error decides only where its sum is a float32 itself.
    equal = np.asarray(wide == total)
    if equal.any():
        _, error = _exact_sum_of(product, addend, equal)
        above[equal], below[equal] = error < 0, error > 0
    return _step(rounded, above, below, total, mode)


def fma32(a: Any, b: Any, c: Any, mode: str = "rn") -> Array:
    """a * b + c of float32 operands, rounded once."""
    product = np.asarray(a).astype(np.float64) * b
    return _round_sum(product, np.asarray(c).astype(np.float64), mode)


def add32(a: Any, b: Any, mode: str) -> Array:
    """a + b of float32 operands, rounded once."""
    return _round_sum(np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64), mode)


def mul32(a: Any, b: Any, mode: str) -> Array:
    """a * b of float32 operands, rounded once; the product is exact in float64."""
    product = np.asarray(np.asarray(a).astype(np.float64) * b)
    return _directed(product, np.zeros_like(product), mode)


def div32(a: Any, b: Any, mode: str) -> Array:
    """a / b of float32 operands, rounded once."""
    if mode == "rn":
        return np.asarray(np.divide(a, b, dtype=np.float32))
    quotient = np.asarray(np.asarray(a).astype(np.float64) / b)
    # The remainder's sign tells on which side of the float64 quotient the true one lies.
    remainder = fma64(-quotient, np.asarray(b).astype(np.float64), np.asarray(a, np.float64))
    return _directed(quotient, remainder * np.sign(np.asarray(b, np.float64)), mode)


def sqrt32(a: Any, mode: str) -> Array:
    """The square root of float32, rounded once."""
    if mode == "rn":
        return np.asarray(np.sqrt(a, dtype=np.float32))
    root = np.asarray(np.sqrt(np.asarray(a).astype(np.float64)))
    return _directed(root, fma64(-root, root, np.asarray(a, np.float64)), mode)


def fma64(a: Any, b: Any, c: Any) -> Array:
    """a * b + c of float64 operands, rounded once.

    The paper's algorithm Fma, right as long as the product's error is no subnormal. Where
    operands are too large to be split, as all that is infinite or undefined, it is rounded twice.
    """
    a, b, c = np.asarray(a, np.float64), np.asarray(b, np.float64), np.asarray(c, np.float64)
    product = np.asarray(a * b)
    low, low_error = exact_sum(c, _product_error(a, b, product))
    high, high_error = exact_sum(product, low)
    result = np.asarray(high + round_to_odd(*exact_sum(low_error, high_error)))
    return np.where(np.isfinite(result), result, a * b + c)


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """a * b - product, exactly, by Veltkamp's splitting."""
    split = 134217729.0  # 2**27 + 1
    a_high = a * split - (a * split - a)
    b_high = b * split - (b * split - b)
    a_low, b_low = a - a_high, b - b_high
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def fma16(a: Any, b: Any, c: Any, dtype: np.dtype[Any]) -> Array:
    """a * b + c of float16 or bfloat16 operands, rounded once to `dtype`."""
    product = np.asarray(np.asarray(a).astype(np.float64) * np.asarray(b).astype(np.float64))
    total, error = exact_sum(product, np.asarray(c).astype(np.float64))
    return narrow(round_to_odd(total, error), dtype)


def narrow(wide: Array, dtype: np.dtype[Any]) -> Array:
    """float64 to float16 or bfloat16, rounded once to nearest."""
    if dtype != BFLOAT16:
        return np.asarray(wide.astype(dtype))
    # ml_dtypes goes through float32, so that step must not round to a tie.
    nearest = np.asarray(wide.astype(np.float32))
    error = np.where(np.isfinite(nearest), wide - nearest.astype(np.float64), 0.0)
    bits = nearest.view(np.int32)
    smaller = (error < 0) == (nearest > 0)
    odd = np.where(error != 0, (bits - smaller) | 1, bits).astype(np.int32)
    return np.asarray(odd.view(np.float32).astype(BFLOAT16))


def flush(values: Any) -> Array:
    """Subnormal numbers replaced by zero of the same sign (.ftz)."""
    values = np.asarray(values)
    subnormal = np.abs(values) < _SMALLEST_NORMAL[values.dtype]
    if not subnormal.any():
        return np.asarray(values)
    zero = np.copysign(np.float32(0), values.astype(np.float32)).astype(values.dtype)
    return np.asarray(np.where(subnormal, zero, values))


def saturate(values: Any) -> Array:
    """Clamped to [0, 1], NaN to 0 (.sat)."""
    values = np.asarray(values)
    one = values.dtype.type(1)
    zero = values.dtype.type(0)
    return np.asarray(np.where(values > 0, np.minimum(values, one), zero))
