"""Calls on arrays as problems: rows, columns, strides, masks, and the checks of arguments."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from explorer.model.element import DType, IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask
from explorer.ops import OPERATORS, Extent, Op, Result
from explorer.system.plain_data import shown, whole_of

Shape = tuple[int, ...]

DTYPES = {dtype.array_name: dtype for dtype in DType}
"""The element types of kernels, by their names in array libraries."""

ID_DTYPES = tuple(dtype.array_name for dtype in IndexType)
"""The element types of ids, by name."""

LENGTH_DTYPES = ("int64", "int32", "int16", "int8", "uint8")
"""The element types of lengths, by name."""

# ------------------------------------------------------------------ rows, columns and strides


@dataclass(frozen=True, slots=True)
class Matrix:
    """An array as the rows of an op: (rows / inner, cols, inner), or rows one stride apart."""

    rows: int
    cols: int
    inner: int
    stride: int
    """Elements from the start of a row to the next; `cols` if the array is dense."""


def positive(dim: int, rank: int) -> int:
    """Return an axis counted from the first; an array without axes counts as of one element.

    Raises IndexError for an axis that the array does not have.
    """
    axes = max(1, rank)
    if not -axes <= dim < axes:
        raise IndexError(f"dim is {dim}; an array of {rank} axes has {-axes} to {axes - 1}")
    return dim % axes


def whole_axis(dim: Any) -> int:
    """Return a call's axis as an int. Raises TypeError for a value that is no whole number.

    True is refused, as in PyTorch: it would silently be the axis 1.
    """
    axis = whole_of(dim)
    if axis is None:
        raise TypeError(f"dim is {shown(dim)}; it must be a whole number, such as -1")
    return axis


def check_switch(name: str, value: Any) -> None:
    """Raise TypeError for an argument that is neither True nor False."""
    if value is not True and value is not False:
        raise TypeError(f"{name} is {shown(value)}; it must be True or False")


def plain_scale(scale: Any) -> float:
    """Return a call's scale as a float. Raises TypeError for a value that is no number.

    Raises InvalidInput for NaN and infinity, and a whole number that is too large for a float.
    """
    try:
        if not hasattr(scale, "__float__"):
            raise no_number(scale)
        number = float(scale)
    except OverflowError:
        raise InvalidInput(
            f"scale is {shown(scale)}; it must be a number of at most 1.8e308"
        ) from None
    except (TypeError, ValueError):
        raise no_number(scale) from None
    if not math.isfinite(number):
        raise InvalidInput(f"scale is {number}; it must be a finite number, such as 0.5")
    return number


def no_number(scale: Any) -> TypeError:
    """Return the error of a scale that is no number."""
    return TypeError(f"scale is {shown(scale)}; it must be a number, such as 0.5")


def matrix_of(shape: Shape, strides: Shape, dim: int) -> Matrix | None:
    """Return an array as rows along the axis `dim`, which is counted from the first.

    `strides` are in elements. None if no kernel can read the array as it is; a dense copy can
    always be read. Axes of one element may have any stride.
    """
    dense = dense_matrix(shape, dim)
    if are_dense(shape, strides):
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
    """Return a dense array of a shape as rows along an axis."""
    if not shape:
        return Matrix(1, 1, 1, 1)
    outer, cols, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    return Matrix(outer * inner, cols, inner, cols)


def are_dense(shape: Shape, strides: Shape) -> bool:
    """Return whether an array of a shape with these strides has no gaps, its last axis first."""
    expected = 1
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count > 1:
            if stride != expected:
                return False
            expected *= count
    return True


# ------------------------------------------------------------------ rows with others between them


BYTES_PER_LAUNCH = 2**25
"""Bytes that a large GPU reads while the host makes one call by Python, in some 8 us."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows that lie one stride apart in another order, or among others, as in logits[:, :-1]."""

    rows: int
    """Rows from the first to the last in memory, the others included."""
    stride: int
    """Elements from the start of a row to the next."""
    steps: Shape
    """For each leading axis, how many rows away the next index is."""

    def strides(self, stride: int) -> Shape:
        """Return the strides of an array of such rows, `stride` elements apart."""
        return (*(step * stride for step in self.steps), 1)


def spread_of(shape: Shape, strides: Shape) -> Spread | None:
    """Return the rows along the last axis as some of more rows in memory; None if they are not.

    `strides` are in elements.
    """
    cols, rows = shape[-1], 1
    leading = sorted((s, n) for n, s in zip(shape[:-1], strides, strict=False) if n > 1)
    stride = math.gcd(*(apart for apart, _ in leading)) or cols
    if stride < cols or (cols > 1 and strides[-1] != 1):
        return None
    for apart, count in leading:
        if apart // stride < rows:  # rows that overlap, or backwards
            return None
        rows += (count - 1) * (apart // stride)
    steps = (s // stride if n > 1 else 1 for n, s in zip(shape[:-1], strides, strict=False))
    return Spread(rows, stride, tuple(steps))


def goes_in_turn(spread: Spread, shape: Shape, itemsize: int) -> bool:
    """Return whether each index of the first axis is to have a launch of its own.

    That takes the host time, in which the GPU reads BYTES_PER_LAUNCH. The alternative is one launch
    that reads the other rows as well, whose results are dropped.
    """
    others = spread.rows - math.prod(shape[:-1])
    return others * shape[-1] * itemsize > (shape[0] - 1) * BYTES_PER_LAUNCH


# ------------------------------------------------------------------ ids


def outside(ids: Any, cols: int) -> Any:
    """Return which elements of an array of ids are no columns."""
    return (ids < 0) | (ids >= cols)


def bad_id(name: str, value: int, place: Shape, cols: int, ignored: str = "") -> InvalidInput:
    """Return the error of an id that is no column."""
    return InvalidInput(f"{name} is {value} at {place}; it must be from 0 to {cols - 1}{ignored}")


def check_index(shape: Shape, index: Shape, dtype: str) -> None:
    """Raise InvalidInput for ids that do not fit the rows of an array of a shape."""
    if not shape:
        raise InvalidInput("x has no axis; log-probabilities are of rows along its last one")
    if not shape[-1]:
        raise InvalidInput(f"x is of shape {shape}; its last axis must have an element at least")
    if dtype not in ID_DTYPES:
        raise InvalidInput(f"index is of {dtype}; it must be of int32 or int64")
    if index != shape[:-1] and index[:-1] != shape[:-1]:
        several = f"{', '.join(map(str, shape[:-1]))}, K" if shape[1:] else "K,"
        raise InvalidInput(
            f"index is of shape {index}; for x of shape {shape} it must be of shape "
            f"{shape[:-1]}, or of ({several}) for K ids a row"
        )
    if index != shape[:-1] and not index[-1]:
        raise InvalidInput(f"index is of shape {index}; a row must have an id at least")


def check_target(shape: Shape, dim: int, target: Shape, dtype: str, ignore_index: int) -> None:
    """Raise InvalidInput for targets that do not fit the rows along an axis of an array."""
    if not shape[dim]:
        raise InvalidInput(f"x is of shape {shape}; a row must have a class at least")
    if "float" in dtype:
        raise InvalidInput(
            f"target is of {dtype}; it must be class indices, of int32 or int64: PyTorch's own "
            "cross_entropy takes class probabilities"
        )
    if dtype not in ID_DTYPES:
        raise InvalidInput(f"target is of {dtype}; it must be of int32 or int64")
    bits = int(dtype.removeprefix("int"))
    if not -(2 ** (bits - 1)) <= ignore_index < 2 ** (bits - 1):
        raise InvalidInput(
            f"ignore_index is {ignore_index}, which no target of {dtype} can be: give another one"
        )
    wanted = (*shape[:dim], *shape[dim + 1 :])
    if target != wanted:
        raise InvalidInput(
            f"target is of shape {target}; for x of shape {shape}, with classes along axis {dim}, "
            f"it must be of shape {wanted}"
        )


def check_weight(weight: Shape, dtype: str, classes: int) -> None:
    """Raise InvalidInput for weights of classes that are of another number or no numbers."""
    if weight != (classes,):
        raise InvalidInput(
            f"weight is of shape {weight}; it must have a number for each of {classes} classes"
        )
    if "float" not in dtype:
        raise InvalidInput(f"weight is of {dtype}; it must be of floating-point numbers")


def check_kept(name: str, shape: Shape, rows: Shape) -> None:
    """Raise InvalidInput for numbers of rows that are not of the targets' shape."""
    if shape != rows:
        raise InvalidInput(f"{name} is of shape {shape}; it must be of target's shape, {rows}")


# ------------------------------------------------------------------ masks


def check_masks(
    shape: Shape, dim: int, causal: bool, arrays: dict[str, Any], name_of: Callable[[Any], str]
) -> None:
    """Raise InvalidInput for masks that cannot mask an array of a shape over an axis.

    A call has at most one of a causal mask, an additive mask and lengths. `name_of` names an
    element type.
    """
    mask, lengths = arrays.get("mask"), arrays.get("lengths")
    count = causal + (mask is not None) + (lengths is not None)
    if count and not shape:
        raise InvalidInput("x has no axis; a mask is for rows along its last one")
    if count and dim != len(shape) - 1:
        raise InvalidInput(f"dim is {dim}; a mask is for rows along the last axis: dim=-1")
    if causal and len(shape) < 2:
        raise InvalidInput("mask is 'causal'; x must have rows and columns, and has one axis")
    if count > 1:
        raise InvalidInput("mask and lengths exclude each other: give one of them")
    for name, array, to, which in (
        ("mask", mask, shape, f"x's, {shape}"),
        ("lengths", lengths, shape[:-1], f"x's without the last axis, {shape[:-1]}"),
    ):
        if array is None:
            continue
        dtype, own = name_of(array.dtype), tuple(array.shape)
        if name == "mask" and "float" not in dtype:
            raise InvalidInput(
                f"mask is of {dtype}; a mask is added: give 0 where an element counts and -inf "
                "where it does not, or an array of bool"
            )
        if name == "lengths" and dtype not in LENGTH_DTYPES:
            raise InvalidInput(
                f"lengths is of {dtype}; it must be of whole numbers with a sign, such as int32"
            )
        if not broadcasts(own, to):
            raise InvalidInput(f"{name} is of shape {own}; it must broadcast to {which}")


def is_causal(mask: Any) -> bool:
    """Return whether a mask is the word "causal". Raises InvalidInput for another word."""
    if not isinstance(mask, str):
        return False
    if mask != "causal":
        raise InvalidInput(f"mask is {mask!r}; it must be 'causal' or an array that is added")
    return True


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Return whether an array of a shape can be broadcast to another shape."""
    last = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(
        n in (1, most) for n, most in zip(shape, last, strict=True)
    )


def mask_rows_of(shape: Shape, mask: Shape) -> int | None:
    """Return after how many rows an additive mask repeats; None if no kernel can read it.

    The mask's axes are the array's last ones, as in broadcasting. Leading ones may have one
    element, and the others must be equal to the array's.
    """
    if len(mask) > len(shape) or not mask or mask[-1] != shape[-1]:
        return None
    own = list(mask)
    while len(own) > 1 and own[0] == 1:
        own.pop(0)
    return math.prod(own[:-1]) if tuple(own) == shape[len(shape) - len(own) :] else None


# ------------------------------------------------------------------ problems


@cache
def results_of(op: Op, also: str) -> tuple[Result, ...]:
    """Return `Operator.asked_for`, which is kept because every call asks for it."""
    return OPERATORS[op].asked_for(also)


def by_name(results: Iterable[Result], made: Iterable[Any]) -> dict[str, Any]:
    """Return what there is for each result, by its name."""
    return {result.name: one for result, one in zip(results, made, strict=True)}


NOTHING: dict[str, Any] = {}
"""The arrays beside x of a call that has none."""


def given(**arrays: Any) -> dict[str, Any]:
    """Return the arrays that are not None, by their names."""
    return {name: array for name, array in arrays.items() if array is not None}


REDUCTIONS = ("none", "mean", "sum")
"""How losses are reduced, in the order of PyTorch's numbers for that."""


BAD_TARGETS = ("nan", "raise")
"""What a target does that is neither a class nor ignored: its loss is NaN, or the call raises."""


GRADIENTS = ("later", "with_loss", "in_place")
"""When the gradient of a loss is formed, and where it is put."""

IN_PLACE = ("gradient", "in_place")
"""The option of a loss whose gradient is written over x."""


class LossKeywords(NamedTuple):
    """The keywords of `explorer.cross_entropy`, with their usual values."""

    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    softcap: float | None = None
    scale: Any = 1
    dim: int | None = None
    gradient: str = "later"
    loss_dtype: Any = None
    all_ignored: str = "nan"
    bad_target: str = "nan"
    return_lse: bool = False
    return_z_loss: bool = False

    def axis_of(self, rank: int) -> Any:
        """Return the axis of classes where there are so many axes: the given one, or the usual."""
        return min(1, rank - 1) if self.dim is None else self.dim

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Those that decide a row's loss and gradient, with their values (`Call.options`)."""
        names = ("ignore_index", "label_smoothing", "z_loss")
        taken = tuple((name, getattr(self, name)) for name in names)
        taken = (*taken, ("softcap", self.softcap or 0.0))
        return (*taken, IN_PLACE) if self.gradient == "in_place" else taken


class Call(NamedTuple):
    """What is computed of an array x: all arguments of a call but x and its output."""

    op: Op
    dim: int
    """Counted from the first axis, once the call is `checked`."""
    scale: float | None = None
    dtype: Any = None
    """The type of the result, as x's library has it; None for the usual one."""
    causal: bool = False
    also: str = ""
    """The names of results beside the output, with commas between them."""
    arrays: dict[str, Any] = NOTHING
    """The arrays that are read beside x, by the names of the operator's operands: an additive
    `mask`, `lengths`, `ids`."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of a loss and its gradient: the fields of a problem that say how the rows' losses are made,
    with their values."""

    def alone(self) -> "Call":
        """Return the call without its arrays, which somebody else keeps or drops."""
        return self._replace(arrays=NOTHING) if self.arrays else self

    def asking_for(self, *names: str) -> "Call":
        """Return the call with these results beside its own, each once; an empty name is none."""
        every = filter(None, (*names, *self.also.split(",")))
        return self._replace(also=",".join(dict.fromkeys(every)))

    @property
    def results(self) -> tuple[Result, ...]:
        """The results, the output first."""
        return results_of(self.op, self.also)

    @property
    def fills_rows(self) -> bool:
        """Whether the output is as large as x."""
        return OPERATORS[self.op].extent is Extent.MATRIX

    def checked(self, shape: Shape, name_of: Callable[[Any], str]) -> "Call":
        """Return the call on an array of a shape, its axis counted from the first.

        `name_of` names an element type. Raises IndexError, and what `check_masks` raises.
        """
        dim = positive(self.dim, len(shape))
        check_masks(shape, dim, self.causal, self.arrays, name_of)
        return self._replace(dim=dim)

    def mask_on(self, shape: Shape) -> tuple[Mask, int]:
        """Return a problem's kind of mask, and after how many rows it repeats.

        Raises InvalidInput for an additive mask that repeats in a way that kernels cannot read.
        """
        if self.causal:
            return Mask.CAUSAL, shape[-2]
        if "mask" not in self.arrays:
            return (Mask.LENGTHS if "lengths" in self.arrays else Mask.NONE), 0
        rows = mask_rows_of(shape, tuple(self.arrays["mask"].shape))
        if rows is None:
            raise InvalidInput("a mask that repeats within the array")
        return Mask.ADDITIVE, rows

    def result_shape(self, shape: Shape, extent: Extent) -> Shape:
        """Return the shape of a result, which has all axes of x's."""
        if extent is Extent.MATRIX:
            return shape
        count = self.arrays["ids"].shape[self.dim] if extent is Extent.IDS else 1
        return (*shape[: self.dim], count, *shape[self.dim + 1 :])


def check_floating(dtype: str, example: str, *, is_argument: bool) -> None:
    """Raise InvalidInput for a result of whole numbers.

    `is_argument` tells the call's `dtype` from the type of x; `example` is a valid type.
    """
    if "float" in dtype or "complex" in dtype:
        return
    if is_argument:
        raise InvalidInput(
            f"dtype is {dtype}; it must be a type of floating-point numbers, such as {example}"
        )
    raise InvalidInput(f"x is of {dtype}; give dtype={example}, say, to convert it")


def is_converted(dtype: DType, target: DType, mask: DType | None) -> bool:
    """Return whether an input must be converted to the output's type before a launch.

    The `dtype` of a call means that the input is converted to it before softmax is computed.
    Kernels read the input as it is, compute in fp32 and round the output. The results are equal if
    the output's type holds all numbers of the input's; otherwise the input must be converted. A
    mask is rounded to the output's type, and kernels take it in the input's: `mask` is its type,
    None for one that no kernel has.
    """
    if target is dtype:
        return False
    is_exact = target is dtype.arithmetic and dtype.itemsize < target.itemsize
    return not is_exact or mask is not dtype
