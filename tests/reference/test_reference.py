"""The truth, and that its check tells right from wrong."""

import numpy as np
import pytest

from explorer.problem import DType
from explorer.reference import (
    NUMPY_DTYPES,
    PATTERN_COUNT,
    base_rows,
    check,
    softmax,
    verification_input,
    verification_rows,
)


def rounded_truth(dtype, rows=PATTERN_COUNT, cols=300):
    x = verification_input(rows, cols, dtype)
    truth = softmax(x)
    return x, truth, truth.astype(NUMPY_DTYPES[dtype])


@pytest.mark.parametrize("dtype", list(DType))
def test_the_rounded_truth_passes(dtype):
    _, truth, output = rounded_truth(dtype)
    assert check(output, truth, dtype).wrong == 0


@pytest.mark.parametrize("dtype", list(DType))
def test_fp32_arithmetic_passes(dtype):
    """What a good kernel computes, rounding by rounding, is within the tolerance."""
    x, truth, _ = rounded_truth(dtype)
    single = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(single - single.max(axis=1, keepdims=True))
        output = (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(x.dtype)
    found = check(output, truth, dtype)
    assert found.wrong == 0
    assert found.error < {DType.F32: 4e-6, DType.F16: 1e-3, DType.BF16: 8e-3}[dtype]


@pytest.mark.parametrize("dtype", list(DType))
def test_rows_sum_to_one_or_are_nan(dtype):
    _, truth, _ = rounded_truth(dtype)
    sums = truth.sum(axis=1)
    assert np.all(np.isnan(sums) | (np.abs(sums - 1) < 1e-12))
    assert 0 < np.isnan(sums).sum() < len(sums)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: np.zeros_like(y),
        lambda y: np.full_like(y, np.nan),
        lambda y: np.roll(y, 1, axis=0),
        lambda y: np.roll(y, 1, axis=1),
        lambda y: np.concatenate([y[:, :-1], np.full_like(y[:, -1:], np.nan)], axis=1),
        lambda y: np.where(np.isnan(y.astype(np.float32)), np.zeros_like(y), y),
        lambda y: y * np.asarray(1.02, y.dtype),
    ],
    ids=["zeros", "nan", "other row", "shifted", "tail unwritten", "nan lost", "2 % off"],
)
@pytest.mark.parametrize("dtype", list(DType))
def test_wrong_outputs_fail(spoil, dtype):
    _, truth, output = rounded_truth(dtype)
    assert check(spoil(output), truth, dtype).wrong > 0


def test_zeros_fail_even_where_all_values_are_tiny():
    """At 262144 columns the mean output is 4e-6: an absolute tolerance accepts zeros."""
    x = np.zeros((1, 262144), np.float32)
    assert check(np.zeros_like(x), softmax(x), DType.F32).wrong == x.size


def test_one_ulp_of_16_bits_passes_and_two_fail():
    truth = np.array([[0.5, 0.25]])
    exact = truth.astype(np.float16)
    assert check((exact.view(np.int16) + 1).view(np.float16), truth, DType.F16).wrong == 0
    assert check((exact.view(np.int16) + 2).view(np.float16), truth, DType.F16).wrong == 2


def test_the_first_wrong_element_is_named():
    _, truth, output = rounded_truth(DType.F32)
    output[4, 17] = 1.5
    found = check(output, truth, DType.F32)
    assert (found.wrong, found.first) == (1, (4, 17))


@pytest.mark.parametrize("cols", [1, 2, 31, 4097])
def test_every_pattern_exists_at_every_width(cols):
    x = verification_input(PATTERN_COUNT, cols, DType.F16)
    assert x.shape == (PATTERN_COUNT, cols)


@pytest.mark.parametrize("cols", [1, 64, 4096, 4097, 262144, 2**20])
@pytest.mark.parametrize("rows_per_block", [1, 2, 3, 32, 1024])
def test_verification_has_a_whole_and_a_partial_block(cols, rows_per_block):
    rows = verification_rows(cols, rows_per_block)
    assert rows > rows_per_block
    assert rows_per_block == 1 or rows % rows_per_block != 0 or rows_per_block == 3
    assert base_rows(cols) > PATTERN_COUNT
