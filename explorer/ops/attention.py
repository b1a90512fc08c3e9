"""Attention of one query a head to a cache of keys and values, as a decoder's next token has it."""

from collections.abc import Mapping
from typing import Any

from explorer.ops.operator import Extent, Operator, Result
from explorer.ops.truth import Doubles, Truth, Wide

# ------------------------------------------------------------------ truth


def _scores(arrays: Mapping[str, Any], factor: Any) -> tuple[Wide, Wide]:
    """Return the scaled products of each row's query with its keys, and the sums of magnitudes.

    Both are of shape (rows, cols); a key past the sequence's length has the score -inf. A group of
    rows shares the keys of one head.
    """
    import numpy as np

    query, key = arrays["query"], arrays["key"]
    rows, dim = query.shape
    group, heads = arrays["group"], arrays["group"] * arrays["key_heads"]
    keys = key.reshape(rows // group, -1, dim)
    queries = query.reshape(rows // group, group, dim)
    with np.errstate(invalid="ignore", over="ignore"):
        products = factor * (queries @ keys.transpose(0, 2, 1))
        sizes = abs(factor) * (np.abs(queries) @ np.abs(keys).transpose(0, 2, 1))
    scores, sizes = products.reshape(rows, -1), sizes.reshape(rows, -1)
    if "lengths" in arrays:
        lengths = np.clip(arrays["lengths"], 0, keys.shape[1])
        hidden = np.arange(keys.shape[1])[None, :] >= np.repeat(lengths, heads)[:, None]
        scores, sizes = np.where(hidden, -np.inf, scores), np.where(hidden, 0.0, sizes)
    return scores, sizes


def _probabilities(scores: Wide) -> tuple[Wide, Wide, Wide]:
    """Return e^(score - maximum), their sum and the maximum; a row of -inf alone has zeros."""
    import numpy as np

    with np.errstate(invalid="ignore"):
        maximum = scores.max(axis=1, keepdims=True, initial=-np.inf)
        reference = np.where(np.isneginf(maximum), 0.0, maximum)
        terms = np.exp(scores - reference)
        return terms, terms.sum(axis=1, keepdims=True), maximum


SCORES_OF_1 = 16.0
"""The sum of magnitudes of a score's products whose rounding counts as much as all other
rounding."""


def _attended(arrays: Mapping[str, Any], factor: Any, _lost: Any) -> Truth:
    """Return the values' mean, weighted by e^score. A sequence without keys has zeros.

    Errors are relative to the mean of the values' magnitudes, and grow with the scores' own.
    """
    import numpy as np

    scores, sizes = _scores(arrays, factor)
    terms, total, _ = _probabilities(scores)
    rows, dim = arrays["query"].shape
    group = arrays["group"]
    values = arrays["value"].reshape(rows // group, -1, dim)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        shares = (terms / total).reshape(rows // group, group, -1)
        seen = shares > 0
        hidden = np.logical_not((seen | np.isnan(shares)).any(axis=1))[:, :, None]
        known = np.where(hidden, 0.0, values)  # what no row of a group weighs is not read
        result = (shares @ known).reshape(rows, dim)
        mean = (shares @ np.abs(known)).reshape(rows, dim)
        most = np.where(terms > 0, sizes, 0.0).max(axis=1, keepdims=True, initial=0.0)
        magnitude = arrays["roundings"] * mean * (1.0 + most / SCORES_OF_1)
    empty = _without_keys(arrays, rows)
    return Truth(np.where(empty, 0.0, result), np.where(empty, 0.0, magnitude))


def _without_keys(arrays: Mapping[str, Any], rows: int) -> Any:
    """Return of each row whether its sequence has no key, of shape (rows, 1)."""
    import numpy as np

    if "lengths" not in arrays:
        return np.zeros((rows, 1), np.bool_)
    return np.repeat(arrays["lengths"] <= 0, arrays["group"] * arrays["key_heads"])[:, None]


def _lse(arrays: Mapping[str, Any], factor: Any, _lost: Any) -> Truth:
    """Return the natural logarithm of the sum of e^score: -inf of a sequence without keys."""
    import numpy as np

    scores, sizes = _scores(arrays, factor)
    _, total, maximum = _probabilities(scores)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(np.isneginf(maximum), -np.inf, maximum + np.log(total))
    most = np.where(np.isfinite(scores), sizes, 0.0).max(axis=1, keepdims=True, initial=0.0)
    return Truth(values, 1.0 + np.abs(np.log(np.maximum(total, 1.0))) + most)


def _of_ones(n: Doubles, _: float) -> tuple[Doubles, Doubles]:
    """Of values that are 1 the mean is 1, of however many."""
    return n / n, n / n


# ------------------------------------------------------------------ operator


DECODE_ATTENTION = Operator(
    name="decode_attention",
    title="decode attention",
    results=(Result(_attended, Extent.HEAD), Result(_lse, Extent.ROW, "lse")),
    of_ones=_of_ones,
    patterns=(),
    operands={"query": Extent.HEAD, "key": Extent.CACHE, "value": Extent.CACHE},
    options=("head_dim", "group", "key_heads", "layout"),
    torch="scaled_dot_product_attention",
)
"""Rows are query heads, `group` of which share a key head, and columns are keys. The scale, or the
inverse root of `head_dim` where there is none, multiplies the scores."""
