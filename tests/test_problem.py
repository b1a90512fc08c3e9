"""What a problem is made of: numbers and flags, and nothing that only looks like them."""

import ml_dtypes
import numpy as np
import pytest

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.model.query import query_from_keywords


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((4.0, 5), "rows is 4.0; it must be a whole number from 1 to 8589934591"),
        ((True, 5), "rows is True; it must be a whole number from 1 to 8589934591"),
        (("a", 5), "rows is 'a'; it must be a whole number from 1 to 8589934591"),
        ((4, None), "cols is None; it must be a whole number from 1 to 2147418111"),
        ((np.float32(4), 5), "it must be a whole number from 1 to"),
        ((0, 5), "rows is 0; it must be a whole number from 1 to 8589934591"),
    ],
)
def test_rows_and_cols_are_whole_numbers(values, says):
    with pytest.raises(InvalidInput) as told:
        Problem(*values)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"in_place": "yes"}, "in_place is 'yes'; it must be True or False"),
        ({"scale": "x"}, "scale is 'x'; it must be a finite number"),
        ({"scale": True}, "scale is True; it must be a finite number"),
        ({"scale": 10**400}, "it must be a finite number"),
        ({"inner": 1.0}, "inner is 1.0; it must be a whole number from 1 to"),
        ({"input_stride": 8.0}, "input_stride is 8.0; it must be a whole number from 1 to"),
        ({"mask": "causal", "mask_rows": "4"}, "mask_rows is '4'; it must be a whole number"),
    ],
)
def test_other_fields_are_of_their_kind(more, says):
    with pytest.raises(InvalidInput) as told:
        Problem(4, 5, **more)
    assert says in str(told.value)


@pytest.mark.parametrize(
    ("op", "more", "says"),
    [
        ("log_prob", {}, "log_prob is for rows that are contiguous: it must be 1"),
        ("cross_entropy", {"ids_stride": 3}, "ids_stride is 3; with inner 2 ids are dense"),
        ("cross_entropy", {"ids_per_row": 2}, "cross_entropy has one target a row"),
    ],
)
def test_ids_over_a_middle_axis_are_dense_targets(op, more, says):
    with pytest.raises(InvalidInput) as told:
        Problem(4, 5, op=op, inner=2, **more)
    assert says in str(told.value)


def test_numbers_of_numpy_are_taken_as_plain_ones():
    problem = Problem(np.int32(2**30), np.int64(5), inner=np.uint8(1), scale=np.float32(0.5))
    assert problem == Problem(2**30, 5, scale=0.5)
    assert type(problem.rows) is type(problem.cols) is type(problem.inner) is int
    assert problem.bytes == 2**30 * 5 * 8
    assert Problem(4, 5, scale=2) == Problem(4, 5, scale=2.0)


class TorchType:
    """Stands for PyTorch's torch.dtype, which is known by these names and its text."""

    __slots__ = ("name_in_torch",)

    def __init__(self, name_in_torch):
        self.name_in_torch = name_in_torch

    def __repr__(self):
        return f"torch.{self.name_in_torch}"


TorchType.__module__, TorchType.__name__ = "torch", "dtype"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *((name, DType.F32) for name in ("f32", "float32", "fp32", "FP32", "torch.float")),
        *((name, DType.F16) for name in ("f16", "float16", "fp16", "half", "torch.half")),
        *((name, DType.BF16) for name in ("bf16", "bfloat16", "torch.bfloat16")),
        *((name, DType.F64) for name in ("f64", "float64", "fp64", "double")),
        (np.float16, DType.F16),
        (np.double, DType.F64),
        (np.dtype("float32"), DType.F32),
        (ml_dtypes.bfloat16, DType.BF16),
        (np.dtype(ml_dtypes.bfloat16), DType.BF16),
        (TorchType("bfloat16"), DType.BF16),
        (TorchType("float64"), DType.F64),
    ],
    ids=repr,
)
def test_types_are_said_as_libraries_say_them(said, meant):
    assert Problem(4, 5, said).dtype is meant
    assert Problem(4, 5, meant, out_dtype=said).out_dtype is meant
    assert Problem(4, 5, meant, out_dtype=said) == Problem(4, 5, meant)
    assert (
        query_from_keywords({"cols": 5, "dtype": said, "out_dtype": said}).problem().dtype is meant
    )


@pytest.mark.parametrize(
    "value",
    [float, np.int32, np.longdouble, np.float16(1), 5, b"half", ["half"], "f8", TorchType("int8")],
)
def test_what_is_no_type_of_elements_is_told(value):
    for name in ("dtype", "out_dtype"):
        with pytest.raises(
            InvalidInput, match=f"^{name} .*; (it must be|choose) one of f32, f16, bf16"
        ):
            Problem(4, 5, **{name: value})
        if not isinstance(value, str):
            with pytest.raises(InvalidInput, match=f"^{name} is .*; it must be one of f32, f16"):
                query_from_keywords({"cols": 5, name: value})
