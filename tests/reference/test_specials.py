"""Rows with NaN and infinities, large offsets, and the ends of a type."""

import numpy as np
import pytest

from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.reference.inputs import Case, pattern_count
from explorer.reference.layout import Promise, first_elements
from explorer.reference.patterns import patterns_for, special_patterns
from explorer.reference.rows import Shares
from explorer.reference.specials import NAN_KINDS, SPECIAL, nan_bits, specials
from explorer.reference.truth import counted, truth_of

FORWARD = [op for op, of in OPERATORS.items() if not of.is_gradient and of.over is Extent.MATRIX]


def thorough(problem):
    """A case with every pattern of a thorough check."""
    shares = Shares(4, 64, 256, thorough=True)
    return Case(problem.resized(pattern_count(problem, shares)), shares=shares)


@pytest.mark.parametrize("dtype", DType)
def test_every_nan_is_one_and_two_of_them_signal(dtype):
    bits = np.array(nan_bits(dtype), f"u{dtype.itemsize}")
    assert len(set(bits.tolist())) == NAN_KINDS
    assert np.isnan(bits.view(dtype.numpy)).all()
    quiet = (bits >> (dtype.mantissa_bits - 1)) & 1
    assert quiet.tolist() == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("scale", [None, 0.3, -2.0])
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("op", [Op.SOFTMAX, Op.LOGSUMEXP, Op.LOG_SOFTMAX_BACKWARD])
def test_inputs_hold_nan_of_all_bits(op, dtype, scale):
    """Of which neither a scale nor a type of the row leaves others."""
    problem = Problem(1, 250, dtype, op, scale=scale)
    case = thorough(problem)
    held = case.arrays()["grad" if OPERATORS[op].is_gradient else "input"]
    bits = held.view(f"u{dtype.itemsize}")[np.isnan(held.astype(np.float64))]
    assert set(nan_bits(dtype)) <= set(bits.tolist())


@pytest.mark.parametrize("cols", [1, 2, 37, 1000])
def test_each_special_value_lies_in_a_row_of_each_kind(cols):
    rng = np.random.default_rng(0)
    rows = np.array([p.make(rng, cols) for p in specials(few=False, thorough=True)])
    assert len(rows) == 7 * 6
    for told, kinds in ((np.isnan(rows), NAN_KINDS), (np.isposinf(rows), 1)):
        assert told.any(axis=1).sum() == 6 * kinds
        assert (told.sum(axis=1) <= 1).all()


@pytest.mark.parametrize("op", FORWARD)
@pytest.mark.parametrize("dtype", DType)
def test_a_row_spans_its_type_and_logarithms_exceed_it(op, dtype):
    problem = Problem(1, 100, dtype, op)
    spanning = [p for p in patterns_for(problem) if p.name == "beyond the type"]
    row = spanning[0].make(np.random.default_rng(0), 100)
    assert row.max() - row.min() > dtype.greatest
    if op is Op.LOG_SOFTMAX:
        values = truth_of(problem, {"input": row[None].astype(dtype.numpy)}).values
        assert np.isneginf(values.astype(dtype.numpy)).any()


@pytest.mark.parametrize("dtype", DType)
def test_a_dominating_maximum_has_one_element_some_below_it_at_a_large_offset(dtype):
    named = [
        p for p in patterns_for(Problem(1, 64, dtype, Op.LOG_SOFTMAX)) if p.name == "dominated"
    ]
    rng = np.random.default_rng(1)
    for pattern in named:
        row = pattern.make(rng, 64)
        held = np.sort(row.astype(dtype.numpy).astype(np.float64))
        assert (held[-2:] == np.sort(row)[-2:]).all() and abs(held[-1]) > 70
        assert held[-1] - held[-2] in (3.0, 8.0, 12.0) and held[-1] - held[-3] > 9 * 3


def test_lengths_end_at_the_seams_of_a_kernel():
    shares = Shares(width=4, threads=64, block_vectors=250)
    problem = Problem(1, 1000, mask=Mask.LENGTHS)
    case = Case(problem.resized(pattern_count(problem, shares)), shares=shares)
    lengths = set(case.arrays()["lengths"].tolist())
    assert {127, 128, 129, 255, 256, 257, 511, 512, 513, 767, 768, 769} <= lengths
    assert all(0 < seam < 1000 for seam in shares.seams(1000))


def test_the_last_row_is_a_whole_one_or_an_empty_one():
    last = {
        int(Case(Problem(rows, 100, mask=Mask.LENGTHS)).arrays()["lengths"][-1])
        for rows in (1, 2, 7, 8)
    }
    assert last == {0, 100}


def test_rows_of_one_element_are_special_ones():
    case = thorough(Problem(1, 100, mask=Mask.LENGTHS))
    arrays = case.arrays()
    special = np.array([pattern.name == SPECIAL for pattern in case.patterns])
    alone = special & (arrays["lengths"] == 1)
    first = counted(case.problem, arrays)[alone, 0]
    assert np.isnan(first).sum() >= 10 and np.isposinf(first).sum() >= 2


def test_scales_that_need_no_multiplication_have_exact_and_special_rows():
    names = [pattern.name for pattern in special_patterns(Problem(1, 100, scale=2.0))]
    assert {SPECIAL, "few terms", "one greatest", "beyond the type"} <= set(names)
    case = Case(Problem(len(names), 100, scale=-1.0), specials=True)
    assert [pattern.name for pattern in case.patterns] == names


@pytest.mark.parametrize("also", ["", "lse"])
def test_each_array_begins_at_another_odd_multiple_of_what_is_promised(also):
    problem = Problem(5, 64, DType.BF16, Op.LOG_PROB, out_dtype=DType.F32, also=also)
    begun = first_elements(problem, 0, Promise(16, 16))
    assert begun["input"] * 2 % 32 == 16
    assert len(begun) == 3 + bool(also) and all(begun.values())
    gradient = Problem(5, 64, op=Op.SOFTMAX_BACKWARD)
    places = [4 * place for place in first_elements(gradient, 0, Promise(16, 8)).values()]
    assert [place % 32 for place in places[:2]] == [16, 16] and places[2] % 16 == 8
    assert len(set(places)) == 3
