"""Numbers of a row from one read of it: log-sum-exp, and log-probabilities of given columns."""

from collections.abc import Mapping
from typing import Any

from explorer.ops.operator import Choice, Extent, Operator, Result
from explorer.ops.softmax import SPECIALS, UNFOLDED, log_of_ones
from explorer.ops.truth import Doubles, Truth, Wide, exact_sums

# ------------------------------------------------------------------ log-sum-exp


def _maximum_and_sum(x: Wide) -> tuple[Wide, Wide]:
    """Return the finite number that exponentials are relative to, and their sum, as columns.

    The number is the row's maximum, or the arithmetic's greatest or lowest number for an infinite
    one: the exponential of +inf is then infinite, and that of -inf is 0, in all rows. Truths are
    computed in float64 for fp32 arithmetic, and in a wider type for fp64.
    """
    import numpy as np

    arithmetic = np.float32 if x.dtype == np.float64 else np.float64
    greatest = x.dtype.type(np.finfo(arithmetic).max)
    with np.errstate(invalid="ignore", over="ignore"):
        maximum = np.clip(x.max(axis=1, keepdims=True), -greatest, greatest)
        return maximum, np.exp(x - maximum).sum(axis=1, keepdims=True)


def _of_size(values: Wide, size: Wide, x: Wide) -> Truth:
    """Return a truth whose errors are relative to `size`, and at least to 1.

    A sum near 1 is rounded by as much as its logarithm.
    """
    import numpy as np

    return Truth(values, np.asarray(np.maximum(1.0, size)), exact_sums(x))


def _logsumexp(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return max + log(sum of e^(x - max)), of shape (rows, 1).

    A row of -inf alone has -inf, one with a NaN has NaN, and another one with +inf has +inf. The
    magnitude is the greater one of the two terms.
    """
    import numpy as np

    x = arrays["input"]
    maximum, total = _maximum_and_sum(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_sum = np.log(total)
        return _of_size(maximum + log_sum, np.maximum(np.abs(maximum), np.abs(log_sum)), x)


def _maximum(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return the number that exponentials are relative to, which is exact."""
    import numpy as np

    x = arrays["input"]
    numbers = np.where(np.isnan(x), -np.inf, x)
    maximum, _ = _maximum_and_sum(numbers)
    return Truth(maximum, np.zeros_like(maximum))


def _log_sum(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return the logarithm of the sum of the exponentials that are relative to `_maximum`."""
    import numpy as np

    x = arrays["input"]
    with np.errstate(divide="ignore"):
        log_sum = np.log(_maximum_and_sum(x)[1])
    return _of_size(log_sum, np.abs(log_sum), x)


PAIR = (
    Result(_maximum, Extent.ROW, "maximum"),
    Result(_log_sum, Extent.ROW, "log_sum"),
)
"""The two terms of a log-sum-exp. Exponentials of x - maximum - log_sum have none of the rounding
of their sum, which in fp32 is 4e-6 of each where it is 64."""


def _of_ones(n: Doubles, _: float) -> tuple[Doubles, Doubles]:
    import numpy as np

    return np.log(n), np.maximum(1.0, np.log(np.maximum(n, 1.0)))


def _takes(name: str) -> dict[str, Choice]:
    """Return the parameters that make sense for an operator that stores a few numbers a row."""
    return {
        "exp": Choice(
            UNFOLDED, f"{name} needs the maximum itself, which a folded exponent has not"
        ),
        "cache": Choice(
            ("registers", "shared", "none"),
            f"{name} stores no exponentials, which could wait in the output: cache is "
            "registers, shared or none",
        ),
        "cache_holds": Choice(
            ("input",),
            f"{name} has no use for exponentials that are added up: cache_holds is input",
        ),
        "normalise": Choice(("reciprocal",), f"{name} divides by nothing: normalise is reciprocal"),
        "launches": Choice(
            ("one",), f"the parts of a row of {name} meet in a cluster: launches is one"
        ),
        "store_hint": Choice(
            ("default",),
            f"the few numbers of a row of {name} need no cache policy: store_hint is default",
        ),
    }


LOGSUMEXP = Operator(
    name="logsumexp",
    title="log-sum-exp",
    results=(Result(_logsumexp, Extent.ROW, stored="lse"), *PAIR),
    of_ones=_of_ones,
    patterns=(*SPECIALS, "dominated", "ladders", "lone maxima", "outweighed"),
    takes=_takes("logsumexp"),
    is_log=True,
    torch="logsumexp",
)

# ------------------------------------------------------------------ log-probabilities


def _chosen(x: Wide, ids: Any) -> Wide:
    """Return the elements of a row's ids, of shape (rows, k): NaN for an id that is no column."""
    import numpy as np

    inside = (ids >= 0) & (ids < x.shape[1])
    taken = np.take_along_axis(x, np.where(inside, ids, 0).astype(np.int64), axis=1)
    return np.asarray(np.where(inside, taken, np.nan))


def _log_prob(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return x - max - log(sum of e^(x - max)) of each id, NaN for one that is no column."""
    import numpy as np

    x = arrays["input"]
    maximum, total = _maximum_and_sum(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (_chosen(x, arrays["ids"]) - maximum) - np.log(total)
    return Truth(values, np.asarray(1.0 + np.abs(values)), exact_sums(x))


def _entropy(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return log(s) - sum of e^(x - max) (x - max) / s, where s is the sum of e^(x - max).

    A term of an exponential that is 0 is 0. Both parts are positive, so that nothing cancels.
    """
    import numpy as np

    x = arrays["input"]
    maximum, total = _maximum_and_sum(x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        gaps = x - maximum
        terms = np.where(np.exp(gaps) == 0.0, 0.0, np.exp(gaps) * gaps)
        values = np.asarray(np.log(total) - terms.sum(axis=1, keepdims=True) / total)
    return _of_size(values, np.abs(values), x)


def _rank(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return how many elements exceed that of the first id: -1 where that is no number."""
    import numpy as np

    x = arrays["input"]
    first = _chosen(x, arrays["ids"][:, :1])
    greater = (x > first).sum(axis=1, keepdims=True, dtype=x.dtype)
    ranks = np.where(np.isnan(first), -1.0, greater).astype(x.dtype)
    return Truth(ranks, np.zeros_like(ranks))


def _argmax(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return the first column of a row's greatest number: -1 where it has none but NaN."""
    import numpy as np

    x = arrays["input"]
    numbers = np.where(np.isnan(x), -np.inf, x)
    is_greatest = ~np.isnan(x) & (x == numbers.max(axis=1, keepdims=True))
    column = is_greatest.argmax(axis=1)[:, None].astype(x.dtype)
    columns = np.where(is_greatest.any(axis=1)[:, None], column, -1.0).astype(x.dtype)
    return Truth(columns, np.zeros_like(columns))


LOG_PROB = Operator(
    name="log_prob",
    title="log-probability",
    results=(
        Result(_log_prob, Extent.IDS, stored="log_probability"),
        Result(_logsumexp, Extent.ROW, "lse"),
        Result(_entropy, Extent.ROW, "entropy", combines=("weighted",)),
        Result(_rank, Extent.ROW, "rank", are_columns=True, combines=("above",)),
        Result(_argmax, Extent.ROW, "argmax", are_columns=True, combines=("greatest", "first")),
        *PAIR,
    ),
    of_ones=log_of_ones,
    patterns=(*SPECIALS, "no numbers", "dominated", "ladders", "lone maxima", "outweighed"),
    takes=_takes("log_prob")
    | {
        "algorithm": Choice(
            ("online-block-max",),
            "log_prob takes the maximum of some elements first, then adds all that it needs of "
            "them: algorithm is online-block-max",
        ),
        "staging": Choice(("direct",), "log_prob reads rows as they come: staging is direct"),
        "arrangement": Choice(
            ("striped",), "log_prob divides each row among its threads: arrangement is striped"
        ),
    },
    operands={"input": Extent.MATRIX, "ids": Extent.IDS},
    is_log=True,
)
