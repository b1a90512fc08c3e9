"""One rounding, where extended precision would round twice."""

from fractions import Fraction

import numpy as np

from explorer.reference.fused import fused_multiply_add


def exact(x, factor, added):
    return float(Fraction(float(x)) * Fraction(factor) + Fraction(float(added)))


def test_random_sums_are_those_of_fractions():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(4000) * 10.0 ** rng.integers(-6, 6, 4000)
    added = rng.standard_normal(4000)
    factor = 0.3
    added[::3] = -factor * x[::3]  # what is left is the rounding of the product
    got = fused_multiply_add(x, factor, added)
    assert list(got) == [exact(a, factor, b) for a, b in zip(x, added, strict=True)]


def test_a_sum_just_above_the_middle_of_two_numbers_is_rounded_up():
    """1 + 2^-53 + 2^-105: 64 bits of precision see the middle itself, which rounds to 1."""
    x = np.array([2.0**-53 * (1 + 2.0**-52)])
    assert fused_multiply_add(x, 1.0, np.array([1.0]))[0] == 1 + 2.0**-52


def test_what_is_not_finite_stays_so():
    x = np.array([np.inf, -np.inf, np.nan, 1.0, 1e308])
    added = np.array([0.0, 0.0, 0.0, -np.inf, 1e308])
    with np.errstate(over="ignore", invalid="ignore"):
        got = fused_multiply_add(x, 2.0, added)
    assert np.array_equal(got, [np.inf, -np.inf, np.nan, -np.inf, np.inf], equal_nan=True)
