"""ex2.approx: the bits that an NVIDIA H200 gives."""

import numpy as np
import pytest

from explorer.ptx_emulator.arithmetic import ex2_approx


def bits(x):
    return ex2_approx(np.asarray(x, np.float32)).view(np.uint32).astype(np.int64)


def test_arguments_below_the_fixed_point_grid_are_cut_off():
    """Seen on an H200: 2^(-k 2^-26) lies so many steps of 2^-24 below 1."""
    steps = 0x3F800000 - bits(-np.float32(2.0**-26) * np.arange(0, 64, 8))
    assert steps.tolist() == [0, 2, 4, 5, 6, 8, 9, 11]
    assert (bits(-np.float32(2.0**-26) * np.arange(8)) == 0x3F800000).all()


def test_positive_arguments_round_otherwise():
    """Seen on an H200: 2^(k 2^-24), in steps of 2^-23 above 1."""
    steps = bits(np.float32(2.0**-24) * np.arange(0, 24)) - 0x3F800000
    expected = [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6, 7, 7, 7, 7, 8, 8]
    assert steps.tolist() == expected


def test_never_more_than_two_ulp_from_the_truth():
    x = np.random.default_rng(0).uniform(-126, 127, 200_000).astype(np.float32)
    truth = np.exp2(x.astype(np.float64)).astype(np.float32)
    distance = np.abs(bits(x) - truth.view(np.int32))
    assert distance.max() == 2  # so many on an H200 as well
    assert 0.3 < (distance > 0).mean() < 0.8


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 1.0),
        (-0.0, 1.0),
        (3.0, 8.0),
        (-126.0, 2.0**-126),
        (-149.0, 2.0**-149),
        (-160.0, 0.0),
        (128.0, np.inf),
        (np.inf, np.inf),
        (-np.inf, 0.0),
        (1e30, np.inf),
        (-1e30, 0.0),
    ],
)
def test_special_arguments(x, expected):
    assert ex2_approx(np.float32([x]))[0] == np.float32(expected)


def test_nan_stays_nan():
    assert np.isnan(ex2_approx(np.float32([np.nan]))).all()


@pytest.mark.exhaustive
def test_no_fraction_makes_what_lies_near_the_middle_of_two_float32():
    """So a power in float64 rounds to the right float32, though it is some 1e-16 off."""
    fraction = np.arange(2**23, dtype=np.longdouble) / 2**23
    mantissa = np.exp2(fraction) * 2**23
    from_the_middle = np.abs(mantissa - np.floor(mantissa) - 0.5) / mantissa
    assert from_the_middle.min() > 4e-15
    assert (np.abs(np.exp2(fraction.astype(np.float64)) / np.exp2(fraction) - 1) < 1e-15).all()
