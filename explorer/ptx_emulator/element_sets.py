"""Launches in which floats are sets of elements, to see which elements reach a row's maximum.

A row of numbers shows of one element alone whether the maximum takes it in: of the greatest. In
these launches each bit of a float below its sign stands for an element, so that one row shows it of
as many elements as its type has bits. Maxima and all other arithmetic give the union of their
operands. An exponential is the empty set, since what comes after it is no maximum. A literal is
empty too, and so is a negative number, which the identity of a maximum is. All else of a kernel,
its addresses, shuffles, copies and integers among it, runs as ever. Comparisons take a set for 0.

A conversion keeps the upper bits, as that between f32 and bf16 does. A maximum that is chosen by a
comparison is not seen.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explorer.ptx_emulator.program import DTYPES, FLOATS, STORAGE, Array

Function = Callable[..., Any]
Bits = NDArray[np.unsignedinteger[Any]]

_WIDEST = 64
"""Bits of the widest float. Sets of narrower ones are its upper bits."""


@dataclass(slots=True)
class MaximaSeen:
    """What the maxima of launches have been made of: the rows of which one had every element.

    The bits of a set are, from the upper end: a sign, which is never set, `elements` elements of a
    row, and the number of the row, of `numbered` bits, which one element has besides its own. Rows
    are numbered from 1.
    """

    elements: int
    numbered: int
    rows: NDArray[np.bool_] = field(init=False)
    """By a row's number: whether a maximum of the row had all of its elements."""

    def __post_init__(self) -> None:
        assert 1 + self.elements + self.numbered <= _WIDEST
        self.rows = np.zeros(1 << self.numbered, np.bool_)

    def codes(self, row: int, dtype: np.dtype[Any]) -> Array:
        """Return the sets of one element each of a row, as floats of a type with enough bits."""
        lowest = 8 * dtype.itemsize - 1 - self.elements
        bits = np.uint64(1) << np.arange(lowest, lowest + self.elements, dtype=np.uint64)
        bits[0] |= np.uint64(row << lowest - self.numbered)
        return bits.astype(STORAGE[dtype.itemsize]).view(dtype)

    def note(self, sets: Bits) -> None:
        """Note the values of a maximum."""
        width = 8 * sets.dtype.itemsize
        every = ((1 << self.elements) - 1) << width - 1 - self.elements
        whole = sets[sets & sets.dtype.type(every) == every]
        if len(whole):
            numbers = whole >> sets.dtype.type(width - 1 - self.elements - self.numbered)
            self.rows[numbers.astype(np.int64) & len(self.rows) - 1] = True


def members(values: Any) -> Bits:
    """Return the sets of values, which are empty for negative numbers."""
    bits = np.ascontiguousarray(values).view(STORAGE[np.asarray(values).dtype.itemsize])
    return np.where(bits >> bits.dtype.type(8 * bits.itemsize - 1), bits.dtype.type(0), bits)


def union(*operands: Any) -> Array:
    """Return the union of operands, which are floats of one type."""
    first, *others = map(members, operands)
    for other in others:
        first = first | other
    return first.view(np.asarray(operands[0]).dtype)


def empty(operand: Any) -> Array:
    """Return a set without elements for each operand."""
    return np.zeros_like(operand)


def converted(to: str) -> Function:
    """Return the conversion to a type, of which numbers that are no floats come out as 0."""
    dtype = DTYPES[to]

    def convert(values: Any) -> Array:
        made = np.zeros(np.shape(values), STORAGE[dtype.itemsize])
        if to in FLOATS and np.asarray(values).dtype in _FLOAT_DTYPES:
            bits = members(values)
            narrower = 8 * (bits.itemsize - dtype.itemsize)
            made = (bits >> max(0, narrower)).astype(made.dtype) << made.dtype.type(
                max(0, -narrower)
            )
        return made.view(dtype)

    return convert


_FLOAT_DTYPES = {DTYPES[name] for name in FLOATS}


def compared(compare: Function) -> Function:
    """Return a comparison that takes a set for 0, and literals and negative numbers as they are."""

    def of_sets(*operands: Any) -> Any:
        return compare(
            *(np.where(np.signbit(o), o, o.dtype.type(0)) if np.ndim(o) else o for o in operands)
        )

    return of_sets


def united_by_class(extreme: np.ufunc, values: Array, starts: NDArray[np.int64]) -> Array:
    """Return, for each group of integers, the union of those with the uppermost bit of its extreme.

    The groups begin at `starts`. Of integers that are ordered as floats are, those with one value
    of that bit are sets, and those with the other are negative, as the identity of a maximum is.
    """
    bits = values.view(STORAGE[values.itemsize])
    sign = bits.dtype.type(8 * bits.itemsize - 1)
    counts = np.diff(np.append(starts, len(values)))
    chosen = np.repeat(extreme.reduceat(values, starts), counts).view(bits.dtype)
    of_class = np.where(bits >> sign == chosen >> sign, bits, bits.dtype.type(0))
    return np.bitwise_or.reduceat(of_class, starts).view(values.dtype)
