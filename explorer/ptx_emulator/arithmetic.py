"""Floating-point arithmetic as the GPU does it, exact in the last place.

Results of float32 are formed in float64 together with the error of that sum, so that the final
rounding is done once: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
algorithms using rounding to odd", IEEE Trans. Computers 57(4), 2008. ex2.approx.f32 is computed bit
for bit as an NVIDIA H200 does.
"""

import zlib
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.lanes import all_of, any_of
from explorer.ptx_emulator.program import BFLOAT16, DTYPES, FLOATS, Array

# Sums of float64 that lose nothing.


def exact_sum(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the float64 sum and its rounding error (Knuth's TwoSum)."""
    total = first + second
    virtual = np.asarray(total - first)
    error = np.asarray(total - virtual)
    np.subtract(first, error, out=error)
    np.subtract(second, virtual, out=virtual)
    error += virtual
    return total, error


def round_to_odd(total: Array, error: Array) -> Array:
    """Return the float64 next to total + error whose last bit is 1, or the sum if it is exact."""
    bits = np.asarray(total).view(np.int64)
    # The error of an infinite or undefined sum is no number.
    inexact = np.abs(error) > 0
    smaller = (error < 0) == (total > 0)
    odd = (bits - smaller) | 1
    return np.where(inexact, odd, bits).view(np.float64)


# Rounding modes.

FLOAT32_TINY = np.float32(2.0**-126)
_SMALLEST_NORMAL: dict[np.dtype[Any], Any] = {
    dtype: ml_dtypes.finfo(dtype).smallest_normal for dtype in (DTYPES[name] for name in FLOATS)
}

_DROPPED_BITS = np.int64((1 << 29) - 1)
_HALFWAY = np.int64(1 << 28)
_MANTISSA = np.int64((1 << 52) - 1)


def _nearest(product: Array, addend: Array) -> Array:
    """Return product + addend rounded once to float32, ties to even."""
    total = np.asarray(product + addend)
    # Rounding twice can differ only where float64's sum lies halfway between two float32, or
    # where the result is subnormal and float32 keeps fewer bits.
    doubtful = (total.view(np.int64) & _DROPPED_BITS) == _HALFWAY
    small = np.abs(total) < FLOAT32_TINY
    if any_of(small):
        doubtful |= small & (total != 0)
    if any_of(doubtful):
        total[doubtful] = round_to_odd(*_exact_sum_of(product, addend, doubtful))
    return total.astype(np.float32)


def _exact_sum_of(product: Array, addend: Array, chosen: Array) -> tuple[Array, Array]:
    """Return the exact sum of the chosen elements; an operand may be a scalar."""
    if product.shape == chosen.shape:
        product = product[chosen]
    if addend.shape == chosen.shape:
        addend = addend[chosen]
    return exact_sum(product, addend)


def directed(total: Array, error: Array, mode: str) -> Array:
    """Return total + error rounded down (rm), up (rp) or toward zero (rz) to float32."""
    rounded = np.asarray(total.astype(np.float32))
    wide = rounded.astype(np.float64)
    above = (wide > total) | ((wide == total) & (error < 0))
    below = (wide < total) | ((wide == total) & (error > 0))
    return _step(rounded, above, below, total, mode)


def _step(rounded: Array, above: Array, below: Array, total: Array, mode: str) -> Array:
    """Go to the next float32 if the nearest lies on the wrong side of the exact value."""
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
    if any_of(equal):
        _, error = _exact_sum_of(product, addend, equal)
        above[equal], below[equal] = error < 0, error > 0
    return _step(rounded, above, below, total, mode)


def fma32(a: Any, b: Any, c: Any, mode: str = "rn") -> Array:
    """Return a * b + c of float32 operands, rounded once."""
    product = np.asarray(np.multiply(a, b, dtype=np.float64))
    return _round_sum(product, np.asarray(c).astype(np.float64), mode)


def add32(a: Any, b: Any, mode: str) -> Array:
    """Return a + b of float32 operands, rounded once."""
    return _round_sum(np.asarray(a).astype(np.float64), np.asarray(b).astype(np.float64), mode)


def mul32(a: Any, b: Any, mode: str) -> Array:
    """Return a * b of float32 operands, rounded once. The product is exact in float64."""
    product = np.asarray(np.asarray(a).astype(np.float64) * b)
    return directed(product, np.zeros_like(product), mode)


def div32(a: Any, b: Any, mode: str) -> Array:
    """Return a / b of float32 operands, rounded once."""
    if mode == "rn":
        return np.asarray(np.divide(a, b, dtype=np.float32))
    quotient = np.asarray(np.asarray(a).astype(np.float64) / b)
    # The remainder's sign tells on which side of the float64 quotient the true one lies.
    remainder = fma64(-quotient, np.asarray(b).astype(np.float64), np.asarray(a, np.float64))
    return directed(quotient, remainder * np.sign(np.asarray(b, np.float64)), mode)


def sqrt32(a: Any, mode: str) -> Array:
    """Return the square root of float32, rounded once."""
    if mode == "rn":
        return np.asarray(np.sqrt(a, dtype=np.float32))
    root = np.asarray(np.sqrt(np.asarray(a).astype(np.float64)))
    return directed(root, fma64(-root, root, np.asarray(a, np.float64)), mode)


def fma64(a: Any, b: Any, c: Any) -> Array:
    """Return a * b + c of float64 operands, rounded once, unless the product's error is subnormal.

    This is the paper's algorithm Fma. Where it overflows on its way, as with operands that are too
    large to be split, it is done once more with smaller exponents.
    """
    a, b, c = np.asarray(a, np.float64), np.asarray(b, np.float64), np.asarray(c, np.float64)
    result = _fma64(a, b, c)
    finite = np.isfinite(result)
    if all_of(finite):
        return result
    # A product of finite factors is finite before it is rounded, so an infinite c decides alone.
    factors = np.isfinite(a) & np.isfinite(b)
    result = np.where(finite, result, np.where(factors, c, a * b + c))
    numbers = ~finite & factors & np.isfinite(c)
    if any_of(numbers):
        result[numbers] = _scaled_fma64(
            *(np.broadcast_to(x, numbers.shape)[numbers] for x in (a, b, c))
        )
    return result


def _fma64(a: Array, b: Array, c: Array) -> Array:
    product = np.asarray(a * b)
    low, low_error = exact_sum(c, _product_error(a, b, product))
    high, high_error = exact_sum(product, low)
    error = np.asarray(low_error + high_error)
    result = np.asarray(high + error)
    # That error is itself rounded, which can tell only where the result lies halfway between two
    # numbers as it seems: what was rounded off last is then a power of two.
    left = np.asarray(error - (result - high))
    doubtful = ((left.view(np.int64) & _MANTISSA) == 0) & (left != 0)
    if any_of(doubtful):
        error = round_to_odd(*_exact_sum_of(low_error, high_error, doubtful))
        result[doubtful] = np.asarray(high)[doubtful] + error
    return result


def _scaled_fma64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, computed with the larger of the two terms near 1.

    A term that is smaller by more than 2^200 decides by its sign alone, so its size may be changed.
    Zeros have no size.
    """
    (a, a_exponent), (b, b_exponent), (c, c_exponent) = np.frexp(a), np.frexp(b), np.frexp(c)
    product_exponent = np.where((a == 0) | (b == 0), c_exponent, a_exponent + b_exponent)
    largest = np.where(c == 0, product_exponent, np.maximum(product_exponent, c_exponent))
    a = np.ldexp(a, np.maximum(product_exponent - largest, -200))
    c = np.ldexp(c, np.maximum(c_exponent - largest, -200))
    return np.asarray(np.ldexp(_fma64(a, b, c), largest))


def _product_error(a: Array, b: Array, product: Array) -> Array:
    """Return a * b - product, exactly, by Veltkamp's splitting."""
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = np.asarray(product - a_high * b_high)
    error -= a_low * b_high
    error -= a_high * b_low
    return np.asarray(a_low * b_low - error)


def _halves(a: Array) -> tuple[Array, Array]:
    """Return the upper and the lower half of the digits, whose products are exact."""
    wide = a * 134217729.0  # 2**27 + 1
    high = wide - (wide - a)
    return high, a - high


def fma16(a: Any, b: Any, c: Any, dtype: np.dtype[Any]) -> Array:
    """Return a * b + c of float16 or bfloat16 operands, rounded once to `dtype`."""
    product = np.asarray(np.asarray(a).astype(np.float64) * np.asarray(b).astype(np.float64))
    total, error = exact_sum(product, np.asarray(c).astype(np.float64))
    return narrow(round_to_odd(total, error), dtype)


def narrow(wide: Array, dtype: np.dtype[Any]) -> Array:
    """Convert float64 to float16 or bfloat16, rounded once to nearest."""
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
    """Replace subnormal numbers by zero of the same sign (.ftz)."""
    values = np.asarray(values)
    subnormal = np.abs(values) < _SMALLEST_NORMAL[values.dtype]
    if not any_of(subnormal):
        return np.asarray(values)
    zero = np.copysign(np.float32(0), values.astype(np.float32)).astype(values.dtype)
    return np.asarray(np.where(subnormal, zero, values))


def saturate(values: Any) -> Array:
    """Clamp to [0, 1], and NaN to 0 (.sat)."""
    values = np.asarray(values)
    one = values.dtype.type(1)
    zero = values.dtype.type(0)
    return np.asarray(np.where(values > 0, np.minimum(values, one), zero))


# NaN.

_NAN: dict[np.dtype[Any], Any] = {
    DTYPES["f32"]: np.uint32(0x7FFFFFFF).view(np.float32),
    **{DTYPES[name]: np.uint16(0x7FFF).view(DTYPES[name]) for name in ("f16", "bf16")},
}
"""The one NaN of each type that arithmetic gives. PTX ISA, "Floating Point Instructions"."""


def with_one_nan(values: Array) -> Array:
    """Return results with the bits of a GPU in their NaN, which code may look at."""
    canonical = _NAN.get(values.dtype)
    # The largest number is NaN where any is: that takes half the time of a test of each.
    if canonical is None or not np.isnan(np.maximum.reduce(values, axis=None, initial=0)):
        return values
    return np.where(np.isnan(values), canonical, values)


# ex2.approx.f32.

_FRACTION_BITS = 23
_FRACTIONS = 1 << _FRACTION_BITS
_OF_A_FRACTION = 1.0 / _FRACTIONS
_SCALE = np.float32(_FRACTIONS)
_LOWEST_NORMAL = np.float32(-126.0)
_INFINITE = np.float32(128.0)
_LOWEST = 2 * _LOWEST_NORMAL
"""Arguments of which 2^x is 0, and not even subnormal."""


@cache
def _ex2_corrections() -> NDArray[np.int8]:
    """Return how far an H200's results are from the correctly rounded ones, in ulps.

    They stand by the fraction above the next whole number below the exponent; the second half is
    for negative exponents, by the fraction of the absolute value in the file, which has four
    corrections of 2 bits in a byte.
    """
    data = zlib.decompress(Path(__file__).with_name("ex2_h200.zlib").read_bytes())
    unpacked = [[(byte >> shift & 3) - 2 for shift in (0, 2, 4, 6)] for byte in range(256)]
    four = np.array(unpacked, np.int8).view(np.int32).reshape(-1)
    corrections = four[np.frombuffer(data, np.uint8)].view(np.int8)
    corrections[_FRACTIONS + 1 :] = corrections[_FRACTIONS + 1 :][::-1].copy()
    return corrections


def ex2_approx(x: Array) -> NDArray[np.float32]:
    """Return 2^x of float32 numbers of any shape, with the bits that an H200 gives.

    The unit takes |x| in fixed point, 23 bits after the point, the rest cut off. Its whole part
    shifts the result. Its fraction, with the sign of x, decides the mantissa, by a table with
    interpolation (Oberman and Siu, "A High-Performance Area-Efficient Multifunction Interpolator",
    ARITH 2005). The results were read from the GPU for all 2 x 2^23 fractions, and are kept as
    their distance from the correctly rounded result, -2 to 1 ulps. On 7 million other arguments, of
    all magnitudes and both signs, this model and that GPU gave the same bits. A subnormal result is
    the square of 2^(x/2).
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return ex2_quietly(np.asarray(x, np.float32))


def ex2_quietly(x: NDArray[np.float32], *, ftz: bool = False) -> NDArray[np.float32]:
    """Return the same, where NumPy's warnings are off; with `ftz`, 0 for a subnormal result.

    A subnormal argument gives 1, as 0 does, so that it need not be flushed.
    """
    is_small = np.asarray(x < _LOWEST_NORMAL)
    if not any_of(is_small):
        return _ex2_normal(x)
    # In rows far below their maximum nearly all results are 0, and no table is asked for them.
    some = np.asarray(~(x <= _LOWEST))
    if 2 * np.count_nonzero(some) < x.size:
        few = np.zeros_like(x)
        few[some] = ex2_quietly(x[some], ftz=ftz)
        return few
    result = _ex2_normal(np.where(is_small, x * np.float32(0.5), x))
    result = np.where(is_small, result * result, result)
    return flush(result) if ftz else result


def _ex2_normal(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return 2^x for results that are not subnormal: 0 below 2^-126, infinity and NaN included."""
    clamped = np.asarray(np.maximum(x, _LOWEST_NORMAL))
    np.minimum(clamped, _INFINITE, out=clamped)
    fixed = (clamped * _SCALE).astype(np.int32)  # Some number for NaN, which is seen to below.
    fraction = fixed & (_FRACTIONS - 1)
    # The sign goes to the bit above those of the fraction.
    place = (fixed >> (31 - _FRACTION_BITS)) & _FRACTIONS
    place |= fraction
    fixed -= fraction  # What is left of it is the whole part, where float32 has its exponent.
    # It rounds to the float32 nearest 2^fraction, which is never closer than 4e-15 to the middle of
    # two of them: NumPy's error is a tenth of that.
    bits = np.exp2(fraction * _OF_A_FRACTION).astype(np.float32).view(np.int32)
    bits += fixed
    bits += _ex2_corrections().take(place)
    clamped *= np.float32(0)
    clamped += bits.view(np.float32)
    return np.asarray(clamped)  # NaN stays NaN.
