"""The problem that a call on an array is: its rows, columns and strides."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask, Op, Problem
from explorer.system.plain_data import shown, whole_of

Shape = tuple[int, ...]

DTYPES = {dtype.array_name: dtype for dtype in DType}
"""Types of elements that kernels have, by the names that array libraries give them."""

LENGTH_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
"""Types of lengths."""

# ------------------------------------------------------------------ rows, columns and strides


@dataclass(frozen=True, slots=True)
class Matrix:
    """An array as rows that an op runs over: (rows / inner, cols, inner), or rows of a stride."""

    rows: int
    cols: int
    inner: int
    stride: int
    """Elements from the start of a row to the next; `cols` where the array is dense."""


def positive(dim: int, rank: int) -> int:
    """Return an axis counted from the first; an array of no axes counts as of one element.

    Raises IndexError for one that the array has not.
    """
    axes = max(1, rank)
    if not -axes <= dim < axes:
        raise IndexError(f"dim is {dim}; an array of {rank} axes has {-axes} to {axes - 1}")
    return dim % axes


def whole_axis(dim: Any) -> int:
    """Return a call's axis as a plain whole number. Raises TypeError for what is none.

    True counts as none, as in PyTorch: it would silently be the axis 1.
    """
    axis = whole_of(dim)
    if axis is None:
        raise TypeError(f"dim is {shown(dim)}; it must be a whole number, such as -1")
    return axis


def plain_scale(scale: Any) -> float:
    """Return a call's scale as a plain number. Raises TypeError for what is none.

    Raises InvalidInput for a whole number that no float holds.
    """
    try:
        if hasattr(scale, "__float__"):
            return float(scale)
    except OverflowError:
        raise InvalidInput(
            f"scale is {shown(scale)}; it must be a number of at most 1.8e308"
        ) from None
    except (TypeError, ValueError):
        pass
    raise TypeError(f"scale is {shown(scale)}; it must be a number, such as 0.5")


def matrix_of(shape: Shape, strides: Shape, dim: int) -> Matrix | None:
    """Return how a kernel sees an array whose `dim` it runs over, counted from the first axis.

    `strides` are in elements. None where no kernel can read the array as it lies: a dense copy of
    it always can be read. Axes of one element may have any stride.
    """
    dense = dense_matrix(shape, dim)
    if _is_dense(shape, strides):
        return dense
    outer, cols = math.prod(shape[:dim]), dense.cols
    if dense.inner > 1 or (cols > 1 and strides[dim] != 1):
        return None
    leading = [(n, s) for n, s in zip(shape[:dim], strides, strict=False) if n > 1]
    for (_, step), (count, below) in itertools.pairwise(leading):
        if step != count * below:
            return None
    stride = leading[-1][1] if leading else cols
    return Matrix(outer, cols, 1, stride) if stride >= cols else None


def dense_matrix(shape: Shape, dim: int) -> Matrix:
    """Return how a kernel sees a dense array of a shape."""
    if not shape:
        return Matrix(1, 1, 1, 1)
    outer, cols, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    return Matrix(outer * inner, cols, inner, cols)


def _is_dense(shape: Shape, strides: Shape) -> bool:
    expected = 1
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count > 1:
            if stride != expected:
                return False
            expected *= count
    return True


# ------------------------------------------------------------------ masks


@dataclass(frozen=True, slots=True)
class Described:
    """An array as far as a check needs it; `dtype` is its type's name, such as int32."""

    shape: Shape
    dtype: str


@dataclass(frozen=True, slots=True)
class Masking:
    """What a call hides of its array: by no more than one of a causal mask, a mask and lengths."""

    causal: bool
    mask: Described | None
    """What is added."""
    lengths: Described | None

    def check(self, shape: Shape, dim: int) -> None:
        """Raise InvalidInput where an array of a shape cannot be masked so over an axis."""
        count = self.causal + (self.mask is not None) + (self.lengths is not None)
        if count and not shape:
            raise InvalidInput("x has no axis; a mask is for rows along its last one")
        if count and dim != len(shape) - 1:
            raise InvalidInput(f"dim is {dim}; a mask is for rows along the last axis: dim=-1")
        if self.causal and len(shape) < 2:
            raise InvalidInput("mask is 'causal'; x must have rows and columns, and has one axis")
        if count > 1:
            raise InvalidInput("mask and lengths exclude each other: give one of them")
        if self.mask is not None and "float" not in self.mask.dtype:
            raise InvalidInput(
                f"mask is of {self.mask.dtype}; a mask is added: give 0 where an element counts "
                "and -inf where it does not"
            )
        if self.mask is not None and not broadcasts(self.mask.shape, shape):
            raise InvalidInput(
                f"mask is of shape {self.mask.shape}; it must broadcast to x's, {shape}"
            )
        if self.lengths is not None and self.lengths.dtype not in LENGTH_DTYPES:
            raise InvalidInput(
                f"lengths is of {self.lengths.dtype}; it must be of whole numbers with a sign, "
                "such as int32"
            )
        if self.lengths is not None and not broadcasts(self.lengths.shape, shape[:-1]):
            raise InvalidInput(
                f"lengths is of shape {self.lengths.shape}; it must broadcast to x's without the "
                f"last axis, {shape[:-1]}"
            )

    def of_problem(self, shape: Shape) -> tuple[Mask, int] | None:
        """Return a problem's kind of mask, and after how many rows it repeats.

        None where an additive mask repeats within the array, which kernels cannot read.
        """
        if self.causal:
            return Mask.CAUSAL, shape[-2]
        if self.mask is not None:
            rows = mask_rows_of(shape, self.mask.shape)
            return None if rows is None else (Mask.ADDITIVE, rows)
        return (Mask.NONE if self.lengths is None else Mask.LENGTHS), 0


def is_causal(mask: Any) -> bool:
    """Return whether a mask is the word "causal". Raises InvalidInput for another word."""
    if not isinstance(mask, str):
        return False
    if mask != "causal":
        raise InvalidInput(f"mask is {mask!r}; it must be 'causal' or an array that is added")
    return True


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Return whether an array of a shape can be repeated to be of another one."""
    last = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(
        n in (1, most) for n, most in zip(shape, last, strict=True)
    )


def mask_rows_of(shape: Shape, mask: Shape) -> int | None:
    """Return after how many rows of an array an additive mask repeats; None where it does not.

    The mask's axes are the array's last ones, as in broadcasting: of those, leading ones may have
    one element, and the others must be the array's own.
    """
    if len(mask) > len(shape) or not mask or mask[-1] != shape[-1]:
        return None
    own = list(mask)
    while len(own) > 1 and own[0] == 1:
        own.pop(0)
    return math.prod(own[:-1]) if tuple(own) == shape[len(shape) - len(own) :] else None


# ------------------------------------------------------------------ problems


def is_converted(dtype: DType, target: DType, mask: DType | None) -> bool:
    """Return whether an input is converted to the output's type before a launch.

    A call with `dtype` says that the input is converted to it, and softmax is then computed.
    Kernels read the input as it is, compute in fp32 and round the output. That comes to the same
    where the output's type holds all numbers of the input's; else the input is converted. A mask is
    rounded to the output's type, and kernels take it in the input's: `mask` is its type, None for
    one that no kernel has.
    """
    if target is dtype:
        return False
    is_exact = target is DType.F32 and dtype.itemsize < target.itemsize
    return not is_exact or mask is not dtype


def problem_of(
    op: Op,
    dtype: DType,
    source: Matrix,
    *,
    out_dtype: DType | None = None,
    output: Matrix | None = None,
    scaled: bool = False,
    mask: Mask = Mask.NONE,
    mask_rows: int = 0,
    in_place: bool = False,
) -> Problem:
    """Return the problem of a call; the output is dense where nothing else is said.

    A scale is passed at run time: that of the problem is 1. Raises InvalidInput for what no kernel
    does, such as a mask over a middle axis.
    """
    if output is None:
        output = source if in_place else Matrix(source.rows, source.cols, source.inner, source.cols)
    return Problem(
        rows=source.rows,
        cols=source.cols,
        dtype=dtype,
        op=op,
        out_dtype=out_dtype,
        scale=1.0 if scaled else None,
        mask=mask,
        mask_rows=mask_rows,
        inner=source.inner,
        input_stride=source.stride,
        output_stride=output.stride,
        in_place=in_place,
    )
