"""How exact a kernel must be: limits on what its verification measures, whatever code it has."""

import math
from dataclasses import dataclass
from enum import StrEnum

from explorer.model.dtype import DType
from explorer.system.plain_data import parse_name


@dataclass(frozen=True, slots=True)
class Limits:
    """What counts as right, element by element, and how far off all of them may be.

    An element is right where it meets either of the first two; ulps are spacings of the output's
    type at the element's magnitude (`reference.Truth`).
    """

    relative: float
    """Error of an element, relative to its magnitude."""
    steps: int
    """Of 16-bit outputs: representable numbers between an element and the rounded truth."""
    exact_relative: float
    """Error of an element, relative to its magnitude, in rows whose sum arithmetic cannot round:
    a division and a product are left."""
    max_ulp: float = math.inf
    mean_ulp: float = math.inf

    @property
    def of_an_element(self) -> str:
        """The limit of one element, in words."""
        if self.steps:
            beside = "1 number" if self.steps == 1 else f"{self.steps} numbers"
            return f"{beside} beside the rounded truth"
        return f"{self.relative:.0e} of the magnitude"

    def error_and_limit(self, error: float, max_ulp: float) -> tuple[str, str]:
        """An error of an element and its limit in words, both in one unit.

        Where numbers beside the rounded truth are allowed that is ulps: the truth itself lies up to
        half of one beside what it is rounded to.
        """
        if self.steps:
            return f"{max_ulp:.3g} ulp", f"{self.steps + 0.5:g} ulp"
        return f"{error:.1e} of the magnitude", self.of_an_element


class Accuracy(StrEnum):
    """A requirement on variants; a study of each.

    strict
        What the accurate library functions give. f32 and f64: 20 ulp, 3.5 on average. Rounding
        x - max, where it lies between 16 and 32 below 0, changes e^(x - max) by up to 16 ulp, which
        no kernel can do without that subtracts in the type of its input; expf adds 1, an IEEE
        division 0.5, a sum in a tree 1 or 2. Measured with expf and a division: up to 18.5, and
        1.3 on average over the patterns of verification, 3.0 over random rows of a maximum near 11,
        at 4096 to 262144 columns. With __expf, exp2f or ex2.approx, whose argument is multiplied by
        log2(e) and rounded once more, it is 22 to 43, and 3.6 to 4.1 over those rows; with sums of
        4096 terms one after another 48. 16-bit outputs: 1 ulp, 0.3 on average, which is 0.5 and
        0.25 for fp32 arithmetic that is rounded once; exponentials that wait in a 16-bit output are
        rounded twice, and come to 1.4.
    default
        f32: 4e-6 of the magnitude, some 32 roundings of half an ulp; 16 bits: 1 number beside the
        rounded truth; f64: 1e-13, as the truth on a GPU is in float64 itself.
    fast
        25 times that: what sums of thousands of terms, one after another in fp32, come to; 16 bits:
        2 numbers beside the rounded truth. A lost or foreign element, a NaN that is not due, and
        what was never written are beyond it. Rows whose sums are exact are held to the limit of
        default, for there a long sum is as exact as a short one: a vector of 4 that is left out of
        a sum of 131072 elements changes it by 3e-5, less than the limit of other rows.
    """

    STRICT = "strict"
    DEFAULT = "default"
    FAST = "fast"

    @classmethod
    def parse(cls, text: str) -> "Accuracy":
        """Read a level's name; raises InvalidInput naming those there are."""
        return parse_name(cls, "accuracy", text)

    def excess(self, dtype: DType, max_ulp: float, mean_ulp: float) -> str:
        """Why outputs of `dtype` with these errors do not meet it; empty where they do."""
        limits = self.limits(dtype)
        if max_ulp > limits.max_ulp:
            found = f"{max_ulp:.3g} ulp, the limit under {self} is {limits.max_ulp:g}"
        elif mean_ulp > limits.mean_ulp:
            found = f"{mean_ulp:.3g} ulp on average, the limit under {self} is {limits.mean_ulp:g}"
        else:
            return ""
        return f"too inexact: {found} ulp"

    def limits(self, dtype: DType) -> Limits:
        """The limits of outputs of `dtype`."""
        relative = 1e-13 if dtype is DType.F64 else 4e-6
        exact = 1e-15 if dtype is DType.F64 else 4e-7
        half = dtype.is_half
        if self is Accuracy.FAST:
            return Limits(25 * relative, 2 if half else 0, exact)
        if self is Accuracy.DEFAULT:
            return Limits(relative, 1 if half else 0, exact)
        if half:
            return Limits(relative, 1, exact, max_ulp=1.0, mean_ulp=0.3)
        return Limits(relative, 0, exact, max_ulp=20.0, mean_ulp=3.5)

    def is_stricter_than(self, other: "Accuracy") -> bool:
        """Whether what meets `other` may not meet it."""
        levels = list(Accuracy)
        return levels.index(self) < levels.index(other)
