"""Cross-entropy of class indices: the loss of each row."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from explorer.ops.logsumexp import chosen, maximum_and_sum, of_size, takes_few_results
from explorer.ops.operator import Choice, Extent, Operator, Result
from explorer.ops.softmax import SPECIALS, UNFOLDED, growth
from explorer.ops.truth import Doubles, Truth, Wide, exact_sums

# ------------------------------------------------------------------ the loss


def _is_class(arrays: Mapping[str, Any]) -> Wide:
    """Return whether each row's id is a column of it, of shape (rows, 1)."""
    import numpy as np

    ids = arrays["ids"][:, :1]
    return np.asarray((ids >= 0) & (ids < arrays["input"].shape[1]))


CAPPED_PER_ERROR = 16.0
"""A capped number of this size is off by as much as exponentials of it may be, relative to them:
fp32 rounds the quotient, its tanh and the product with the cap."""


def _rounding(arrays: Mapping[str, Any], *numbers: Wide) -> Any:
    """Return the error of a difference of capped numbers, in those that are allowed; 0 of others.

    An exponential of the difference has so much of its own size.
    """
    import numpy as np

    if "slope" not in arrays:
        return 0.0
    return sum(np.abs(np.nan_to_num(one)) for one in numbers) / CAPPED_PER_ERROR


def _greatest_size(arrays: Mapping[str, Any]) -> Wide:
    """Return the size of the greatest number of each row, as a column."""
    import numpy as np

    sizes: Wide = np.abs(np.nan_to_num(arrays["input"]))
    return np.asarray(sizes.max(axis=1, keepdims=True))


def _apart(arrays: Mapping[str, Any]) -> tuple[Wide, Wide, Wide, Wide]:
    """Return the maximum, the logarithm of the sum, and the loss that ignores no row, as columns.

    The target's exponential is added apart: its row's others alone have the digits of a loss near
    0, which is log(1 + their sum). The last column is the `growth` of that sum's error.
    """
    import numpy as np

    x, ids = arrays["input"], arrays["ids"][:, :1]
    maximum, total = maximum_and_sum(x)
    target = chosen(x, ids)
    others = x.copy()
    inside = _is_class(arrays)
    np.put_along_axis(others, np.where(inside, ids, 0).astype(np.int64), -np.inf, axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rest = np.exp(others - maximum).sum(axis=1, keepdims=True)
        is_greatest = inside & (target == maximum)
        log_sum = np.asarray(np.where(is_greatest, np.log1p(rest), np.log(total)))
        grown = growth(np.log(rest) - np.log(x.shape[1]))  # of terms as small as their mean
        grown = grown + _rounding(arrays, maximum, _greatest_size(arrays))
        return maximum, log_sum, np.asarray((maximum - target) + log_sum), grown


def _loss(arrays: Mapping[str, Any], _factor: Any, _lost: Any) -> Truth:
    """Return max - x + log(sum of e^(x - max)) of the target: 0 for a row that is ignored.

    A target that is no column has NaN. Both terms are positive: nothing cancels.
    """
    import numpy as np

    maximum, _, loss, grown = _apart(arrays)
    ignored = arrays["ids"][:, :1] == arrays["ignore_index"]
    values = np.where(ignored, 0.0, loss)
    exact = exact_sums(arrays["input"])
    target = chosen(arrays["input"], arrays["ids"][:, :1])
    taken = np.where(ignored | (target == maximum), 0.0, _rounding(arrays, maximum, target))
    return Truth(values, np.abs(values) * grown + taken, exact, plus_zero=ignored[:, 0])


def _lse(arrays: Mapping[str, Any], _factor: Any, _lost: Any) -> Truth:
    import numpy as np

    maximum, log_sum, _, _ = _apart(arrays)
    with np.errstate(invalid="ignore"):
        values, size = maximum + log_sum, np.maximum(np.abs(maximum), np.abs(log_sum))
    return of_size(values, size, arrays["input"])


def _maximum(arrays: Mapping[str, Any], _factor: Any, _lost: Any) -> Truth:
    """Return the number that exponentials are relative to, which is exact unless it is capped."""
    import numpy as np

    x = arrays["input"]
    maximum, _ = maximum_and_sum(np.where(np.isnan(x), -np.inf, x))
    return Truth(maximum, np.abs(maximum) * ("slope" in arrays))


def _log_sum(arrays: Mapping[str, Any], _factor: Any, _lost: Any) -> Truth:
    """Return the logarithm of the sum; where the target is the greatest, errors are relative."""
    import numpy as np

    x = arrays["input"]
    maximum, log_sum, _, grown = _apart(arrays)
    with np.errstate(invalid="ignore"):
        is_greatest = _is_class(arrays) & (chosen(x, arrays["ids"][:, :1]) == maximum)
    size = np.abs(log_sum) * grown
    return Truth(log_sum, np.where(is_greatest, size, np.maximum(1.0, size)), exact_sums(x))


LEAST_GAP = 2.0**-90
"""Mean gaps that are smaller may lose digits: kernels add them up times 2^-34."""


def _mean_gap(arrays: Mapping[str, Any], _factor: Any, _lost: Any) -> Truth:
    """Return the mean of what a row's elements are below the maximum: infinite if one is -inf.

    Label smoothing adds a part of it to a loss. No term is negative: nothing cancels.
    """
    import numpy as np

    x = arrays["input"]
    maximum, _ = maximum_and_sum(np.where(np.isnan(x), -np.inf, x))
    with np.errstate(invalid="ignore", over="ignore"):
        values = ((maximum - x) / x.shape[1]).sum(axis=1, keepdims=True).astype(np.float64)
    taken = _rounding(arrays, maximum, _greatest_size(arrays))
    size = np.maximum(np.abs(values) + taken, LEAST_GAP)
    return Truth(values, np.where((values == 0) & ("slope" not in arrays), 0.0, size))


def _of_ones(n: Doubles, _: float) -> tuple[Doubles, Doubles]:
    import numpy as np

    with np.errstate(divide="ignore"):
        return np.log(n), np.abs(np.log(n))


def _takes(name: str) -> dict[str, Choice]:
    """Return the parameters that make sense for an operator of losses."""
    return takes_few_results(name) | {
        "algorithm": Choice(
            ("online-block-max",),
            f"{name} adds the target's exponential apart: algorithm is online-block-max",
        ),
        "staging": Choice(("direct",), f"{name} reads rows as they come: staging is direct"),
        "arrangement": Choice(
            ("striped",),
            f"{name} divides each row among its threads: arrangement is striped",
        ),
        "cache": Choice(
            ("registers", "none"),
            f"{name} keeps rows in registers or not at all: cache is registers or none",
        ),
    }


CROSS_ENTROPY = Operator(
    name="cross_entropy",
    title="cross-entropy",
    results=(
        Result(_loss, Extent.ROW, stored="loss"),
        Result(_lse, Extent.ROW, "lse"),
        Result(_maximum, Extent.ROW, "maximum"),
        Result(_log_sum, Extent.ROW, "log_sum"),
        Result(_mean_gap, Extent.ROW, "mean_gap", combines=("gaps", "numbers")),
    ),
    of_ones=_of_ones,
    patterns=(
        *SPECIALS,
        "no numbers",
        "dominated",
        "ladders",
        "lone maxima",
        "outweighed",
        "far outweighed",
    ),
    takes=_takes("cross_entropy"),
    operands={"input": Extent.MATRIX, "ids": Extent.IDS},
    options=("ignore_index", "softcap"),
    is_log=True,
    torch="cross_entropy_loss",
)


# ------------------------------------------------------------------ its gradient


def _share_of_ones(n: Doubles, factor: float) -> tuple[Doubles, Doubles]:
    """Of a row whose loss has the gradient 1."""
    return factor / n, abs(factor) / n


def _of_each_element(operator: str) -> dict[str, Choice]:
    """Return the parameters that make sense for an operator that takes each element alone."""
    only = (
        ("algorithm", "three-pass", "looks for no maximum"),
        ("reduction", "shuffle", "reduces nothing"),
        ("cache", "none", "reads each element once"),
        ("cache_holds", "input", "keeps nothing"),
        ("normalise", "reciprocal", "divides by nothing"),
        ("launches", "one", "has one pass"),
        ("staging", "direct", "takes elements as they come"),
        ("sum", "plain", "adds nothing up"),
        ("exchange", "barrier", "has blocks that tell each other nothing"),
        ("arrangement", "striped", "divides each row among its threads"),
        ("rows_per_thread", 1, "has enough loads of one row in flight"),
    )
    return {
        name: Choice((value,), f"{operator} {why}: {name} is {value}") for name, value, why in only
    }


def _gradient(arrays: Mapping[str, Any], factor: Any, lost: Any) -> Truth:
    """Return (e^(x - max - log_sum) - [the target's]) times the loss's gradient and the scale.

    Maximum and logarithm of the sum are operands. The target's is formed as e^z - 1, of which none
    of the digits cancel. Rows that are ignored, and rows whose target is no column, have zeros.
    """
    import numpy as np

    x, ids = arrays["input"], arrays["ids"][:, :1]
    gaps = x - arrays["maximum"]
    is_target = np.arange(x.shape[1])[None, :] == ids
    with np.errstate(invalid="ignore", over="ignore"):
        exponents = gaps - arrays["log_sum"]
        shares = np.exp(exponents)
        less = np.where(is_target, np.expm1(exponents), shares)
        lse = np.add(arrays["maximum"], arrays["log_sum"], dtype=x.dtype)
        factors = factor * arrays["loss_grad"]
        rounding = _rounding(arrays, arrays["maximum"], x)
        grown = np.where(is_target, 1.0, growth(gaps) + rounding)
        values, size = _of_shares(arrays, shares, less, lse, grown)
        size = size + np.where(is_target, rounding * shares, 0.0) * arrays.get("slope", 1.0)
        of_1 = np.maximum(1.0, np.exp(-arrays["log_sum"]))
        underflow = _lost(arrays, lse, lost, np.abs(factors) * of_1)
        flushed = _flushed(arrays, np.minimum(gaps, exponents), values, lost)
    magnitude = np.abs(factors) * size
    truth = Truth(factors * values, magnitude, None, underflow, factors * flushed)
    return _of_counted_rows(arrays, truth)


def _of_shares(
    arrays: Mapping[str, Any], shares: Wide, less: Wide, lse: Wide, grown: Wide
) -> tuple[Wide, Wide]:
    """Return the gradient of a loss of 1, and the magnitudes that its errors are relative to.

    `shares` are the elements' of the sum, and `less` the same but for the target's, which has lost
    1. With label smoothing e over n columns the target loses 1 - e, and each column e / n. The
    squared log-sum-exp adds its own gradient, 2 z lse, times the shares.
    """
    import numpy as np

    is_target = np.arange(shares.shape[1])[None, :] == arrays["ids"][:, :1]
    smoothing, added = arrays["label_smoothing"], 2 * arrays["z_loss"] * lse
    each = smoothing / shares.shape[1]
    given_back = np.where(is_target, smoothing, 0.0)
    values = less + given_back - each
    size = np.abs(less) * grown + given_back + each
    if arrays["z_loss"]:
        values, size = values + added * shares, size + np.abs(added) * shares * grown
    if "slope" in arrays:
        values, size = values * arrays["slope"], size * arrays["slope"] * arrays["slope_growth"]
    return values, size


def _lost(arrays: Mapping[str, Any], lse: Wide, lost: Any, factors: Wide) -> Wide:
    """Return the error of a row's exponentials that are no normal numbers, times these factors.

    The squared log-sum-exp multiplies that, and the rounding of the products too.
    """
    import numpy as np

    more = np.abs(2 * arrays["z_loss"] * lse)
    return np.asarray(lost.error * (factors * (1.0 + more) + more))[:, 0]


def _flushed(arrays: Mapping[str, Any], gaps: Wide, values: Wide, lost: Any) -> Wide:
    """Return the gradient where the exponentials of such gaps that are no normal numbers are 0.

    The target's is not made of one.
    """
    import numpy as np

    cols = gaps.shape[1]
    with np.errstate(divide="ignore"):
        gone = gaps < np.log(lost.flushes_below)
    gone &= np.arange(cols)[None, :] != arrays["ids"][:, :1]
    left = -arrays["label_smoothing"] / cols * arrays.get("slope", 1.0)
    return np.asarray(np.where(gone, left, values))


def _of_counted_rows(arrays: Mapping[str, Any], truth: Truth) -> Truth:
    """Return the truth, with zeros in rows that are ignored or have no target: it is changed."""
    import numpy as np

    counts = _is_class(arrays) & (arrays["ids"][:, :1] != arrays["ignore_index"])
    zeros = np.asarray(~counts[:, 0])
    for numbers in (truth.values, truth.magnitude, truth.underflow, truth.flushed):
        if numbers is not None:
            numbers[zeros] = 0.0
    return replace(truth, plus_zero=zeros)


CROSS_ENTROPY_BACKWARD = Operator(
    name="cross_entropy_backward",
    title="gradient of cross-entropy",
    results=(Result(_gradient),),
    of_ones=_share_of_ones,
    patterns=(*SPECIALS, "no numbers", "dominated", "ladders", "far outweighed"),
    takes=_of_each_element("cross_entropy_backward")
    | {"exp": Choice(UNFOLDED, "cross_entropy_backward subtracts the maximum itself")},
    operands={
        "input": Extent.MATRIX,
        "ids": Extent.IDS,
        "maximum": Extent.ROW,
        "log_sum": Extent.ROW,
        "loss_grad": Extent.ROW,
    },
    options=("ignore_index", "label_smoothing", "z_loss", "softcap"),
)
"""Of the logits themselves, and of what the forward operator has kept of each row."""


# ------------------------------------------------------------------ both in one pass


def _gradient_at_once(arrays: Mapping[str, Any], factor: Any, lost: Any) -> Truth:
    """Return (e^(x - max) / sum - [the target's]) times the loss's gradient and the scale.

    The target's is minus the others' sum over the sum of all.
    """
    import numpy as np

    x = arrays["input"]
    is_target = np.arange(x.shape[1])[None, :] == arrays["ids"][:, :1]
    maximum, log_sum, _, of_others = _apart(arrays)
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = x - maximum
        grown = np.where(is_target, of_others, growth(gaps) + _rounding(arrays, maximum, x))
        exponentials = np.exp(gaps)
        rest = np.where(is_target, 0.0, exponentials).sum(axis=1, keepdims=True)
        total = exponentials.sum(axis=1, keepdims=True)
        rest = rest + (total - total)  # NaN beside an infinity
        less = np.where(is_target, -rest, exponentials) / total
        factors = factor * arrays["loss_grad"]
        shares, lse = exponentials / total, maximum + log_sum
        values, size = _of_shares(arrays, shares, less, lse, grown)
        underflow = _lost(arrays, lse, lost, np.abs(factors))
        flushed = _flushed(arrays, gaps, values, lost)
    magnitude = np.abs(factors) * size
    truth = Truth(factors * values, magnitude, exact_sums(x), underflow, factors * flushed)
    return _of_counted_rows(arrays, truth)


_OF_BOTH = _takes("cross_entropy_with_gradient") | {
    "normalise": Choice(
        ("reciprocal",),
        "cross_entropy_with_gradient divides once a row: normalise is reciprocal",
    ),
}
del _OF_BOTH["store_hint"]  # a matrix is stored


CROSS_ENTROPY_WITH_GRADIENT = Operator(
    name="cross_entropy_with_gradient",
    title="cross-entropy with its gradient",
    results=(
        Result(_gradient_at_once),
        Result(_loss, Extent.ROW, "loss"),
        *CROSS_ENTROPY.results[1:],
    ),
    of_ones=_share_of_ones,
    patterns=CROSS_ENTROPY.patterns,
    takes=_OF_BOTH,
    operands={"input": Extent.MATRIX, "ids": Extent.IDS, "loss_grad": Extent.ROW},
    options=("ignore_index", "label_smoothing", "z_loss", "softcap"),
)
"""The gradient is that of the losses times `loss_grad`, which must be known beforehand."""


# ------------------------------------------------------------------ rows times numbers


def _product(arrays: Mapping[str, Any], _factor: Any, lost: Any) -> Truth:
    """Return each row times its number; products beyond float64 are infinite in each type."""
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore"):
        values = (arrays["input"] * arrays["loss_grad"]).astype(np.float64)
    return Truth(values, np.abs(values), None, np.full(len(values), lost.error, np.float64))


def _of_factor(n: Doubles, factor: float) -> tuple[Doubles, Doubles]:
    import numpy as np

    return np.full_like(n, factor), np.full_like(n, abs(factor))


MULTIPLY_ROWS = Operator(
    name="multiply_rows",
    title="product of rows and numbers",
    results=(Result(_product),),
    of_ones=_of_factor,
    patterns=(*SPECIALS, "no numbers", "ladders"),
    takes=_of_each_element("multiply_rows")
    | {"exp": Choice(("expf",), "multiply_rows has no exponential: exp is expf")},
    operands={"input": Extent.MATRIX, "loss_grad": Extent.ROW},
)
"""It completes a gradient that was formed together with its losses, once the gradient of each loss
is known. In place, rows whose number is 1 are not read."""
