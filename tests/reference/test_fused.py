"""One rounding, where extended precision would round twice."""

from fractions import Fraction

import numpy as np

from explorer.reference.truth import fused_multiply_add, fused_multiply_add_32


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


def test_a_sum_beside_the_middle_of_the_greatest_number_and_infinity():
    """3 * x is that middle itself: the small term decides whether the sum is finite."""
    greatest = np.finfo(np.float64).max
    x = np.full(4, float(Fraction(2**1024 - 2**970, 3)))
    assert Fraction(x[0]) * 3 == 2**1024 - 2**970
    x[2:] *= -1
    with np.errstate(over="ignore"):
        got = fused_multiply_add(x, 3.0, np.array([-0.5, 0.5, -0.5, 0.5]))
    assert list(got) == [greatest, np.inf, -np.inf, -greatest]


def test_what_is_not_finite_stays_so():
    x = np.array([np.inf, -np.inf, np.nan, 1.0, 1e308])
    added = np.array([0.0, 0.0, 0.0, -np.inf, 1e308])
    with np.errstate(over="ignore", invalid="ignore"):
        got = fused_multiply_add(x, 2.0, added)
    assert np.array_equal(got, [np.inf, -np.inf, np.nan, -np.inf, np.inf], equal_nan=True)


def nearest_float32(value):
    """The float32 next to a fraction, ties to even."""
    guess = np.float32(float(value))
    around = [np.nextafter(guess, np.float32(way)) for way in (-np.inf, np.inf)]
    return min(
        [guess, *around], key=lambda f: (abs(Fraction(float(f)) - value), f.view(np.int32) & 1)
    )


def test_float32_sums_are_rounded_once():
    rng = np.random.default_rng(4)
    x = (rng.standard_normal(3000) * 10.0 ** rng.integers(-6, 6, 3000)).astype(np.float32)
    added = rng.standard_normal(3000).astype(np.float32)
    factor = float(np.float32(0.3))
    added[::3] = (-factor * x[::3]).astype(np.float32)
    got = fused_multiply_add_32(x.astype(np.float64), factor, added.astype(np.float64))
    for a, b, sum_ in zip(x, added, got, strict=True):
        exact_sum = Fraction(float(a)) * Fraction(factor) + Fraction(float(b))
        assert sum_ == nearest_float32(exact_sum)


def test_a_float32_sum_beside_the_middle_of_two_numbers():
    """3 x 1e38 is such a middle, which float64 cannot tell from the middle less a half."""
    x = np.array([float(np.float32(1e38))])
    got = [fused_multiply_add_32(x, 3.0, np.array([added]))[0] for added in (-0.5, 0.0, 0.5)]
    exact = [Fraction(x[0]) * 3 + Fraction(added) for added in (-0.5, 0.0, 0.5)]
    assert got == [nearest_float32(value) for value in exact]
    assert got[0] < got[2]
