"""Gradients that tell right kernels from wrong ones, and the matching outputs of the forward op."""

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Problem
from explorer.ops import Op, Operator
from explorer.reference.distances import PLATEAU
from explorer.reference.influence import EXACT
from explorer.reference.layout import Array, saturated
from explorer.reference.specials import NAN_KINDS, nan_bits
from explorer.reference.truth import truth_of

PLATEAU_GRADIENT = 3e4
"""The gradient at each of a row's many maxima: their sum times e^-30 is among the smallest f16
results."""

TINY_SHARE = 1e-20
"""An element's share of its row's sum, below which large gradients are not tried.

A kernel may multiply the share with the scale first, and lose the product where it is below the
smallest normal number.
"""


def vary_gradients(
    problem: Problem,
    arrays: dict[str, Array],
    names: NDArray[np.str_],
    matrix: Array,
    rng: np.random.Generator,
) -> None:
    """Change gradients of noise in place, by the `names` of the patterns in the rows of `matrix`.

    Some gradients become 0 throughout, or but for one element. Half of the others are much smaller
    or much greater than 1, and some have a NaN. In rows of subsets y and dy are 1 in the subset and
    0 elsewhere, or their logarithms: the sum is the number of the subset's elements, which fp32
    does not round. In the ladders of log_softmax dy is 1 at the maximum and 0 elsewhere, because
    next to a dy of 1 the term e^y * sum would be lost below e^-17.
    """
    grad, y = arrays["grad"], arrays["input"]
    sizes = problem.dtype.trials.gradients
    for row, name in enumerate(names):
        if name in EXACT:
            chosen = matrix[row] == 0
            grad[row] = chosen
            y[row] = np.where(chosen, 0, -np.inf) if problem.operator.is_log else chosen
        elif name in ("ladder", "smallest normal") and problem.operator.is_log:
            grad[row] = 0
            grad[row, np.argmax(matrix[row])] = 1
        elif name == PLATEAU:
            grad[row] = np.where(matrix[row] == matrix[row].max(), PLATEAU_GRADIENT, 0)
        elif row % 7 == 5:
            grad[row] = 0
            grad[row, rng.integers(0, problem.cols)] = 1
        elif row % 11 == 8:
            grad[row] = 0
        elif row % 11 == 4:
            grad[row, rng.integers(0, problem.cols)] = _nan(problem, row)
        elif row % 4 < 2 and not _has_tiny(y[row], problem.operator):
            grad[row] = _sized(grad[row], sizes[row % 4])
    _make_not_finite(problem, arrays, names, matrix)


def _make_not_finite(
    problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_], matrix: Array
) -> None:
    """Move the NaN of rows with one NaN into the gradient, or every fourth time into the output.

    The forward op turns a row with one NaN into NaN throughout, in which none can be lost, so the
    output is computed from the row without it. Every fourth gradient has both infinities instead,
    one of them at the place of the NaN: their sum is NaN in any order, and so is every result. One
    infinity alone will not do, since compensated sums treat it differently from plain ones.
    """
    rows = np.flatnonzero(names == "one NaN")
    if not len(rows):
        return
    lost = np.isnan(matrix[rows].astype(np.float32))
    places = lost.argmax(axis=1)
    cleaned = np.where(lost, np.zeros_like(matrix[rows]), matrix[rows])
    forward = Problem(len(rows), problem.cols, problem.dtype, Op(problem.operator.forward))
    grad, y = arrays["grad"], arrays["input"]
    y[rows] = truth_of(forward, {"input": cleaned}).values.astype(y.dtype)
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        grad[row] = np.where(np.isfinite(grad[row].astype(np.float32)), grad[row], 1)
        kind = (number + number // 32) % 4  # the same lane gets another kind in the next warp
        if kind == 0 and problem.cols > 1:
            grad[row, (place + problem.cols // 2) % problem.cols] = -np.inf
            grad[row, place] = np.inf
        elif kind == 2:
            y[row, place] = _nan(problem, number // 4)
        else:
            grad[row, place] = _nan(problem, number // 4)


def _nan(problem: Problem, number: int) -> Array:
    """Return a NaN of the problem's type, of other bits for another number."""
    dtype = problem.dtype
    bits = np.array(nan_bits(dtype)[number % NAN_KINDS], f"u{dtype.itemsize}")
    return bits.view(dtype.numpy)


def _has_tiny(y: Array, operator: Operator) -> bool:
    """Return whether a forward output is so small that its products may underflow."""
    values = y.astype(np.float64)
    shares = np.exp(values) if operator.is_log else values
    return bool(((shares > 0) & (shares < TINY_SHARE)).any())


def _sized(values: Array, factor: float) -> Array:
    """Return numbers times a factor, rounded to their type."""
    return saturated(values.astype(np.float64) * factor, values.dtype)
