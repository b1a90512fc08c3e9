"""Softmax, its logarithm, and the gradients of both."""

from collections.abc import Mapping
from typing import Any

from explorer.ops.operator import Choice, Extent, Operator, Result
from explorer.ops.truth import Doubles, Truth, Wide, all_equal, exact_sums

# ------------------------------------------------------------------ softmax


NEAR_GAP = 32.0
"""Distance below a row's maximum up to which an exponential's error is relative to its value alone.

fp32 rounds the argument of e^(x - max) by up to half a spacing of the numbers at x - max, which is
2e-6 of the result just above this distance and doubles at each power of two from there on.
"""

GONE_GAP = 1000.0
"""Distance from the maximum beyond which an exponential is 0 in every type."""

CACHED_ELEMENTS = 2**16
"""Elements of the rows that are computed together, so that they stay in the CPU's cache."""


def _softmax(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return e^(x - max) / sum, computed for `CACHED_ELEMENTS` at a time: no share is negative.

    The magnitude of an exponential doubles at each power of two that its distance from the row's
    maximum passes, from `NEAR_GAP` on.
    """
    import numpy as np

    x = arrays["input"]
    values, magnitude = np.empty_like(x), np.empty_like(x)
    each = max(1, CACHED_ELEMENTS // max(1, x.shape[1]))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, len(x), each):
            rows = slice(first, first + each)
            shifted = x[rows] - x[rows].max(axis=1, keepdims=True)
            exponentials = np.exp(shifted)
            values[rows] = exponentials / exponentials.sum(axis=1, keepdims=True)
            magnitude[rows] = values[rows] * growth(shifted)
    return Truth(values, magnitude, exact_sums(x), plus_zero=np.ones(len(x), np.bool_))


def growth(shifted: Wide) -> Wide:
    """Return the factor by which each exponential's error may grow with its distance from the max.

    `shifted` is the row minus its maximum: infinite or NaN where either of them is.
    """
    import numpy as np

    growth = np.ones_like(shifted)
    with np.errstate(invalid="ignore"):
        far = (shifted < -NEAR_GAP) & (shifted > -GONE_GAP)
    some = np.flatnonzero(far.any(axis=1))
    _, exponent = np.frexp(shifted[some] / NEAR_GAP)
    growth[some] = np.where(far[some], np.ldexp(1.0, np.maximum(exponent, 0)), 1.0)
    return growth


SPECIALS = ("specials", "spans")
"""The groups of patterns with infinities, NaN and the ends of a type, for results of a maximum."""

SOFTMAX = Operator(
    name="softmax",
    title="softmax",
    results=(Result(_softmax),),
    of_ones=lambda n, _: (1.0 / n, 1.0 / n),
    patterns=(*SPECIALS, "ladders", "least outputs", "rounded apart", "lone maxima", "outweighed"),
    torch="_softmax",
)


# ------------------------------------------------------------------ its logarithm


def _log_softmax(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return x - max - log(sum)."""
    import numpy as np

    x = arrays["input"]
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        shifted = x - x.max(axis=1, keepdims=True)
        values = np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
    return Truth(values, 1.0 + np.abs(values), exact_sums(x))


UNFOLDED = ("exp2f", "expf", "__expf", "ex2.approx")
"""The exponentials that are relative to the maximum itself."""


def log_of_ones(n: Doubles, _: float) -> tuple[Doubles, Doubles]:
    """Return the logarithm of 1 / n, and its magnitude, as `Operator.of_ones` documents it."""
    import numpy as np

    with np.errstate(divide="ignore"):
        return -np.log(n), 1.0 + np.abs(np.log(n))


LOG_SOFTMAX = Operator(
    name="log_softmax",
    title="log-softmax",
    results=(Result(_log_softmax),),
    of_ones=log_of_ones,
    patterns=(*SPECIALS, "dominated", "ladders", "lone maxima", "outweighed"),
    takes={
        "exp": Choice(
            UNFOLDED, "log_softmax subtracts the maximum itself, which a folded exponent has not"
        ),
        "cache_holds": Choice(
            ("input",),
            "log_softmax is of the input, which exponentials are not: cache_holds is input",
        ),
        "normalise": Choice(
            ("reciprocal",),
            "log_softmax subtracts the logarithm of the sum, whatever normalise is: it is "
            "reciprocal",
        ),
    },
    is_log=True,
    torch="_log_softmax",
)


# ------------------------------------------------------------------ gradients


def _gradient(arrays: Mapping[str, Wide], factor: Any, _lost: Any) -> Truth:
    """Return y (dy - sum(y dy)), times the scale."""
    import numpy as np

    y, grad = arrays["input"], arrays["grad"]
    with np.errstate(invalid="ignore", over="ignore"):
        terms = y * grad
        values = y * (grad - terms.sum(axis=1, keepdims=True))
        size = np.abs(y) * (np.abs(grad) + np.abs(terms).sum(axis=1, keepdims=True))
        exact = all_equal(y, 0.0, 1.0) & all_equal(grad, 0.0, 1.0)
        return Truth(factor * values, np.abs(factor) * size, exact)


def _log_gradient(arrays: Mapping[str, Wide], factor: Any, lost: Any) -> Truth:
    """Return dy - exp(y) sum(dy), times the scale.

    What underflow loses of exp(y), the sum and the scale multiply.
    """
    import numpy as np

    y, grad = arrays["input"], arrays["grad"]
    with np.errstate(invalid="ignore", over="ignore"):
        shares = np.exp(y)
        sizes = np.abs(grad).sum(axis=1, keepdims=True)
        values = grad - shares * grad.sum(axis=1, keepdims=True)
        flushed = np.where(shares < lost.flushes_below, grad, values)
        exact = all_equal(y, 0.0, -np.inf) & all_equal(grad, 0.0, 1.0)
        magnitude = np.abs(factor) * (np.abs(grad) + shares * sizes)
        underflow = np.abs(factor) * lost.error * sizes[:, 0]
        return Truth(factor * values, magnitude, exact, underflow, factor * flushed)


def _gradient_of_ones(n: Doubles, factor: float) -> tuple[Doubles, Doubles]:
    return factor * (1.0 - n), abs(factor) * (1.0 + n)


_MATRICES = {"input": Extent.MATRIX, "grad": Extent.MATRIX}

_OF_GRADIENTS = {
    "algorithm": Choice(("three-pass",), "a gradient needs no maximum: algorithm is three-pass"),
    "cache_holds": Choice(("input",), "a gradient keeps what it read: cache_holds is input"),
    "normalise": Choice(("reciprocal",), "a gradient divides by nothing: normalise is reciprocal"),
}

SOFTMAX_BACKWARD = Operator(
    name="softmax_backward",
    title="gradient of softmax",
    results=(Result(_gradient),),
    of_ones=_gradient_of_ones,
    patterns=("ladders", "least outputs", "outweighed"),
    takes=_OF_GRADIENTS
    | {"exp": Choice(("exp2f",), "the gradient of softmax exponentiates nothing: exp is exp2f")},
    operands=_MATRICES,
    gradient_of="softmax",
    torch="_softmax_backward_data",
)

LOG_SOFTMAX_BACKWARD = Operator(
    name="log_softmax_backward",
    title="gradient of log-softmax",
    results=(Result(_log_gradient),),
    of_ones=_gradient_of_ones,
    patterns=("ladders", "least outputs", "outweighed"),
    takes=_OF_GRADIENTS
    | {"exp": Choice(UNFOLDED, "the gradient of log_softmax does without a folded exponent")},
    operands=_MATRICES,
    gradient_of="log_softmax",
    is_log=True,
    torch="_log_softmax_backward_data",
)
