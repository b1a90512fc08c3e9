"""Rows whose elements lie at every distance below the maximum.

A kernel is wrong in them that takes e^x for 0 too soon, clamps its argument, or drops elements far
below the maximum whose sum still matters.
"""

from functools import lru_cache
from math import ceil, log

import numpy as np

from explorer.model.element import DType
from explorer.model.gpu_spec import WARP
from explorer.ops import Operator
from explorer.reference.layout import as_held
from explorer.reference.rows import Pattern, Row


def deepest_gap(dtype: DType) -> float:
    """Return the distance below the maximum, a multiple of 10, where e^x is 0 for certain."""
    rounded_to_0 = -log(dtype.arithmetic.smallest_subnormal) + log(2)
    return 10.0 * ceil(rounded_to_0 / 10)


def normal_end(dtype: DType) -> float:
    """Return the distance below the maximum where e^x is the smallest normal number."""
    return float(-np.log2(dtype.arithmetic.smallest_normal) * np.log(2.0))


def exact_bits(dtype: DType) -> int:
    """Return the most bits of a distance in a ladder, whose elements are multiples of 2^n.

    The arithmetic holds such numbers, and their differences, exactly. A kernel that rounds them to
    fewer bits is wrong.
    """
    return min(42, dtype.arithmetic.mantissa_bits)


FARTHEST_GAP = 1e4
"""Largest distance below the maximum at which log_softmax, which never reaches 0, is tried."""

GAPS = 256
"""Fewest distances in all rows of a ladder together, however narrow they are."""

LADDER_ELEMENTS = 2**15
"""Most elements of all ladders together, unless `GAPS` needs more."""

MOST_LADDERS = 64
"""Most ladders of narrow rows: a block of so many rows has a ladder in each of them."""


def ladders(cols: int, dtype: DType, operator: Operator) -> list[Pattern]:
    """Return rows whose elements lie at every distance below the maximum.

    There are as many narrow rows as have `GAPS` distances. A kernel that takes e^x for 0 too soon,
    or clamps its argument, is wrong in them.
    """
    deepest, end = deepest_gap(dtype), normal_end(dtype)
    if cols == 1:
        return []
    bits = exact_bits(dtype)
    needed = ceil(GAPS / (cols - 1))
    rows = max(needed, min(MOST_LADDERS, LADDER_ELEMENTS // cols))
    ladders = [
        *(
            _ladder("ladder", 0.0, deepest, number, rows, "shuffled", bits)
            for number in range(rows)
        ),
        _ladder("ascending far", 0.0, deepest, 0, 1, "ascending", bits),
        _ladder("descending far", 0.0, deepest, 0, 1, "descending", bits),
    ]
    # The smallest normal results, where all but the maximum are far below it.
    ladders += [
        _ladder("smallest normal", end - 8, end + 1, number, min(needed, 16), "shuffled", bits)
        for number in range(min(needed, 16))
    ]
    many = min(needed, 16) if operator.is_log else 1
    return ladders + [
        _ladder("far below", deepest, FARTHEST_GAP, number, many, "shuffled", bits)
        for number in range(many)
    ]


def least_outputs(cols: int, output: DType, operator: Operator) -> list[Pattern]:
    """Return rows whose results are the smallest numbers of a type with fewer exponents than fp32.

    All elements but the maximum are so far below it that the sum is about 1. In a ladder that
    begins at the maximum the sum is larger, and rounding hides results that a kernel flushes too
    soon. The gradient of log_softmax has such results where many large gradients meet small
    exponentials.
    """
    smallest, bits = output.smallest_normal, exact_bits(output)
    if cols == 1 or smallest <= output.arithmetic.smallest_normal:
        return []
    rows = min(ceil(GAPS / (cols - 1)), 16)
    if operator.is_log:
        return [_plateau(number, rows, bits) for number in range(rows)]
    nearest = max(-np.log(smallest) - 2, np.log(cols))
    farthest = nearest + (output.mantissa_bits + 3) * np.log(2.0)
    return [
        _ladder("smallest output", nearest, farthest, number, rows, "shuffled", bits)
        for number in range(rows)
    ]


PLATEAU = "plateau"


def _plateau(number: int, rows: int, bits: int) -> Pattern:
    """Return a row of which half is the maximum, and half lies 8 to 40 below it."""
    ladder = _ladder(PLATEAU, 8.0, 40.0, number, rows, "shuffled", bits)

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = ladder.make(rng, cols)
        row[rng.random(cols) < 0.5] = row.max()
        return row

    return Pattern(PLATEAU, make)


def _equal_terms(rng: np.random.Generator, cols: int) -> Row:
    """Return a row of equal elements below one maximum, whose sum plain addition rounds the most.

    Each term is rounded in the same direction as the one before it until the sum has doubled, so
    that the errors add up instead of cancelling: 4096 such terms, added one after another, are off
    by 60 roundings.
    """
    row = np.full(cols, -0.3)
    row[rng.integers(0, cols)] = 0.0
    return row


EQUAL_TERMS = Pattern("equal terms", _equal_terms)


def rounded_apart(cols: int, dtype: DType, output: DType) -> list[Pattern]:
    """Return rows of 16-bit softmax in which exponentials rounded to 16 bits err the most.

    Nearly all elements are the same number, whose exponential a 16-bit type rounds up, and one is
    another, whose exponential it rounds down; or the other way round. A kernel that rounds an
    exponential once before it divides is within one representable number of the truth. One that
    adds up rounded exponentials is farther off here.
    """
    if not output.is_half or cols < MANY_ALIKE:
        return []
    return [_alike_but_one(*_apart(cols, dtype, output, sign)) for sign in (1, -1)]


FARTHEST_UP, FARTHEST_DOWN = 200, 1000
"""How many of the numbers whose exponentials are rounded up the most are tried for most elements of
a row, and how many of those rounded down the most for one element."""

MANY_ALIKE = 8
"""Fewest columns with which equal elements make up nearly all of a sum beside two others."""


@lru_cache(maxsize=64)
def _apart(cols: int, dtype: DType, output: DType, sign: int) -> tuple[float, float]:
    """Return the number of most elements, and that of a single one, below a maximum of 0.

    They are those of the tried numbers whose result, computed from rounded exponentials, is the
    farthest from the truth.
    """
    kind = dtype.numpy if dtype.is_narrow else np.float16
    numbers = np.unique(np.linspace(-9, -0.1, 20_000).astype(kind)).astype(np.float64)
    terms = np.exp(numbers)
    error = sign * (as_held(terms, output) / terms - 1)
    order = np.argsort(error)
    most, one = order[-FARTHEST_UP:, None], order[None, :FARTHEST_DOWN]
    held = as_held(terms, output)
    due = terms[one] / (1 + (cols - 2) * terms[most] + terms[one])
    got = held[one] / (1 + (cols - 2) * held[most] + held[one])
    spacing = np.ldexp(1.0, np.frexp(due)[1] - 1 - output.mantissa_bits)
    numbers_apart = np.abs(as_held(got, output) - as_held(due, output)) / spacing
    score = np.where(due >= output.smallest_normal, numbers_apart + np.abs(got - due) / spacing, 0)
    row, col = np.unravel_index(np.argmax(score), score.shape)
    return float(numbers[most[row, 0]]), float(numbers[one[0, col]])


def _alike_but_one(most: float, one: float) -> Pattern:
    """Return a row of one number, with one element of another and a maximum of 0."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = np.full(cols, most)
        places = rng.choice(cols, 2, replace=False)
        row[places] = 0.0, one
        return row

    return Pattern("all alike but one", make)


def lone_maxima(dtype: DType, *, few: bool) -> list[Pattern]:
    """Return rows with one maximum, of several sizes and signs, far above all other elements.

    With `few`, only a third of the sizes have one. A kernel that compares numbers by their bits,
    and errs in some of them, takes another element for the maximum and overflows. Elements near to
    each other would hide that.
    """
    nearest = deepest_gap(dtype)
    return [_lone_maximum(value, nearest) for value in LONE_MAXIMA[:: 3 if few else 1]]


LONE_MAXIMA = (-1.3, 0.7, -0.011, 1e-5, 37.0, -37.0, 2900.0, -2900.0)


def _lone_maximum(value: float, nearest: float) -> Pattern:
    def make(rng: np.random.Generator, cols: int) -> Row:
        row = value - nearest * (FARTHEST_GAP / nearest) ** rng.random(cols)
        row[rng.integers(0, cols)] = value
        return row

    return Pattern(f"maximum {value:g}", make)


def _ladder(
    name: str, nearest: float, farthest: float, number: int, rows: int, order: str, bits: int
) -> Pattern:
    """Return ladder `number` of `rows` that divide the distances among them.

    Its steps are equally long on average, and each is a little longer or shorter, so that distances
    are no round numbers. Its maximum lies between -16 and 16, at a random place if it is shuffled.
    """

    unit = 2.0 ** (ceil(np.log2(farthest + 16)) - bits)

    def make(rng: np.random.Generator, cols: int) -> Row:
        steps = (np.arange(1, cols) * rows - number) / ((cols - 1) * rows)
        moved = steps - rng.uniform(0, 0.5, cols - 1) / ((cols - 1) * rows)
        gaps = np.zeros(cols)
        # Of small arrays these two take half of what np.clip does.
        gaps[1:] = nearest + (farthest - nearest) * np.minimum(np.maximum(moved, 0), 1)
        gaps = np.rint(gaps / unit) * unit
        if order == "ascending":
            gaps = gaps[::-1]
        elif order == "shuffled":
            rng.shuffle(gaps)
        return np.asarray(rng.integers(-64, 64) / 4 - gaps, np.float64)

    return Pattern(name, make)


def outweighed(cols: int, dtype: DType, *, keeps_small: bool, few: bool) -> list[Pattern]:
    """Return rows of one maximum and of elements far below it whose sum still matters.

    A kernel that drops a partial sum because its maximum is far below the row's, or takes e^x for 0
    too soon, is wrong by the sum of the dropped terms: in these rows from as much as the maximum's
    term to little more than the error allowed. The maximum's own result shows that in the type of
    the arithmetic, and the logarithm of softmax shows it in every type. Threads with a maximum of
    their own drop elements far below theirs, so in some rows every 32nd element is a maximum. With
    `few`, only half of the weights have rows. The smallest weights, and rows of many maxima, whose
    sum is large, are for sums that are known to keep small terms (`keeps_small`).
    """
    if cols == 1:
        return []
    spacing = 2.0**-dtype.arithmetic.mantissa_bits  # lighter ones are lost beside the maximum
    gaps = [float(np.log(cols / weight)) for weight in OTHERS_WEIGH if weight > spacing]
    near = dict.fromkeys(min(gap, DEEPEST_OTHERS) for gap in gaps)
    if not keeps_small:
        return [*map(_one_and_others, near)]
    far = [gap for gap in gaps if gap > DEEPEST_OTHERS]
    beside = [float(np.log(MAXIMUM_EACH / weight)) for weight in OTHERS_BESIDE]
    return [
        *map(_one_and_others, near),
        *map(one_behind_others, far[1::2] if few else far),
        *map(_maxima_and_others, (beside[1::2] if few else beside) if cols > MAXIMUM_EACH else []),
    ]


OTHERS_WEIGH = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 6e-6, 1e-8, 1e-10, 1e-12)
"""The sum of e^x of all elements but the maximum, divided by the maximum's term."""

OTHERS_BESIDE = (1e-2, 2.5e-3, 1e-4)
"""The sum of e^x of the other elements where every 32nd one is a maximum, divided by the terms of
all maxima."""

MAXIMUM_EACH = WARP
"""One of so many elements is a maximum in such rows."""

DEEPEST_OTHERS = 12.0
"""Largest distance below a maximum at a random place: e^-12 is 51 spacings of fp32 at 1. Terms of
less than one spacing are lost in the sum of the thread that reads the maximum, unless it reads that
last, and this is no defect."""


def _one_and_others(gap: float) -> Pattern:
    """Return a row whose elements lie `gap` below its maximum, give or take a half."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = rng.uniform(-0.5, 0.5, cols) - gap
        row[rng.integers(0, cols)] = 0.0
        return row

    return Pattern("one and others", make)


def _about(gap: float, rng: np.random.Generator, cols: int) -> Row:
    """Return elements `gap` below 0, give or take so little that their terms are nearly equal."""
    return rng.uniform(-0.05, 0.05, cols) - gap


def _maxima_and_others(gap: float) -> Pattern:
    """Return a row of which about each 32nd element is near the maximum, the others `gap` below.

    The maxima differ a little and their places are random, because equal ones would make a serial
    sum round more than it need.
    """

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = _about(gap, rng, cols)
        row[rng.random(cols) < 1 / MAXIMUM_EACH] += gap
        row[rng.integers(0, cols)] = 0.5
        return row

    return Pattern("maxima and others", make)


FAR_OUTWEIGHED = (16.0, 24.0, 36.0, 50.0, 64.0)
"""Distances below a maximum at which all other elements of a row lie, whose terms a sum with the
maximum's would lose."""


def far_outweighed(dtype: DType) -> list[Pattern]:
    """Return rows of one maximum and of others so far below it that only a sum of theirs has them.

    A loss of the maximum is such a sum. In f64 the distances are farther.
    """
    farther = 8.0 if dtype.in_double else 1.0
    return [_one_and_others(gap * farther) for gap in FAR_OUTWEIGHED]


ONE_BEHIND = "one behind others"


def one_behind_others(gap: float) -> Pattern:
    """Return a row whose elements lie `gap` below its last one, which is the maximum."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = _about(gap, rng, cols)
        row[-1] = 0.0
        return row

    return Pattern(ONE_BEHIND, make)
