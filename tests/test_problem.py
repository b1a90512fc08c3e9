"""What a problem is made of: numbers and flags, and nothing that only looks like them."""

import numpy as np
import pytest

from explorer.errors import InvalidInput
from explorer.problem import Problem


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


def test_numbers_of_numpy_are_taken_as_plain_ones():
    problem = Problem(np.int32(2**30), np.int64(5), inner=np.uint8(1), scale=np.float32(0.5))
    assert problem == Problem(2**30, 5, scale=0.5)
    assert type(problem.rows) is type(problem.cols) is type(problem.inner) is int
    assert problem.bytes == 2**30 * 5 * 8
    assert Problem(4, 5, scale=2) == Problem(4, 5, scale=2.0)
