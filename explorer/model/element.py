"""Element types of arrays: an object for each, with everything that is known of it.

Arithmetic is in the type that `DType.arithmetic` says; an element that is no such number is
converted where it is loaded, and its result where it is stored.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Self

from explorer.model.errors import InvalidInput
from explorer.system.plain_data import parse_name

# ------------------------------------------------------------------ what is known of a type


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two 16-bit elements in one register, which CUDA converts and compares by one instruction."""

    type: str
    to_floats: str
    """From a pair to float2."""
    from_floats: str
    """From two floats to a pair, rounded to nearest even."""
    minus_infinities: str
    """The bits of a pair of -inf."""
    are_upper_halves: bool = False
    """Whether an element's bits are the upper half of the float of the same number."""


@dataclass(frozen=True, slots=True)
class CudaType:
    """What CUDA C++ calls an element type, its vectors, and the functions that convert it."""

    name: str
    words: dict[int, str] = field(default_factory=dict)
    """By their bytes, the types that one access moves."""
    header: str = ""
    """The header of CUDA's that declares it; empty for a type of the language."""
    to_number: str = ""
    """The function that makes it a number of the arithmetic; empty where it is one."""
    from_number: str = ""
    from_double: str = ""
    """The function that rounds a double to it once; empty for a type of the language."""
    pairs: Pairs | None = None
    suffix: str = ""
    """What its literals end in."""
    lowest: str = ""
    """The lowest finite number, of a type that is computed in."""
    multiplied: str = ""
    """The function that multiplies and rounds, of a type that is computed in."""

    def as_number(self, x: str) -> str:
        """Return the expression for an element as a number."""
        return f"{self.to_number}({x})" if self.to_number else x

    def as_element(self, x: str) -> str:
        """Return the expression for a number as an element."""
        return f"{self.from_number}({x})" if self.from_number else x


_HALF_WORDS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary floating-point format."""

    array_name: str
    """Its name in NumPy, PyTorch and other array libraries."""
    other_names: tuple[str, ...]
    """Other common names, in lower case."""
    itemsize: int
    """Bytes."""
    mantissa_bits: int
    """Stored bits of the mantissa: the spacing of numbers at 1 is 2 to minus so many."""
    smallest_normal: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors that results of a type may have, relative to an element's magnitude."""

    arithmetic: float
    """Error of a number before it is rounded to the type."""
    exact: float
    """The same in rows whose sum is exact: only a division and a product round there."""
    rounded: float
    """Error of an element, with that of its rounding to the type."""
    of_any_accuracy: float
    """Error to which the elements of kernels of every accuracy keep."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Numbers of a type by which its verification tells right kernels from wrong ones."""

    cancelled: float = 1e5
    """The largest elements of masks that cancel an input's: a product of this size is rounded by
    0.002 to 0.03 in fp32. Numbers of f16 end there; outputs of bf16 show no less."""
    gradients: tuple[float, float] = (3e-17, 3e10)
    """Factors of some rows of gradients: a small one, as of a mean over many rows, and a large
    one."""
    scales: tuple[float, ...] = (-37123456.7, 2171828182.8, 7.8901e-7)
    """Scales that are tried beside a problem's own: a negative one, a large one and a small one.

    They find a kernel that takes too small a number for the largest scale, or too large a one for
    0. None is a number of a 16-bit type, so that a kernel that rounds its scale to one is wrong. In
    f16 a row divided by a scale of 1e6 does not fit."""


# ------------------------------------------------------------------ the types


class ElementType(StrEnum):
    """What an element of an array, or a number that is passed by value, can be."""

    array_name: str
    """Its name in array libraries, such as float32."""
    itemsize: int
    """Bytes of one element."""
    cuda: CudaType
    """What CUDA C++ calls it."""
    xla_name: str
    """What XLA calls it, which runs the programs of JAX."""

    def __new__(cls, name: str, *_: Any) -> Self:
        """Return the member of this name; the rest of a member's value is what is known of it."""
        member = str.__new__(cls, name)
        member._value_ = name
        return member

    @property
    def numpy(self) -> Any:
        """NumPy's dtype. It is looked up when it is asked for, because NumPy takes long to load."""
        return _numpy_dtype(self.array_name)

    @property
    def c_type(self) -> str:
        """The name in ctypes of a type of the language, such as c_float."""
        return f"c_{self.cuda.name.replace(' ', '')}"


class IndexType(ElementType):
    """Types of lengths, of sizes and of other whole numbers, with which nothing is computed."""

    INT32 = "int32", 4, CudaType("int")
    INT64 = "int64", 8, CudaType("long long")

    def __init__(self, name: str, itemsize: int, cuda: CudaType) -> None:
        self.array_name, self.itemsize, self.cuda = name, itemsize, cuda
        self.xla_name = f"S{8 * itemsize}"


class DType(ElementType):
    """Element types of matrices. Kernels compute in fp32, and in fp64 for `f64`."""

    F32 = (
        "f32",
        _Format(
            array_name="float32",
            other_names=("fp32", "float", "single"),
            itemsize=4,
            mantissa_bits=23,
            smallest_normal=2.0**-126,
            greatest=(2 - 2.0**-23) * 2.0**127,
        ),
        CudaType(
            name="float",
            words={4: "float", 8: "float2", 16: "float4"},
            suffix="f",
            lowest="__int_as_float(0xff7fffff)",
            multiplied="__fmul_rn",
        ),
        Errors(arithmetic=4e-6, exact=4e-7, rounded=4e-6, of_any_accuracy=1e-4),
        Trials(),
    )
    F16 = (
        "f16",
        _Format(
            array_name="float16",
            other_names=("fp16", "half"),
            itemsize=2,
            mantissa_bits=10,
            smallest_normal=2.0**-14,
            greatest=65504.0,
        ),
        CudaType(
            name="__half",
            words=_HALF_WORDS,
            header="cuda_fp16.h",
            to_number="__half2float",
            from_number="__float2half_rn",
            from_double="__double2half",
            pairs=Pairs("__half2", "__half22float2", "__floats2half2_rn", "0xfc00fc00u"),
        ),
        Errors(arithmetic=4e-6, exact=4e-7, rounded=2e-3, of_any_accuracy=4e-3),
        Trials(6e4, (1e-3, 300.0), (-371.23456, 2171.82818, 0.0078901)),
    )
    BF16 = (
        "bf16",
        _Format(
            array_name="bfloat16",
            other_names=(),
            itemsize=2,
            mantissa_bits=7,
            smallest_normal=2.0**-126,
            greatest=(2 - 2.0**-7) * 2.0**127,
        ),
        CudaType(
            name="__nv_bfloat16",
            words=_HALF_WORDS,
            header="cuda_bf16.h",
            to_number="__bfloat162float",
            from_number="__float2bfloat16_rn",
            from_double="__double2bfloat16",
            pairs=Pairs(
                "__nv_bfloat162",
                "__bfloat1622float2",
                "__floats2bfloat162_rn",
                "0xff80ff80u",
                are_upper_halves=True,
            ),
        ),
        Errors(arithmetic=4e-6, exact=4e-7, rounded=1e-2, of_any_accuracy=2e-2),
        Trials(cancelled=1e6, gradients=(1e-7, 1e6)),
    )
    F64 = (
        "f64",
        _Format(
            array_name="float64",
            other_names=("fp64", "double"),
            itemsize=8,
            mantissa_bits=52,
            smallest_normal=2.0**-1022,
            greatest=(2 - 2.0**-52) * 2.0**1023,
        ),
        CudaType(
            name="double",
            words={8: "double", 16: "double2"},
            lowest="-1.7976931348623157e308",
            multiplied="__dmul_rn",
        ),
        Errors(arithmetic=1e-13, exact=1e-15, rounded=1e-13, of_any_accuracy=2.5e-12),
        Trials(),
    )

    mantissa_bits: int
    """Stored bits of the mantissa: the spacing of numbers at 1 is 2 to minus so many."""
    smallest_normal: float
    """The smallest normal number. Relative errors are of results at least this large."""
    greatest: float
    """The greatest finite number."""
    other_names: tuple[str, ...]
    """Other common names, in lower case."""
    errors: Errors
    trials: Trials

    def __init__(
        self, name: str, of: _Format, cuda: CudaType, errors: Errors, trials: Trials
    ) -> None:
        self.array_name, self.other_names = of.array_name, of.other_names
        self.itemsize, self.mantissa_bits = of.itemsize, of.mantissa_bits
        self.smallest_normal, self.greatest = of.smallest_normal, of.greatest
        self.cuda, self.xla_name = cuda, name.upper()
        self.errors, self.trials = errors, trials

    @property
    def is_half(self) -> bool:
        """Whether an element takes 16 bits: f16 and bf16."""
        return self.itemsize == 2

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy itself has the type, as CuPy then has, and not ml_dtypes alone."""
        return bool(self.numpy.type.__module__ == "numpy")

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, which is also the spacing of the numbers next to 0."""
        return self.smallest_normal * 2.0**-self.mantissa_bits

    @property
    def in_double(self) -> bool:
        """Whether kernels compute in fp64."""
        return self is DType.F64

    @property
    def arithmetic(self) -> "DType":
        """The type that kernels compute in."""
        return DType.F64 if self.in_double else DType.F32

    @property
    def is_narrow(self) -> bool:
        """Whether kernels compute in a wider type."""
        return self.arithmetic is not self

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


USUAL_TYPE = DType.F32
"""The element type of a problem that names none."""

TYPE_OF_SUMS = DType.F64
"""The type in which a program adds up numbers of many rows."""

_OTHER_NAMES = {name: dtype for dtype in DType for name in (dtype.array_name, *dtype.other_names)}
"""Other common names of the types."""

TYPE_BYTES = {
    text: size
    for dtype in DType
    for size, text in ((dtype.itemsize, dtype.cuda.name), *dtype.cuda.words.items())
}
"""The bytes of each type that an emitted file names, by its name."""


@cache
def _numpy_dtype(name: str) -> Any:
    import ml_dtypes
    import numpy

    return numpy.dtype(getattr(ml_dtypes, name, name))


def _name_of(value: Any) -> str:
    """Return the name of a library's type of elements; an empty one for any other value."""
    if isinstance(value, type):  # numpy.float16; Python's own float is left out: it has 64 bits
        return "" if value.__module__ == "builtins" else value.__name__
    kind = type(value)  # of a dtype, NumPy's class or, from ml_dtypes 0.7 on, one derived from it
    if any(base.__module__.partition(".")[0] == "numpy" for base in kind.__mro__):
        return str(getattr(value, "name", ""))
    return str(value) if (kind.__module__, kind.__name__) == ("torch", "dtype") else ""
