"""Element types of matrices: their formats, and the arithmetic that goes with each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.system.plain_data import parse_name


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary floating-point format, as IEEE 754 describes one."""

    array_name: str
    """Its name in NumPy, PyTorch and other array libraries."""
    itemsize: int
    """Bytes."""
    mantissa_bits: int
    """Stored bits of the mantissa: the spacing of numbers at 1 is 2 to minus so many."""
    smallest_exponent: int
    """Exponent of the smallest normal number, a power of two."""
    greatest_exponent: int
    """Exponent of the greatest number, which is just below twice that power of two."""


class DType(StrEnum):
    """Element types. Kernels compute in fp32, and in fp64 for `f64`."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F64 = "f64"

    @property
    def array_name(self) -> str:
        """Its name in array libraries, such as float32."""
        return _FORMATS[self].array_name

    @property
    def is_half(self) -> bool:
        """Whether an element takes 16 bits: f16 and bf16."""
        return self.itemsize == 2

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _FORMATS[self].itemsize

    @property
    def mantissa_bits(self) -> int:
        """Stored bits of the mantissa: the spacing of numbers at 1 is 2 to minus so many."""
        return _FORMATS[self].mantissa_bits

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number. Relative errors are of results at least this large."""
        return 2.0 ** _FORMATS[self].smallest_exponent

    @property
    def greatest(self) -> float:
        """The greatest finite number."""
        form = _FORMATS[self]
        return (2 - 2.0**-form.mantissa_bits) * 2.0**form.greatest_exponent

    @property
    def arithmetic(self) -> "DType":
        """The type that kernels compute in."""
        return DType.F64 if self is DType.F64 else DType.F32

    def holds(self, number: float) -> bool:
        """Return whether the magnitude of a number is in the range of the type's normal numbers."""
        return self.smallest_normal <= abs(number) <= self.greatest

    @classmethod
    def parse(cls, text: str) -> "DType":
        """Read a dtype's name; raises InvalidInput, which lists the known names.

        Other common names are read too, in upper or lower case: float16, fp16, half,
        torch.bfloat16. `float` has 32 bits, as in C and PyTorch; NumPy's has 64.
        """
        plain = text.lower().removeprefix("torch.")
        return _OTHER_NAMES.get(plain) or parse_name(cls, "dtype", plain, text)

    @classmethod
    def meant_by(cls, value: Any) -> "DType | None":
        """Return the type that a value of a program stands for; None if there is none.

        Such a value is a name that `parse` reads, or a type of PyTorch, NumPy or ml_dtypes:
        torch.float16, numpy.float16, numpy.dtype("float16"). These are recognised by their names,
        because the libraries may be absent.
        """
        try:
            return cls.parse(value if isinstance(value, str) else _name_of(value))
        except InvalidInput:
            return None


def _name_of(value: Any) -> str:
    """Return the name of a library's type of elements; an empty one for any other value."""
    if isinstance(value, type):  # numpy.float16; Python's own float is left out: it has 64 bits
        return "" if value.__module__ == "builtins" else value.__name__
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy":
        return str(getattr(value, "name", ""))
    return str(value) if (kind.__module__, kind.__name__) == ("torch", "dtype") else ""


_FORMATS = {
    DType.F32: _Format("float32", 4, 23, -126, 127),
    DType.F16: _Format("float16", 2, 10, -14, 15),
    DType.BF16: _Format("bfloat16", 2, 7, -126, 127),
    DType.F64: _Format("float64", 8, 52, -1022, 1023),
}

_OTHER_NAMES = {
    **{dtype.array_name: dtype for dtype in DType},
    "fp32": DType.F32,
    "float": DType.F32,
    "single": DType.F32,
    "fp16": DType.F16,
    "half": DType.F16,
    "fp64": DType.F64,
    "double": DType.F64,
}
"""Other common names of the types."""
