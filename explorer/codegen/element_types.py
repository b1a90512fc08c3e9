"""What CUDA C++ calls each element type, its vectors, and the functions that convert it.

Arithmetic is in the type that `DType.arithmetic` says; an element that is no such number is
converted where it is loaded, and its result where it is stored.
"""

from dataclasses import dataclass

from explorer.model.dtype import DType


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


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type in CUDA C++."""

    name: str
    words: dict[int, str]
    """By their bytes, the types that one access moves."""
    header: str = ""
    """The header of CUDA's that declares it; empty for a type of the language."""
    to_number: str = ""
    """The function that makes it a number of the arithmetic; empty where it is one."""
    from_number: str = ""
    pairs: Pairs | None = None

    def as_number(self, x: str) -> str:
        """Return the expression for an element as a number."""
        return f"{self.to_number}({x})" if self.to_number else x

    def as_element(self, x: str) -> str:
        """Return the expression for a number as an element."""
        return f"{self.from_number}({x})" if self.from_number else x


_HALF_WORDS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}

ELEMENT_TYPES = {
    DType.F32: ElementType("float", {4: "float", 8: "float2", 16: "float4"}),
    DType.F64: ElementType("double", {8: "double", 16: "double2"}),
    DType.F16: ElementType(
        name="__half",
        words=_HALF_WORDS,
        header="cuda_fp16.h",
        to_number="__half2float",
        from_number="__float2half_rn",
        pairs=Pairs("__half2", "__half22float2", "__floats2half2_rn", "0xfc00fc00u"),
    ),
    DType.BF16: ElementType(
        name="__nv_bfloat16",
        words=_HALF_WORDS,
        header="cuda_bf16.h",
        to_number="__bfloat162float",
        from_number="__float2bfloat16_rn",
        pairs=Pairs("__nv_bfloat162", "__bfloat1622float2", "__floats2bfloat162_rn", "0xff80ff80u"),
    ),
}

TYPE_BYTES = {
    text: size
    for dtype, element in ELEMENT_TYPES.items()
    for size, text in ((dtype.itemsize, element.name), *element.words.items())
}
"""The bytes of each type that an emitted file names, by its name."""
