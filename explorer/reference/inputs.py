"""The inputs of a verification: which rows, at which run-time arguments, and what they hold.

The emulator, the GPU and the reference take all of it from here. Matrices are arrays of shape
(rows, cols), whatever their layout in memory.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import count as count_from
from math import isqrt
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.model.accuracy import Accuracy
from explorer.model.element import DType
from explorer.model.problem import Mask, Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.ops.truth import EXACT_TERMS, capped, exact_sums
from explorer.reference.attention import attention_arrays, normal_heads
from explorer.reference.caps import targets_near_the_cap
from explorer.reference.distances import EQUAL_TERMS
from explorer.reference.gradients import vary_gradients
from explorer.reference.influence import EXACT, OF_A_PLACE
from explorer.reference.layout import Array, saturated
from explorer.reference.masks import vary_masks
from explorer.reference.patterns import (
    ONE_GREATEST,
    leading_patterns,
    patterns_for,
    special_patterns,
)
from explorer.reference.rows import Pattern, Shares
from explorer.reference.specials import with_nans
from explorer.reference.truth import counted, truth_of, truths_of

PATTERN_COLS = 2**20
"""Wider rows repeat their pattern, since the host could not hold them otherwise."""

MOST_REPEATED = 160
"""Most rows for which patterns are repeated, with other random numbers."""

OTHER_GAP = 2**16 + 64
"""Elements by which gaps between rows are widened to try another stride: whole vectors, and more
than 16 bits hold."""


NAN_FACTOR_EACH = 17
"""One of so many rows has a NaN in place of a number that its results are multiplied by."""

BESIDE_1 = (-1.0, 0.97, 1 - 2.0**-11, 1.0, 1 + 2.0**-11, 1.03)
"""Factors that a kernel may take for 1, and 1 itself."""

OUTWEIGHED = 2.0**-5
"""Sum of the terms of a row but its greatest one, which is 1, below which a loss shows them."""


class Held(Enum):
    """What the rows of a pattern hold."""

    FINITE = "numbers alone"
    MASKED = "-inf among numbers, as a mask leaves it"
    OTHER = "NaN or +inf, or -inf alone"


@lru_cache(maxsize=2**14)
def held(pattern: Pattern, cols: int) -> Held:
    """Return what the rows of a pattern hold, by one of so many columns."""
    row = pattern.make(np.random.default_rng(0), min(cols, PATTERN_COLS))
    if np.isfinite(row).all():
        return Held.FINITE
    is_masked = np.isfinite(row).any() and not (np.isnan(row) | (row == np.inf)).any()
    return Held.MASKED if is_masked else Held.OTHER


@dataclass(frozen=True, slots=True)
class Case:
    """One problem to verify a kernel on: its rows are patterns from number `first` on."""

    problem: Problem
    first: int = 0
    shares: Shares | None = None
    """How the kernel divides a row among its threads, if rows are made for each of them."""
    leading_width: int = 0
    """Where it is not 0, the first rows are `leading_patterns` of this width: for few rows."""
    keeps_small: bool = False
    """Whether the kernel's sums are known to keep small terms (`patterns_for`)."""
    longer: Accuracy | None = None
    """The accuracy that the case must meet, if its rows are longer than the kernel's own."""
    specials: bool = False
    """Whether rows are `special_patterns` alone."""
    compensated: bool = False
    """Whether the first row is `EQUAL_TERMS`, of which compensated sums lose nothing."""
    seams: tuple[int, ...] = ()
    """Of attention, the numbers of keys at which a share of the kernel ends."""
    only: "Held | None" = None
    """What rows hold; None for anything."""

    @property
    def patterns(self) -> Iterator[Pattern]:
        """Yield the pattern of each row; they repeat, with other random numbers."""
        known, leading = self._known, self._leading[: self.problem.rows]
        yield from leading
        for row in range(self.problem.rows - len(leading)):
            yield known[(self.first + row) % len(known)]

    @property
    def _known(self) -> tuple[Pattern, ...]:
        if self.specials:
            return special_patterns(self.problem)
        return self._chosen(patterns_for(self.problem, self.shares, keeps_small=self.keeps_small))

    @property
    def _leading(self) -> tuple[Pattern, ...]:
        width = self.leading_width
        leading = leading_patterns(self.problem, width, self.longer) if width else ()
        return self._chosen((EQUAL_TERMS, *leading) if self.compensated else leading)

    def _chosen(self, patterns: tuple[Pattern, ...]) -> tuple[Pattern, ...]:
        if self.only is None:
            return patterns
        return tuple(one for one in patterns if held(one, self.problem.cols) is self.only)

    @np.errstate(invalid="ignore")  # of NaN that signal
    def arrays(self, seed: int = 0) -> dict[str, Array]:
        """Return every array that a kernel reads, by the names of `operands.inputs`.

        A backward op gets the forward's output on the patterns, as the forward would have rounded
        it, and a gradient.
        """
        problem = self.problem
        if problem.attends:
            return attention_arrays(problem, seed, self.first, self.seams)
        names = np.array([pattern.name for pattern in self.patterns])
        matrix = self._matrix(seed)
        if not problem.operator.is_gradient:
            matrix = _unscaled(problem, matrix, names)
        rng = np.random.default_rng([seed, problem.rows, problem.cols, 1])
        arrays = _with_other_arrays(problem, matrix, rng)
        if problem.operator.is_gradient:
            vary_gradients(problem, arrays, names, matrix, rng)
        if problem.mask is not Mask.NONE:
            arrays["input"] = arrays["input"].copy()  # the patterns are cached for other cases
            vary_masks(
                problem,
                arrays,
                names,
                rng,
                leading=self.leading_width > 0,
                first=self.first,
                shares=self.shares,
            )
        return arrays

    def _matrix(self, seed: int) -> Array:
        """Return a row of each pattern. Large numbers stay finite in every dtype."""
        problem, leading = self.problem, self._leading[: self.problem.rows]
        count = problem.rows - len(leading)
        known = _rows_in_turn(problem.dtype, self._known, self.first, count, problem.cols, seed)
        if not leading:
            return known
        first = _rows_in_turn(problem.dtype, leading, 0, len(leading), problem.cols, seed)
        return np.concatenate([first, known])


def verification_inputs(
    problem: Problem, seed: int = 0, only: Held | None = None
) -> dict[str, Array]:
    """Return the arrays of a problem whose rows are all patterns in turn (`Case.arrays`)."""
    return Case(problem, only=only).arrays(seed)


def pattern_count(problem: Problem, shares: Shares | None = None) -> int:
    """Return the rows after which the patterns of a problem repeat at the latest (`Case`)."""
    return len(patterns_for(problem, shares, keeps_small=True))


def count_of(problem: Problem, only: Held) -> int:
    """Return how many of a problem's patterns hold only this."""
    return sum(held(one, problem.cols) is only for one in patterns_for(problem))


def special_count(problem: Problem) -> int:
    """Return how many rows of special values a problem has (`special_patterns`)."""
    return len(special_patterns(problem))


def arithmetic_pattern_count(problem: Problem) -> int:
    """Return how many of a problem's patterns, the first ones, test its arithmetic."""
    return sum(pattern.name not in OF_A_PLACE for pattern in patterns_for(problem))


# ------------------------------------------------------------------ how many rows, which arguments


def base_rows(problem: Problem) -> int:
    """Return the rows of a verification: every pattern, several times if they are few and short.

    The number is odd and a little more than the patterns, so that blocks of several rows do not
    divide it.
    """
    count = pattern_count(problem)
    rows = max(count, min(4 * count, MOST_REPEATED, 2**21 // problem.cols))
    return rows + 1 + rows % 2


def verification_rows(problem: Problem, rows_per_block: int) -> int:
    """Return the rows to verify a kernel with: at least one whole block and a part of one."""
    blocks = 2 if problem.cols <= 4096 else 1
    return max(base_rows(problem), blocks * rows_per_block + 1)


def rows_that_repeat(
    problem: Problem, rows: int, rows_per_block: int, most: int | None = None
) -> int:
    """Return `rows` or the next number with which a mask can repeat and the last block is partial.

    If that is more than `most`, return the next smaller number for which both hold, if there is
    one.
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
    """Return a problem of few rows to verify a kernel with: whole blocks and a part of one.

    With an inner axis it has some slices, which begin within blocks. `together` neighbouring rows
    are read by one access: they divide the inner axis, but no multiple of them does. The rows are
    about `most_rows` if these are fewer than the patterns, which depend on the kernel's `shares`.
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
    """Return copies of the problem with other values of its kernel's run-time arguments.

    In the first copy each argument is at its edge: scale 0, rows without gaps, a mask of one row or
    of all, one slice. In the second it has another value: a negative scale, wider gaps, a mask that
    repeats, slices of another width. The following copies change the scale alone. A kernel whose
    only argument is its rows has no copy. `together` neighbouring rows are read by one access if
    there is an inner axis.
    """
    edge: dict[str, Any] = {}
    other: dict[str, Any] = {}
    scales: list[dict[str, Any]] = []
    rows, cols = problem.rows, problem.cols
    if problem.scale is not None:
        edge["scale"] = 0.0 if problem.scale else 1.5
        known = problem.dtype.trials.scales
        other["scale"] = known[0]
        scales = [{"scale": scale} for scale in known[1:]]
    if not problem.is_dense:
        edge |= {"input_stride": cols, "output_stride": cols}
        other |= {
            "input_stride": problem.input_stride + OTHER_GAP,
            "output_stride": problem.output_stride + OTHER_GAP * (1 if problem.in_place else 2),
        }
        if problem.ids_stride:
            edge["ids_stride"] = problem.ids_per_row
            other["ids_stride"] = problem.ids_stride + 3 * OTHER_GAP
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
    """Return the arrays of a problem, filled with normal deviates, as profiles use them."""
    rng = np.random.default_rng([seed, problem.rows, problem.cols])
    if problem.attends:
        return normal_heads(problem, rng)
    shape = (problem.rows, problem.cols)
    matrix = rng.standard_normal(shape, np.float32).astype(problem.dtype.numpy)
    return _with_other_arrays(problem, matrix, rng)


TOGETHER = 2**16
"""Elements of rows that are converted together: what a core's cache holds."""


ROWS_TOGETHER = 16
"""Rows are made in multiples of this, so that kernels that differ a little in their number of rows
share one cached matrix."""

WIDE_COLS = 2**13
"""Columns above which exactly the requested rows are made."""

MOST_CACHED_BYTES = 2**29
"""Most bytes of cached matrices: three of 75 rows of 524288 f32. The latest matrix stays, however
large it is. Matrices of f64 rows of nearly 2^20 elements are larger, so that each kernel's inputs
are made anew."""


def _rows_in_turn(
    dtype: DType, known: tuple[Pattern, ...], first: int, count: int, cols: int, seed: int
) -> Array:
    """Return `count` rows of patterns in turn, from number `first` on; the array is read-only.

    The rows are cached, because the following kernels of a search need the same ones.
    """
    together = ROWS_TOGETHER if cols <= WIDE_COLS else 1
    rounded = -(-count // together) * together
    return _CACHE.rows(_RowsInTurn(dtype, known, first, rounded, cols, seed))[:count]


@dataclass(frozen=True, slots=True)
class _RowsInTurn:
    """The key of cached rows: everything they are made from."""

    dtype: DType
    known: tuple[Pattern, ...]
    first: int
    count: int
    cols: int
    seed: int


class _RowCache:
    """Matrices of rows, the least recently used first."""

    def __init__(self) -> None:
        self._matrices: OrderedDict[_RowsInTurn, Array] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def rows(self, key: _RowsInTurn) -> Array:
        """Return the rows, made now unless they are cached."""
        with self._lock:
            if key in self._matrices:
                self._matrices.move_to_end(key)
                return self._matrices[key]
        made = _made(key)
        with self._lock:
            if key not in self._matrices:  # another thread may have made it meanwhile
                self._bytes += made.nbytes
            self._matrices[key] = made
            while len(self._matrices) > 1 and self._bytes > MOST_CACHED_BYTES:
                self._bytes -= self._matrices.popitem(last=False)[1].nbytes
        return made

    @property
    def bytes(self) -> int:
        """Return the bytes of all matrices, counted as they come and go.

        Adding them up for each new matrix took a quarter of the time in which it is made.
        """
        return self._bytes


_CACHE = _RowCache()


def _made(key: _RowsInTurn) -> Array:
    first, count, cols, known = key.first, key.count, key.cols, key.known
    patterns = tuple(known[number % len(known)] for number in range(first, first + count))
    rng = np.random.default_rng([key.seed, first, count, len(known), min(cols, PATTERN_COLS)])
    matrix = np.empty((count, cols), key.dtype.numpy)
    for start, width, alike in _of_one_width(patterns, cols):
        rows = np.stack([pattern.make(rng, width) for pattern in alike])
        held = with_nans(saturated(rows, matrix.dtype), rows, key.dtype)
        for row, values in enumerate(held, start):
            matrix[row] = values if width == cols else np.resize(values, cols)
    matrix.flags.writeable = False
    return matrix


def _of_one_width(
    patterns: tuple[Pattern, ...], cols: int
) -> Iterator[tuple[int, int, tuple[Pattern, ...]]]:
    """Yield groups of neighbouring patterns of one width: first row, width, patterns.

    Each group is converted to its type by one call: verifications of narrow rows take a quarter
    less time.
    """
    widths = [min(cols, EXACT_TERMS if p.name in EXACT else PATTERN_COLS) for p in patterns]
    first = 0
    while first < len(patterns):
        width, end = widths[first], first + 1
        most = first + max(1, TOGETHER // width)
        while end < min(most, len(patterns)) and widths[end] == width:
            end += 1
        yield first, width, patterns[first:end]
        first = end


def _unscaled(problem: Problem, matrix: Array, names: NDArray[np.str_]) -> Array:
    """Return the patterns divided by the scale, so that the scaled elements are the patterns."""
    if not problem.scale:
        return matrix
    values = matrix.astype(np.float64)
    with np.errstate(over="ignore"):
        scaled = saturated(np.where(np.isinf(values), values, values / problem.scale), matrix.dtype)
    scaled = np.where(np.isnan(values), matrix, scaled)  # whose bits a quotient does not have
    if abs(problem.scale) <= 1:
        return scaled
    # The greatest finite number stays in rows full of it, and where it is alone: scaled, it is an
    # infinity.
    greatest = np.abs(values) == problem.dtype.greatest
    stay = greatest & (greatest.all(axis=1) | (names == ONE_GREATEST))[:, None]
    return np.where(stay, matrix, scaled)


def _with_other_arrays(
    problem: Problem, matrix: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Return the input `matrix` with the problem's other arrays, which are noise."""
    arrays = {"input": matrix}
    if problem.operator.is_gradient:
        forward = Problem(problem.rows, problem.cols, problem.dtype, Op(problem.operator.forward))
        arrays["input"] = truth_of(forward, arrays).values.astype(matrix.dtype)
        arrays["grad"] = rng.standard_normal(matrix.shape).astype(matrix.dtype)
    if problem.ids_dtype:
        arrays["input"] = matrix = _greatest_last(matrix)
        arrays["ids"] = _ids(problem, matrix, rng)
    of_rows = [n for n, extent in problem.operator.operands.items() if extent is Extent.ROW]
    if of_rows:
        arrays |= _kept_of_rows(problem, arrays, of_rows, rng)
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"] = rng.integers(0, problem.cols + 1, problem.rows, np.int32)
    if problem.mask is Mask.ADDITIVE:
        added = rng.standard_normal((problem.mask_rows, problem.cols))
        added[rng.random(added.shape) < 0.2] = -np.inf
        arrays["mask"] = added.astype(matrix.dtype)
    return arrays


def _kept_of_rows(
    problem: Problem, arrays: dict[str, Array], names: list[str], rng: np.random.Generator
) -> dict[str, Array]:
    """Return numbers of each row, of shape (rows, 1): what a forward pass kept of it, or noise.

    Some of the noise is 0, NaN, or so large or small that a factor that is left out shows, and some
    is next to 1, which a kernel may treat by itself. It is 1 in rows whose sums are exact: there a
    result shows a missing term by how it is rounded.
    """
    truths: dict[str, Any] = {}
    for op, operator in OPERATORS.items():
        also = ",".join(name for name in names if name in operator.on_request)
        if also and list(operator.operands) == ["input"]:
            keeps = Problem(problem.rows, problem.cols, problem.dtype.arithmetic, op, also=also)
            truths |= truths_of(keeps, {"input": _counted_numbers(problem, arrays)})
    number = problem.dtype.arithmetic.numpy
    shape = (problem.rows, 1)
    factors = rng.standard_normal(shape) * rng.choice([0.0, 1e-4, 1.0, 1.0, 100.0], shape)
    beside_1 = rng.random(shape) < 1 / 8
    factors[beside_1] = rng.choice(BESIDE_1, shape)[beside_1]
    factors[NAN_FACTOR_EACH - 1 :: NAN_FACTOR_EACH] = np.nan
    factors[exact_sums(arrays["input"].astype(np.float64))] = 1.0
    with np.errstate(over="ignore"):
        return {
            name: (truths[name].values if name in truths else factors).astype(number)
            for name in names
        }


def _counted_numbers(problem: Problem, arrays: dict[str, Array]) -> Array:
    """Return the elements that enter the op, scaled and capped, of the arithmetic's type."""
    x = counted(problem, arrays)
    x = capped(x, problem.softcap)["input"] if problem.softcap else x
    return x.astype(problem.dtype.arithmetic.numpy)


def _greatest_last(matrix: Array) -> Array:
    """Return rows of which the last has its greatest element at its end.

    A kernel that looks for its column beyond that reads past the matrix.
    """
    matrix = matrix.copy()
    last = matrix[-1]
    numbers = last.astype(np.float64)
    place = int(np.where(np.isnan(numbers), -np.inf, numbers).argmax())
    last[[place, -1]] = last[[-1, place]]
    return matrix


def _outweighs_others(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows have one element whose term is much larger than the others' sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        terms = np.exp(rows - rows.max(axis=1, keepdims=True))
        others = terms.sum(axis=1) - 1
        return np.asarray((others < OUTWEIGHED) & ((terms > 0) & (terms < 1)).any(axis=1))


def _ids(problem: Problem, matrix: Array, rng: np.random.Generator) -> Array:
    """Return (rows, ids_per_row) ids: of the greatest elements, of a row's ends, of any columns.

    Some are no columns: those next to a row's ends, the least number of the type, and one that is a
    column if it is cut to 32 bits. Which kind an id is of changes with its row and its place. If
    some rows may be ignored, that is one more kind, and rows whose sums are exact have the id of
    their greatest element: others would not show a missing term. So have rows whose greatest
    element outweighs the others, which alone make up the loss. Rows of numbers near a cap have
    the id of one of the two greatest.
    """
    rows, cols = matrix.shape
    shape = (rows, problem.ids_per_row)
    bits = 8 * problem.ids_dtype.itemsize if problem.ids_dtype else 64
    somewhere = rng.integers(0, cols, shape)
    kinds = [
        np.broadcast_to(matrix.astype(np.float64).argmax(axis=1)[:, None], shape),
        somewhere,
        np.zeros(shape, np.int64),
        np.full(shape, cols - 1),
        somewhere[::-1],
        np.full(shape, -1),
        np.full(shape, cols),
        somewhere[:, ::-1],
        np.full(shape, -(2 ** (bits - 1))),
        somewhere + 2**32 if bits > 32 else somewhere,
    ]
    if problem.ignore_index is not None:
        kinds.append(np.full(shape, problem.ignore_index))
    kind = (np.arange(rows)[:, None] + 3 * np.arange(problem.ids_per_row)) % len(kinds)
    if problem.ignore_index is not None:
        wide = matrix.astype(np.float64)
        kind[exact_sums(wide) | _outweighs_others(wide)] = 0
    ids = np.choose(kind, kinds)
    if problem.softcap:
        x = counted(problem, {"input": matrix})
        near, targets = targets_near_the_cap(x, problem.softcap)
        ids[near] = targets[:, None]
    return ids.astype(problem.ids_dtype.numpy if problem.ids_dtype else np.int64)
