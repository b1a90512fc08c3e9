"""A problem as words of a command line, there and back."""

import pytest

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask, Problem
from explorer.model.query import ProblemQuery, query_from_keywords, query_from_words
from explorer.ops import Op

PROBLEMS = [
    Problem(8192, 4096),
    Problem(8192, 4097, DType.BF16, Op.LOG_SOFTMAX, DType.F32),
    Problem(64, 100, scale=0.1),
    Problem(64, 16, mask=Mask.CAUSAL, mask_rows=16),
    Problem(64, 16, mask=Mask.CAUSAL),
    Problem(64, 16, mask=Mask.LENGTHS),
    Problem(64, 16, mask=Mask.ADDITIVE, mask_rows=8),
    Problem(64, 16, op=Op.SOFTMAX_BACKWARD, inner=4),
    Problem(64, 16, input_stride=24, output_stride=16),
    Problem(64, 16, in_place=True),
    Problem(64, 16, DType.BF16, Op.LOGSUMEXP, also="maximum,log_sum"),
    Problem(64, 16, op=Op.LOG_PROB, ids_per_row=3, ids_dtype="int32", ids_stride=4, also="rank"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_words_of_a_problem_name_it(problem):
    query = ProblemQuery.of(problem)
    assert query_from_words(query.options) == query
    assert query.problem() == problem
    assert query.matches(problem)
    assert Problem.from_dict(problem.as_dict()) == problem


def test_rows_left_out_match_any():
    assert ProblemQuery(16).matches(Problem(64, 16))
    assert not ProblemQuery(16, rows=8).matches(Problem(64, 16))
    assert not ProblemQuery(16).matches(Problem(64, 16, scale=2.0))
    assert not ProblemQuery(17).matches(Problem(64, 16))


def test_a_causal_mask_is_square_where_it_can_be():
    assert ProblemQuery(4096, mask=Mask.CAUSAL).problem().mask_rows == 4096
    assert ProblemQuery(16, rows=24, mask=Mask.CAUSAL).problem().mask_rows == 24


def test_rows_left_out_suit_the_inner_axis():
    assert ProblemQuery(3, inner=50176).problem().rows % 50176 == 0


@pytest.mark.parametrize(
    ("op", "rows"),
    [(Op.SOFTMAX, 8192), (Op.SOFTMAX_BACKWARD, 8192), (Op.LOGSUMEXP, 16384), (Op.LOG_PROB, 16384)],
)
def test_rows_left_out_make_as_much_traffic_for_an_op_that_writes_little(op, rows):
    assert ProblemQuery(4096, op=op).problem().rows == rows


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"also": "lse"}, "also is 'lse'; no result of softmax: it has none on request"),
        ({"op": "log_prob", "also": "lse,"}, "also is 'lse,'; it must be names"),
        ({"op": "log_prob", "also": 3}, "also is 3; it must be names"),
        ({"op": "log_prob", "also": "loss"}, "no result of log_prob: it has lse, entropy, rank"),
        ({"ids_per_row": 2, "ids_stride": 2}, "leave ids_per_row and ids_stride out"),
        ({"op": "log_prob", "ids_per_row": 0}, "ids_per_row is 0; it must be a whole number"),
        ({"op": "log_prob", "ids_per_row": 3, "ids_stride": 2}, "ids_stride is 2; a row has 3"),
        ({"op": "log_prob", "ids_dtype": "f32"}, "ids_dtype 'f32' is not known"),
    ],
)
def test_ids_and_results_that_cannot_be_are_refused(keywords, says):
    with pytest.raises(InvalidInput, match=says):
        query_from_keywords({"cols": 16, **keywords})


def test_a_number_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="scale is 'hot'"):
        query_from_words(["--cols", "8", "--scale", "hot"])


def test_resized_keeps_the_gaps_and_the_kind():
    problem = Problem(64, 16, input_stride=24, mask=Mask.CAUSAL, mask_rows=64).resized(5, 20)
    assert (problem.input_stride, problem.output_stride, problem.mask_rows) == (28, 20, 5)
    assert Problem(64, 16, mask=Mask.ADDITIVE, mask_rows=8).resized(9).mask_rows == 3


def test_the_first_rows_of_a_causal_mask():
    first = Problem(10, 100, mask=Mask.CAUSAL, mask_rows=100)
    assert first.visible == sum(range(1, 11))
    assert [first.resized(rows).mask_rows for rows in (5, 100, 69, 201)] == [100, 100, 100, 3]


@pytest.mark.parametrize("more", [{}, {"mask": "causal"}, {"rows": 8, "mask": "causal"}])
def test_no_columns_are_refused(more):
    with pytest.raises(InvalidInput, match="cols is 0"):
        query_from_keywords({"cols": 0, **more})
    with pytest.raises(InvalidInput, match="cols is '0'"):
        query_from_words(["--cols", "0"])


def test_a_field_that_is_none_is_refused():
    with pytest.raises(TypeError, match="no field dropout"):
        ProblemQuery(16, dropout=0.1)


def test_a_problem_may_be_said_in_text():
    """A program says dtype="bf16"; what was kept as text would have no size, and another digest."""
    said = Problem(64, 128, dtype="bf16", op="log_softmax", out_dtype="f32", mask="causal")
    meant = Problem(
        64, 128, DType.BF16, Op.LOG_SOFTMAX, out_dtype=DType.F32, mask=Mask.CAUSAL, mask_rows=64
    )
    assert repr(said) == repr(meant)
    for name in ("dtype", "op", "out_dtype", "mask"):
        with pytest.raises(InvalidInput, match=f"{name} 'f8' is not known; choose one of"):
            Problem(64, 128, **{name: "f8"})


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, DType.F32) for name in ("f32", "float32", "fp32", "float", "FP32", "torch.float")),
        *((name, DType.F16) for name in ("f16", "float16", "fp16", "half", "torch.half")),
        *((name, DType.BF16) for name in ("bf16", "bfloat16", "BF16", "torch.bfloat16")),
        *((name, DType.F64) for name in ("f64", "float64", "fp64", "double")),
    ],
)
def test_types_as_people_write_them(name, dtype):
    assert DType.parse(name) is dtype
    assert query_from_keywords({"cols": 8, "dtype": name}).dtype is dtype
    assert query_from_words(["--cols", "8", "--dtype", name]).dtype is dtype


@pytest.mark.parametrize("name", ["float8", "int32", "torch", "torch.", "f", ""])
def test_other_types_are_refused_by_the_name_that_was_written(name):
    with pytest.raises(InvalidInput, match=f"dtype '{name}' is not known; choose one of f32, f16"):
        DType.parse(name)


def test_a_cache_has_no_shape_of_an_array():
    with pytest.raises(InvalidInput, match="shape is of an array, and decode_attention reads a"):
        query_from_keywords({"shape": (4, 8, 64, 128), "op": "decode_attention"})


def test_bad_input_is_a_value_error():
    with pytest.raises(ValueError, match="cols is 0"):
        query_from_keywords({"cols": 0})


def test_names_are_read_in_any_case():
    query = query_from_keywords({"cols": 8, "op": "LOG_SOFTMAX", "dtype": "BF16", "mask": "Causal"})
    assert str(query.problem().op) == "log_softmax" and str(query.problem().mask) == "causal"
