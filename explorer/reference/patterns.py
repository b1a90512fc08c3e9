"""Rows of inputs that tell a right kernel from a wrong one.

Each pattern is a row; `patterns_for` lists those of a problem in the order in which they are worth
most, so that a check of few rows has the most telling ones. What a pattern exposes is said beside
it. Patterns are of elements *as they count*: where a problem has a scale, its input is the pattern
over the scale.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from explorer.model.accuracy import Accuracy
from explorer.model.dtype import DType
from explorer.model.problem import Problem
from explorer.reference.distances import (
    ladders,
    least_outputs,
    lone_maxima,
    one_behind_others,
    outweighed,
    rounded_apart,
)
from explorer.reference.influence import EXACT, peaks, subsets
from explorer.reference.layout import NUMPY_DTYPES
from explorer.reference.rows import Pattern, Row, Shares


def patterns_for(
    problem: Problem, shares: Shares | None = None, *, keeps_small: bool = False
) -> tuple[Pattern, ...]:
    """Return the patterns that a check of a problem runs through, the most telling ones first.

    Peaks and NaN lie in the share of each thread of a kernel that cuts rows so; without `shares`
    they lie in all shares, however rows are cut by powers of two. A sum that `keeps_small` terms
    has more rows of them: one in which a large share does not come before many small ones.
    """
    scale = problem.scale if problem.op.is_backward else None
    return _patterns(_of_one_row(problem, scale), shares, keeps_small)


def _of_one_row(problem: Problem, scale: float | None) -> Problem:
    """Return what patterns depend on of a problem, so that they are made once for all alike."""
    return Problem(
        1, problem.cols, problem.dtype, problem.op, out_dtype=problem.output_dtype, scale=scale
    )


def leading_patterns(
    problem: Problem, width: int, longer: Accuracy | None = None
) -> tuple[Pattern, ...]:
    """Return the patterns that tell in a single row whether all of it takes part.

    A sum that leaves an element out shows in the rows whose sums are exact, be they wide and the
    limits on other rows loose. One that leaves out what is far below the maximum shows where that
    weighs just more than what rows that are `longer` than a kernel's own are held to. A maximum
    that does not reach the ends, or leaves out the end of every 1024 elements, or of any other
    power of two, shows in the rows of one element. Where rows begin anywhere in a vector of `width`
    elements, that is the vector with the element so many before the end; else `width` is 1.
    """
    return _leading_patterns(_of_one_row(problem, problem.scale), width, longer)


@lru_cache(maxsize=128)
def _leading_patterns(problem: Problem, width: int, longer: Accuracy | None) -> tuple[Pattern, ...]:
    seam = int(2 ** (problem.cols.bit_length() - 1))
    exact = [pattern for pattern in patterns_for(problem) if pattern.name in EXACT]
    first, last = (Pattern(_words(make), make) for make in (_first_left, _last_left))
    before, behind = _one_at(max(0, seam - width)), _one_at(seam % problem.cols)
    behind_others: tuple[Pattern, ...] = ()
    if longer and not problem.op.is_backward:
        weight = JUST_MORE * _least_told(problem, longer)
        behind_others = (one_behind_others(float(np.log(problem.cols / weight))),)
    lowest = (_filled(-LOWEST * problem.dtype.greatest),) if abs(problem.scale or 1) > 1 else ()
    return (*exact[:1], *behind_others, *lowest, last, before, *exact[1:2], behind, first)


LOWEST = 0.9
"""What all elements of a leading row are, in multiples of the lowest finite number: where a scale
below 1 takes a kernel's own elements far from it, one above 1 takes others there."""


JUST_MORE = 1.6
"""What others weigh in a leading row, in multiples of what a limit allows."""


def _least_told(problem: Problem, accuracy: Accuracy) -> float:
    """Return by how much the result of a row's maximum, which is nearly 1, or 0, may be wrong.

    A result of 16 bits below 1 may be so many numbers beside the rounded truth.
    """
    output, limits = problem.output_dtype, accuracy.limits(problem.output_dtype)
    if output.is_half and not problem.op.is_log:
        return float((limits.steps + 0.5) * 2.0 ** -(output.mantissa_bits + 1))
    return limits.relative


LEADING_COUNT = 8
"""The most of them that there are."""


@lru_cache(maxsize=128)
def _patterns(problem: Problem, shares: Shares | None, keeps_small: bool) -> tuple[Pattern, ...]:
    cols, dtype, output, op = problem.cols, problem.dtype, problem.output_dtype, problem.op
    return (
        *(Pattern(_words(make), make) for make in _TELLING),
        *(_one_greatest(sign * dtype.greatest) for sign in (1.0, -1.0)),
        *(Pattern(_words(make), make) for make in _OTHERS),
        *subsets(problem, cols, thorough=shares is not None and shares.thorough),
        *(Pattern(_words(make), make) for make in _LAST),
        *ladders(cols, dtype, op),
        *least_outputs(cols, output, op),
        *rounded_apart(cols, dtype, output, op),
        *lone_maxima(dtype, op, few=cols > NARROW_COLS),
        *outweighed(cols, dtype, op, keeps_small=keeps_small, few=cols > NARROW_COLS),
        *_huge(dtype, few=cols > NARROW_COLS),
        *peaks(cols, dtype, op, shares),
    )


def _words(make: Callable[..., Row]) -> str:
    return make.__name__.strip("_").replace("_", " ")


# ------------------------------------------------------------------ noise, offsets, infinities


def _noise(rng: np.random.Generator, cols: int) -> Row:
    return rng.standard_normal(cols)


def _outliers(rng: np.random.Generator, cols: int) -> Row:
    """Uniform noise makes all outputs nearly equal; outliers make maxima matter."""
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols, max(1, cols // 64))] += rng.uniform(8, 20)
    return row


def _offset_up(rng: np.random.Generator, cols: int) -> Row:
    """Overflows without the maximum subtracted; loses bits where it is subtracted too late."""
    return rng.standard_normal(cols) + 1e4


def _offset_down(rng: np.random.Generator, cols: int) -> Row:
    """All far below 0: wrong where 0 serves as the identity of max."""
    return rng.standard_normal(cols) - 1e4


def _all_equal(rng: np.random.Generator, cols: int) -> Row:
    return np.full(cols, rng.uniform(-50, 50))


def _ascending(rng: np.random.Generator, cols: int) -> Row:
    """The maximum moves at every element, and is the last: the tail's."""
    return np.linspace(-12, 12, cols) if cols > 1 else np.zeros(1)


def _descending(rng: np.random.Generator, cols: int) -> Row:
    """The maximum is the first element and never moves."""
    return np.linspace(12, -12, cols) if cols > 1 else np.zeros(1)


def _some_masked(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.3] = -np.inf
    return row


def _one_left(rng: np.random.Generator, cols: int) -> Row:
    """One finite element: every thread's share but one is -inf only."""
    row = np.full(cols, -np.inf)
    row[rng.integers(0, cols)] = 3.0
    return row


def _first_left(rng: np.random.Generator, cols: int) -> Row:
    row = np.full(cols, -np.inf)
    row[0] = -3.0
    return row


def _last_left(rng: np.random.Generator, cols: int) -> Row:
    row = np.full(cols, -np.inf)
    row[-1] = -3.0
    return row


def _one_at(place: int) -> Pattern:
    """Return a row of -inf with one finite element."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = np.full(cols, -np.inf)
        row[place % cols] = 3.0  # a row may repeat narrower ones
        return row

    return Pattern("one left at a seam", make)


def _start_masked(rng: np.random.Generator, cols: int) -> Row:
    """Online sums begin with -inf: -inf - -inf must not be computed."""
    row = rng.standard_normal(cols)
    row[: cols // 2] = -np.inf
    return row


def _end_masked(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[(cols + 1) // 2 :] = -np.inf
    return row


def _all_masked(rng: np.random.Generator, cols: int) -> Row:
    return np.full(cols, -np.inf)


def _plus_infinity(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.inf
    return row


def _not_a_number(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.nan
    return row


def _last_not_a_number(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[-1] = np.nan
    return row


def _masked_by_a_number(rng: np.random.Generator, cols: int) -> Row:
    """Masks are often a large finite number instead of -inf."""
    row = rng.standard_normal(cols)
    hidden = rng.random(cols) < 0.5
    row[hidden] = -rng.choice([1e4, 6e4, 1e5, 1e9, 1e20, 3e38], int(hidden.sum()))
    return row


def _near_the_maximum(rng: np.random.Generator, cols: int) -> Row:
    """A kernel that takes small distances for 0 is wrong by as much as they are."""
    row = -(10.0 ** rng.uniform(-7, 0, cols))
    row[rng.integers(0, cols)] = 0.0
    return row


def _one_far_above(rng: np.random.Generator, cols: int) -> Row:
    """Overflows where this one element is left out of the maximum."""
    row = rng.standard_normal(cols) - 500
    row[rng.integers(0, cols)] = 500
    return row


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

_OTHERS = (
    _noise,
    _ascending,
    _descending,
    _masked_by_a_number,
    _near_the_maximum,
    _offset_up,
    _all_equal,
    _some_masked,
    _first_left,
    _last_left,
)

_LAST = (_last_not_a_number, _one_far_above)
"""What rows of one NaN and of peaks nearly say: for columns of which these are few."""

TELLING_COUNT = len(_TELLING)
"""Rows that show most of what a kernel can do wrong."""


# ------------------------------------------------------------------ huge values


def _huge(dtype: DType, *, few: bool) -> list[Pattern]:
    """Return rows full of each huge value, and of its positive twin, and rows of steps below it.

    With `few`, only a third of the sizes have rows of steps.

    A maximum that starts at such a number instead of -inf is wrong in a row below it: x - max is 0
    throughout, and must come out as 0. A kernel that clamps its input, or keeps it in fewer bits,
    is wrong in the rows of steps, whose elements differ.
    """
    greatest = dtype.greatest
    sizes = [greatest, 1e30, 1e10, 65504.0, 1e5, 3e4]
    if dtype is DType.F64:
        sizes = [greatest, 1e300, 3.4028234663852886e38, *sizes[1:]]
    sizes = [size for size in dict.fromkeys(sizes) if size <= greatest]
    signs = (-1.0, 1.0)
    stepped = [size for size in (*sizes, *STEPPED) if size <= greatest][:: 3 if few else 1]
    return [
        *(_filled(sign * size) for size in sizes for sign in signs),
        *(_steps(sign * size, dtype) for size in stepped for sign in signs),
        _lowest_or_masked(greatest),
    ]


STEPPED = (1e4, 6e6, 3e3, 1e6, 1e3, 300.0, 180.0, 106.0, 25.0)
"""Sizes between the noise and the huge values at which a row of steps lies as well."""

NARROW_COLS = 2**17
"""Columns beyond which a check takes seconds, and fewer sizes have rows of steps."""

STEPS_DEPTH = 20.0
"""How far a row of steps reaches below its greatest element, or one step where that is more."""


def _filled(value: float) -> Pattern:
    return Pattern(f"all {value:.3g}", lambda rng, cols: np.full(cols, value))


def _steps(value: float, dtype: DType) -> Pattern:
    """Return a row of numbers that the type tells from `value`, some of them equal to it."""
    kind = NUMPY_DTYPES[dtype]
    held = float(np.asarray(value).astype(kind))
    spacing = 2.0 ** (np.floor(np.log2(abs(held))) - dtype.mantissa_bits)

    def make(rng: np.random.Generator, cols: int) -> Row:
        most = int(min(max(1.0, STEPS_DEPTH / spacing), 2**31))
        steps = rng.integers(0, most + 1, cols)
        steps[rng.integers(0, cols)] = 0
        # Towards 0 from a positive value, away from it from a negative one: never beyond the type.
        top = held if value > 0 else held + most * spacing
        return np.asarray(top - steps * spacing, np.float64)

    return Pattern(f"steps at {value:.3g}", make)


ONE_GREATEST = "one greatest"


def _one_greatest(value: float) -> Pattern:
    """Return a row of noise with one element of the greatest magnitude.

    A large scale makes an infinity of it, and a kernel whose products saturate does not.
    """

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = rng.standard_normal(cols)
        row[rng.integers(0, cols)] = value
        return row

    return Pattern(ONE_GREATEST, make)


def _lowest_or_masked(greatest: float) -> Pattern:
    """Return a row of the lowest finite number and of -inf, which are not the same."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = np.where(rng.random(cols) < 0.5, -np.inf, -greatest)
        row[rng.integers(0, cols)] = -greatest
        return row

    return Pattern("lowest or masked", make)
