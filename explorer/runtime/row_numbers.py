"""Numbers of a row by the functions that PyTorch, CuPy and JAX have in common, under NumPy's names.

They serve calls for which there is no kernel, and mean what the truths of `explorer.ops` mean.
"""

import math
from collections.abc import Iterable
from typing import Any

from explorer.runtime.layout import outside

LEAST_GAP = 1000.0
"""A number that is beyond the exponentials of each type: that of its negative is 0."""


def numbers(library: Any, x: Any, axis: int, ids: Any, names: Iterable[str]) -> list[Any]:
    """Return the results of the given names of an array, which keep the axis as one element.

    The output is that of log-probabilities if there are ids, else the log-sum-exp. It can be
    differentiated, with the maximum as a constant, since a result does not depend on that.
    """

    def along(function: Any, values: Any, **told: Any) -> Any:
        return function(values, axis=axis, keepdims=True, **told)

    greatest = float(library.finfo(x.dtype).max)
    constant = x.detach() if hasattr(x, "detach") else x
    maximum = library.clip(along(library.amax, constant), -greatest, greatest)
    gaps = x - maximum
    weights = library.exp(gaps)
    total = along(library.sum, weights)
    log_sum = library.log(total)
    made = {"maximum": maximum, "log_sum": log_sum, "lse": maximum + log_sum}
    made["output"] = made["lse"] if ids is None else _chosen(library, gaps, ids, log_sum)
    names = list(names)
    if "entropy" in names:  # without the products of 0 and -inf
        terms = weights * library.clip(gaps, -LEAST_GAP, None)
        made["entropy"] = log_sum - along(library.sum, terms) / total
    if "rank" in names:
        first = _chosen(library, x, ids[..., :1])
        ranks = along(library.sum, x > first, dtype=ids.dtype)
        made["rank"] = _columns(library, library.isnan(first), ranks, ids)
    if "argmax" in names:
        ranked = library.where(library.isnan(x), -math.inf, x)
        are_greatest = library.where(x == along(library.amax, ranked), 1, 0)
        column = along(library.argmax, are_greatest)
        made["argmax"] = _columns(library, along(library.amax, are_greatest) == 0, column, ids)
    return [made[name] for name in names]


def _chosen(library: Any, x: Any, ids: Any, less: Any = 0.0) -> Any:
    """Return the elements of each row's ids, less a number of the row.

    That is NaN for an id that is no column: a constant, from which no gradient flows.
    """
    bad = outside(ids, x.shape[-1])
    inside = library.where(bad, 0, ids)
    if hasattr(library, "take_along_dim"):  # PyTorch's name, which takes 64 bits alone
        taken = library.take_along_dim(x, inside.long(), -1)
    else:
        taken = library.take_along_axis(x, inside, -1)
    return library.where(bad, math.nan, taken - less)


def _columns(library: Any, are_none: Any, columns: Any, ids: Any) -> Any:
    """Return columns, or numbers of them, in the type of the ids: -1 where there is none."""
    return library.asarray(library.where(are_none, -1, columns), dtype=ids.dtype)
