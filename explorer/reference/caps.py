"""Rows of logits next to their cap, where tanh is nearly 1.

A kernel that takes a logit there for the cap itself is wrong in a difference of two such numbers,
which is all that a loss and a share have of them. Rows of other patterns hide that: their greatest
elements are next to each other or equal, or far beyond the cap.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from explorer.model.problem import Problem
from explorer.reference.rows import Pattern, Row

DEPTHS = (0.4, 0.5, 0.62, 0.72, 0.8, 0.85)
"""Where the second number of a row lies, in parts of the least u for which the arithmetic rounds
tanh(u) to 1. Nearer to that, the difference is as small as what rounding may add to it."""

BEYOND = 0.7
"""How far beyond that u the other numbers lie."""

LEAST_U = 3.0
"""Numbers of these rows are at least so many caps, of either sign."""


def near_the_cap(problem: Problem) -> list[Pattern]:
    """Return rows of two numbers near the cap, one of them at it: none if there is no cap.

    Either is the row's target. The others are at the cap with the other sign, far below. In some
    rows the greatest number is near that cap, and all others are at it.
    """
    if not problem.softcap or problem.cols == 1:
        return []
    at_cap = (problem.dtype.arithmetic.mantissa_bits + 1) * np.log(2) / 2
    of_problem = partial(_two_numbers, problem.softcap, at_cap + BEYOND)
    return [
        *(
            of_problem(part * at_cap, near_first=first)
            for part in DEPTHS
            for first in (True, False)
        ),
        *(of_problem(-part * at_cap, near_first=True) for part in DEPTHS[1::2]),
    ]


def _two_numbers(softcap: float, at_cap: float, near: float, *, near_first: bool) -> Pattern:
    def make(rng: np.random.Generator, cols: int) -> Row:
        row = np.full(cols, -at_cap)
        places = np.sort(rng.choice(cols, 2, replace=False))
        row[places if near_first else places[::-1]] = near, np.copysign(at_cap, near)
        return softcap * row

    return Pattern(f"near the cap, {near:.2g} of it", make)


def targets_near_the_cap(
    x: NDArray[np.floating], softcap: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return which rows of logits have none that is not near the cap, and the place of a target.

    It is that of the greatest number or the one below it, whichever is first: their difference
    decides the loss of these alone.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = np.abs(x).min(axis=1)
        rows = np.flatnonzero((nearest >= LEAST_U * softcap) & np.isfinite(x).all(axis=1))
    few = x[rows]
    less = np.where(few < few.max(axis=1, keepdims=True), few, -np.inf)
    return rows, np.minimum(few.argmax(axis=1), less.argmax(axis=1))
