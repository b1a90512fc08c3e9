"""Rows that can tell right from wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Pattern = Callable[[np.random.Generator, int], Array]

PATTERNS: list[Pattern] = []
"""One row each; what it would expose is said beside it."""


def _pattern(make: Pattern) -> Pattern:
    PATTERNS.append(make)
    return make


@_pattern
def _noise(rng: np.random.Generator, cols: int) -> Array:
    return rng.standard_normal(cols)


@_pattern
def _outliers(rng: np.random.Generator, cols: int) -> Array:
    """Uniform noise makes all outputs nearly equal; outliers make maxima matter."""
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols, max(1, cols // 64))] += rng.uniform(8, 20)
    return row


@_pattern
def _offset_up(rng: np.random.Generator, cols: int) -> Array:
    """Overflows without the maximum subtracted; loses bits where it is subtracted too late."""
    return rng.standard_normal(cols) + 1e4


@_pattern
def _offset_down(rng: np.random.Generator, cols: int) -> Array:
    """All far below 0: wrong where 0 serves as the identity of max."""
    return rng.standard_normal(cols) - 1e4


@_pattern
def _all_equal(rng: np.random.Generator, cols: int) -> Array:
    return np.full(cols, rng.uniform(-50, 50))


@_pattern
def _ascending(rng: np.random.Generator, cols: int) -> Array:
    """The maximum moves at every element, and is the last: the tail's."""
    return np.linspace(-12, 12, cols) if cols > 1 else np.zeros(1)


@_pattern
def _descending(rng: np.random.Generator, cols: int) -> Array:
    """The maximum is the first element and never moves."""
    return np.linspace(12, -12, cols) if cols > 1 else np.zeros(1)


@_pattern
def _some_masked(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.3] = -np.inf
    return row


@_pattern
def _one_left(rng: np.random.Generator, cols: int) -> Array:
    """One finite element: every thread's share but one is -inf only."""
    row = np.full(cols, -np.inf)
    row[rng.integers(0, cols)] = 3.0
    return row


@_pattern
def _start_masked(rng: np.random.Generator, cols: int) -> Array:
    """Online sums begin with -inf: -inf - -inf must not be computed."""
    row = rng.standard_normal(cols)
    row[: cols // 2] = -np.inf
    return row


@_pattern
def _end_masked(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[(cols + 1) // 2 :] = -np.inf
    return row


@_pattern
def _all_masked(rng: np.random.Generator, cols: int) -> Array:
    return np.full(cols, -np.inf)


@_pattern
def _plus_infinity(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.inf
    return row


@_pattern
def _not_a_number(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.nan
    return row


@_pattern
def _last_not_a_number(rng: np.random.Generator, cols: int) -> Array:
    row = rng.standard_normal(cols)
    row[-1] = np.nan
    return row


@_pattern
def _huge_and_equal(rng: np.random.Generator, cols: int) -> Array:
    """As under a mask of -1e10: x - maximum is 0 throughout, and must come out as 0."""
    return np.full(cols, rng.choice([-1e10, 1e10, -3e38, 3e38]))


@_pattern
def _masked_by_a_number(rng: np.random.Generator, cols: int) -> Array:
    """Masks are often a large finite number instead of -inf."""
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.5] = -3e38
    return row


PATTERN_COUNT = len(PATTERNS)
"""Rows after which the patterns repeat, with other random numbers."""

_TELLING = (
    _start_masked,
    _not_a_number,
    _all_masked,
    _outliers,
    _one_left,
    _plus_infinity,
    _offset_down,
    _end_masked,
)
"""What comes first where there are fewer rows than patterns: parts of -inf, NaN, outliers."""

TELLING_COUNT = len(_TELLING)
"""Rows that show most of what a kernel can do wrong."""


def pattern_of(row: int, rows: int) -> Pattern:
    """What row number `row` of a verification's `rows` holds."""
    if rows >= PATTERN_COUNT:
        return PATTERNS[row % PATTERN_COUNT]
    return [*_TELLING, *(p for p in PATTERNS if p not in _TELLING)][row]


def pattern_name(row: int, rows: int) -> str:
    """The same in words."""
    return pattern_of(row, rows).__name__.strip("_").replace("_", " ")
