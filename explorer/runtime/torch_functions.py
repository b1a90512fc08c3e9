"""Functions of PyTorch's tensors: the checks of their arguments, and who computes them."""

from typing import Any

import torch
from torch import Tensor

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.ops import FORWARD, OPERATORS
from explorer.runtime.layout import (
    NOTHING,
    Call,
    Shape,
    is_causal,
    no_number,
    plain_scale,
    whole_axis,
)
from explorer.runtime.library import RowFunctions
from explorer.runtime.torch_calls import (
    Tensors,
    check_dense,
    check_kind,
    check_out,
    compute,
    skips_dynamo,
)
from explorer.runtime.torch_operators import (
    HAS_VMAP,
    are_bare,
    are_memory,
    arguments_of,
    by_framework,
    dense,
    is_bare,
    is_memory,
    needs_gradient,
    needs_own_formulas,
    operator_of,
    softmax_operator,
    with_gradient,
)
from explorer.system.plain_data import kind_of, shown

is_compiled = torch.compiler.is_dynamo_compiling
"""Returns whether `torch.compile` traces this call; in traced code it is the constant True."""

_HALF = tuple(getattr(torch, dtype.array_name) for dtype in DType if dtype.is_half)
_DTYPE = torch.dtype
"""A global name, which is faster, because each call with a type reads it."""


def no_tensor(name: str, given: Any) -> TypeError:
    """Return the error of an argument that is no tensor."""
    return TypeError(f"{name} is {kind_of(given)}; it must be a tensor")


def plain_arguments(
    dim: Any, scale: Any, dtype: Any
) -> tuple[int, float | None, torch.dtype | None]:
    """Return a call's axis, scale and type as PyTorch's operators take them.

    Raises TypeError for a value of another kind, and InvalidInput for too large a number.
    """
    if isinstance(scale, Tensor):
        raise TypeError("scale is a tensor; it must be a number: or give x * scale for x")
    if dtype is float:  # which PyTorch takes for this type, too
        dtype = torch.float64
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {shown(dtype)}; it must be a torch.dtype, such as torch.float16")
    return whole_axis(dim), None if scale is None else plain_scale(scale), dtype


def _check_out(
    x: Tensor, mask: Tensor | None, dtype: torch.dtype, out: Any, shape: Shape | None = None
) -> None:
    """Raise TypeError and InvalidInput for an output that does not fit a call."""
    if not isinstance(out, Tensor):
        raise no_tensor("out", out)
    check_dense(out=out)
    check_out(x, dtype, out, shape)
    if needs_gradient(x, mask):
        raise InvalidInput("out is given, and a gradient is asked for: give one of them up")


def _autocast_type() -> torch.dtype | None:
    """Return the type to which autocast converts 16-bit tensors on CUDA; None if it is off."""
    return torch.float32 if torch.is_autocast_enabled("cuda") else None


# ------------------------------------------------------------------ softmax


def traced(
    log: bool,
    x: Tensor,
    dim: int,
    scale: float | None,
    mask: Tensor | str | None,
    lengths: Tensor | None,
    dtype: torch.dtype | None,
    out: Tensor | None,
) -> Tensor:
    """Compute as `softmax_of` does, for `torch.compile`, which traces this function.

    Each later call checks every name again that was read while tracing, which takes 15 ns a name.
    So plain calls read few names.
    """
    if not isinstance(x, Tensor):
        from explorer.runtime import functions  # which imports this module

        result: Tensor = functions.function_for(x)(log, x, dim, scale, mask, lengths, dtype, out)
        return result
    if mask is not None or lengths is not None or out is not None:
        return softmax_of(log, x, dim, scale, mask, lengths, dtype, out)
    if dtype is None and x.is_cuda and x.is_floating_point() and x.itemsize == 2:
        dtype = _autocast_type()
    plain: Tensor = softmax_operator(x, dim, scale, None, False, None, dtype, log)
    return plain


@skips_dynamo
def softmax_of(
    log: bool,
    x: Tensor,
    dim: int = -1,
    scale: float | None = None,
    mask: Tensor | str | None = None,
    lengths: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute softmax or log_softmax of a tensor, as `explorer.softmax` documents it."""
    causal = mask is not None and is_causal(mask)
    arrays = NOTHING
    if lengths is not None:
        arrays = {"lengths": lengths}
    if mask is not None and not causal:
        arrays = {"mask": mask, **arrays}
    for name, array in arrays.items() if arrays else ():
        if not isinstance(array, Tensor):
            raise no_tensor(name, array)
    if dtype is None and x.is_cuda and x.dtype in _HALF and _autocast_type() is not None:
        dtype = torch.float32 if out is None else getattr(out, "dtype", None)
    if torch.compiler.is_compiling():
        if out is not None:
            _check_out(x, arrays.get("mask"), dtype or x.dtype, out)
        call = Call(FORWARD[log], dim, scale, dtype, causal, "", arrays)
        result: Tensor = softmax_operator(x, *arguments_of(call))
        return result if out is None else out.copy_(result)
    if (
        dim.__class__ is not int
        or (scale is not None and scale.__class__ is not float and scale.__class__ is not int)
        or (dtype is not None and dtype.__class__ is not _DTYPE)
    ):
        dim, scale, dtype = plain_arguments(dim, scale, dtype)
    told = FORWARD[log], dim, scale, dtype, causal, "", arrays
    call = tuple.__new__(Call, told)  # 0.1 us less than Call(*told)
    may_need_gradient = x.requires_grad or arrays
    is_differentiated = may_need_gradient and needs_gradient(x, arrays.get("mask"))
    are_plain = is_bare(x) and (not arrays or are_memory(arrays))
    if are_plain and not is_differentiated and (out is None or is_memory(out)):
        if out is not None:
            check_out(x, dtype or x.dtype, out)
        return compute(call, x, out)[0]
    if out is not None:
        _check_out(x, arrays.get("mask"), dtype or x.dtype, out)
    if are_plain and is_differentiated:
        (result,) = with_gradient(call, x)  # without the dispatcher, which would be called twice
    else:
        result = _by_dispatcher(call, x)
    return result if out is None else out.copy_(result)


def _by_dispatcher(call: Call, x: Tensor) -> Tensor:
    """Compute a call that PyTorch's dispatcher, modes or transforms have to see."""
    dtype = call.dtype
    if x.is_nested and x.layout is torch.strided:  # it has no shape to check others against
        if call.causal or call.scale is not None or call.arrays:
            raise InvalidInput("x is a nested tensor: give neither scale nor mask nor lengths")
        check_kind(dtype or x.dtype, is_argument=dtype is not None)
        own = torch.log_softmax if OPERATORS[call.op].is_log else torch.softmax
        result: Tensor = own(x, call.dim, dtype=dtype)
    elif needs_own_formulas(x):
        (result,) = by_framework(call, x)
    else:
        result = softmax_operator(x, *arguments_of(call))
    return result


# ------------------------------------------------------------------ numbers of rows


class TensorFunctions(Tensors, RowFunctions):
    """The functions of tensors with gradients, which may be traced or transformed."""

    kind = Tensor
    softmax_of = staticmethod(softmax_of)

    def check_x(self, x: Tensor, *, may_be_complex: bool) -> None:
        """Raise InvalidInput for a tensor without floating-point numbers, and for a sparse one."""
        if not (x.is_floating_point() or x.is_complex()):
            raise InvalidInput(
                f"x is of {x.dtype}; it must be of floating-point numbers: give x.float(), say"
            )
        check_dense(x=x)
        if may_be_complex:
            return
        if x.is_complex():
            raise InvalidInput(f"x is of {x.dtype}; it must be of real numbers")
        _check_not_nested("x", x)

    def check_beside(self, name: str, array: Any, x: Tensor) -> None:
        """Raise TypeError for what is no tensor, InvalidInput for one that x does not go with."""
        if not isinstance(array, Tensor):
            raise no_tensor(name, array)
        check_dense(**{name: array})
        _check_not_nested(name, array)
        if array.device != x.device:
            raise InvalidInput(f"{name} is on {array.device}; it must be on x's device, {x.device}")

    def check_columns(self, index: Tensor, cols: int) -> None:
        """Raise InvalidInput that names the first id that is no column; wait for the GPU for it."""
        if not torch.compiler.is_compiling() and _is_batched(index):
            raise InvalidInput(
                "check is True under torch.func.vmap; it needs the values of ids, which are not "
                "known there: leave it out"
            )
        super().check_columns(index, cols)

    def check_out(self, x: Tensor, shape: Shape, dtype: torch.dtype, out: Any) -> None:
        """Raise TypeError and InvalidInput for an output that does not fit a call."""
        _check_out(x, None, dtype, out, shape)

    def plain(self, dim: Any, scale: Any) -> tuple[int, float | None]:
        """Return a call's axis and scale, None for 1. Raises TypeError and InvalidInput."""
        if scale is None:
            raise no_number(scale)
        factor: float | None = scale
        is_plain = torch.compiler.is_compiling() or scale.__class__ is float
        if dim.__class__ is not int or not is_plain:
            dim, factor, _ = plain_arguments(dim, scale, None)
        return dim, None if factor == 1 else factor

    def of_rows(self, call: Call, x: Tensor, out: Tensor | None = None) -> list[Tensor]:
        """Compute numbers of rows, with their gradients if needed, the first one in `out`."""
        if torch.compiler.is_compiling():
            results = list(operator_of(call.op)(x, *arguments_of(call)))
        elif x.is_nested or needs_own_formulas(x, has_vmap=HAS_VMAP):
            results = by_framework(call, x)
        elif not are_bare(x, call.arrays):
            results = list(operator_of(call.op)(x, *arguments_of(call)))
        elif out is not None and is_memory(out):
            return compute(call, x, out)
        elif needs_gradient(x):
            results = with_gradient(call, x)
        else:
            results = dense(call, x)
        return results if out is None else [out.copy_(results[0])]


def _check_not_nested(name: str, tensor: Tensor) -> None:
    if tensor.is_nested:
        raise InvalidInput(f"{name} is a nested tensor; it must be dense")


def _is_batched(tensor: Tensor) -> bool:
    """Return whether `torch.func.vmap` stands for one of several tensors by this one."""
    functions = torch._C._functorch
    while functions.is_functorch_wrapped_tensor(tensor):
        if functions.is_batchedtensor(tensor):
            return True
        tensor = functions.get_unwrapped(tensor)
    return False


FUNCTIONS = TensorFunctions()
