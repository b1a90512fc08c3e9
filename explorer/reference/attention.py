"""Queries, keys and values that tell a right kernel of attention from a wrong one.

Each group of query heads, with the keys and values that it shares, is of one kind:

- normal deviates, whose products need every element of the head dimension;
- the same with one NaN, in a key or a value;
- scores that are rows of `patterns_for`, laid over the keys. A query that is zero but for one
  element reads one element of each key, so that scores are exact. Noise fills the rest of the
  keys, which the zeros of the query must cancel;
- scores that are all 0, and values of which element d is 1 for every head_dim-th key and 0 for the
  others: a result is a part of few keys, so that it shows one that is lost or counts twice;
- such scores that rise or fall from key to key, so that each part of the keys has another maximum.
  They rise for some heads of the group and fall for others, so that what a warp does for all of its
  heads at once has another effect on each;
- such scores of one key far above the others, and the value of that key 0: the small weights of the
  others make up the result, so that it shows what is lost of them.

Keys and values past a sequence's length are NaN, so that a result shows any use of them.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.reference.layout import Array, saturated
from explorer.reference.patterns import patterns_for
from explorer.reference.rows import Pattern, Row

INT32 = np.iinfo(np.int32)

BEYOND = 4099
"""Keys by which a length is beyond all: few, since a kernel that believes it would try them all."""

MOST_SCORE = 1e36
"""Largest magnitude of a score: kernels multiply it by log2(e) in fp32."""

FACTORS = (1.0, -0.5, 0.25, -1.0)
"""Elements of the queries that read one element of each key; a power of two rounds no product."""

SHARPNESS = (1.0, 4.0, 0.25)
"""Factors of normal queries: scores are alike, or a few outweigh the others."""

KINDS = (
    *("noise", "combs", "special", "outweighed", "finite"),
    *("combs", "slope", "NaN", "special", "finite"),
)
"""What groups hold, in turn: any six that follow each other have combs among them."""

TELLING_OF_STEPS = ("slope", "combs", "outweighed", "noise", "finite", "special", "NaN")
"""The kinds that groups of few long runs begin with: what tells most of later steps comes first."""


def normal_heads(problem: Problem, rng: np.random.Generator) -> dict[str, Array]:
    """Return normal queries, keys and values, and any lengths."""
    dim, keys = problem.of_head, problem.rows // problem.of_group * problem.cols
    arrays = {
        name: rng.standard_normal((count, dim), np.float32).astype(problem.dtype.numpy)
        for name, count in (("query", problem.rows), ("key", keys), ("value", keys))
    }
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"] = rng.integers(0, problem.cols + 1, _sequences(problem), np.int32)
    return arrays


def attention_arrays(
    problem: Problem, seed: int = 0, first: int = 0, seams: Sequence[int] = ()
) -> dict[str, Array]:
    """Return the arrays of a problem whose groups are of all kinds in turn, from `first` on.

    Some lengths are next to the `seams`: numbers of keys at which a share of the kernel ends.
    """
    rng = np.random.default_rng([seed, first, problem.rows, problem.cols])
    arrays = normal_heads(problem, rng)
    group, dim = problem.of_group, problem.of_head
    queries = arrays["query"].reshape(-1, group, dim)
    keys, values = (arrays[n].reshape(len(queries), -1, dim) for n in ("key", "value"))
    counts = np.full(len(queries), problem.cols)
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"] = _lengths(problem, rng, first, seams)
        within = np.clip(arrays["lengths"], 0, problem.cols)
        counts = np.repeat(within, problem.key_heads or 1)
    for place, count in enumerate(counts):
        keys[place, count:] = values[place, count:] = np.nan
        if count:
            number = first + place
            of_group = queries[place], keys[place, :count], values[place, :count]
            _fill(problem, number, rng, *of_group)
    return arrays


def _sequences(problem: Problem) -> int:
    return problem.rows // problem.heads


def _lengths(
    problem: Problem, rng: np.random.Generator, first: int, seams: Sequence[int]
) -> NDArray[np.int32]:
    """Return a length for each sequence: all keys, any, and in between next to a seam or an end."""
    cols, count = problem.cols, _sequences(problem)
    inside = [seam + more for seam in seams for more in (-1, 0, 1) if 0 < seam + more < cols]
    ends = [0, 1, cols - 1, 2, cols + 1, -1, cols + BEYOND, INT32.min]
    seamed = np.resize(rng.permutation(inside or ends).astype(int), len(ends))
    edges = np.stack([ends, seamed], axis=1).reshape(-1)
    lengths = rng.integers(0, cols + 1, count)
    lengths[::4] = cols
    beside = np.arange(1, count, 2)
    lengths[beside] = edges[(first + np.arange(len(beside))) % len(edges)]
    return lengths.astype(np.int32)


# ------------------------------------------------------------------ one group


def _fill(
    problem: Problem,
    number: int,
    rng: np.random.Generator,
    queries: Array,
    keys: Array,
    values: Array,
) -> None:
    """Make a group of kind `number`: its queries (group, dim), keys and values (count, dim)."""
    kind, turn = KINDS[number % len(KINDS)], number // len(KINDS)
    if kind in ("noise", "NaN"):
        sharp = queries.astype(np.float64) * SHARPNESS[turn % len(SHARPNESS)]
        queries[:] = sharp.astype(queries.dtype)
        if kind == "NaN":
            place = (0, len(keys) - 1, rng.integers(len(keys)))[turn % 3]
            (keys, values)[rng.integers(2)][place, rng.integers(keys.shape[1])] = np.nan
        return
    if kind == "combs":
        queries[:] = 0
        dim = keys.shape[1]
        values[:] = np.arange(len(keys))[:, None] % dim == rng.permutation(dim)
        return
    _vary_values(number, rng, values)
    finite, special = _rows_of_scores(problem.cols, problem.dtype)
    if kind in ("outweighed", "slope"):
        slopes = [SLOPES[(turn + head.bit_count()) % 2] for head in range(len(queries))]
        patterns = [OUTWEIGHED] * len(queries) if kind == "outweighed" else slopes
        dims = rng.permutation(keys.shape[1])[: len(queries)]
    elif kind == "finite":
        heads = range(number * len(queries), (number + 1) * len(queries))
        patterns = [finite[head % len(finite)] for head in heads]
        dims = rng.permutation(keys.shape[1])[: len(queries)]
    else:  # 0 times what is not finite is NaN: all heads read the same element
        patterns = [special[number // 4 % len(special)]] * len(queries)
        dims = np.full(len(queries), rng.integers(keys.shape[1]))
    # Patterns are of whole rows: a shorter sequence has the last elements of one.
    rows = [pattern.make(rng, problem.cols)[-len(keys) :] for pattern in patterns]
    _lay(problem, rows, dims, queries, keys)
    if kind == "outweighed":
        values[[int(row.argmax()) for row in rows]] = 0


def _outweighed(rng: np.random.Generator, cols: int) -> Row:
    """Return weights of 2^-16 to 2^-28, of which 16-bit numbers hold few digits, and one of 1."""
    row = -rng.uniform(16, 28, cols) * np.log(2)
    row[rng.integers(-(cols // 2) - 1, 0)] = 0.0
    return np.asarray(row, np.float64)


OUTWEIGHED = Pattern("outweighed", _outweighed)

STEEPEST = 1000.0
"""The last score of a slope, and the first with another sign: e^x of their distance is infinite."""

SLOPES = (
    Pattern("rising", lambda rng, cols: np.linspace(-STEEPEST, STEEPEST, cols)),
    Pattern("falling", lambda rng, cols: np.linspace(STEEPEST, -STEEPEST, cols)),
)
"""A head whose number differs in one bit has the other: neighbours, and those 2 or 4 further."""


@lru_cache(maxsize=64)
def _rows_of_scores(cols: int, dtype: DType) -> tuple[list[Pattern], list[Pattern]]:
    """Return the patterns of rows whose scores are finite, and those of others."""
    rng = np.random.default_rng(0)
    finite: list[Pattern] = []
    special: list[Pattern] = []
    for pattern in patterns_for(Problem(1, cols, dtype)):
        row = pattern.make(rng, cols)
        (finite if np.isfinite(row).all() else special).append(pattern)
    return finite, special


def _lay(
    problem: Problem, rows: list[Row], dims: NDArray[np.int64], queries: Array, keys: Array
) -> None:
    """Make each head's scores a row: its query reads element `dims[head]` of each key."""
    scale = problem.of_head**-0.5 if problem.scale is None else problem.scale or 1.0
    shared = len(set(dims.tolist())) < len(rows)
    queries[:] = 0
    for head, (row, dim) in enumerate(zip(rows, dims, strict=True)):
        factor = FACTORS[head % len(FACTORS)]
        if not shared or not head:
            scores = np.where(np.isinf(row), row, np.clip(row, -MOST_SCORE, MOST_SCORE))
            keys[:, dim] = saturated(scores / (scale * factor), keys.dtype)
        queries[head, dim] = abs(factor) if shared else factor


def _vary_values(number: int, rng: np.random.Generator, values: Array) -> None:
    """Leave values normal, or make them cancel, equal within an element, or of all sizes."""
    kind = (number + number // len(KINDS)) % 4
    if kind == 1:
        values[:] = 1 - 2 * (rng.permutation(len(values)) % 2)[:, None]
    elif kind == 2:
        values[:] = values[0]
    elif kind == 3:
        sizes = 2.0 ** rng.integers(-8, 9, (len(values), 1))
        values[:] = (values.astype(np.float64) * sizes).astype(values.dtype)
