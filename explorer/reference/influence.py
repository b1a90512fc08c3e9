"""Rows that show whether each element of a row has the influence that it must have.

Rows whose sums are exact show an element that is left out or counted twice, however many there are.
Rows of one peak show whether the maximum includes it. Rows of one NaN show whether it is lost.
"""

from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Problem
from explorer.ops import Operator
from explorer.reference.distances import deepest_gap
from explorer.reference.layout import as_held
from explorer.reference.rows import Pattern, Row, Shares, places_of, spread_places
from explorer.reference.specials import one_nan

SUBSET_ELEMENTS = 2**20
"""Most elements of all rows of subsets together: half a second of emulation."""

PEAK_ELEMENTS = 2**23
"""Most elements of all rows of peaks together, unless `FEWEST_PEAKS` needs more."""

THOROUGH_ELEMENTS = 2**23
"""Most elements of all rows of subsets together in a check that may take some seconds."""

THOROUGH_PEAKS = 2**25
"""Most elements of all rows together whose peaks are suspects, if a thread reads at most
`FEW_ROUNDS` vectors of a row: a peak at every second of 8192 columns, and in each vector of eight
of 16384."""

FEW_ROUNDS = 64
"""Vectors of a row per thread above which fewer elements are tried, in proportion, since each takes
longer."""

MOST_PEAKS = 256
"""Most rows of peaks, and most rows of one NaN: each thread of a block of 256 has both."""

PEAKS_BESIDE_SETS = 64
"""Most of these rows where rows of sets show what the maximum takes, but for suspects
(`Shares.suspects`)."""

FEWEST_PEAKS = 2
"""Fewest rows of peaks, however wide they are."""

GRADIENT_PEAKS = 16
"""Most rows of peaks of a gradient, which has no maximum: rows of subsets test its sums."""

NAN_ELEMENTS = 2**21
"""Most elements of all rows of one NaN together, unless a single row has more."""

MOST_SUBSETS = 256
"""Most rows of subsets."""

# ------------------------------------------------------------------ sums of equal, exact shares

SUBSET, HALF, FEW = "subset", "half", "few terms"

FEW_TERMS = (1, 2, 3, 6, 7)
"""Terms of the rows of few of them."""

EXACT = (SUBSET, HALF, FEW)
"""Names of the patterns whose terms are all 0 or 1, so that their sums are exact."""


@lru_cache(maxsize=256)
def telling_count(most: int, operator: Operator, output: DType, factor: float, change: int) -> int:
    """Return the most terms of 1, up to `most`, whose result shows `change` more or fewer terms.

    The result of n terms is 1 / n, -log(n), or of a gradient `factor` * (1 - n). An output of fp32
    shows the change by 1 / n where it is above the limit of exact rows
    (`Tolerance.exact_relative`). One of 16 bits shows it where n and n + `change` lie on two sides
    of the middle between two numbers of the type: of bf16, which has 8 bits, 1 / 3950 does so and 1
    / 4096 does not. Where no number of terms shows it, all do as well.
    """
    n = np.arange(1, min(most, MOST_TERMS) + 1, dtype=np.float64)
    due, magnitude = operator.of_ones(n, factor)
    with np.errstate(divide="ignore"):  # of no terms
        got, _ = operator.of_ones(n + change, factor)
    allowed = Accuracy.DEFAULT.tolerance(output).exact_relative * magnitude
    # The kernel's own rounding error: integers, such as a gradient's 1 - n, come out exact.
    own = np.where(got == np.rint(got), 0.0, allowed / 4)
    with np.errstate(over="ignore", invalid="ignore"):
        below = as_held(got + own, output) < as_held(due - allowed, output)
        above = as_held(got - own, output) > as_held(due + allowed, output)
    visible = np.flatnonzero(below | above | (n + change == 0))
    return int(visible[-1]) + 1 if len(visible) else len(n)


MOST_TERMS = 2**20
"""Most terms of an exact row, so that a change by 1 / n exceeds the limit of fp32."""


def subsets(problem: Problem, cols: int, *, thorough: bool) -> list[Pattern]:
    """Return rows of 0 and -inf, in which each 0 is an equal, exact term of the row's sum.

    Every element is 0 in some row. If that would take too many rows, a sample of the elements is,
    with the ends of the row and of its shares. A row has as many zeros as still show that one is
    missing (`telling_count`). Two rows of halves show an element that is counted twice, or read in
    place of another.
    """

    def terms(most: int, change: int) -> int:
        return telling_count(
            most, problem.operator, problem.output_dtype, problem.scale or 1.0, change
        )

    fewer, more = terms(cols, -1), terms(max(1, cols // 2), 1)
    wanted = ceil(cols / fewer)
    elements = THOROUGH_ELEMENTS if thorough else SUBSET_ELEMENTS
    rows = min(wanted, MOST_SUBSETS, max(2, elements // cols))
    counts = [count for count in FEW_TERMS if count <= cols]
    of_few = few_terms(cols) if thorough else [_few_terms(counts)]
    if rows < wanted:
        return [*(_sample(number, rows, fewer) for number in range(rows)), *of_few]
    first, *others = (_subset(SUBSET, number * fewer, fewer) for number in range(rows))
    halves = [_subset(HALF, start, more) for start in dict.fromkeys((0, cols - more))]
    return [first, *halves, *others, *of_few]


def few_terms(cols: int) -> list[Pattern]:
    """Return a row of each small number of terms."""
    return [_few_terms([count]) for count in FEW_TERMS if count <= cols]


def _few_terms(counts: list[int]) -> Pattern:
    """Return a row of so few terms that an error of a sum, or of a scale, is not rounded away."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        return _chosen(cols, rng.integers(0, cols, counts[rng.integers(0, len(counts))]))

    return Pattern(FEW, make)


def _chosen(cols: int, places: NDArray[np.generic]) -> Row:
    """Return a row that is 0 at the places, and -inf elsewhere."""
    row = np.full(cols, -np.inf)
    row[places] = 0.0
    return row


def _subset(name: str, start: int, count: int) -> Pattern:
    """Return a subset: `count` elements of a random order, from number `start` on, cyclically."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        order = _random_order(cols, name)
        return _chosen(cols, order[(start + np.arange(count)) % cols])

    return Pattern(name, make)


@lru_cache(maxsize=8)
def _random_order(cols: int, name: str) -> NDArray[np.int64]:
    """Return the order of a row's elements, the same for all rows of a name."""
    return np.random.default_rng([cols, len(name)]).permutation(cols)


def _sample(number: int, rows: int, terms: int) -> Pattern:
    """Return sample `number` of `rows`, with `terms` elements each; the first has the row's ends.

    Places spread over all shares of the row come before random ones.
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


# ------------------------------------------------------------------ maxima and NaN


def peaks(cols: int, dtype: DType, operator: Operator, shares: Shares | None) -> list[Pattern]:
    """Return rows in which a single element is the maximum by far, and rows with one NaN.

    A kernel that omits the element from the maximum overflows; one that loses the NaN returns
    numbers. A row tests one element only, so wide rows test a sample: one place in each share of
    threads, warps, vectors or rounds of a loop, as far as there are rows.
    """
    rows = min(cols, MOST_PEAKS, max(FEWEST_PEAKS, PEAK_ELEMENTS // cols))
    drawn = rows if shares is None else min(rows, PEAKS_BESIDE_SETS)
    most_nans = min(rows, max(1, NAN_ELEMENTS // cols))
    nans = most_nans if shares is None else min(most_nans, shares.workers(cols))
    if operator.is_gradient:
        places = places_of(cols, min(rows, GRADIENT_PEAKS), shares)
    else:
        places = places_of(cols, drawn, shares)
    if shares is not None:
        places += _suspects(cols, rows, shares)
    return [
        *(_peak(place, number, dtype, shares) for number, place in enumerate(places)),
        *map(one_nan, places_of(cols, nans, shares, turn=1), range(cols)),
    ]


OF_A_PLACE = ("peak", "one NaN")
"""Names of the last patterns, which test a place in a row and not the arithmetic."""


def _peak(place: int, number: int, dtype: DType, shares: Shares | None) -> Pattern:
    """Return a row with one peak, and a rising stair in the share of each thread, all below it.

    If each thread subtracts its own running maximum, as online sums do, the row tests each step of
    every stair: e^x overflows if the running maximum omits it.
    """
    steps = int(PEAK / deepest_gap(dtype))  # so few that e^x of each one is infinite

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = _alone(rng, cols, place, PEAK, -PEAK)
        if shares is not None:
            places, level = shares.steps_of_each(cols, number, steps)
            below = places != place
            row[places[below]] += PEAK / steps * (level[below] + 1)
        return row

    return Pattern("peak", make)


PEAK = 1000.0
"""Distance between a peak and the highest step, and from that to the lowest: its e^x is infinite,
in f64 too."""


def _suspects(cols: int, rows: int, shares: Shares) -> tuple[int, ...]:
    """Return `rows` of the suspects, or in a thorough check as many as take some seconds."""
    most = fewer_of_long_loops(THOROUGH_PEAKS, cols, shares) // cols if shares.thorough else 0
    return shares.suspects[: max(rows, most)]


def fewer_of_long_loops(elements: int, cols: int, shares: Shares) -> int:
    """Return how many elements may be tried where `elements` may be of a thread's short loops."""
    rounds = cols / (shares.workers(cols) * shares.width)
    return int(elements / max(1, rounds / FEW_ROUNDS))


def _alone(rng: np.random.Generator, cols: int, place: int, value: float, offset: float) -> Row:
    """Return a row of noise around `offset` with one element of another value."""
    row = rng.standard_normal(cols) + offset
    row[place % cols] = value  # a row may repeat narrower ones
    return row
