"""What verifies attention: the truth, the order of caches in memory, and what arrays hold."""

import math

import numpy as np
import pytest

from explorer.model.element import DType
from explorer.model.problem import Layout, Mask, Problem, inputs
from explorer.ops import Op
from explorer.reference.attention import KINDS
from explorer.reference.inputs import Case, normal_inputs
from explorer.reference.layout import Promise, first_elements, in_memory
from explorer.reference.truth import truths_of


def problem_of(rows=24, cols=37, dtype=DType.F32, **options):
    usual = {"group": 3, "key_heads": 2, "head_dim": 64, "also": "lse"}
    return Problem(rows, cols, dtype, Op.DECODE_ATTENTION, **usual | options)


def attended(problem, arrays, row):
    """The output and the lse of one row, a number at a time."""
    group, heads, dim = problem.group, problem.key_heads, problem.head_dim
    scale = dim**-0.5 if problem.scale is None else float(np.float32(problem.scale))
    first = row // group * problem.cols
    length = problem.cols
    if "lengths" in arrays:
        length = min(max(int(arrays["lengths"][row // group // heads]), 0), length)
    query, keys, values = (arrays[name].astype(float) for name in ("query", "key", "value"))
    scores = [scale * math.fsum(query[row] * keys[first + number]) for number in range(length)]
    if not length:
        return np.zeros(dim), -math.inf
    greatest = max(scores)
    weights = [math.exp(score - greatest) for score in scores]
    total = math.fsum(weights)
    output = [
        math.fsum(weight * values[first + k, d] for k, weight in enumerate(weights)) / total
        for d in range(dim)
    ]
    return np.array(output), greatest + math.log(total)


@pytest.mark.parametrize("scale", [None, -0.7, 0.0])
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.LENGTHS])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_the_truth_is_that_of_a_loop(dtype, mask, scale):
    problem = problem_of(dtype=dtype, mask=mask, scale=scale)
    arrays = normal_inputs(problem, 3)
    if mask is Mask.LENGTHS:
        arrays["lengths"][:] = [0, 37, 40, 11]
    truths = truths_of(problem, arrays)
    for row in range(problem.rows):
        output, lse = attended(problem, arrays, row)
        np.testing.assert_allclose(truths["output"].values[row], output, 1e-12, 1e-13)
        np.testing.assert_allclose(truths["lse"].values[row, 0], lse, 1e-12, 1e-13)


def test_a_sequence_without_keys_has_exactly_zeros():
    problem = problem_of(mask=Mask.LENGTHS)
    arrays = normal_inputs(problem)
    arrays["lengths"][:] = [0, -3, 37, 1]
    output = truths_of(problem, arrays)["output"]
    empty = slice(0, 2 * problem.heads)
    assert not output.values[empty].any() and not output.magnitude[empty].any()
    assert (output.magnitude[2 * problem.heads :] > 0).all()


def test_16_bits_may_lose_four_times_what_32_may():
    arrays = normal_inputs(problem_of())
    magnitudes = [
        truths_of(problem_of(dtype=dtype), arrays)["output"].magnitude
        for dtype in (DType.F32, DType.BF16)
    ]
    np.testing.assert_allclose(4 * magnitudes[0], magnitudes[1])


def test_caches_lie_in_memory_in_the_order_of_their_layout():
    for layout in Layout:
        problem = problem_of(layout=layout)
        for operand in inputs(problem):
            array = normal_inputs(problem)[operand.name]
            flat = in_memory(problem, operand, array).reshape(-1)
            if layout is Layout.HND or operand.name == "query":
                assert (flat == array.reshape(-1)).all()
                continue
            logical = array.reshape(4, 2, 37, 64)  # sequences, key heads, keys, elements
            there = flat.reshape(4, 37, 2, 64)
            assert all((there[:, :, head] == logical[:, head]).all() for head in range(2))


def test_arrays_begin_at_odd_multiples_of_an_access_and_others_at_odd_elements():
    places = first_elements(problem_of(dtype=DType.BF16, mask=Mask.LENGTHS), 0, Promise(16, 16))
    assert {name: first % 16 for name, first in places.items()} | {"lse": 1, "lengths": 1} == {
        "query": 8,
        "key": 8,
        "value": 8,
        "output": 8,
        "lse": 1,
        "lengths": 1,
    }
    assert places["lse"] % 2 == places["lengths"] % 2 == 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_nothing_past_a_length_is_a_number(dtype):
    problem = problem_of(rows=6 * 9, dtype=dtype, mask=Mask.LENGTHS)
    arrays = Case(problem, seams=(16, 32)).arrays(2)
    lengths = np.clip(arrays["lengths"], 0, problem.cols)
    assert {0, problem.cols} < set(lengths.tolist())
    past = np.arange(problem.cols) >= np.repeat(lengths, 2)[:, None]
    for name in ("key", "value"):
        cache = arrays[name].reshape(18, problem.cols, 64).astype(np.float32)
        assert np.isnan(cache[past]).all()
        assert np.isfinite(cache[~past]).mean() > 0.9


def test_lengths_lie_next_to_seams():
    problem = problem_of(rows=6 * 60, mask=Mask.LENGTHS)
    lengths = set(Case(problem, seams=(16, 32)).arrays()["lengths"].tolist())
    assert {15, 16, 17, 31, 32, 33, 0, 1, 36, 37} <= lengths
    assert min(lengths) < 0 and max(lengths) > problem.cols


@pytest.mark.parametrize("scale", [None, 3.0, -1e-3, 0.0])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16])
def test_groups_of_all_kinds_have_a_truth(dtype, scale):
    groups = 4 * len(KINDS)
    problem = problem_of(rows=3 * groups, dtype=dtype, scale=scale)
    truth = truths_of(problem, Case(problem).arrays(1))
    output = truth["output"].values.reshape(groups, -1)
    kinds = np.resize(KINDS, groups)
    with_numbers = np.isfinite(output).any(axis=1)
    assert with_numbers[(kinds != "special") & (kinds != "NaN")].all()
    assert np.isnan(output[kinds == "NaN"]).any(axis=1).all()
    assert np.isnan(output[kinds == "special"]).any()
    if scale != 0:
        assert np.isfinite(output[kinds == "special"]).any()


def test_small_weights_make_up_a_result():
    problem = problem_of(rows=3 * len(KINDS), dtype=DType.F16)
    truth = truths_of(problem, Case(problem).arrays(1))
    place = KINDS.index("outweighed")
    magnitude = truth["output"].magnitude.reshape(len(KINDS), -1)[place]
    assert (magnitude > 0).all() and magnitude.max() < 0.1
