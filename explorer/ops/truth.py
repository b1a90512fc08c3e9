"""The truth of an operator's results: values in float64, and what their errors are relative to.

NumPy is imported where it computes, because every command reads the operators' names.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """For each row, of shape (rows,), the absolute error (`underflow`) of exponentials that are no
    normal numbers and are then multiplied; None where none is multiplied."""

    def exact_rows(self) -> NDArray[np.bool_]:
        """Return `exact` of shape (rows, 1)."""
        import numpy as np

        if self.exact is None:
            return np.zeros((len(self.values), 1), np.bool_)
        return self.exact[:, None]

    def error_of(self, values: Wide) -> Wide:
        """Return how far numbers of shape (rows, k) are from the truth, beyond `underflow`."""
        import numpy as np

        off = np.abs(values - self.values)
        if self.underflow is None:
            return off
        return np.asarray(np.maximum(off - self.underflow[:, None], 0.0))

    def of_rows(self, rows: NDArray[np.int64] | slice) -> Truth:
        """Return the truth of some rows alone, by their numbers."""
        exact = None if self.exact is None else self.exact[rows]
        underflow = None if self.underflow is None else self.underflow[rows]
        return Truth(self.values[rows], self.magnitude[rows], exact, underflow)


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
