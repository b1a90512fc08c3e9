"""How exact a kernel must be: limits on the errors that its verification measures."""

import math
from dataclasses import dataclass
from enum import StrEnum

from explorer.model.element import DType, ElementType
from explorer.system.plain_data import parse_name


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The errors that are allowed: of an element, and of all elements together.

    An element is right if it meets either of the first two limits. An ulp is the spacing of the
    output type's numbers at the element's magnitude (`reference.Truth`).
    """

    relative: float
    """Error of an element, relative to its magnitude."""
    steps: int
    """Of 16-bit outputs: representable numbers between an element and the rounded truth."""
    exact_relative: float
    """Error of an element, relative to its magnitude, in rows whose sum is exact: only a division
    and a product round there."""
    max_ulp: float = math.inf
    mean_ulp: float = math.inf

    @property
    def element_limit(self) -> str:
        """The limit of one element, in words."""
        if self.steps:
            beside = "1 number" if self.steps == 1 else f"{self.steps} numbers"
            return f"{beside} beside the rounded truth"
        return f"{self.relative:.0e} of the magnitude"

    def error_and_limit(self, error: float, max_ulp: float) -> tuple[str, str]:
        """Return an element's error and its limit in words, both in one unit.

        The unit is the ulp if numbers beside the rounded truth are allowed. Half an ulp is added to
        the limit, since rounding moves the truth by up to that.
        """
        if self.steps:
            return f"{max_ulp:.3g} ulp", f"{self.steps + 0.5:g} ulp"
        return f"{error:.1e} of the magnitude", self.element_limit


class Accuracy(StrEnum):
    """A requirement on variants; each has studies of its own.

    strict
        The errors of the accurate library functions. f32 and f64: 20 ulp, 3.5 on average. Rounding
        x - max, where it is between 16 and 32 below 0, changes e^(x - max) by up to 16 ulp, which
        every kernel has that subtracts in the type of its input; expf adds 1, an IEEE division 0.5,
        a sum in a tree 1 or 2. Measured with expf and a division: up to 18.5, and 1.3 on average
        over the patterns of verification, 3.0 over random rows of a maximum near 11, at 4096 to
        262144 columns. __expf, exp2f and ex2.approx multiply the argument by log2(e) and round once
        more: 22 to 43, and 3.6 to 4.1 over those rows. Sums of 4096 terms, added one after another:
        48. 16-bit outputs: 1 ulp, 0.3 on average; fp32 arithmetic that is rounded once has 0.5 and
        0.25, and exponentials that are stored in a 16-bit output, and so rounded twice, have 1.4.
    default
        f32: 4e-6 of the magnitude, some 32 roundings of half an ulp. 16 bits: 1 representable
        number beside the rounded truth. f64: 1e-13, because the truth on a GPU is itself in
        float64.
    fast
        25 times that, the error of sums of thousands of terms that fp32 adds one after another. 16
        bits: 2 numbers beside the rounded truth. A lost or foreign element, a wrong NaN and an
        unwritten output exceed it. Rows with exact sums keep the limit of default: a vector of 4
        that is missing in a sum of 131072 elements changes it by 3e-5, less than the limit of other
        rows.
    """

    STRICT = "strict"
    DEFAULT = "default"
    FAST = "fast"

    @classmethod
    def parse(cls, text: str) -> "Accuracy":
        """Read a level's name; raises InvalidInput naming those there are."""
        return parse_name(cls, "accuracy", text)

    def excess(self, dtype: ElementType, max_ulp: float, mean_ulp: float) -> str:
        """Return why results of `dtype` with these errors are too inexact, or an empty string."""
        allowed = self.tolerance(dtype)
        if max_ulp > allowed.max_ulp:
            error = f"{max_ulp:.3g} ulp, the limit under {self} is {allowed.max_ulp:g}"
        elif mean_ulp > allowed.mean_ulp:
            error = f"{mean_ulp:.3g} ulp on average, the limit under {self} is {allowed.mean_ulp:g}"
        else:
            return ""
        return f"too inexact: {error} ulp"

    def tolerance(self, dtype: ElementType) -> Tolerance:
        """Return the errors that results of `dtype` may have; whole numbers may have none."""
        if not isinstance(dtype, DType):
            return Tolerance(0.0, 0, 0.0)
        relative, exact, half = dtype.errors.arithmetic, dtype.errors.exact, dtype.is_half
        if self is Accuracy.FAST:
            return Tolerance(25 * relative, 2 if half else 0, exact)
        if self is Accuracy.DEFAULT:
            return Tolerance(relative, 1 if half else 0, exact)
        if half:
            return Tolerance(relative, 1, exact, max_ulp=1.0, mean_ulp=0.3)
        return Tolerance(relative, 0, exact, max_ulp=20.0, mean_ulp=3.5)

    def is_stricter_than(self, other: "Accuracy") -> bool:
        """Return whether what meets `other` may not meet it."""
        levels = list(Accuracy)
        return levels.index(self) < levels.index(other)
