"""The truth: each op in float64, and in extended precision for float64 problems.

An element that counts is scale * x + mask, rounded once to the precision of the arithmetic (fp32,
or fp64 for `f64`), as if it had been computed beforehand; x = -inf is a mask by itself and stays
-inf whatever the scale. What a causal mask or a row's length hides is -inf too.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.dtype import DType
from explorer.op import Mask, Op
from explorer.problem import Problem
from explorer.reference.fused import fused_multiply_add, fused_multiply_add_32

Array = NDArray[Any]
Wide = NDArray[np.floating[Any]]
"""Of float64, or of extended precision."""


@dataclass(frozen=True, slots=True)
class Truth:
    """Values of an op, (rows, cols), and for each the magnitude that its error is relative to.

    Where differences cancel, it is the magnitude of what is subtracted.
    """

    values: Wide
    magnitude: Wide


def softmax(x: Array) -> NDArray[np.float64]:
    """Softmax of each row of a (rows, cols) array, in float64.

    A -inf gives 0; a row of -inf only, or with a NaN or a +inf, gives NaN throughout, as in
    PyTorch.
    """
    return np.asarray(_softmax(x.astype(np.float64)), np.float64)


def truth_of(problem: Problem, arrays: dict[str, Array]) -> Truth:
    """The truth for inputs named as in `operands.inputs`, matrices as (rows, cols)."""
    wide = _wide(problem)
    if problem.op.is_backward:
        factor = 1.0 if problem.scale is None else _rounded(np.float64(problem.scale), problem)
        y: Wide = arrays["input"].astype(wide)
        grad: Wide = arrays["grad"].astype(wide)
        return _backward(problem.op, y, grad, wide(factor))
    x = counted(problem, arrays)
    if problem.op is Op.LOG_SOFTMAX:
        values = _log_softmax(x)
        return Truth(values, 1.0 + np.abs(values))
    values = _softmax(x)
    return Truth(values, values)


def counted(problem: Problem, arrays: dict[str, Array]) -> Wide:
    """The elements as they count: scaled, masked and rounded."""
    x: NDArray[np.float64] = arrays["input"].astype(np.float64)
    scale = 1.0 if problem.scale is None else float(_rounded(np.float64(problem.scale), problem))
    with np.errstate(invalid="ignore", over="ignore"):
        if problem.mask is Mask.ADDITIVE:
            mask = arrays["mask"].astype(np.float64)
            added = np.tile(mask, (problem.rows // problem.mask_rows, 1))
            fused = fused_multiply_add if problem.dtype is DType.F64 else fused_multiply_add_32
            x = np.where(np.isneginf(x), x + added, fused(x, scale, added))
        elif problem.scale is not None:
            x = np.where(np.isneginf(x), x, x * scale)
        values: Wide = _rounded(x, problem).astype(_wide(problem))
    hidden = _hidden(problem, arrays)
    return values if hidden is None else np.where(hidden, -np.inf, values)


def _wide(problem: Problem) -> Any:
    """The type that the truth is computed in."""
    return np.longdouble if problem.dtype is DType.F64 else np.float64


def _hidden(problem: Problem, arrays: dict[str, Array]) -> Array | None:
    """Which elements a causal mask or the rows' lengths hide."""
    if problem.mask is Mask.CAUSAL:
        row = np.arange(problem.rows) % problem.mask_rows
        limit = row + 1 + problem.cols - problem.mask_rows
    elif problem.mask is Mask.LENGTHS:
        limit = arrays["lengths"]
    else:
        return None
    return np.arange(problem.cols)[None, :] >= limit[:, None]


def _rounded(values: Any, problem: Problem) -> Any:
    """Rounded to the arithmetic's precision."""
    with np.errstate(over="ignore"):
        return values.astype(np.float64 if problem.dtype is DType.F64 else np.float32)


def _softmax(x: Wide) -> Wide:
    with np.errstate(invalid="ignore", over="ignore"):
        exponentials = np.exp(x - x.max(axis=1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def _log_softmax(x: Wide) -> Wide:
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        shifted = x - x.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _backward(op: Op, y: Wide, grad: Wide, factor: Any) -> Truth:
    """y (dy - sum(y dy)), or dy - exp(y) sum(dy) of the logarithm, times the scale."""
    with np.errstate(invalid="ignore", over="ignore"):
        if op is Op.SOFTMAX_BACKWARD:
            terms = y * grad
            values = y * (grad - terms.sum(axis=1, keepdims=True))
            size = np.abs(y) * (np.abs(grad) + np.abs(terms).sum(axis=1, keepdims=True))
        else:
            shares = np.exp(y)
            values = grad - shares * grad.sum(axis=1, keepdims=True)
            size = np.abs(grad) + shares * np.abs(grad).sum(axis=1, keepdims=True)
        return Truth(factor * values, np.abs(factor) * size)
