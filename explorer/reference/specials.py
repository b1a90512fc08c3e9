"""Rows with NaN and infinities among elements of every kind, and rows near the ends of a type.

A short cut for rows of one kind (all equal, all but one far below, all but one masked) easily loses
a NaN or an infinity there, while it is right in rows of noise.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from explorer.model.element import DType
from explorer.reference.layout import Array
from explorer.reference.rows import Pattern, Row

# ------------------------------------------------------------------ NaN of several bits

NAN_KINDS = 5
"""Bits of NaN that are tried in each type."""


def nan_bits(dtype: DType) -> tuple[int, ...]:
    """Return bits of NaN: all ones but the sign, as CUDA's; quiet ones of either sign; two that
    signal.
    """
    sign, quiet = 1 << (8 * dtype.itemsize - 1), 1 << (dtype.mantissa_bits - 1)
    infinite = sign - (1 << dtype.mantissa_bits)
    return sign - 1, infinite | quiet, sign | infinite | quiet, infinite | 1, sign | infinite | 1


def nan_of(kind: int) -> float:
    """Return the float64 NaN that stands for a kind of `nan_bits` in a row."""
    return float(np.uint64(0x7FF8000000000000 + kind % NAN_KINDS).view(np.float64))


def with_nans(held: Array, rows: NDArray[np.float64], dtype: DType) -> Array:
    """Return rows of the type in which each NaN of `rows` has the bits that it stands for."""
    places = np.isnan(rows)
    if places.any():
        held = held.copy()
        bits = np.array(nan_bits(dtype), f"u{dtype.itemsize}")
        kinds = (rows[places].view(np.uint64) & np.uint64(7)).astype(np.int64)
        held.view(bits.dtype)[places] = bits[kinds % NAN_KINDS]
    return held


# ------------------------------------------------------------------ kinds of row


def _noise(rng: np.random.Generator, cols: int) -> Row:
    return rng.standard_normal(cols)


def _equal(rng: np.random.Generator, cols: int) -> Row:
    return np.full(cols, np.rint(rng.uniform(-50, 50)))


def _peak(rng: np.random.Generator, cols: int) -> Row:
    """Return a row of one peak, or of many, of which each thread may have met one before."""
    row = np.where(rng.random(cols) < rng.choice([0.0, 0.5]), 1000.0, -1000.0)
    row[rng.integers(0, cols)] = 1000.0
    return row


def _ladder(rng: np.random.Generator, cols: int) -> Row:
    return rng.permutation(np.linspace(-100.0, 10.0, cols))


def _one_finite(rng: np.random.Generator, cols: int) -> Row:
    row = np.full(cols, -np.inf)
    row[rng.integers(0, cols)] = 3.0
    return row


def _none_finite(rng: np.random.Generator, cols: int) -> Row:
    return np.full(cols, -np.inf)


ROWS_OF_A_KIND = (
    _noise,
    _equal,
    _peak,
    _ladder,
    _one_finite,
    _none_finite,
)

SPECIAL = "special"
"""The name of rows with one special value."""


def one_nan(place: int, number: int) -> Pattern:
    """Return a row with a NaN at a place; its bits and the other elements change with `number`.

    Neighbouring threads, and the same lanes of neighbouring warps, get others.
    """
    kind = number + number // 32

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = ROWS_OF_A_KIND[kind % len(ROWS_OF_A_KIND)](rng, cols)
        row[place % cols] = nan_of(kind)  # a row may repeat narrower ones
        return row

    return Pattern("one NaN", make)


def specials(*, few: bool, thorough: bool) -> list[Pattern]:
    """Return rows of every kind with each special value at a random place.

    The values are NaN of several bits, and the infinities. A check that is not `thorough` draws
    some of these rows, and a check of wide rows draws `few`.
    """
    values = [*map(nan_of, range(NAN_KINDS)), np.inf, -np.inf]
    every: list[tuple[float, MakeRow]] = list(product(values, ROWS_OF_A_KIND))
    if thorough and not few:
        return [_special([one]) for one in every]
    return [_special(every)] * (FEW_SPECIALS if few else DRAWN_SPECIALS)


FEW_SPECIALS, DRAWN_SPECIALS = 3, 12
"""Rows with a special value, of wide rows and of others."""

MakeRow = Callable[[np.random.Generator, int], Row]


def _special(kinds: list[tuple[float, MakeRow]]) -> Pattern:
    def make(rng: np.random.Generator, cols: int) -> Row:
        value, others = kinds[rng.integers(0, len(kinds))]
        row = others(rng, cols)
        row[rng.integers(0, cols)] = value
        return row

    return Pattern(SPECIAL, make)


# ------------------------------------------------------------------ offsets and ends of a type


DOMINATED_GAPS = (3.0, 8.0, 8.0, 12.0)
"""Distances from the maximum of such a row to the element next below it."""

HIGHEST_OFFSET = 1e4


def dominated(dtype: DType, *, few: bool) -> list[Pattern]:
    """Return rows of one maximum at a large offset, one element below it, and others far below.

    The maximum's logarithm is nearly 0, and it is lost if it is computed from numbers of the size
    of the offset. Offsets are as large as the type has both elements. With `few` there are two.
    """
    gaps = DOMINATED_GAPS[1:2] if few else DOMINATED_GAPS
    return [_dominated(sign * gap, dtype) for gap in gaps for sign in (1, -1)]


def _dominated(signed: float, dtype: DType) -> Pattern:
    gap = abs(signed)
    spaced = 2.0 ** (dtype.mantissa_bits + int(np.log2(gap)))  # numbers are at most `gap` apart
    highest = min(HIGHEST_OFFSET, spaced)

    def make(rng: np.random.Generator, cols: int) -> Row:
        offset = np.copysign(np.rint(highest * rng.uniform(0.3, 0.9) / gap) * gap, signed)
        row = offset - gap * rng.integers(10, 20, cols)
        first, second = rng.choice(cols, 2, replace=False) if cols > 1 else (0, 0)
        row[second], row[first] = offset - gap, offset
        return np.asarray(row, np.float64)

    return Pattern("dominated", make)


def spanning(greatest: float) -> Pattern:
    """Return a row from one end of a type to the other, whose differences are beyond it."""

    def make(rng: np.random.Generator, cols: int) -> Row:
        row = np.where(rng.random(cols) < 0.5, -greatest, -greatest * rng.uniform(0.3, 1.0, cols))
        row[rng.integers(0, cols)] = greatest * rng.uniform(0.6, 1.0)
        return row

    return Pattern("beyond the type", make)
