"""What the rows of a verification hold, at every width and in every type."""

from dataclasses import replace
from itertools import groupby

import ml_dtypes
import numpy as np
import pytest

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.ops.truth import Truth
from explorer.reference import inputs
from explorer.reference.check import check
from explorer.reference.influence import telling_count
from explorer.reference.inputs import (
    Case,
    pattern_count,
    verification_inputs,
    with_other_arguments,
)
from explorer.reference.patterns import TELLING_COUNT, patterns_for
from explorer.reference.rows import Shares, places_of, spread_places
from explorer.reference.truth import counted, truth_of

OF_MATRICES = [op for op in Op if OPERATORS[op].over is Extent.MATRIX]

REDUCING = [op for op in OF_MATRICES if OPERATORS[op].reduces]
"""Ops of a matrix that have sums, in which an element may be missing."""

WIDTHS = [2, 5, 33, 1000, 4097, 300_000]


def rows_of(problem, name):
    """The rows of every pattern of a name, in float64."""
    whole = problem.resized(rows=pattern_count(problem))
    matrix = verification_inputs(whole)["input"].astype(np.float64)
    named = [n for n, pattern in enumerate(patterns_for(problem)) if pattern.name == name]
    return matrix[named]


def test_few_rows_hold_the_telling_patterns():
    for rows in (4, TELLING_COUNT, TELLING_COUNT + 3):
        problem = Problem(rows, 1000)
        x = verification_inputs(problem)["input"]
        assert np.isneginf(x[0][:500]).all() and np.isfinite(x[0][500:]).all()
        assert np.isnan(x[1]).any() and np.isneginf(x[2]).all() and np.isfinite(x[3]).all()


def test_rows_run_through_all_patterns_from_the_first_that_is_asked_for():
    problem = Problem(5, 1000)
    names = [pattern.name for pattern in patterns_for(problem)]
    assert [p.name for p in Case(problem, 3).patterns] == names[3:8]
    beyond = Case(problem.resized(rows=len(names) + 2)).patterns
    assert [p.name for p in beyond] == [*names, *names[:2]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("cols", WIDTHS)
def test_every_distance_below_the_maximum_occurs(cols, dtype):
    """From 0 to where the type's exponential is 0 for certain, in steps of one at most."""
    rows = rows_of(Problem(1, cols, dtype), "ladder")
    gaps = np.sort((rows.max(axis=1, keepdims=True) - rows).ravel())
    deepest = 745 if dtype is DType.F64 else 109
    assert gaps[0] == 0 and gaps[-1] >= deepest
    coarse = {DType.BF16: 4.0, DType.F64: 6.0}.get(dtype, 0.9)  # as bf16 holds numbers near 100
    assert np.diff(gaps).max() <= coarse


@pytest.mark.sampled(3)
@pytest.mark.parametrize("cols", WIDTHS)
def test_log_softmax_is_tried_far_below_the_maximum(cols):
    rows = rows_of(Problem(1, cols, op=Op.LOG_SOFTMAX), "far below")
    assert (rows.max(axis=1) - rows.min(axis=1)).max() > 9e3


def test_results_lie_on_both_sides_of_the_smallest_normal_number():
    problem = Problem(1, 500)
    rows = rows_of(problem, "smallest normal").astype(np.float32)
    values = truth_of(problem.resized(rows=len(rows)), {"input": rows}).values
    assert ((values > 2.0**-126) & (values < 2.0**-124)).any()
    assert ((values < 2.0**-126) & (values > 0)).any()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("cols", [1, *WIDTHS])
def test_each_huge_value_fills_a_row_of_its_own(cols, dtype):
    matrix = verification_inputs(Problem(pattern_count(Problem(1, cols, dtype)), cols, dtype))[
        "input"
    ]
    full = {float(row[0]) for row in matrix if (row == row[0]).all()}
    greatest = float(ml_dtypes.finfo(dtype.numpy).max)
    for size in (greatest, 1e30, 65504.0, 1e5):
        if size <= greatest:
            held = float(np.asarray(size).astype(dtype.numpy))
            assert {held, -held} <= full, size


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", REDUCING)
@pytest.mark.parametrize(
    ("cols", "dtype"), [(7, DType.F16), (1000, DType.F32), (1000, DType.BF16), (4096, DType.BF16)]
)
def test_every_element_has_an_influence_that_shows(cols, dtype, op):
    """In some row without which its sum, exact as it is, would round to another output."""
    problem = Problem(1, cols, dtype, op)
    whole = problem.resized(rows=pattern_count(problem))
    arrays = verification_inputs(whole)
    truth = truth_of(whole, arrays)
    seen = np.zeros(cols, np.bool_)
    for row in np.flatnonzero(truth.exact):
        terms = arrays["grad"][row] == 1 if OPERATORS[op].is_gradient else arrays["input"][row] == 0
        if differs_without_one(op, int(terms.sum()), problem.output_dtype):
            seen |= terms
    assert seen.all()


def differs_without_one(op, terms, dtype):
    """Whether an output of a sum of so many ones shows that one is missing."""
    if terms < 2:
        return True

    def rounded(n):
        return np.asarray(of_ones(op, n)).astype(dtype.numpy)

    return rounded(terms) != rounded(terms - 1)


@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.LENGTHS, Mask.ADDITIVE])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_of_what_a_mask_shows_one_missing_shows_as_well(mask, dtype):
    problem = Problem(60, 3000, dtype, mask=mask, mask_rows=60 if mask is not Mask.LENGTHS else 0)
    arrays = verification_inputs(problem)
    exact = np.flatnonzero(truth_of(problem, arrays).exact)
    terms = (counted(problem, arrays)[exact] == 0).sum(axis=1)
    assert terms.max() > 2800
    assert all(differs_without_one(problem.op, count, dtype) for count in terms)


@pytest.mark.parametrize("op", REDUCING)
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("change", [-1, 1])
def test_a_number_of_terms_that_tells_is_judged_so_by_the_check(op, dtype, change):
    """What one term more or less comes to is wrong, and what arithmetic may be off by is not."""
    for most in (2, 37, 128, 1001, 60_000, 131_072):
        terms = telling_count(most, OPERATORS[op], dtype, 1.0, change)
        due = of_ones(op, terms)
        truth = Truth(np.array([[due]]), np.array([[magnitude(op, terms)]]), np.array([True]))
        for value, wrong in ((of_ones(op, terms + change), 1), (due * (1 + 1e-7), 0)):
            with np.errstate(over="ignore"):
                held = np.array([[value]]).astype(dtype.numpy)
            if dtype is not DType.F64 or wrong:
                assert check(held, truth, dtype).wrong == wrong, (most, terms)


def of_ones(op, terms):
    """The result of a row of so many terms of 1."""
    if OPERATORS[op].is_gradient:
        return 1.0 - terms
    if op in (Op.LOGSUMEXP, Op.CROSS_ENTROPY):
        return np.log(terms)
    return -np.log(terms) if OPERATORS[op].is_log else 1.0 / max(terms, 1e-300)


def magnitude(op, terms):
    """What its error is relative to."""
    if op is Op.LOGSUMEXP:
        return max(1.0, np.log(terms))
    if op is Op.CROSS_ENTROPY:  # an error is relative to the loss itself
        return np.log(terms)
    return (
        1.0 + terms
        if OPERATORS[op].is_gradient
        else abs(of_ones(op, terms)) + (1.0 if OPERATORS[op].is_log else 0.0)
    )


@pytest.mark.parametrize(("cols", "dtype"), [(131_072, DType.BF16), (131_072, DType.F16)])
@pytest.mark.parametrize("op", [op for op in OF_MATRICES if op is not Op.MULTIPLY_ROWS])
def test_of_wide_rows_of_16_bits_each_element_is_in_a_subset(cols, dtype, op):
    """Of what sums: a row times a number has no sum."""
    problem = Problem(1, cols, dtype, op)
    subsets = subsets_of(problem)
    assert np.logical_or.reduce(subsets).all() and len(subsets) <= 3


def test_wide_rows_have_a_sample_with_the_ends_of_shares():
    """Their number is the largest that shows one term fewer: it rests on how bf16 is rounded."""
    (first, *_) = subsets_of(Problem(1, 2**21, DType.BF16, Op.LOG_SOFTMAX))
    chosen = set(np.flatnonzero(first).tolist())
    assert {0, 1, 2**20, 2**20 - 1, 2**21 - 1, 2**21 - 2**13} <= chosen
    telling = telling_count(131_072, OPERATORS[Op.LOG_SOFTMAX], DType.BF16, 1.0, -1)
    assert 100_000 <= telling == len(chosen) <= 131_072


@pytest.mark.parametrize("scale", [0.088, -0.5, 40.0])
def test_a_scale_leaves_the_patterns_as_they_count(scale):
    plain = Problem(pattern_count(Problem(1, 64)), 64)
    scaled = Problem(plain.rows, 64, scale=scale)
    due = counted(plain, verification_inputs(plain))
    got = counted(scaled, verification_inputs(scaled))
    overflows = (np.abs(due) >= 1e37) & (abs(scale) > 1)
    finite = np.isfinite(due) & (np.abs(due) < 1e37)
    assert np.allclose(got[finite], due[finite], rtol=1e-6, atol=1e-30)
    masked = ~np.isposinf(due)  # over a negative scale such an element is a mask
    assert (np.isneginf(got) == np.isneginf(due))[masked & ~overflows].all()


def test_a_large_scale_makes_infinities_of_either_sign():
    """Of some elements: a kernel whose products saturate has numbers where NaN is due."""
    for scale in (2.0, -2.0):
        problem = Problem(16, 64, scale=scale)
        x = verification_inputs(problem)["input"]
        counts = counted(problem, {"input": x})
        made = np.isinf(counts) & np.isfinite(x)
        assert (made & (counts > 0)).any() and (made & (counts < 0)).any()


def test_lengths_are_below_0_at_it_at_cols_and_above():
    problem = Problem(40, 100, mask=Mask.LENGTHS)
    lengths = verification_inputs(problem)["lengths"]
    assert {-(2**31), -1, 0, 1, 99, 100, 101, 2**31 - 1} <= set(lengths.tolist())
    assert (lengths[::4] == 100).all()


def test_run_time_arguments_have_another_value_and_one_at_the_edge():
    scaled = with_other_arguments(Problem(12, 8, scale=0.3))
    assert [p.scale for p in scaled] == [0.0, *DType.F32.trials.scales]
    strided = with_other_arguments(Problem(12, 8, input_stride=16, output_stride=24))
    assert [(p.input_stride, p.output_stride) for p in strided] == [(8, 8), (65616, 131224)]
    repeated = with_other_arguments(Problem(12, 8, mask=Mask.ADDITIVE))
    assert [p.mask_rows for p in repeated] == [12, 2]
    causal = with_other_arguments(Problem(12, 8, mask=Mask.CAUSAL))
    assert [p.mask_rows for p in causal] == [1, 2]
    assert [p.inner for p in with_other_arguments(Problem(12, 8, inner=4), 2)] == [12, 2]
    assert with_other_arguments(Problem(12, 8)) == ()


def test_an_additive_mask_has_rows_that_leave_sums_exact():
    problem = Problem(40, 1000, mask=Mask.ADDITIVE, mask_rows=20)
    assert truth_of(problem, verification_inputs(problem)).exact.any()


@pytest.mark.parametrize("bits", range(1, 13))
def test_places_lie_in_all_shares_of_a_row(bits):
    """Any `bits` neighbouring bits of their numbers have every value, once each."""
    places = spread_places(2 ** (bits + 5), 2**bits)
    for shift in range(6):
        assert sorted(places >> shift & 2**bits - 1) == list(range(2**bits))


@pytest.mark.parametrize("cols", [1, 2, 37, 1000, 4097, 2**20])
@pytest.mark.parametrize("count", [1, 16, 256, 4096])
def test_places_are_different_and_within_the_row(cols, count):
    places = spread_places(cols, count)
    assert len(set(places)) == len(places) >= min(cols, count) / 2
    assert min(places) >= 0 and max(places) < cols


@pytest.mark.parametrize("cols", [37, 1000])
def test_each_element_decides_the_maximum_of_some_row_alone(cols):
    """Of narrow rows; of wide ones a sample."""
    rows = rows_of(Problem(1, cols), "peak")
    others = np.where(rows == rows.max(axis=1, keepdims=True), -np.inf, rows)
    with np.errstate(invalid="ignore"):
        alone = rows.max(axis=1) - others.max(axis=1) > 200
    met = set(rows[alone].argmax(axis=1))
    assert len(met) == cols if cols <= 256 else len(met) >= 256


@pytest.mark.parametrize("dtype", DType)
def test_steps_are_told_apart_by_their_type(dtype):
    """A row of steps has several values, none of which is beyond the type."""
    steps = [p for p in patterns_for(Problem(1, 300, dtype)) if p.name.startswith("steps")]
    assert len(steps) >= 12
    for pattern in steps:
        values = pattern.make(np.random.default_rng(0), 300)
        held = values.astype(dtype.numpy).astype(np.float64)
        assert np.isfinite(held).all() and (held == values).all(), pattern.name
        assert len(set(held)) > 1, pattern.name


def test_a_sample_has_as_many_elements_as_a_sum_tells_apart():
    """Also where the places that lie in all shares of a row are fewer than that."""
    cols = 2**20
    for op in (Op.LOG_SOFTMAX, Op.SOFTMAX_BACKWARD):
        subsets = subsets_of(Problem(1, cols, DType.F16, op))
        assert len(subsets) == 2
        terms = telling_count(cols, OPERATORS[op], DType.F16, 1.0, -1)
        assert all(subset.sum() == terms for subset in subsets)


def subsets_of(problem, shares=None):
    """The elements of each subset, of which rows too wide to be made quickly have some."""
    rng = np.random.default_rng(0)
    patterns = [p for p in patterns_for(problem, shares) if p.name == "subset"]
    return [pattern.make(rng, problem.cols) == 0 for pattern in patterns]


CUTS = [
    (4096, Shares(4, 256, 1024)),
    (4096, Shares(4, 160, 1024)),
    (1000, Shares(4, 64, 250)),
    (1001, Shares(8, 32, 126)),
    (4096, Shares(4, 64, 256)),  # four blocks
    (37, Shares(1, 32, 37)),
]


@pytest.mark.parametrize(("cols", "shares"), CUTS, ids=str)
def test_each_thread_has_a_nan_in_its_share_and_as_many_as_there_are_peaks_a_peak(cols, shares):
    def sharers(places):
        vectors = [divmod(place // shares.width, shares.block_vectors) for place in places]
        return {(block, vector % shares.threads) for block, vector in vectors}

    every = sharers(range(cols))
    problem = Problem(pattern_count(Problem(1, cols), shares), cols)
    matrix = Case(problem, shares=shares).arrays()["input"]
    names = [pattern.name for pattern in patterns_for(problem, shares)]
    for name, told in (("peak", matrix > 200), ("one NaN", np.isnan(matrix))):
        rows = [row for row, named in enumerate(names) if named == name]
        places = told[rows].argmax(axis=1)
        assert (told[rows].sum(axis=1) == 1).all()
        assert len(every) == shares.workers(cols)
        assert len(sharers(places)) == min(len(every), len(rows)), name
        assert name == "peak" or len(rows) >= len(every)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize(
    ("cols", "shares", "count"),
    [
        (4096, Shares(4, 256, 1024), 256),
        (4096, Shares(4, 160, 1024), 256),
        (65536, Shares(8, 1024, 8192), 256),
        (65536, Shares(4, 128, 1024), 256),  # sixteen blocks, 512 rounds of warps
    ],
    ids=str,
)
def test_places_lie_in_the_rounds_of_each_warp(cols, shares, count, turn):
    places = np.array(places_of(cols, count, shares, turn))
    assert len(set(places.tolist())) == len(places) >= 0.9 * count
    vectors = places // shares.width
    block, vector = np.divmod(vectors, shares.block_vectors)
    at, thread = np.divmod(vector, shares.threads)
    rounds = -(-shares.block_vectors // shares.threads)
    warps = cols // shares.width // shares.block_vectors * -(-shares.threads // 32)
    met = set(zip(block.tolist(), (thread // 32).tolist(), at.tolist(), strict=True))
    assert len(met) >= min(count, warps * rounds) * 0.9
    assert set((places % shares.width).tolist()) == set(range(shares.width))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
@pytest.mark.parametrize("op", [Op.SOFTMAX_BACKWARD, Op.LOG_SOFTMAX_BACKWARD])
def test_gradients_have_infinities_and_single_nans(op, dtype):
    """And outputs of the forward op have single ones; what is due of infinities is NaN."""
    problem = Problem(pattern_count(Problem(1, 1000, dtype, op)), 1000, dtype, op)
    arrays = verification_inputs(problem)
    grad, y = (arrays[name].astype(np.float32) for name in ("grad", "input"))
    infinite = np.isinf(grad).any(axis=1)
    assert infinite.sum() >= 60
    assert np.isposinf(grad[infinite]).any(axis=1).all()
    assert np.isneginf(grad[infinite]).any(axis=1).all()
    assert np.isnan(truth_of(problem, arrays).values[infinite]).all()
    assert (np.isnan(grad).sum(axis=1) == 1).sum() >= 60
    assert (np.isnan(y).sum(axis=1) == 1).sum() >= 60


def test_a_gradient_of_one_column_has_no_infinity_beside_another():
    problem = Problem(pattern_count(Problem(1, 1, op=Op.SOFTMAX_BACKWARD)), 1)
    assert verification_inputs(replace(problem, op=Op.SOFTMAX_BACKWARD))["grad"].shape[1] == 1


@pytest.mark.parametrize(
    "problem",
    [
        *(Problem(8, 300, op=op) for op in REDUCING),
        Problem(8, 300, mask=Mask.LENGTHS),
        Problem(8, 300, mask=Mask.CAUSAL, mask_rows=8),
        Problem(16, 300, mask=Mask.ADDITIVE, mask_rows=8),
    ],
    ids=str,
)
@pytest.mark.parametrize("width", [1, 8])
def test_a_case_that_leads_begins_with_rows_that_show_whether_all_takes_part(problem, width):
    case = Case(problem, 3, leading_width=width, longer=Accuracy.FAST)
    names = [pattern.name for pattern in patterns_for(problem)]
    seam = "one left at a seam"
    behind = [] if problem.operator.is_gradient else ["one behind others"]
    leading = ["subset", *behind, "last left", seam, "half", seam, "first left"]
    others = names[3 : 3 + problem.rows - len(leading)]
    assert [p.name for p in case.patterns] == [*leading, *others]
    truth = truth_of(problem, case.arrays())
    assert truth.exact_rows()[[0, 3 + len(behind)], 0].all()
    if problem.op is Op.LOGSUMEXP:
        assert np.abs(truth.values[[2, 3, 5, 6], 0]).tolist() == [3.0] * 4
    elif problem.fills_rows and not (problem.operator.is_gradient or problem.mask is Mask.CAUSAL):
        for row, place in ((2, 299), (3, 256 - width), (5, 256), (6, 0)):
            values = truth.values[row] if problem.op is Op.SOFTMAX else np.exp(truth.values[row])
            if problem.ids_dtype:  # the target's is 0, or -1 where the row has another one alone
                values = np.exp(counted(problem, case.arrays())[row])
            assert np.flatnonzero(values).tolist() == [place]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cols", [2, 33, 1000, 100_000])
def test_the_smallest_results_of_f16_occur_in_rows_whose_sum_is_about_1(cols):
    """Where e^x is one of the type's subnormal numbers, and twice the least of them."""
    problem = Problem(1, cols, DType.F16)
    rows = rows_of(problem, "smallest output")
    results = truth_of(Problem(len(rows), cols, DType.F16), {"input": rows}).values
    assert results.max(axis=1).min() > 0.4
    for exponent in range(-24, -16):
        assert ((results >= 2.0**exponent) & (results < 2.0 ** (exponent + 1))).any(), exponent
    assert not len(rows_of(Problem(1, cols), "smallest output"))
    assert len(rows_of(Problem(1, cols, out_dtype=DType.F16), "smallest output"))


@pytest.mark.parametrize("bits", [15, 16, 24, 31])
def test_lengths_that_are_cut_to_fewer_bits_show_other_elements(bits):
    problem = Problem(200, 777, mask=Mask.LENGTHS)
    lengths = verification_inputs(problem)["lengths"].astype(np.int64)
    cut = lengths & (2**bits - 1)
    assert (np.clip(lengths, 0, 777) != np.clip(cut, 0, 777))[lengths >= 0].any() or bits == 31
    assert (np.clip(lengths, 0, 777) != np.clip(cut, 0, 777))[lengths < 0].any()


@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.LENGTHS])
def test_what_is_hidden_may_be_infinite_or_no_number(mask):
    """In the vector in which a row ends, too, which a kernel reads as a whole."""
    problem = Problem(200, 101, mask=mask, mask_rows=100 if mask is Mask.CAUSAL else 0)
    arrays = verification_inputs(problem)
    ends = np.isneginf(counted(problem, arrays)).argmax(axis=1)
    x = arrays["input"].astype(np.float64)
    behind = x[np.arange(200), np.minimum(ends, 100)]
    hides = ends > 0
    for value in (np.inf, problem.dtype.greatest):
        assert (behind[hides] == value).sum() > 10
    assert np.isnan(behind[hides]).sum() > 10
    assert np.isfinite(truth_of(problem, arrays).values).any(axis=1).sum() > 50


@pytest.mark.parametrize(("thorough", "cols", "count"), [(True, 4096, 4096), (False, 1001, 256)])
def test_suspects_are_peaks_too(thorough, cols, count):
    suspects = np.random.default_rng(1).permutation(cols).tolist()
    shares = Shares(4, 128, cols, thorough=thorough, suspects=tuple(suspects))
    peaks = [p for p in patterns_for(Problem(1, cols), shares) if p.name == "peak"]
    rng = np.random.default_rng(0)
    places = [np.argmax(pattern.make(rng, cols)) for pattern in peaks]
    assert set(suspects[:count]) <= set(places)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("cols", "shares"), CUTS, ids=str)
def test_a_row_of_a_peak_has_a_stair_in_each_thread(cols, shares):
    """Online sums keep a maximum of each thread so far: rows enough have each element as one."""
    each = [shares.steps_of_each(cols, number, 9)[0] for number in range(cols)]
    assert np.unique(np.concatenate(each)).tolist() == list(range(cols))
    problem = Problem(pattern_count(Problem(1, cols), shares), cols)
    matrix = Case(problem, shares=shares).arrays()["input"]
    names = [pattern.name for pattern in patterns_for(problem, shares)]
    rows = matrix[names.index("peak") :][: names.count("peak")]
    assert ((rows > 900).sum(axis=1) == 1).all()
    places, levels = shares.steps_of_each(cols, 0, 9)
    vectors = places // shares.width
    thread = vectors // shares.block_vectors, vectors % shares.block_vectors % shares.threads
    for _, own in groupby(sorted(zip(*thread, places, levels, strict=True)), lambda one: one[:2]):
        values = [rows[0][place] for *_, place, _ in own if rows[0][place] < 900]
        assert (np.diff(values) > 89).all() and len(values) <= 9
    raised = (rows > -1000 + 89) & (rows < 100)
    assert raised.any(axis=0).mean() > 0.9


def test_a_thorough_check_has_each_element_of_a_wide_row_in_a_subset():
    shares = Shares(width=8, threads=256, block_vectors=2**17, thorough=True)
    for thorough, whole in ((True, True), (False, False)):
        cut = replace(shares, thorough=thorough)
        problem = Problem(1, 2**20, DType.F16, Op.LOG_SOFTMAX)
        assert np.logical_or.reduce(subsets_of(problem, cut)).all() == whole


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16])
def test_a_maximum_of_each_size_and_sign_is_far_above_all_others(dtype):
    problem = Problem(1, 1000, dtype)
    for value in (-1.3, 0.7, 1e-5, 2900.0, -2900.0):
        (row,) = rows_of(problem, f"maximum {value:g}")
        least, greatest = np.sort(row)[[0, -2]]
        assert np.isclose(row.max(), value, rtol=2e-3) and row.max() - greatest > 90
        assert row.max() - least > 9000


def test_the_smallest_gradients_of_f16_are_no_gradient_of_their_own():
    """Of log_softmax: e^y below e^-20 shows where dy is 0, beside a sum of many large ones."""
    problem = Problem(1, 1000, DType.F16, Op.LOG_SOFTMAX_BACKWARD)
    problem = problem.resized(rows=pattern_count(problem))
    arrays = verification_inputs(problem)
    values = truth_of(problem, arrays).values
    deep = (arrays["input"] < -25) & (arrays["grad"] == 0)
    assert (np.abs(values[deep]) > 2.0**-24).sum() > 50


def test_kept_matrices_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr(inputs, "MOST_CACHED_BYTES", 100_000)
    monkeypatch.setattr(inputs, "_CACHE", kept := inputs._RowCache())
    first = verification_inputs(Problem(16, 512))["input"]  # 32 KiB, as the others
    assert verification_inputs(Problem(16, 512))["input"].base is first.base
    for cols in (513, 514, 515):
        verification_inputs(Problem(16, cols))
        assert kept.bytes <= 100_000
    assert verification_inputs(Problem(16, 512))["input"].base is not first.base
    verification_inputs(Problem(64, 4096))
    assert kept.bytes == 64 * 4096 * 4, "the last one is kept, however large"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("softcap", [5.0, 1e5])
def test_rows_near_a_cap_have_either_of_the_two_greatest_numbers_as_their_target(dtype, softcap):
    case = Case(Problem(99, 50, dtype, "cross_entropy", softcap=softcap))
    arrays = case.arrays()
    near = [row for row, one in enumerate(case.patterns) if one.name.startswith("near the cap")]
    places = []
    for x, target in zip(arrays["input"][near], arrays["ids"][near, 0], strict=True):
        places.append(int((x > x[target]).sum()))
        numbers = np.unique(x)[-2:] / softcap
        assert (np.abs(numbers) > 3).all() and np.diff(np.tanh(numbers.astype(np.longdouble))) > 0
    assert set(places) == {0, 1}
    assert not any("cap" in one.name for one in patterns_for(Problem(99, 50, dtype)))
