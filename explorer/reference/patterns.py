"""Rows of inputs that tell a right kernel from a wrong one.

Each pattern makes a row. `patterns_for` lists those of a problem, the most revealing ones first, so
that a check of few rows has these. The docstring of each pattern names the defect that it reveals.
Patterns are the elements after scaling: if a problem has a scale, its input is the pattern divided
by the scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.reference.caps import near_the_cap
from explorer.reference.distances import (
    far_outweighed,
    ladders,
    least_outputs,
    lone_maxima,
    one_behind_others,
    outweighed,
    rounded_apart,
)
from explorer.reference.influence import EXACT, few_terms, peaks, subsets
from explorer.reference.rows import Pattern, Row, Shares
from explorer.reference.specials import dominated, spanning, specials


def patterns_for(
    problem: Problem, shares: Shares | None = None, *, keeps_small: bool = False
) -> tuple[Pattern, ...]:
    """Return the patterns that a check of a problem runs through, the most revealing ones first.

    With `shares`, peaks and NaN lie in the share of each thread of the kernel. Without, they lie in
    the shares of all kernels that divide rows by powers of two. `keeps_small` adds rows of small
    terms for a sum that never adds many small terms to a large partial sum.
    """
    scale = problem.scale if problem.operator.is_gradient else None
    return _patterns(_of_one_row(problem, scale), shares, keeps_small)


def _of_one_row(problem: Problem, scale: float | None) -> Problem:
    """Return the problem reduced to what patterns depend on, so that they are cached by it."""
    return Problem(
        1,
        problem.cols,
        problem.dtype,
        problem.op,
        out_dtype=problem.output_dtype,
        scale=scale,
        softcap=problem.softcap,
    )


def leading_patterns(
    problem: Problem, width: int, longer: Accuracy | None = None
) -> tuple[Pattern, ...]:
    """Return the patterns with which a single row shows whether all of its elements take part.

    A sum that omits an element fails in the rows whose sums are exact, even if they are wide and
    the limits on other rows loose. One that omits elements far below the maximum fails where their
    sum is just above the accuracy that rows `longer` than a kernel's own must meet. A maximum that
    omits the ends of the row, or the end of every 1024 elements or another power of two, fails in
    the rows of one element. `width` is the elements of a vector if rows are unaligned, else 1.
    """
    return _leading_patterns(_of_one_row(problem, problem.scale), width, longer)


@lru_cache(maxsize=128)
def _leading_patterns(problem: Problem, width: int, longer: Accuracy | None) -> tuple[Pattern, ...]:
    seam = int(2 ** (problem.cols.bit_length() - 1))
    exact = [pattern for pattern in patterns_for(problem) if pattern.name in EXACT]
    first, last = (Pattern(_words(make), make) for make in (_first_left, _last_left))
    before, behind = _one_at(max(0, seam - width)), _one_at(seam % problem.cols)
    behind_others: tuple[Pattern, ...] = ()
    if longer and not problem.operator.is_gradient:
        weight = JUST_MORE * _least_visible(problem, longer)
        behind_others = (one_behind_others(float(np.log(problem.cols / weight))),)
    lowest = (_filled(-LOWEST * problem.dtype.greatest),) if abs(problem.scale or 1) > 1 else ()
    return (*exact[:1], *behind_others, *lowest, last, before, *exact[1:2], behind, first)


LOWEST = 0.9
"""All elements of one leading row, in multiples of the lowest finite number: a scale above 1 takes
elements beyond it."""


JUST_MORE = 1.6
"""The sum of the small terms of a leading row, in multiples of the error that a limit allows."""


def _least_visible(problem: Problem, accuracy: Accuracy) -> float:
    """Return the error allowed for the result of a row's maximum, which is nearly 1 (or 0).

    A 16-bit result below 1 may be `tolerance.steps` representable numbers off the rounded truth.
    """
    output, tolerance = problem.output_dtype, accuracy.tolerance(problem.output_dtype)
    if output.is_half and not problem.operator.is_log:
        return float((tolerance.steps + 0.5) * 2.0 ** -(output.mantissa_bits + 1))
    return tolerance.relative


LEADING_COUNT = 8
"""Most leading patterns of a problem."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a group of patterns depends on."""

    problem: Problem
    keeps_small: bool
    few: bool
    """Whether rows are so wide that a group has fewer of them."""
    thorough: bool
    """Whether a group has all rows of which a usual check draws some."""


GROUPS: dict[str, Callable[[_Asked], list[Pattern]]] = {
    "ladders": lambda a: ladders(a.problem.cols, a.problem.dtype, a.problem.operator),
    "least outputs": lambda a: least_outputs(
        a.problem.cols, a.problem.output_dtype, a.problem.operator
    ),
    "rounded apart": lambda a: rounded_apart(
        a.problem.cols, a.problem.dtype, a.problem.output_dtype
    ),
    "lone maxima": lambda a: lone_maxima(a.problem.dtype, few=a.few),
    "outweighed": lambda a: outweighed(
        a.problem.cols,
        a.problem.dtype,
        keeps_small=a.keeps_small and not a.problem.operator.is_gradient,
        few=a.few,
    ),
    "far outweighed": lambda a: far_outweighed(a.problem.dtype),
    "specials": lambda a: specials(few=a.few, thorough=a.thorough),
    "dominated": lambda a: dominated(a.problem.dtype, few=a.few),
    "spans": lambda a: [spanning(a.problem.dtype.greatest)],
    "no numbers": lambda _: [
        Pattern(_words(make), make)
        for make in (_all_nan, _masked_or_nan, _numbers_or_nan, _nan_first, _nan_second)
    ],
}
"""The groups of patterns that only some operators need, by the names in their objects."""


def special_patterns(problem: Problem) -> tuple[Pattern, ...]:
    """Return the rows in which a scale shows that is treated by itself.

    They hold each special value, the ends of the type, and exact sums of few terms.
    """
    return _special_patterns(_of_one_row(problem, None))


@lru_cache(maxsize=128)
def _special_patterns(problem: Problem) -> tuple[Pattern, ...]:
    operator, greatest = problem.operator, problem.dtype.greatest
    asked = _Asked(problem, keeps_small=False, few=problem.cols > NARROW_COLS, thorough=True)
    named = [name for name in ("specials", "spans") if name in operator.patterns]
    return (
        *chain.from_iterable(GROUPS[name](asked) for name in named),
        *(_one_greatest(sign * greatest) for sign in (1.0, -1.0)),
        *(_filled(sign * greatest) for sign in (1.0, -1.0)),
        _lowest_or_masked(greatest),
        *few_terms(problem.cols),
    )


@lru_cache(maxsize=128)
def _patterns(problem: Problem, shares: Shares | None, keeps_small: bool) -> tuple[Pattern, ...]:
    cols, dtype, operator = problem.cols, problem.dtype, problem.operator
    thorough = shares is not None and shares.thorough
    asked = _Asked(problem, keeps_small, few=cols > NARROW_COLS, thorough=thorough)
    return (
        *(Pattern(_words(make), make) for make in _TELLING),
        *(_one_greatest(sign * dtype.greatest) for sign in (1.0, -1.0)),
        *(Pattern(_words(make), make) for make in _OTHERS),
        *near_the_cap(problem),
        *subsets(problem, cols, thorough=thorough),
        *(Pattern(_words(make), make) for make in _LAST),
        *chain.from_iterable(GROUPS[name](asked) for name in operator.patterns),
        *_huge(asked),
        *peaks(cols, dtype, operator, shares),
    )


def _words(make: Callable[..., Row]) -> str:
    return make.__name__.strip("_").replace("_", " ")


# ------------------------------------------------------------------ noise, offsets, infinities


def _noise(rng: np.random.Generator, cols: int) -> Row:
    return rng.standard_normal(cols)


def _outliers(rng: np.random.Generator, cols: int) -> Row:
    """Return noise with outliers: with noise alone all outputs are nearly equal."""
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols, max(1, cols // 64))] += rng.uniform(8, 20)
    return row


def _offset_up(rng: np.random.Generator, cols: int) -> Row:
    """Return noise around 1e4, which overflows unless the maximum is subtracted first."""
    return rng.standard_normal(cols) + 1e4


def _offset_down(rng: np.random.Generator, cols: int) -> Row:
    """Return noise around -1e4: a kernel is wrong that takes 0 for the identity of max."""
    return rng.standard_normal(cols) - 1e4


def _all_equal(rng: np.random.Generator, cols: int) -> Row:
    return np.full(cols, rng.uniform(-50, 50))


def _ascending(rng: np.random.Generator, cols: int) -> Row:
    """Return a rising row: a running maximum moves at every element, and is the last one."""
    return np.linspace(-12, 12, cols) if cols > 1 else np.zeros(1)


def _descending(rng: np.random.Generator, cols: int) -> Row:
    """Return a falling row: a running maximum is the first element and never moves."""
    return np.linspace(12, -12, cols) if cols > 1 else np.zeros(1)


def _some_masked(rng: np.random.Generator, cols: int) -> Row:
    row = rng.standard_normal(cols)
    row[rng.random(cols) < 0.3] = -np.inf
    return row


def _one_left(rng: np.random.Generator, cols: int) -> Row:
    """Return a row with one finite element: the shares of all threads but one are -inf."""
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
    """Return a row that begins with -inf: online sums must not compute -inf - -inf."""
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


def _all_nan(_: np.random.Generator, cols: int) -> Row:
    return np.full(cols, np.nan)


def _masked_or_nan(rng: np.random.Generator, cols: int) -> Row:
    """Return a row whose greatest numbers are -inf, some of them after a NaN."""
    return np.where(rng.random(cols) < 0.5, np.nan, -np.inf)


def _numbers_or_nan(rng: np.random.Generator, cols: int) -> Row:
    """Return a row whose greatest number stands among others and NaN, on either side of it."""
    return np.where(rng.random(cols) < 0.5, np.nan, rng.standard_normal(cols))


def _nan_first(rng: np.random.Generator, cols: int) -> Row:
    """Return a row of which the first of each two elements is NaN."""
    return np.where(np.arange(cols) % 2 == 0, np.nan, rng.standard_normal(cols))


def _nan_second(rng: np.random.Generator, cols: int) -> Row:
    """Return a row of which the second of each two elements is NaN."""
    return np.where(np.arange(cols) % 2 == 1, np.nan, rng.standard_normal(cols))


def _nan_beside_infinity(rng: np.random.Generator, cols: int) -> Row:
    """Return a row of numbers with a +inf and a NaN, of which the NaN decides the result."""
    row = rng.standard_normal(cols)
    row[rng.integers(0, cols)] = np.inf
    row[rng.integers(0, cols)] = np.nan
    return row


def _masked_by_a_number(rng: np.random.Generator, cols: int) -> Row:
    """Return a row masked by large negative numbers, as many programs use instead of -inf."""
    row = rng.standard_normal(cols)
    hidden = rng.random(cols) < 0.5
    row[hidden] = -rng.choice([1e4, 6e4, 1e5, 1e9, 1e20, 3e38], int(hidden.sum()))
    return row


def _near_the_maximum(rng: np.random.Generator, cols: int) -> Row:
    """Return elements a little below the maximum: taking these distances for 0 is an error."""
    row = -(10.0 ** rng.uniform(-7, 0, cols))
    row[rng.integers(0, cols)] = 0.0
    return row


def _one_far_above(rng: np.random.Generator, cols: int) -> Row:
    """Return a row with one high element, which overflows if the maximum omits it."""
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
"""Patterns that come first where there are fewer rows than patterns: -inf, NaN, outliers."""

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

_LAST = (_last_not_a_number, _one_far_above, _nan_beside_infinity)
"""A NaN beside +inf, and patterns that rows of one NaN and rows of peaks nearly repeat: for columns
with few of those."""

TELLING_COUNT = len(_TELLING)
"""Number of rows that reveal most defects of kernels."""


# ------------------------------------------------------------------ huge values


def _huge(asked: _Asked) -> list[Pattern]:
    """Return rows full of each huge number, of either sign, and rows of steps below it.

    If rows are wide, only a third of the sizes have rows of steps. A maximum that starts at such a
    number instead of -inf is wrong in a row of lower ones. A kernel that clamps its input, or holds
    it in fewer bits, is wrong in the rows of steps, whose elements differ.
    """
    dtype, few = asked.problem.dtype, asked.few
    greatest = dtype.greatest
    sizes = [greatest, 1e30, 1e10, 65504.0, 1e5, 3e4]
    if dtype.in_double:
        sizes = [greatest, 1e300, 3.4028234663852886e38, *sizes[1:]]
    sizes = [size for size in dict.fromkeys(sizes) if size <= greatest]
    signs = (-1.0, 1.0)
    stepped = [size for size in (*sizes, *STEPPED) if size <= greatest][:: 3 if few else 1]
    return [
        *(_filled(sign * size) for size in sizes for sign in signs),
        *(_steps([sign * size], dtype) for size in stepped for sign in signs),
        *(
            _steps(sizes, dtype)
            for sizes in _every_exponent(dtype, thorough=asked.thorough and not few)
        ),
        _lowest_or_masked(greatest),
    ]


def _every_exponent(dtype: DType, *, thorough: bool) -> list[list[float]]:
    """Return sizes of either sign, at every 8th exponent above `STEPPED`, in f64 at every 64th.

    A check that is not `thorough` draws one of all of a sign.
    """
    apart = 64 if dtype.in_double else 8
    sizes = [1.3 * 2.0**e for e in range(28, int(np.log2(dtype.greatest)), apart)]
    signed = [[sign * size for size in sizes] for sign in (-1.0, 1.0)]
    if thorough:
        return [[size] for of_a_sign in signed for size in of_a_sign]
    return list(filter(None, signed))


STEPPED = (1e4, 6e6, 3e3, 1e6, 1e3, 300.0, 180.0, 106.0, 25.0)
"""Sizes between the noise and the huge numbers that have rows of steps, too."""

NARROW_COLS = 2**17
"""Columns beyond which a check takes seconds, so that fewer sizes have rows of steps."""

STEPS_DEPTH = 20.0
"""Distance from the greatest to the lowest element of a row of steps, if that is at least a
step."""


def _filled(value: float) -> Pattern:
    return Pattern(f"all {value:.3g}", lambda rng, cols: np.full(cols, value))


def _steps(values: list[float], dtype: DType) -> Pattern:
    """Return a row of the type's numbers next to one of `values`, some of them equal to it."""
    kind = dtype.numpy

    def make(rng: np.random.Generator, cols: int) -> Row:
        value = values[rng.integers(0, len(values))] if len(values) > 1 else values[0]
        held = float(np.asarray(value).astype(kind))
        spacing = 2.0 ** (np.floor(np.log2(abs(held))) - dtype.mantissa_bits)
        most = int(min(max(1.0, STEPS_DEPTH / spacing), 2**31))
        steps = rng.integers(0, most + 1, cols)
        steps[rng.integers(0, cols)] = 0
        # Towards 0 from a positive value, away from it from a negative one: never beyond the type.
        top = held if value > 0 else held + most * spacing
        return np.asarray(top - steps * spacing, np.float64)

    return Pattern(f"steps at {values[0]:.3g}", make)


ONE_GREATEST = "one greatest"


def _one_greatest(value: float) -> Pattern:
    """Return a row of noise with one element of the greatest magnitude.

    A large scale turns it into an infinity; a kernel whose products saturate is wrong.
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
