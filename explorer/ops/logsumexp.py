"""The logarithm of the sum of a row's exponentials."""

from collections.abc import Mapping
from typing import Any

from explorer.ops.operator import Choice, Extent, Limit, Operator
from explorer.ops.softmax import UNFOLDED
from explorer.ops.truth import Doubles, Truth, Wide, exact_sums


def _logsumexp(arrays: Mapping[str, Wide], _factor: Any, _lost: Any) -> Truth:
    """Return max + log(sum of e^(x - max)), of shape (rows, 1).

    A row of -inf alone has -inf, one with a NaN has NaN, and another one with +inf has +inf. The
    magnitude is the greater one of the two terms, and at least 1: a sum near 1 is rounded by as
    much as its logarithm.
    """
    import numpy as np

    x = arrays["input"]
    greatest = np.finfo(x.dtype).max
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        reference = np.clip(x.max(axis=1, keepdims=True), -greatest, greatest)
        log_sum = np.log(np.exp(x - reference).sum(axis=1, keepdims=True))
        values = np.asarray(reference + log_sum)
        size = np.maximum(np.abs(reference), np.abs(log_sum))
    return Truth(values, np.asarray(np.maximum(1.0, size)), exact_sums(x))


def _of_ones(n: Doubles, _: float) -> tuple[Doubles, Doubles]:
    import numpy as np

    return np.log(n), np.maximum(1.0, np.log(np.maximum(n, 1.0)))


LOGSUMEXP = Operator(
    name="logsumexp",
    title="log-sum-exp",
    truth=_logsumexp,
    of_ones=_of_ones,
    patterns=("ladders", "lone maxima", "outweighed"),
    takes={
        "exp": Choice(
            UNFOLDED, "logsumexp adds the maximum itself, which a folded exponent has not"
        ),
        "cache": Choice(
            ("registers", "shared", "none"),
            "logsumexp stores no exponentials, which could wait in the output: cache is "
            "registers, shared or none",
        ),
        "cache_holds": Choice(
            ("input",),
            "logsumexp has no use for exponentials that are added up: cache_holds is input",
        ),
        "normalise": Choice(
            ("reciprocal",), "logsumexp divides by nothing: normalise is reciprocal"
        ),
        "launches": Choice(
            ("one",), "the parts of a row of logsumexp meet in a cluster: launches is one"
        ),
        "store_hint": Choice(
            ("default",), "the one number of a row needs no cache policy: store_hint is default"
        ),
    },
    is_log=True,
    extent=Extent.ROW,
    limit=Limit.READ,
    torch="logsumexp",
)
