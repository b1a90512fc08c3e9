"""Lengths and masks that tell right kernels from wrong ones, and inputs that fit them."""

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Mask, Problem
from explorer.reference.distances import ONE_BEHIND
from explorer.reference.influence import EXACT, SUBSET, telling_count
from explorer.reference.layout import Array, saturated
from explorer.reference.patterns import LEADING_COUNT
from explorer.reference.rows import Shares
from explorer.reference.specials import SPECIAL
from explorer.reference.truth import hidden_elements

INT32 = np.iinfo(np.int32)

EDGE_LENGTHS = (8, 16, 31, 32, 33, 64)
"""Lengths at which vectors and warps end; rows may be shorter than some of them."""

CUT_LENGTHS = (2**16, -(2**16), 2**24, INT32.min)
"""Lengths, half of the columns added to each, that hide nothing or all of a row, but hide a part of
it if a kernel cuts them to fewer bits."""

MOST_CANCELLED = 64
"""Most elements of a mask row that cancel an input's; the rest of the row stays as it was."""

CANCELLING = 64
"""Pairs that are tried to get one that cancels, since 16-bit numbers of this size are far apart."""


def vary_masks(
    problem: Problem,
    arrays: dict[str, Array],
    names: NDArray[np.str_],
    rng: np.random.Generator,
    *,
    leading: bool,
    first: int,
    shares: Shares | None,
) -> None:
    """Give lengths and masks all kinds of values, in place, by the `names` of the rows' patterns.

    Nothing is hidden of rows of subsets, nor of the first rows if they are `leading`. Inputs change
    where they depend on the hidden elements. Lengths end next to the seams of `shares`. `first` is
    the number of the first row's pattern: another one gives the last row another length.
    """
    whole = np.flatnonzero(names == SUBSET)
    if problem.mask is Mask.LENGTHS:
        _vary_lengths(problem, arrays["lengths"], rng, shares, first)
        arrays["lengths"][whole] = problem.cols
        special = np.flatnonzero(names == SPECIAL)
        _leave_specials_alone(arrays, special[special % 4 > 0])
    if problem.mask is Mask.ADDITIVE:
        _vary_mask(arrays["mask"], rng)
        if problem.mask_rows > 1:
            arrays["mask"][whole % problem.mask_rows] = 0
    if leading:
        _show_all(problem, arrays)
    if problem.mask is Mask.ADDITIVE:
        _cancel(problem, arrays, names)
    hidden = hidden_elements(problem, arrays)
    if hidden is not None:
        _show_the_last(arrays["input"], names, hidden)
    _thin_exact_rows(problem, arrays, names, hidden)
    if hidden is not None:
        _fill_hidden(problem, arrays["input"], hidden)


def _show_all(problem: Problem, arrays: dict[str, Array]) -> None:
    """Hide nothing of the leading rows, unless all rows share one row of a mask."""
    if problem.mask is Mask.LENGTHS:
        arrays["lengths"][:LEADING_COUNT] = problem.cols
    if problem.mask is Mask.ADDITIVE and problem.mask_rows > 1:
        arrays["mask"][:LEADING_COUNT] = 0


def _vary_lengths(
    problem: Problem,
    lengths: NDArray[np.int32],
    rng: np.random.Generator,
    shares: Shares | None,
    first: int,
) -> None:
    """Make every fourth length the whole row, and half of the others values at or beyond limits.

    The last row is a whole one if the number of rows is odd, and empty if it is even.
    """
    cols = problem.cols
    cut = [length + cols // 2 for length in CUT_LENGTHS]
    edges = [0, 1, cols - 1, -1, cols + 1, INT32.min, INT32.max, *cut, *EDGE_LENGTHS, cols // 2]
    if shares is not None:
        edges += rng.permutation(shares.seams(cols)).tolist()
    lengths[::4] = cols
    between = np.arange(len(lengths)) % 4
    beside = np.flatnonzero((between == 1) | (between == 2))
    turned = np.roll(edges, first + len(lengths))  # a row has another length in another run
    lengths[beside] = np.clip(np.resize(turned, len(beside)), INT32.min, INT32.max)
    lengths[-1:] = cols if (len(lengths) + first) % 2 else 0


def _leave_specials_alone(arrays: dict[str, Array], rows: NDArray[np.int64]) -> None:
    """Make rows consist of their special value alone, or begin with it."""
    matrix = arrays["input"]
    for row in rows:
        numbers = matrix[row].astype(np.float64)
        place = int(np.argmax(np.isnan(numbers) | np.isposinf(numbers)))
        matrix[row, [0, place]] = matrix[row, [place, 0]]
    arrays["lengths"][rows] = 1


def _vary_mask(mask: Array, rng: np.random.Generator) -> None:
    """Give the first row of a mask some large elements, and fill the others in different ways.

    They hold 0; 0 and -inf; a large negative number in some places; -inf; or numbers of all sizes.
    Some have a NaN or an infinity.
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


def _cancel(problem: Problem, arrays: dict[str, Array], names: NDArray[np.str_]) -> None:
    """Let large negative elements of a mask cancel some rows' scaled elements.

    A kernel that rounds the product before it adds the mask loses many of the sum's last bits:
    here that moves e^x by up to a few thousandths. Every eighth row under the last mask row has
    such elements alone; in the others they are as good as hidden.
    """
    if not problem.scale:
        return
    matrix, mask = arrays["input"], arrays["mask"][-1]
    finite = np.isfinite(matrix)
    single = finite.sum(axis=1) == 1
    needed = finite[single].any(axis=0)  # the only finite element of a row must stay visible
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
    """Return `count` elements and as many mask elements that nearly cancel them when scaled.

    Each pair is the best of `CANCELLING`: its sum is nearest to a normal deviate.
    """
    kind, largest = problem.dtype.numpy, problem.dtype.trials.cancelled
    added = -saturated(largest * 2.0 ** -rng.uniform(0, 4, (CANCELLING, count)), kind)
    wanted = rng.standard_normal(count)
    scale = float(problem.scale or 1.0)
    with np.errstate(over="ignore"):
        elements = saturated((wanted - added.astype(np.float64)) / scale, kind)
        sums = elements.astype(np.float64) * scale + added.astype(np.float64)
    best = np.argmin(np.abs(sums - wanted), axis=0), np.arange(count)
    return elements[best].astype(np.float64), added[best].astype(np.float64)


def _show_the_last(matrix: Array, names: NDArray[np.str_], hidden: NDArray[np.bool_]) -> None:
    """Move a maximum at the end of a row to the last visible element."""
    rows = np.flatnonzero(names == ONE_BEHIND)
    last = np.maximum(matrix.shape[1] - 1 - hidden[rows].sum(axis=1), 0)
    matrix[rows, last] = matrix[rows, -1]


def _thin_exact_rows(
    problem: Problem,
    arrays: dict[str, Array],
    names: NDArray[np.str_],
    hidden: NDArray[np.bool_] | None,
) -> None:
    """Mask elements of rows with exact sums until one missing term shows in the result.

    A pattern has the most terms with which one missing of all shows (`telling_count`). A mask hides
    some of them, and fewer are left for which that holds.
    """
    rows = np.flatnonzero(np.isin(names, EXACT))
    if not len(rows):
        return
    matrix = arrays["input"]
    seen = matrix[rows] == 0
    if hidden is not None:
        seen &= ~hidden[rows]
    if problem.mask is Mask.ADDITIVE:
        seen &= arrays["mask"][rows % problem.mask_rows] == 0
    rng = np.random.default_rng([len(names), problem.cols])
    for row, places in zip(rows, seen, strict=True):
        count = int(places.sum())
        terms = telling_count(max(1, count), problem.operator, problem.output_dtype, 1.0, -1)
        dropped = rng.choice(np.flatnonzero(places), max(0, count - terms), replace=False)
        matrix[row, dropped] = -np.inf


def _fill_hidden(problem: Problem, matrix: Array, hidden: NDArray[np.bool_]) -> None:
    """Fill hidden elements, in three of four rows, with the greatest number, infinity or NaN.

    A kernel reads whole vectors and must hide a part of the last one. The fourth rows keep their
    numbers: where all of a row is hidden, the result is NaN, and so infinities and NaN would
    conceal a kernel that does not hide them.
    """
    for number, value in enumerate((problem.dtype.greatest, np.inf, np.nan), start=1):
        rows = np.arange(problem.rows) // 3 % 4 == number
        matrix[hidden & rows[:, None]] = value
