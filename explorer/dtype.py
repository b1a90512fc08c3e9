"""Element types of matrices, and the arithmetic that goes with each."""

import sys
from enum import StrEnum

from explorer.plain_data import parse_name


class DType(StrEnum):
    """Element types; arithmetic is fp32, and fp64 for `f64`."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]

    @property
    def arithmetic(self) -> "DType":
        """The type that kernels compute in."""
        return DType.F64 if self is DType.F64 else DType.F32

    def holds(self, number: float) -> bool:
        """Whether a number is within the normal numbers of f32 or f64, 0 left aside."""
        least, greatest = _NORMAL[self]
        return least <= abs(number) <= greatest

    @classmethod
    def parse(cls, text: str) -> "DType":
        """Read a dtype's name; raises InvalidInput naming those there are."""
        return parse_name(cls, "dtype", text)


_NORMAL = {
    DType.F32: (2.0**-126, (2 - 2.0**-23) * 2.0**127),
    DType.F64: (sys.float_info.min, sys.float_info.max),
}
_ITEMSIZE = {DType.F32: 4, DType.F16: 2, DType.BF16: 2, DType.F64: 8}
