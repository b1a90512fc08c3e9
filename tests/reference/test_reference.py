"""The truth, and that its check tells right from wrong."""

import ml_dtypes
import numpy as np
import pytest

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.ops.truth import Truth
from explorer.reference.check import check
from explorer.reference.inputs import (
    base_rows,
    pattern_count,
    rows_that_repeat,
    verification_inputs,
    verification_rows,
)
from explorer.reference.layout import as_rows, laid_out
from explorer.reference.truth import truth_of


def rounded_truth(dtype, cols=300):
    problem = Problem(pattern_count(Problem(1, cols, dtype)), cols, dtype)
    x = verification_inputs(problem)["input"]
    truth = truth_of(problem, {"input": x})
    return x, truth, truth.values.astype(dtype.numpy)


@pytest.mark.parametrize("dtype", list(DType))
def test_the_rounded_truth_passes(dtype):
    _, truth, output = rounded_truth(dtype)
    assert check(output, truth, dtype).wrong == 0


@pytest.mark.parametrize("dtype", list(DType))
def test_fp32_arithmetic_passes(dtype):
    """What a good kernel computes, rounding by rounding, is within the tolerance."""
    x, truth, _ = rounded_truth(dtype)
    single = x.astype(np.float64 if dtype is DType.F64 else np.float32)
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(single - single.max(axis=1, keepdims=True))
        output = (exponentials / exponentials.sum(axis=1, keepdims=True)).astype(x.dtype)
    found = check(output, truth, dtype)
    assert found.wrong == 0
    assert (
        found.error < {DType.F32: 4e-6, DType.F16: 1e-3, DType.BF16: 8e-3, DType.F64: 1e-14}[dtype]
    )


@pytest.mark.parametrize("dtype", list(DType))
def test_rows_sum_to_one_or_are_nan(dtype):
    _, truth, _ = rounded_truth(dtype)
    sums = truth.values.sum(axis=1)
    assert np.all(np.isnan(sums) | (np.abs(sums - 1) < 1e-12))
    assert 0 < np.isnan(sums).sum() < len(sums)


@pytest.mark.sampled(3)
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
    assert (
        check(np.zeros_like(x), truth_of(Problem(1, 262144), {"input": x}), DType.F32).wrong
        == x.size
    )


def test_one_ulp_of_16_bits_passes_and_two_fail():
    values = np.array([[0.5, 0.25]])
    truth = Truth(values, values)
    exact = values.astype(np.float16)
    assert check((exact.view(np.int16) + 1).view(np.float16), truth, DType.F16).wrong == 0
    assert check((exact.view(np.int16) + 2).view(np.float16), truth, DType.F16).wrong == 2


def test_errors_are_counted_in_spacings_at_the_magnitude():
    values = np.array([[1.0, 0.75, 3.0, np.nan, 0.0]])
    truth = Truth(values, values)
    output = values.astype(np.float32)
    output[0, 0] += np.float32(2.0**-22)  # 2 spacings of [1, 2)
    output[0, 1] -= np.float32(2.0**-24)  # 1 of [0.5, 1)
    found = check(output, truth, DType.F32)
    assert (found.max_ulp, found.mean_ulp) == (2.0, 0.75)  # of the four that are numbers
    half = Truth(np.array([[1 + 2.0**-12]]), np.array([[1 + 2.0**-12]]))
    assert check(np.ones((1, 1), np.float16), half, DType.F16).max_ulp == 0.25


def test_where_differences_cancel_an_ulp_is_of_what_is_subtracted():
    truth = Truth(np.array([[0.0]]), np.array([[4.0]]))
    output = np.array([[2.0**-21]], np.float32)
    assert check(output, truth, DType.F32).max_ulp == 1.0


def test_a_result_flushed_to_zero_is_exact_where_it_may_be():
    """Subnormal fp32 results are flushed; other types' subnormals are as far apart as any."""
    tiny = np.array([[2.0**-130]])
    assert check(np.zeros((1, 1), np.float32), Truth(tiny, tiny), DType.F32).max_ulp == 0.0
    below = np.array([[2.0**-24 * 3]])
    assert check(np.zeros((1, 1), np.float16), Truth(below, below), DType.F16).max_ulp == 3.0
    far = np.array([[2.0**-500]])
    assert check(np.zeros((1, 1)), Truth(far, far), DType.F64).max_ulp > 1e15


def test_a_result_is_0_where_it_is_due_and_nowhere_else():
    """Neither the smallest normal number for a hidden element, nor 0 for that number."""
    smallest = 2.0**-126
    truth = Truth(
        np.array([[0.0, 2 * smallest, smallest / 2]]), np.array([[0.0, 2 * smallest, 1e-40]])
    )
    right = np.array([[0.0, 2 * smallest, 0.0]], np.float32)
    assert check(right, truth, DType.F32).wrong == 0
    for place, spoiled in ((0, smallest), (0, 1e-45), (1, 0.0), (2, smallest)):
        output = right.copy()
        output[0, place] = spoiled
        assert check(output, truth, DType.F32).wrong == 1, (place, spoiled)
    masked = Truth(np.zeros((1, 1)), np.zeros((1, 1)))
    assert check(np.full((1, 1), 6e-8, np.float16), masked, DType.F16).wrong == 1


def test_a_check_keeps_the_first_wrong_element_and_what_is_due():
    values = np.array([[0.5, 0.5], [0.0, 1.0], [0.25, 0.75]])
    truth = Truth(values, values)
    output = values.astype(np.float32)
    right = check(output, truth, DType.F32)
    assert (right.first, right.got, right.due) == (None, None, None)
    output[1, 0], output[2, 1] = 1e-38, np.nan
    found = check(output, truth, DType.F32)
    assert (found.first, found.got, found.due) == ((1, 0), float(np.float32(1e-38)), 0.0)


def test_the_farther_below_the_maximum_the_larger_an_error_may_be():
    """As fp32 rounds the argument: by 2e-6 of the result from 32 on, twice that from 64 on."""
    gaps = np.array([[0.0, 31.0, 33.0, 63.0, 65.0, 86.0]])
    truth = truth_of(Problem(1, 6), {"input": (-gaps).astype(np.float32)})
    assert np.allclose(truth.magnitude / truth.values, [[1, 1, 2, 2, 4, 4]])
    for off, wrong in ((3e-6, 0), (7e-6, 2), (1.5e-5, 4), (1.7e-5, 6)):
        output = (truth.values * (1 + off)).astype(np.float32)
        assert check(output, truth, DType.F32).wrong == wrong


@pytest.mark.parametrize("dtype", list(DType))
def test_a_row_of_ones_and_zeros_shows_that_a_term_is_missing(dtype):
    terms = {DType.BF16: 128, DType.F16: 1024}.get(dtype, 2**20)
    x = np.zeros((1, terms), dtype.numpy)
    truth = truth_of(Problem(1, terms, dtype), {"input": x})
    right = np.full(x.shape, 1 / terms).astype(x.dtype)
    assert check(right, truth, dtype).wrong == 0
    missing = check(np.full(x.shape, 1 / (terms - 1)).astype(x.dtype), truth, dtype)
    assert missing.wrong == terms and missing.deviation == np.inf  # no matter of rounding


def test_beside_an_infinite_magnitude_nothing_is_an_error_in_ulps():
    truth = Truth(np.array([[1.0, 2.0]]), np.array([[np.inf, 2.0]]))
    found = check(np.array([[1.5, 2.0]], np.float32), truth, DType.F32)
    assert found.wrong == 0 and found.max_ulp == 0 and found.mean_ulp == 0


def test_an_output_that_is_not_finite_has_no_error_in_ulps():
    values = np.array([[1.0, 2.0]])
    output = np.array([[np.nan, 2.0]], np.float32)
    found = check(output, Truth(values, values), DType.F32, Accuracy.FAST)
    assert (found.wrong, found.max_ulp) == (1, 0.0)


@pytest.mark.parametrize(
    ("accuracy", "right"),
    [(Accuracy.STRICT, 2e-6), (Accuracy.DEFAULT, 3e-6), (Accuracy.FAST, 9e-5)],
)
def test_elements_are_right_within_what_is_asked(accuracy, right):
    values = np.full((1, 4), 0.75)
    truth = Truth(values, values)
    for factor, wrong in ((1 + right, 0), (1 + 2 * max(right, 4e-6), 4)):
        output = (values * factor).astype(np.float32)
        assert check(output, truth, DType.F32, accuracy).wrong == wrong


def test_the_first_wrong_element_is_named():
    _, truth, output = rounded_truth(DType.F32)
    output[4, 17] = 1.5
    found = check(output, truth, DType.F32)
    assert (found.wrong, found.first) == (1, (4, 17))


@pytest.mark.parametrize("cols", [1, 64, 4096, 4097, 262144, 2**20])
@pytest.mark.parametrize("rows_per_block", [1, 2, 3, 32, 1024])
def test_verification_has_a_whole_and_a_partial_block(cols, rows_per_block):
    problem = Problem(1, cols)
    rows = verification_rows(problem, rows_per_block)
    assert rows > rows_per_block
    assert rows_per_block == 1 or rows % rows_per_block != 0 or rows_per_block == 3
    assert base_rows(problem) > pattern_count(problem)


KINDS = [
    Problem(20, 37, op=op, dtype=dtype)
    for op in Op
    for dtype in DType
    if OPERATORS[op].over is Extent.MATRIX or not dtype.in_double
] + [
    Problem(20, 37, scale=0.5),
    Problem(20, 37, scale=-2.0),
    Problem(20, 37, scale=0.0),
    Problem(20, 20, mask=Mask.CAUSAL),
    Problem(20, 37, mask=Mask.CAUSAL, mask_rows=5),
    Problem(20, 37, mask=Mask.CAUSAL, mask_rows=44),
    Problem(20, 37, mask=Mask.LENGTHS),
    Problem(20, 37, mask=Mask.ADDITIVE, mask_rows=4),
    Problem(20, 37, DType.BF16, out_dtype=DType.F32),
]


@pytest.mark.parametrize("problem", KINDS, ids=str)
def test_the_rounded_truth_of_every_kind_passes_and_other_outputs_do_not(problem):
    truth = truth_of(problem, verification_inputs(problem))
    output = truth.values.astype(problem.output_dtype.numpy)
    assert check(output, truth, problem.output_dtype).wrong == 0
    assert check(np.zeros_like(output), truth, problem.output_dtype).wrong > 0
    moved = np.roll(output, 1, axis=1 if problem.fills_rows else 0)
    assert check(moved, truth, problem.output_dtype).wrong > 0


def test_minus_infinity_is_a_mask_whatever_the_scale():
    x = np.array([[-np.inf, 1.0, 3.0]], np.float32)
    for scale in (0.0, -1.0, 2.0):
        y = truth_of(Problem(1, 3, scale=scale), {"input": x}).values[0]
        assert y[0] == 0
        assert abs(y.sum() - 1) < 1e-12
    assert truth_of(Problem(1, 3, scale=0.0), {"input": x}).values[0, 1] == 0.5


def test_log_softmax_keeps_what_log_of_softmax_loses():
    x = np.array([[0.0, -2000.0]], np.float32)
    truth = truth_of(Problem(1, 2, op=Op.LOG_SOFTMAX), {"input": x})
    assert truth.values.tolist() == [[0.0, -2000.0]]


@pytest.mark.parametrize("op", [Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_backward_is_the_derivative(op):
    """Against central differences of the forward."""
    rng = np.random.default_rng(3)
    x, grad = rng.standard_normal((2, 1, 6))
    forward = Problem(1, 6, DType.F64, OPERATORS[op].forward)

    def loss(values):
        return float((truth_of(forward, {"input": values}).values * grad).sum())

    step = 1e-6 * np.eye(6)
    slopes = [(loss(x + d) - loss(x - d)) / 2e-6 for d in step[:, None, :]]
    y = truth_of(forward, {"input": x}).values
    backward = Problem(1, 6, DType.F64, op)
    derived = truth_of(backward, {"input": y, "grad": grad}).values[0]
    assert np.allclose(np.array(slopes, float), np.array(derived, float), atol=1e-8)


@pytest.mark.parametrize(
    "problem", [Problem(6, 5), Problem(6, 5, input_stride=8), Problem(6, 5, inner=3)], ids=str
)
def test_a_layout_is_undone(problem):
    matrix = np.arange(30.0).reshape(6, 5)
    flat = laid_out(problem, matrix, problem.input_stride)
    assert len(flat) == problem.input_elements
    assert (as_rows(problem, flat, problem.cols, problem.input_stride) == matrix).all()


def test_a_middle_axis_lies_with_its_neighbours_inner_elements_apart():
    array = np.arange(2 * 5 * 3).reshape(2, 5, 3)
    rows = np.moveaxis(array, 1, -1).reshape(6, 5)
    assert (laid_out(Problem(6, 5, inner=3), rows, 5) == array.reshape(-1)).all()


def test_a_number_is_no_infinity():
    """The logarithm of nothing is -inf: no finite number is near it, however large."""
    x = np.array([[0.0, -np.inf]], np.float32)
    truth = truth_of(Problem(1, 2, op=Op.LOG_SOFTMAX), {"input": x})
    assert check(np.array([[0.0, -np.inf]], np.float32), truth, DType.F32).wrong == 0
    assert check(np.array([[0.0, -3e38]], np.float32), truth, DType.F32).wrong == 1
    half = np.array([[0.0, -65504.0]], np.float16)
    assert check(half, truth, DType.F16).wrong == 1


@pytest.mark.parametrize("accuracy", Accuracy)
@pytest.mark.parametrize("dtype", DType)
def test_a_result_beyond_the_type_is_an_infinity(dtype, accuracy):
    """Of 16 bits from the middle of the greatest number's spacing on; no number is beside it."""
    greatest = np.longdouble(dtype.greatest)
    spacing = greatest - np.nextafter(np.array(greatest, dtype.numpy), np.array(0, dtype.numpy))
    far = 1e-3 * greatest / spacing
    steps = (0.05, 0.95) if dtype.is_half else (-far, far)
    for step, is_infinite in zip(steps, (False, True), strict=True):
        value = np.array([[greatest + step * spacing]], np.longdouble)
        for sign in (1, -1):
            truth, number = (
                Truth(sign * value, value),
                value if step < 0 else np.array([[greatest]]),
            )
            for output, wrong in ((number, is_infinite), (np.array([[np.inf]]), not is_infinite)):
                got = (sign * output).astype(dtype.numpy)
                assert check(got, truth, dtype, accuracy).wrong == wrong, (step, sign, output)


def test_the_allowed_error_decides_between_a_number_and_an_infinity():
    value = np.array([[65520.0 * (1 - 1e-6)]])
    for output in (65504.0, np.inf):
        assert check(np.array([[output]], np.float16), Truth(value, value), DType.F16).wrong == 0


@pytest.mark.parametrize("dtype", DType)
def test_formats_are_those_of_numpy(dtype):
    known = ml_dtypes.finfo(dtype.numpy)
    formats = dtype.itemsize, dtype.mantissa_bits, dtype.smallest_normal, dtype.greatest
    assert formats == (known.bits // 8, known.nmant, float(known.tiny), float(known.max))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F64])
def test_an_exponential_that_is_flushed_may_be_missing_from_a_gradient(dtype):
    """Of log_softmax, whose scale makes a normal number of what it multiplies."""
    least = -np.log(dtype.arithmetic.smallest_normal)
    y = np.array([[-(least + 1.5), -0.5, -(least - 12.0)]]).astype(dtype.numpy)
    grad = np.array([[0.0, 1.0, 0.0]]).astype(y.dtype)
    problem = Problem(1, 3, dtype, Op.LOG_SOFTMAX_BACKWARD, scale=-371.0)
    truth = truth_of(problem, {"input": y, "grad": grad})
    right = truth.values.astype(y.dtype)
    assert abs(right[0, 0].astype(np.float64)) > dtype.arithmetic.smallest_normal
    assert check(right, truth, dtype).wrong == 0
    for place, wrong in ((0, 0 if dtype is not DType.F64 else 1), (1, 1), (2, 1)):
        flushed = right.copy()
        flushed[0, place] = 0
        found = check(flushed, truth, dtype)
        assert found.wrong == wrong and (wrong or found.error < 0.01), place


def test_rows_of_exact_sums_are_held_to_as_much_by_fast_as_by_default():
    """A vector left out of the sum of a wide row changes it by less than fast allows elsewhere."""
    x = np.zeros((1, 131072), np.float32)
    truth = truth_of(Problem(1, 131072), {"input": x})
    without_one = np.full_like(x, 1 / (131072 - 4))
    assert check(without_one, truth, DType.F32, Accuracy.FAST).wrong == x.size
    noise = truth_of(Problem(1, 131072), {"input": x + 1})
    assert check(without_one, noise, DType.F32, Accuracy.FAST).wrong == 0


def test_rows_of_a_mask_that_repeats_are_fewer_where_more_are_too_many():
    problem = Problem(500, 100, mask=Mask.ADDITIVE, mask_rows=5)
    assert rows_that_repeat(problem, 41, 1) == 42  # a prime has no part that repeats
    assert rows_that_repeat(problem, 41, 1, most=41) == 40
    assert rows_that_repeat(problem, 41, 4, most=41) == 39
    assert rows_that_repeat(problem, 5, 1, most=5) == 4
    assert rows_that_repeat(problem, 2, 1, most=2) == 4  # none of so few repeats
    assert rows_that_repeat(Problem(500, 100), 41, 1, most=41) == 41
