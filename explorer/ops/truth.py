"""The truth of an operator's results: values in float64, and what their errors are relative to.

NumPy is imported where it computes, because every command reads the operators' names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Wide: TypeAlias = "NDArray[np.floating[Any]]"
"""Arrays of float64, or of extended precision."""

Doubles: TypeAlias = "NDArray[np.float64]"

EXACT_TERMS = 2**24
"""Most terms of 1 that fp32 adds up without rounding, in whatever order."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The values of an operator, of shape (rows, k), and the magnitude that errors are relative to.

    `magnitude` has the shape of `values`. It is 0 only where the output must be exactly 0. Where
    differences cancel, it is the magnitude of the subtracted terms.
    """

    values: Wide
    magnitude: Wide
    exact: NDArray[np.bool_] | None = None
    """For each row, whether its terms are all 0 or 1, of shape (rows,); None if no row is so.

    fp32 adds such terms up without rounding. A check therefore sees a single lost term among many.
    """
    underflow: Wide | None = None
    """For each row, of shape (rows,), the absolute error of exponentials that are no normal numbers
    and are then multiplied; None where none is multiplied."""
    flushed: Wide | None = None
    """The values in which such exponentials are 0, which is right as well; None if there are none.
    """
    plus_zero: NDArray[np.bool_] | None = None
    """For each row, of shape (rows,), whether a zero of it is +0, whatever kernel computes it; None
    if no row is so."""

    def exact_rows(self) -> NDArray[np.bool_]:
        """Return `exact` of shape (rows, 1)."""
        import numpy as np

        if self.exact is None:
            return np.zeros((len(self.values), 1), np.bool_)
        return self.exact[:, None]

    def nearest(self, values: Wide) -> Truth:
        """Return the truth with those of the values that are right which are nearest to `values`.

        Exponentials that are no normal numbers are rounded as such, or flushed to zero.
        """
        import numpy as np

        if self.underflow is None:
            return self
        due = self.values
        if self.flushed is not None:
            nearer = np.abs(values - self.flushed) < np.abs(values - due)
            due = np.where(nearer, self.flushed, due)
        most = self.underflow[:, None]
        moved = due + np.clip(values - due, -most, most)
        return replace(self, values=np.where(np.isfinite(moved), moved, due), underflow=None)

    def lacks_plus_zero(self, output: Wide) -> NDArray[np.bool_]:
        """Return which numbers of shape (rows, k) are -0 in rows whose zeros are +0."""
        import numpy as np

        if self.plus_zero is None:
            return np.zeros(output.shape, np.bool_)
        return np.asarray((output == 0) & np.signbit(output) & self.plus_zero[:, None])

    def of_rows(self, rows: NDArray[np.int64] | slice) -> Truth:
        """Return the truth of some rows alone, by their numbers."""
        others = (self.exact, self.underflow, self.flushed, self.plus_zero)
        parts: list[Any] = [part if part is None else part[rows] for part in others]
        return Truth(self.values[rows], self.magnitude[rows], *parts)


def capped(x: Wide, softcap: float) -> dict[str, Wide]:
    """Return the logits as they count, and the derivatives of these, by the names of operands.

    Those are softcap * tanh(u), of u = x / softcap, and 1 - tanh(u)^2, as a product of which no
    digit cancels. A kernel's derivatives are made of e^(-2 |u|): `slope_growth` says how much more
    than an exponential's their errors are, which grow as the rounding of the exponent does.
    """
    import numpy as np

    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        u = x / softcap
        small = np.exp(-2 * np.abs(u))
        slopes = 4 * small / (1 + small) ** 2
        growth = 1 + np.where(slopes > 0, np.abs(u), 0.0) / 8
        return {"input": softcap * np.tanh(u), "slope": slopes, "slope_growth": growth}


@dataclass(frozen=True, slots=True)
class Underflow:
    """What an arithmetic does with exponentials that are no normal numbers."""

    error: Any
    """Their absolute error where they are rounded, in the type of the truth."""
    flushes_below: float
    """Those below may be 0; 0 if none is."""


def all_equal(x: Wide, one: float, other: float) -> NDArray[np.bool_]:
    """Return which rows consist of two numbers only, and are short enough for exact sums."""
    import numpy as np

    if x.shape[1] > EXACT_TERMS:
        return np.zeros(len(x), np.bool_)
    return np.asarray(((x == one) | (x == other)).all(axis=1))


def exact_sums(x: Wide) -> NDArray[np.bool_]:
    """Return which rows have a maximum of 0, and beside it nothing but 0 and -inf."""
    import numpy as np

    return np.asarray(all_equal(x, 0.0, -np.inf) & (x.max(axis=1, initial=-np.inf) == 0.0))
