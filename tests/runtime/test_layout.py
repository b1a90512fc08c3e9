"""How arrays are seen as rows: every element that a kernel would address is the array's own."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.runtime.layout import (
    Matrix,
    Spread,
    dense_matrix,
    goes_in_turn,
    mask_rows_of,
    matrix_of,
    positive,
    spread_of,
)

# ------------------------------------------------------------------ brute force


def view(shape, strides):
    """A view whose elements are their places in memory, counted from its first element."""
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    below = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    memory = np.arange(below, reach + 1, dtype=np.int64)
    octets = tuple(stride * memory.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(memory[-below:], shape, octets)


def rows_of(array, dim):
    """An array as rows over one axis, in the order in which kernels number them."""
    return np.moveaxis(array, dim, -1).reshape(-1, array.shape[dim])


def places(matrix):
    """Where a kernel finds the elements of each row."""
    index, cols = np.arange(matrix.rows), np.arange(matrix.cols)
    if matrix.inner == 1:
        return index[:, None] * matrix.stride + cols
    outer, place = index // matrix.inner, index % matrix.inner
    return (outer[:, None] * matrix.cols + cols) * matrix.inner + place[:, None]


def check(shape, strides, dim):
    """Assert that a matrix addresses what numpy's view has; return it."""
    matrix = matrix_of(shape, strides, dim)
    if matrix is None:
        return None
    array = view(shape, strides) if shape else np.zeros((1,), np.int64)
    assert np.array_equal(places(matrix), rows_of(array, dim))
    assert matrix.stride >= matrix.cols
    assert matrix.inner == 1 or matrix.stride == matrix.cols
    return matrix


def dense(shape):
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


# ------------------------------------------------------------------ matrix_of


@pytest.mark.parametrize(
    "shape", [(7,), (1,), (3, 5), (1, 5), (5, 1), (2, 3, 4), (2, 1, 4), (2, 3, 4, 5)], ids=str
)
def test_a_dense_array_is_always_read_as_it_lies(shape):
    for dim in range(len(shape)):
        matrix = check(shape, dense(shape), dim)
        assert matrix == dense_matrix(shape, dim)
        assert matrix.rows * matrix.cols == math.prod(shape)
        assert matrix.inner == math.prod(shape[dim + 1 :])


def test_an_array_of_no_axes_is_one_row_of_one_element():
    assert matrix_of((), (), 0) == dense_matrix((), 0) == Matrix(1, 1, 1, 1)


@pytest.mark.parametrize(
    "shape, strides, matrix",
    [
        ((3, 5), (8, 1), Matrix(3, 5, 1, 8)),  # columns sliced off
        ((3, 5), (10, 1), Matrix(3, 5, 1, 10)),  # every second row
        ((2, 3, 5), (24, 8, 1), Matrix(6, 5, 1, 8)),
        ((2, 1, 5), (8, 999, 1), Matrix(2, 5, 1, 8)),  # an axis of one element, of any stride
        ((1, 5), (999, 1), Matrix(1, 5, 1, 5)),
        ((4, 1), (3, 77), Matrix(4, 1, 1, 3)),  # one column
        ((1, 1), (0, 0), Matrix(1, 1, 1, 1)),
        ((5,), (1,), Matrix(1, 5, 1, 5)),
    ],
    ids=str,
)
def test_rows_that_lie_one_stride_apart_are_read_as_they_lie(shape, strides, matrix):
    assert check(shape, strides, len(shape) - 1) == matrix


@pytest.mark.parametrize(
    "shape, strides, dim",
    [
        ((5,), (2,), 0),  # every second element
        ((5,), (0,), 0),  # one element, seen five times
        ((3, 5), (1, 3), 1),  # transposed
        ((3, 5), (0, 1), 1),  # one row, seen three times
        ((4, 1), (0, 1), 1),
        ((3, 5), (2, 1), 1),  # rows that overlap
        ((3, 5), (-5, 1), 1),  # from the last row to the first
        ((2, 3, 5), (40, 8, 1), 2),  # the leading axes lie not one stride apart
        ((2, 3, 5), (0, 5, 1), 2),
        ((2, 3, 5), (18, 6, 1), 1),  # a middle axis of an array with gaps
    ],
    ids=str,
)
def test_what_lies_otherwise_is_to_be_copied(shape, strides, dim):
    assert matrix_of(shape, strides, dim) is None


def test_an_axis_before_axes_of_one_element_is_a_last_axis():
    assert check((3, 5, 1, 1), (8, 1, 7, 7), 1) == Matrix(3, 5, 1, 8)


EXTENTS = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@st.composite
def layouts(draw):
    """A shape, strides that a view may have, and an axis."""
    shape = draw(EXTENTS)
    strides, step = [], draw(st.sampled_from([1, 1, 1, 2]))
    for extent in reversed(shape):
        stride = step
        if extent == 1 or draw(st.integers(0, 9)) == 0:
            stride = draw(st.integers(-3, 40))
        strides.append(stride)
        step = step * extent + draw(st.sampled_from([0, 0, 0, 1, 3]))
    strides.reverse()
    if draw(st.integers(0, 3)) == 0:
        order = draw(st.permutations(range(len(shape))))
        shape, strides = [shape[n] for n in order], [strides[n] for n in order]
    return tuple(shape), tuple(strides), draw(st.integers(0, len(shape) - 1))


@given(layouts())
@settings(max_examples=250, deadline=None)
def test_a_matrix_addresses_exactly_the_elements_of_the_view(layout):
    check(*layout)


@given(EXTENTS, st.data())
@settings(max_examples=200, deadline=None)
def test_columns_or_rows_sliced_off_a_dense_array_need_no_copy(whole, data):
    """The views that programs make most: a part of the last axis, and every n-th row."""
    end = data.draw(st.integers(1, whole[-1]))
    every = data.draw(st.integers(1, 3))
    array = np.empty((2 * every, *whole))[::every, ..., :end]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    matrix = check(array.shape, strides, array.ndim - 1)
    assert matrix is not None or len(whole) > 1 or end < whole[-1]


# ------------------------------------------------------------------ spread_of


@pytest.mark.parametrize(
    "shape, strides, spread",
    [
        ((2, 4, 7), (35, 7, 1), Spread(9, 7, (5, 1))),  # logits[:, :-1]
        ((2, 4, 7), (40, 8, 1), Spread(9, 8, (5, 1))),  # and without the last column
        ((3, 2, 7), (35, 14, 1), Spread(13, 7, (5, 2))),  # logits[:, 1:5:2]
        ((2, 3, 7), (7, 14, 1), Spread(6, 7, (1, 2))),  # transposed
        ((2, 1, 7), (35, 99, 1), Spread(2, 35, (1, 1))),
        ((2, 3, 7), (21, 6, 1), None),  # rows that overlap
        ((2, 3, 7), (7, 7, 1), None),
        ((2, 3, 7), (0, 7, 1), None),  # one matrix, seen twice
        ((2, 3, 7), (-21, 7, 1), None),
        ((2, 3, 7), (42, 14, 2), None),
    ],
    ids=str,
)
def test_rows_among_others(shape, strides, spread):
    assert spread_of(shape, strides) == spread


@given(layouts())
@settings(max_examples=250, deadline=None)
def test_rows_among_others_are_those_of_the_view(layout):
    shape, strides, _ = layout
    spread = spread_of(shape, strides)
    if spread is None:
        return
    cols = shape[-1]
    every = np.arange(spread.rows)[:, None] * spread.stride + np.arange(cols)
    octets = [step * every.itemsize for step in spread.strides(cols)]
    own = np.lib.stride_tricks.as_strided(every, shape, octets)
    assert np.array_equal(own, view(shape, strides)) and spread.stride >= cols
    assert len(np.unique(own)) == own.size


def test_a_launch_for_each_index_is_dearer_than_some_rows():
    for others, is_in_turn in (
        (1, False),
        (8, False),
        (9, True),
    ):  # eight rows take a launch's time
        shape, strides, cols = (2, 4, 2**20), ((4 + others) * 2**20, 2**20, 1), 2**20
        spread = spread_of(shape, strides)
        assert spread.rows * cols == (8 + others) * 2**20
        assert goes_in_turn(spread, shape, 4) is is_in_turn


# ------------------------------------------------------------------ positive


@pytest.mark.parametrize("rank", range(5))
def test_an_axis_is_counted_from_the_first_as_numpy_counts(rank):
    axes = max(1, rank)
    for dim in range(-axes, axes):
        assert positive(dim, rank) == range(axes)[dim]
    for dim in (-axes - 1, axes):
        with pytest.raises(IndexError, match=f"dim is {dim}; an array of {rank} axes has"):
            positive(dim, rank)


# ------------------------------------------------------------------ masks


@pytest.mark.parametrize(
    "shape, mask, rows",
    [
        ((4, 5), (5,), 1),
        ((4, 5), (1, 5), 1),
        ((4, 5), (4, 5), 4),
        ((2, 4, 5), (4, 5), 4),
        ((2, 4, 5), (1, 4, 5), 4),
        ((2, 4, 5), (1, 1, 5), 1),
        ((2, 4, 5), (2, 4, 5), 8),
        ((1, 1, 5), (1, 1, 5), 1),
        ((5,), (5,), 1),
        ((4, 5), (), None),
        ((4, 5), (1,), None),  # one number for all columns
        ((4, 5), (4, 1), None),
        ((2, 4, 5), (2, 1, 5), None),  # repeats within the array
        ((4, 5), (3, 5), None),
        ((4, 5), (1, 4, 5), None),  # more axes than the array has
    ],
    ids=str,
)
def test_a_mask_repeats_after_the_rows_of_its_own_axes(shape, mask, rows):
    assert mask_rows_of(shape, mask) == rows


@given(EXTENTS, st.lists(st.integers(1, 4), max_size=5))
@settings(max_examples=250, deadline=None)
def test_a_mask_that_repeats_is_what_broadcasting_makes_of_it(shape, mask):
    shape, mask = tuple(shape), tuple(mask)
    rows = mask_rows_of(shape, mask)
    if rows is None:
        return
    values = np.arange(math.prod(mask)).reshape(mask)
    spread = np.broadcast_to(values, shape).reshape(-1, shape[-1])
    repeated = values.reshape(rows, shape[-1])
    assert np.array_equal(spread, repeated[np.arange(len(spread)) % rows])
