"""The inputs of a verification: which rows, at which run-time arguments, and what they hold.

The emulator, the GPU and the reference take all of it from here. Matrices are arrays of shape
(rows, cols), whatever their layout in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count as count_from
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.accuracy import Accuracy
from explorer.dtype import DType
from explorer.problem import Mask, Op, Problem
from explorer.reference.influence import EXACT, OF_A_PLACE, SUBSET, telling_count
from explorer.reference.layout import NUMPY_DTYPES
from explorer.reference.patterns import (
    LEADING_COUNT,
    ONE_BEHIND,
    ONE_GREATEST,
    PLATEAU,
    equal_terms,
    leading_patterns,
    patterns_for,
)
from explorer.reference.rows import Pattern, Shares
from explorer.reference.truth import EXACT_TERMS, hidden_elements, truth_of

Array = NDArray[Any]

PATTERN_COLS = 2**20
"""Wider rows repeat their pattern, which the host could not hold otherwise."""

MOST_REPEATED = 160
"""Rows up to which patterns are repeated, with other random numbers."""

OTHER_GAP = 2**16 + 64
"""Elements by which gaps between rows are widened to try another stride: whole vectors, and more
than 16 bits hold."""

OTHER_SCALES = (-37123456.7, 2171828182.8, 7.8901e-7)
"""Scales that are tried beside a problem's own: a negative one, a large one and a small one.

The first two are larger than a kernel might take for the largest that there is, and the third is
smaller than one might take for 0. None is a number of a 16-bit type, so that a kernel that rounds
its scale to one is wrong.
"""

SCALES_OF_F16 = (-371.23456, 2171.82818, 0.0078901)
"""The same for f16 inputs, which hold no rows that such scales leave as they are to be."""

GRADIENT_SIZES = {DType.F16: (1e-3, 300.0), DType.BF16: (1e-7, 1e6)}
"""Factors of some rows of gradients: a small one, as of a mean over many rows, and a large one."""

OTHER_GRADIENT_SIZES = (3e-17, 3e10)
"""The same for f32 and f64."""

PLATEAU_GRADIENT = 3e4
"""The gradient at each of a row's many maxima: the sum of so large ones, times e^-30 or less, is no
more than the smallest f16 results."""

TINY_SHARE = 1e-20
"""An element's share of its row's sum, below which large gradients are not tried.

A kernel may multiply the share with the scale first, and lose the product where it is below the
smallest normal number.
"""

CANCELLED = {DType.F16: 6e4, DType.BF16: 1e6, DType.F32: 1e5, DType.F64: 1e5}
"""The largest elements of masks that cancel an input's, by its type: a product of this size is
rounded by 0.002 to 0.03 in fp32. Numbers of f16 end there; outputs of bf16 show no less."""

MOST_CANCELLED = 64
"""Elements of a mask that cancel, at most: the rest of a row under it is as it was."""

CANCELLING = 64
"""Pairs that are tried for one which cancels: numbers of 16 bits are far apart at such sizes."""

INT32 = np.iinfo(np.int32)

EDGE_LENGTHS = (8, 16, 31, 32, 33, 64)
"""Lengths at which vectors and warps end; more than all columns where rows are shorter."""

CUT_LENGTHS = (2**16, -(2**16), 2**24, INT32.min)
"""Lengths of rows of which nothing or all is seen, and of which a part is if they are cut to fewer
bits: half of the columns are added to each."""


@dataclass(frozen=True, slots=True)
class Case:
    """One problem to verify a kernel on: its rows are patterns from number `first` on."""

    problem: Problem
    first: int = 0
    shares: Shares | None = None
    """How the kernel cuts rows, where rows are to be made for each of its threads."""
    leading_width: int = 0
    """Where it is not 0, the first rows are `leading_patterns` of this width: for few rows."""
    keeps_small: bool = False
    """Whether the kernel's sums are known to keep small terms (`patterns_for`)."""
    longer: Accuracy | None = None
    """What the case is held to where its rows are longer than the kernel's own."""
    compensated: bool = False
    """Whether the first row is `equal_terms`, of which compensated sums lose nothing."""

    @property
    def patterns(self) -> Iterator[Pattern]:
        """The pattern of each row; they repeat, with other random numbers."""
        known = patterns_for(self.problem, self.shares, keeps_small=self.keeps_small)
        width = self.leading_width
        leading = leading_patterns(self.problem, width, self.longer) if width else ()
        if self.compensated:
            leading = (equal_terms(), *leading)
        for row in range(self.problem.rows):
            number = self.first + row - len(leading)
            yield leading[row] if row < len(leading) else known[number % len(known)]

    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Return every array that a kernel reads, by the names of `operands.inputs`.

        A backward op gets the forward's output on the patterns, as the forward would have rounded
        it, and a gradient.
        """
        problem, patterns = self.problem, tuple(self.patterns)
        names = np.array([pattern.name for pattern in patterns])
        matrix = _pattern_matrix(problem.dtype, patterns, problem.cols, seed)
        if not problem.op.is_backward:
            matrix = _unscaled(problem, matrix, names)
        rng = np.random.default_rng([seed, problem.rows, problem.cols, 1])
        arrays = _with_other_arrays(problem, matrix, rng)
        if problem.op.is_backward:
            _vary_gradients(problem, arrays, names, matrix, rng)
            _make_not_finite(problem, arrays, names, matrix)
        if problem.mask is not Mask.NONE:
            arrays["input"] = arrays["input"].copy()  # the patterns are kept for other cases
            self._vary_masks(arrays, names, rng)
            _fill_hidden(problem, arrays)
        return arrays

    def _vary_masks(
        self, arrays: dict[str, Array], names: NDArray[np.str_], rng: np.random.Generator
    ) -> None:
        """Give the lengths and the masks all kinds of values; of rows of subsets all is seen."""
        problem = self.problem
        whole = np.flatnonzero(names == SUBSET)
        if problem.mask is Mask.LENGTHS:
            _vary_lengths(problem, arrays["lengths"])
            arrays["lengths"][whole] = problem.cols
        if problem.mask is Mask.ADDITIVE:
            _vary_mask(arrays["mask"], rng)
            if problem.mask_rows > 1:
                arrays["mask"][whole % problem.mask_rows] = 0
        if self.leading_width:
            _show_all(problem, arrays)
        if problem.mask is Mask.ADDITIVE:
            _cancel(problem, arrays, names)
        _show_the_last(problem, arrays, names)
        _tell_of_visible(problem, arrays, names)


def verification_inputs(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """Return the arrays of a problem whose rows are all patterns in turn (`Case.arrays`)."""
    return Case(problem).arrays(seed)


def pattern_count(problem: Problem, shares: Shares | None = None) -> int:
    """Return the rows after which the patterns of a problem repeat at the latest (`Case`)."""
    return len(patterns_for(problem, shares, keeps_small=True))


def arithmetic_pattern_count(problem: Problem) -> int:
    """Return how many of the patterns tell of the arithmetic: the first ones."""
    return sum(pattern.name not in OF_A_PLACE for pattern in patterns_for(problem))


# ------------------------------------------------------------------ how many rows, which arguments


def base_rows(problem: Problem) -> int:
    """Return the rows of a verification: every pattern, several times where they are few and short.

    An odd number and some more than the patterns: blocks of several rows do not divide it.
    """
    count = pattern_count(problem)
    rows = max(count, min(4 * count, MOST_REPEATED, 2**21 // problem.cols))
    return rows + 1 + rows % 2


def verification_rows(problem: Problem, rows_per_block: int) -> int:
    """Rows to verify a kernel with: at least one whole block, and one that is not."""
    blocks = 2 if problem.cols <= 4096 else 1
    return max(base_rows(problem), blocks * rows_per_block + 1)


def rows_that_repeat(
    problem: Problem, rows: int, rows_per_block: int, most: int | None = None
) -> int:
    """`rows`, or some more: a mask that repeats is to do so in them, and a block to be in part.

    They are fewer instead where they would be more than `most`, if any number up to that will do.
    """
    if not 0 < problem.mask_rows < problem.rows:
        return rows

    def repeats(number: int) -> bool:
        return not _is_prime(number) and (rows_per_block == 1 or number % rows_per_block > 0)

    more = next(number for number in count_from(rows) if repeats(number))
    if most is None or more <= most:
        return more
    fewer = range(most, max(rows_per_block, 1), -1)
    return next((number for number in fewer if repeats(number)), more)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, isqrt(number) + 1))


def verification_problem(
    problem: Problem,
    rows_per_block: int,
    together: int = 1,
    most_rows: int | None = None,
    shares: Shares | None = None,
) -> Problem:
    """A problem of few rows to verify a kernel with: whole blocks, and one that is not.

    With an inner axis: some slices of it, which begin within blocks. `together` neighbouring rows
    are read at once: they divide the axis, but nothing more than that does. There are about
    `most_rows` where these are fewer than the patterns, which depend on the kernel's `shares`.
    """
    if problem.inner == 1:
        rows = verification_rows(problem, rows_per_block)
        return problem.resized(rows_that_repeat(problem, rows, rows_per_block))
    block = rows_per_block // together
    slices = 3 if block % 3 else 5
    wanted = -(-pattern_count(problem, shares) // (slices * together)) | 1
    if most_rows is not None:
        wanted = min(wanted, (most_rows // (slices * together) - 1) | 1)
    groups = max(3, (block // slices + 1) | 1, wanted)
    while block > 1 and slices * groups % block == 0:
        groups += 2
    inner = groups * together
    return replace(problem, rows=slices * inner, inner=inner)


def with_other_arguments(problem: Problem, together: int = 1) -> tuple[Problem, ...]:
    """Return the problem with other values of what its kernel is told at run time.

    In the first, each argument is at its edge: scale 0, rows without gaps, a mask of one row or of
    all, one slice. In the second it is another value: a negative scale, wider gaps, a mask that
    repeats, slices of another width. In those that follow there is another scale alone. There is
    none for a kernel that is told its rows alone. `together` neighbouring rows are read at once
    where there is an inner axis.
    """
    edge: dict[str, Any] = {}
    other: dict[str, Any] = {}
    scales: list[dict[str, Any]] = []
    rows, cols = problem.rows, problem.cols
    if problem.scale is not None:
        edge["scale"] = 0.0 if problem.scale else 1.5
        known = SCALES_OF_F16 if problem.dtype is DType.F16 else OTHER_SCALES
        other["scale"] = known[0]
        scales = [{"scale": scale} for scale in known[1:]]
    if not problem.is_dense:
        edge |= {"input_stride": cols, "output_stride": cols}
        other |= {
            "input_stride": problem.input_stride + OTHER_GAP,
            "output_stride": problem.output_stride + OTHER_GAP * (1 if problem.in_place else 2),
        }
    if problem.mask_rows:
        divisors = [n for n in range(2, rows) if rows % n == 0] or [1]
        edge["mask_rows"] = 1 if problem.mask is Mask.CAUSAL or problem.mask_rows == rows else rows
        other["mask_rows"] = next((n for n in divisors if n != problem.mask_rows), 1)
    if problem.inner > 1:
        edge["inner"] = rows
        other["inner"] = together
    changes = [change for change in (edge, other, *scales) if change]
    return tuple(replace(problem, **change) for change in changes)


# ------------------------------------------------------------------ what the arrays hold


def normal_inputs(problem: Problem, seed: int = 0) -> dict[str, Array]:
    """Return the arrays of a problem, of normal deviates: what a profile is made with."""
    rng = np.random.default_rng([seed, problem.rows, problem.cols])
    shape = (problem.rows, problem.cols)
    matrix = rng.standard_normal(shape, np.float32).astype(NUMPY_DTYPES[problem.dtype])
    return _with_other_arrays(problem, matrix, rng)


@lru_cache(maxsize=2)
def _pattern_matrix(dtype: DType, patterns: tuple[Pattern, ...], cols: int, seed: int) -> Array:
    """Return a matrix of a row for each pattern. Large numbers stay finite in every dtype.

    It is kept: kernels with as many rows a block ask for the same once more.
    """
    rng = np.random.default_rng([seed, len(patterns), min(cols, PATTERN_COLS)])
    matrix = np.empty((len(patterns), cols), NUMPY_DTYPES[dtype])
    for row, pattern in enumerate(patterns):
        width = min(cols, EXACT_TERMS if pattern.name in EXACT else PATTERN_COLS)
        values = _held(pattern.make(rng, width), matrix.dtype)
        matrix[row] = values if width == cols else np.resize(values, cols)
    return matrix


def _held(values: Array, dtype: Any) -> Array:
    """Return float64 numbers in a type, the largest for those that are finite but too large."""
    largest = float(ml_dtypes.finfo(dtype).max)
    finite = np.clip(values, -largest, largest)
    return np.asarray(np.where(np.isinf(values), values, finite).astype(dtype))


def _unscaled(problem: Problem, matrix: Array, names: NDArray[np.str_]) -> Array:
    """Return the patterns over the scale, so that the elements as they count are the patterns."""
    if not problem.scale:
        return matrix
    values = matrix.astype(np.float64)
    with np.errstate(over="ignore"):
        scaled = _held(np.where(np.isinf(values), values, values / problem.scale), matrix.dtype)
    if abs(problem.scale) <= 1:
        return scaled
    # The greatest finite number stays in rows full of it, and where it is alone: what the scale
    # makes of it is an infinity.
    greatest = np.abs(values) == problem.dtype.greatest
    stay = greatest & (greatest.all(axis=1) | (names == ONE_GREATEST))[:, None]
    return np.where(stay, matrix, scaled)


def _with_other_arrays(
    problem: Problem, matrix: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Return the arrays that go with a forward op's input, of noise."""
    arrays = {"input": matrix}
    if problem.op.is_backward:
        forward = Problem(problem.rows, problem.cols, problem.dtype, problem.op.forward)
        arrays["input"] = truth_of(forward, arrays).values.astype(matrix.dtype)
        arrays["grad"] = rng.standard_normal(matrix.shape).astype(matrix.dtype)
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"] = rng.integers(0, problem.cols + 1, problem.rows, np.int32)
    if problem.mask is Mask.ADDITIVE:
        added = rng.standard_normal((problem.mask_rows, problem.cols))
        added[rng.random(added.shape) < 0.2] = -np.inf
        arrays["mask"] = added.astype(matrix.dtype)
    return arrays


def _vary_gradients(
    problem: Problem,
    arrays: dict[str, Array],
    names: NDArray[np.str_],
    matrix: Array,
    rng: np.random.Generator,
) -> None:
    """Make some gradients 0 but for one element, or throughout; in rows of subsets, exact shares.
    Of the others half are much smaller or much greater than 1, and some have a NaN.

    There y and dy are 1 in the subset and 0 elsewhere, or their logarithms: the sum is the number
    of the subset's elements, which fp32 does not round. In the ladders of log_softmax dy is 1 at
    the maximum and 0 elsewhere: beside a dy of 1, the share e^y * sum would be lost below e^-17.
    """
    grad, y = arrays["grad"], arrays["input"]
    sizes = GRADIENT_SIZES.get(problem.dtype, OTHER_GRADIENT_SIZES)
    for row, name in enumerate(names):
        if name in EXACT:
            chosen = matrix[row] == 0
            grad[row] = chosen
            y[row] = np.where(chosen, 0, -np.inf) if problem.op.is_log else chosen
        elif name in ("ladder", "smallest normal") and problem.op.is_log:
            grad[row] = 0
            grad[row, np.argmax(matrix[row])] = 1
        elif name == PLATEAU:
            grad[row] = np.where(matrix[row] == matrix[row].max(), PLATEAU_GRADIENT, 0)
        elif row % 7 == 5:
            grad[row] = 0
            grad[row, rng.integers(0, problem.cols)] = 1
        elif row % 11 == 8:
            grad[row] = 0
        elif row % 11 == 4:
            grad[row, rng.integers(0, problem.cols)] = np.nan
        elif row % 4 < 2 and not _has_tiny(y[row], problem.op):
            grad[row] = _sized(grad[row], sizes[row % 4])


def _make_not_finite(
    problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_], matrix: Array
) -> None:
    """Of the rows of one NaN, give it to the gradient, every fourth time to the output instead.

    The forward op makes NaN of a row with one NaN throughout, in which none can be lost: here it
    gets the row without. Every fourth gradient has both infinities instead, of which one is at the
    place of the NaN: their sum is no number in whatever order, and neither is any result. What the
    result is of one infinity alone, compensated sums see otherwise than plain ones.
    """
    rows = np.flatnonzero(names == "one NaN")
    if not len(rows):
        return
    lost = np.isnan(matrix[rows].astype(np.float32))
    places = lost.argmax(axis=1)
    cleaned = np.where(lost, np.zeros_like(matrix[rows]), matrix[rows])
    forward = Problem(len(rows), problem.cols, problem.dtype, problem.op.forward)
    grad, y = arrays["grad"], arrays["input"]
    y[rows] = truth_of(forward, {"input": cleaned}).values.astype(y.dtype)
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        grad[row] = np.where(np.isfinite(grad[row].astype(np.float32)), grad[row], 1)
        kind = (number + number // 32) % 4  # a lane has another one in the next warp
        if kind == 0 and problem.cols > 1:
            grad[row, (place + problem.cols // 2) % problem.cols] = -np.inf
            grad[row, place] = np.inf
        elif kind == 2:
            y[row, place] = np.nan
        else:
            grad[row, place] = np.nan


def _has_tiny(y: Array, op: Op) -> bool:
    """Return whether an output of the forward op is so small that its products may underflow."""
    values = y.astype(np.float64)
    shares = np.exp(values) if op.is_log else values
    return bool(((shares > 0) & (shares < TINY_SHARE)).any())


def _sized(values: Array, factor: float) -> Array:
    """Return numbers times a factor, in their type."""
    return _held(values.astype(np.float64) * factor, values.dtype)


def _show_all(problem: Problem, arrays: dict[str, Array]) -> None:
    """Hide nothing of the leading rows, unless one row of a mask is that of all of them."""
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"][:LEADING_COUNT] = problem.cols
    if problem.mask is Mask.ADDITIVE and problem.mask_rows > 1:
        arrays["mask"][:LEADING_COUNT] = 0


def _cancel(problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_]) -> None:
    """Let large negative elements of a mask cancel what the scale makes of some rows' elements.

    The product is rounded to a multiple of much more than the sum's last bit if it is rounded by
    itself: here that moves e^x by up to a few thousandths. Of the rows that the last mask row goes
    to, each eighth has such elements alone; in the others they are as good as hidden.
    """
    if not problem.scale:
        return
    matrix, mask = arrays["input"], arrays["mask"][-1]
    finite = np.isfinite(matrix)
    single = finite.sum(axis=1) == 1
    needed = finite[single].any(axis=0)  # what a row is made for is to be seen
    rng = np.random.default_rng([problem.rows, problem.cols])
    places = rng.permutation(np.flatnonzero(np.isfinite(mask) & ~needed))
    places = places[: min(MOST_CANCELLED, len(places) // 2)]
    rows = np.arange(problem.rows)
    rows = rows[(rows % problem.mask_rows == problem.mask_rows - 1) & ~np.isin(names, EXACT)]
    rows = rows[~single[rows]][::-8]
    if len(places) > 1 and len(rows):
        elements, mask[places] = _that_cancel(problem, len(places), rng)
        matrix[rows] = -np.inf
        matrix[np.ix_(rows, places)] = elements


def _that_cancel(
    problem: Problem, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return elements and what is added to them: numbers of the input's type, nearly opposite.

    Of some pairs for each, that which comes nearest to a number around 0.
    """
    kind, largest = NUMPY_DTYPES[problem.dtype], CANCELLED[problem.dtype]
    added = -_held(largest * 2.0 ** -rng.uniform(0, 4, (CANCELLING, count)), kind)
    wanted = rng.standard_normal(count)
    scale = float(problem.scale or 1.0)
    with np.errstate(over="ignore"):
        elements = _held((wanted - added.astype(np.float64)) / scale, kind)
        sums = elements.astype(np.float64) * scale + added.astype(np.float64)
    best = np.argmin(np.abs(sums - wanted), axis=0), np.arange(count)
    return elements[best].astype(np.float64), added[best].astype(np.float64)


def _show_the_last(problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_]) -> None:
    """Move a maximum at the end of a row to the last element that is seen."""
    rows = np.flatnonzero(names == ONE_BEHIND)
    hidden = hidden_elements(problem, arrays)
    if hidden is None or not len(rows):
        return
    last = np.maximum(problem.cols - 1 - hidden[rows].sum(axis=1), 0)
    arrays["input"][rows, last] = arrays["input"][rows, -1]


def _tell_of_visible(problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_]) -> None:
    """Mask some elements of exact rows: as many are seen as show that one is missing.

    A pattern has as many of all elements; a mask leaves fewer.
    """
    rows = np.flatnonzero(np.isin(names, EXACT))
    if not len(rows):
        return
    matrix = arrays["input"]
    seen = matrix[rows] == 0
    hidden = hidden_elements(problem, arrays)
    if hidden is not None:
        seen &= ~hidden[rows]
    if problem.mask is Mask.ADDITIVE:
        seen &= arrays["mask"][rows % problem.mask_rows] == 0
    rng = np.random.default_rng([len(names), problem.cols])
    for row, places in zip(rows, seen, strict=True):
        count = int(places.sum())
        told = telling_count(max(1, count), problem.op, problem.output_dtype, 1.0, -1)
        dropped = rng.choice(np.flatnonzero(places), max(0, count - told), replace=False)
        matrix[row, dropped] = -np.inf


def _fill_hidden(problem: Problem, arrays: dict[str, Array]) -> None:
    """Put into what is hidden, in three of four rows, what must not count: the greatest, no number.

    A kernel reads whole vectors, and hides a part of the last one that it takes. Of rows of which
    nothing is seen, those without it show that a kernel sees something: of infinities and NaN
    nothing but NaN comes, which is right there.
    """
    hidden = hidden_elements(problem, arrays)
    if hidden is None:
        return
    matrix = arrays["input"]
    for number, value in enumerate((problem.dtype.greatest, np.inf, np.nan), start=1):
        rows = np.arange(problem.rows) // 3 % 4 == number
        matrix[hidden & rows[:, None]] = value


def _vary_lengths(problem: Problem, lengths: NDArray[np.int32]) -> None:
    """Make every fourth row whole, and half of them as long as a row just can be, or cannot."""
    cols = problem.cols
    cut = [length + cols // 2 for length in CUT_LENGTHS]
    edges = [0, 1, cols - 1, -1, cols + 1, INT32.min, INT32.max, *cut, *EDGE_LENGTHS, cols // 2]
    lengths[::4] = cols
    between = np.arange(len(lengths)) % 4
    beside = np.flatnonzero((between == 1) | (between == 2))
    lengths[beside] = np.clip(np.resize(edges, len(beside)), INT32.min, INT32.max)
    lengths[-1:] = 0


def _vary_mask(mask: Array, rng: np.random.Generator) -> None:
    """Give the first row some large elements; make the others other kinds of masks.

    These are 0, 0 and -inf, a large negative number in parts, -inf, numbers of all sizes; and some
    with a NaN or an infinity.
    """
    cols = mask.shape[1]
    some = rng.random(cols) < 0.05
    mask[0] = np.where(some & np.isfinite(mask[0]), 20 * mask[0].astype(np.float64), mask[0])
    largest = float(ml_dtypes.finfo(mask.dtype).max)
    for row in range(1, len(mask)):
        hidden = rng.random(cols) < 0.3
        kinds = (
            np.zeros(cols),
            np.where(hidden, -np.inf, 0.0),
            np.where(hidden, -min(1e9, largest), 0.0),
            mask[row].astype(np.float64),
            np.where(hidden, -largest, 0.0),
            np.full(cols, -np.inf) if row % 14 == 6 else np.zeros(cols),
            rng.choice([-1.0, 1.0], cols) * 10.0 ** rng.uniform(-3, 4, cols),
            min(5e4, largest) - rng.integers(0, 20, cols) * 64.0,
        )
        mask[row] = kinds[row % len(kinds)].astype(mask.dtype)
        if row % 21 in (10, 17):
            mask[row, rng.integers(0, cols)] = np.nan if row % 21 == 10 else np.inf
