"""Rows that tell whether each element of a row has the influence that it must have.

In rows whose sums are exact, an element that is left out, or counted twice, shows however many
there are; in rows of one peak, whether the maximum takes it in; in rows of one NaN, whether that is
lost.
"""

from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from explorer.model.accuracy import Accuracy
from explorer.model.dtype import DType
from explorer.model.problem import Op, Problem
from explorer.reference.layout import as_held
from explorer.reference.rows import Pattern, Row, Shares, places_of, spread_places

SUBSET_ELEMENTS = 2**20
"""Elements of all rows of subsets together at most: half a second of emulation."""

PEAK_ELEMENTS = 2**23
"""Elements of all rows of peaks together at most, but for the fewest rows."""

THOROUGH_ELEMENTS = 2**23
"""Elements of all rows of subsets together at most, where a check may take some seconds."""

THOROUGH_PEAKS = 2**26
"""Elements of all rows of peaks together at most in such a check, of which a thread has few: all of
8192 columns, or one of each vector of 16384."""

FEW_ROUNDS = 64
"""Vectors of a row that a thread has, above which peaks are fewer by as much: they take longer."""

MOST_PEAKS = 256
"""Rows of peaks at most, and of one NaN each: then each thread of a block of 256 has both."""

FEWEST_PEAKS = 2
"""Rows of peaks at least, however wide they are."""

GRADIENT_PEAKS = 16
"""Rows of peaks of a gradient at most, which has no maximum: its sums have rows of subsets."""

NAN_ELEMENTS = 2**21
"""Elements of all rows of one NaN together at most, but for the fewest rows."""

MOST_SUBSETS = 256
"""Rows of subsets at most."""

# ------------------------------------------------------------------ sums of equal, exact shares

SUBSET, HALF = "subset", "half"

EXACT = (SUBSET, HALF)
"""Names of the patterns whose terms are all 0 or 1, so that their sums are exact."""


@lru_cache(maxsize=256)
def telling_count(most: int, op: Op, output: DType, factor: float, change: int) -> int:
    """Return the most terms of 1, up to `most`, whose result shows that there is `change` more.

    The result of n terms is 1 / n, -log(n), or of a gradient `factor` * (1 - n). An output of fp32
    shows the change by 1 / n where it is above the limit of exact rows (`Limits.exact_relative`).
    One of 16 bits shows it where n and n + `change` lie on two sides of the middle between two
    numbers of the type: of bf16, which has 8 bits, 1 / 3950 does so and 1 / 4096 does not. Where
    no number of terms shows it, all do as well.
    """
    n = np.arange(1, min(most, MOST_TERMS) + 1, dtype=np.float64)
    due, magnitude = _of_ones(n, op, factor)
    got, _ = _of_ones(n + change, op, factor)
    allowed = Accuracy.DEFAULT.limits(output).exact_relative * magnitude
    # What a kernel may be off by itself: integers, such as a gradient's 1 - n, come out exact.
    own = np.where(got == np.rint(got), 0.0, allowed / 4)
    with np.errstate(over="ignore", invalid="ignore"):
        below = as_held(got + own, output) < as_held(due - allowed, output)
        above = as_held(got - own, output) > as_held(due + allowed, output)
    told = np.flatnonzero(below | above | (n + change == 0))
    return int(told[-1]) + 1 if len(told) else len(n)


MOST_TERMS = 2**20
"""The most terms of an exact row: a change by 1 / n is to exceed the limit of fp32."""


def _of_ones(n: Row, op: Op, factor: float) -> tuple[Row, Row]:
    """Return what an op makes of rows of n terms of 1, and what its errors are relative to."""
    if op.is_backward:
        return factor * (1.0 - n), abs(factor) * (1.0 + n)
    with np.errstate(divide="ignore"):
        result = -np.log(n) if op.is_log else 1.0 / n
    return result, np.abs(result) + (1.0 if op.is_log else 0.0)


def subsets(problem: Problem, cols: int, *, thorough: bool) -> list[Pattern]:
    """Return rows of 0 and -inf: each element has an equal, exact share of one row's sum.

    Every element is in some subset; where rows are so wide that these would be too many, a sample
    is, and with it what is at the ends of a row and of its shares. There are as many elements as
    show that one is missing (`telling_count`), whatever the rounding of other rows hides. Two
    rows of halves show where one is counted twice, or taken for another.
    """

    def told(most: int, change: int) -> int:
        return telling_count(most, problem.op, problem.output_dtype, problem.scale or 1.0, change)

    fewer, more = told(cols, -1), told(max(1, cols // 2), 1)
    wanted = ceil(cols / fewer)
    elements = THOROUGH_ELEMENTS if thorough else SUBSET_ELEMENTS
    rows = min(wanted, MOST_SUBSETS, max(2, elements // cols))
    if rows < wanted:
        return [_sample(number, rows, fewer) for number in range(rows)]
    first, *others = (_subset(SUBSET, number * fewer, fewer) for number in range(rows))
    halves = [_subset(HALF, start, more) for start in dict.fromkeys((0, cols - more))]
    return [first, *halves, *others]


def _chosen(cols: int, places: NDArray[np.generic]) -> Row:
    """Return a row of 0 at the places, and of -inf elsewhere."""
    row = np.full(cols, -np.inf)
    row[places] = 0.0
    return row


def _subset(name: str, start: int, count: int) -> Pattern:
    """Return `count` elements of a row in random order, from number `start` on, in a circle."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        order = _random_order(cols, name)
        return _chosen(cols, order[(start + np.arange(count)) % cols])

    return Pattern(name, make)


@lru_cache(maxsize=8)
def _random_order(cols: int, name: str) -> NDArray[np.int64]:
    """Return the order of a row's elements, the same for all rows of a name."""
    return np.random.default_rng([cols, len(name)]).permutation(cols)


def _sample(number: int, rows: int, terms: int) -> Pattern:
    """Return sample `number` of `rows`, of `terms` elements each; the first has the row's ends.

    Places that lie in all shares of a row come before those at random.
    """

    def make(rng: np.random.Generator, cols: int) -> Row:
        ends = _ends(cols)[: terms // 2] if number == 0 else _ends(cols)[:0]
        spread = spread_places(cols, rows * terms)[number::rows]
        wanted = np.concatenate([ends, spread, rng.choice(cols, terms, replace=False)])
        _, first = np.unique(wanted, return_index=True)
        return _chosen(cols, wanted[np.sort(first)[:terms]])

    return Pattern(SUBSET, make)


def _ends(cols: int) -> NDArray[np.int64]:
    """Return places where shares of threads, warps and vectors may begin or end."""
    powers = 2 ** np.arange(int(cols).bit_length())
    near = np.concatenate([[0, 1, 2, 3, 5, 7, cols - 1, cols - 2, cols - 8], powers, powers - 1])
    near = np.concatenate([near, cols - powers])
    return np.unique(near[(near >= 0) & (near < cols)]).astype(np.int64)


# ------------------------------------------------------------------ maxima, and what is no number


def peaks(cols: int, dtype: DType, op: Op, shares: Shares | None) -> list[Pattern]:
    """Return rows in which one element alone decides the maximum, and rows with one NaN.

    A kernel that leaves the element out of the maximum overflows; one that loses the NaN has
    numbers in its row. A row tells it of one element only, so that of wide rows a sample is tried:
    a place in each of as many shares as there are rows, of threads, of warps, of vectors or of
    rounds of a loop.
    """
    rows = min(cols, MOST_PEAKS, max(FEWEST_PEAKS, PEAK_ELEMENTS // cols))
    most_nans = min(rows, max(1, NAN_ELEMENTS // cols))
    nans = most_nans if shares is None else min(most_nans, shares.workers(cols))
    if op.is_backward:
        places = places_of(cols, min(rows, GRADIENT_PEAKS), shares)
    elif shares is not None and shares.thorough:
        places = _thorough_places(cols, rows, shares)
    else:
        places = places_of(cols, rows, shares)
    return [
        *(_peak(place, number, dtype, shares) for number, place in enumerate(places)),
        *(_lone("one NaN", place, np.nan, 0.0) for place in places_of(cols, nans, shares, turn=1)),
    ]


OF_A_PLACE = ("peak", "one NaN")
"""Names of the patterns that tell of a place in a row, and nothing of the arithmetic; the last."""


def _peak(place: int, number: int, dtype: DType, shares: Shares | None) -> Pattern:
    """Return a row with one peak, and a rising stair in the share of each thread, all below it.

    Where each thread subtracts its own maximum so far, as online sums do, a row tells of each step
    of every stair, whose e^x overflows where the maximum leaves it out.
    """
    steps = PEAK_STEPS[dtype.arithmetic]

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = _alone(rng, cols, place, PEAK, -PEAK)
        if shares is not None:
            places, level = shares.steps_of_each(cols, number, steps)
            below = places != place
            row[places[below]] += PEAK / steps * (level[below] + 1)
        return row

    return Pattern("peak", make)


PEAK = 1000.0
"""Distance between a peak and the highest step, and from that to the ground: e^x of it is infinite,
of f64 too."""

PEAK_STEPS = {DType.F32: 9, DType.F64: 1}
"""Steps of a stair, by the type of the arithmetic: so many that e^x of a step is infinite."""


def _thorough_places(cols: int, rows: int, shares: Shares) -> list[int]:
    """Return every place of a row, or else some of each vector, or else some of each share.

    They are as many as take some seconds, and `rows` at least. Which places of a vector they are
    is drawn at random.
    """
    rounds = cols / (shares.workers(cols) * shares.width)
    most = max(rows, int(THOROUGH_PEAKS / cols / max(1, rounds / FEW_ROUNDS)))
    width, vectors = shares.width, ceil(cols / shares.width)
    if most < vectors:
        return places_of(cols, most, shares)
    order = np.random.default_rng([cols, width]).random((vectors, width)).argsort(axis=1)
    places = (np.arange(vectors) * width)[:, None] + order[:, : most // vectors]
    return [int(place) for place in places.reshape(-1) if place < cols]


def _lone(name: str, place: int, value: float, offset: float) -> Pattern:
    """Return the pattern of `_alone`."""
    return Pattern(name, lambda rng, cols: _alone(rng, cols, place, value, offset))


def _alone(rng: np.random.Generator, cols: int, place: int, value: float, offset: float) -> Row:
    """Return a row of noise around `offset` with one element of another value."""
    row = rng.standard_normal(cols) + offset
    row[place % cols] = value  # a row may repeat narrower ones
    return row
