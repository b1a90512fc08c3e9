"""Softmax of PyTorch's tensors: a function, and operators of `torch.library` with gradients.

A call avoids PyTorch's dispatcher if it can, because that takes twice as long as the launch. The
operators are for gradients, `torch.compile`, modes and transforms, which need the dispatcher.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.runtime.layout import is_causal, plain_scale, whole_axis
from explorer.runtime.torch_calls import (
    backward,
    call,
    check_kind,
    check_out,
    checked_call,
    framework,
    hidden_elements,
    skips_dynamo,
)
from explorer.system.plain_data import kind_of, shown

HALF = tuple(getattr(torch, dtype.array_name) for dtype in DType if dtype.is_half)

# ------------------------------------------------------------------ operators


_SCHEMAS = (
    "softmax(Tensor x, int dim, float? scale, Tensor? mask, bool causal, Tensor? lengths, "
    "ScalarType? dtype, bool log) -> Tensor",
    "softmax_backward(Tensor grad, Tensor output, int dim, float? scale, ScalarType dtype, "
    "bool log) -> Tensor",
)

_library = torch.library.Library("explorer", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order))


class _Softmax(torch.autograd.Function):  # type: ignore[misc]
    """Softmax or log_softmax with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dim: int,
        scale: float | None,
        mask: Tensor | None,
        causal: bool,
        lengths: Tensor | None,
        dtype: torch.dtype | None,
        log: bool,
    ) -> Tensor:
        output = without_gradient(x, dim, scale, mask, causal, lengths, dtype, log)
        ctx.dim, ctx.scale, ctx.causal, ctx.log, ctx.dtype = dim, scale, causal, log, x.dtype
        ctx.mask_like = None if mask is None else (mask.shape, mask.dtype)
        ctx.save_for_backward(output, lengths)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of an additive mask; masked elements have none."""
        output, lengths = ctx.saved_tensors
        of_mask = ctx.mask_like is not None and ctx.needs_input_grad[3]
        # The mask's gradient is summed before it is rounded to its type, which may be wider than
        # x's.
        scale, dtype = (None, output.dtype) if of_mask else (ctx.scale, ctx.dtype)
        result = softmax_backward_operator(grad, output, ctx.dim, scale, dtype, ctx.log)
        result = _where_visible(result, ctx.causal, lengths, ctx.log)
        if not of_mask:
            return result, None, None, None, None, None, None, None
        shape, mask_dtype = ctx.mask_like
        of_x = (result if ctx.scale is None else result * ctx.scale).to(ctx.dtype)
        of_added = result.sum_to_size(shape).to(mask_dtype)
        return of_x, None, None, of_added, None, None, None, None


def _where_visible(gradient: Tensor, causal: bool, lengths: Tensor | None, log: bool) -> Tensor:
    """Return a gradient that is 0 at masked elements, also in rows that are masked throughout.

    The output of such a row is NaN. In other rows, softmax's gradient is 0 there by itself.
    """
    rows_of_nothing = lengths is not None or (causal and gradient.shape[-2] > gradient.shape[-1])
    if not (log or rows_of_nothing):
        return gradient
    hidden = hidden_elements(gradient, causal, lengths)
    return gradient if hidden is None else gradient.masked_fill(hidden, 0.0)


class _SoftmaxBackward(torch.autograd.Function):  # type: ignore[misc]
    """The gradient, with its own gradients by PyTorch's functions."""

    @staticmethod
    def forward(
        ctx: Any,
        grad: Tensor,
        output: Tensor,
        dim: int,
        scale: float | None,
        dtype: torch.dtype,
        log: bool,
    ) -> Tensor:
        ctx.dim, ctx.scale, ctx.log = dim, scale, log
        ctx.save_for_backward(grad, output)
        return backward_without_gradient(grad, output, dim, scale, dtype, log)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the output's gradient and of the output."""
        first, output = ctx.saved_tensors
        dim = ctx.dim
        grad = grad.to(output.dtype) * (1.0 if ctx.scale is None else ctx.scale)
        if ctx.log:
            weights = output.exp()
            of_first = grad - (grad * weights).sum(dim, keepdim=True)
            of_output = -grad * weights * first.sum(dim, keepdim=True)
        else:
            mean = (grad * output).sum(dim, keepdim=True)
            of_first = output * (grad - mean)
            of_output = grad * (first - (first * output).sum(dim, keepdim=True)) - first * mean
        return of_first.to(first.dtype), of_output, None, None, None, None


@skips_dynamo
def _compute(x: Tensor, *arguments: Any) -> Tensor:
    """Compute the operator `softmax` on plain tensors."""
    dim, scale, mask, causal, lengths, dtype, log = arguments
    return call(log, x, dim, scale, mask, causal, lengths, dtype, None).contiguous()


def below_autograd(operator: Any, *arguments: Any) -> Tensor:
    """Call the dispatcher once more, for keys below autograd: modes and fake tensors."""
    with torch._C._AutoDispatchBelowAutograd():
        result: Tensor = operator(*arguments)
    return result


@skips_dynamo
def without_gradient(x: Tensor, *arguments: Any) -> Tensor:
    """Compute `softmax`, without the dispatcher if possible, which takes 6 us."""
    if _are_bare(x, arguments[2], arguments[4]):
        return _compute(x, *arguments)
    return below_autograd(softmax_operator, x, *arguments)


@skips_dynamo
def backward_without_gradient(grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
    """Compute `softmax_backward`, as `without_gradient` does."""
    if is_bare(grad) and is_bare(output):
        return backward(grad, output, *arguments)
    return below_autograd(softmax_backward_operator, grad, output, *arguments)


@skips_dynamo
def _differentiate(x: Tensor, *arguments: Any) -> Tensor:
    """Compute `softmax` with its gradient, if one is needed."""
    if needs_own_formulas(x):  # compiled code calls this without that check
        dim, scale, mask, causal, lengths, dtype, log = arguments
        return framework(checked_call(log, x.shape, dim, scale, mask, causal, lengths, dtype), x)
    needed = needs_gradient(x, arguments[2])
    result: Tensor = (_Softmax.apply if needed else without_gradient)(x, *arguments)
    return result


@skips_dynamo
def _differentiate_backward(grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
    needed = needs_gradient(grad, output)
    compute = _SoftmaxBackward.apply if needed else backward_without_gradient
    result: Tensor = compute(grad, output, *arguments)
    return result


def _register_lowerings() -> None:
    """Register our lowerings with Inductor when it traces our operators with fake tensors."""
    from explorer.runtime import torch_inductor  # which imports this module

    torch_inductor.register()


def _shape(x: Tensor, *arguments: Any) -> Tensor:
    _register_lowerings()
    dtype: torch.dtype | None = arguments[5]
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def _shape_backward(grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
    _register_lowerings()
    return torch.empty(output.shape, dtype=arguments[2], device=output.device)


_library.impl("softmax", _compute, "CompositeExplicitAutograd")
_library.impl("softmax", _differentiate, "Autograd")
_library.impl("softmax_backward", backward, "CompositeExplicitAutograd")
_library.impl("softmax_backward", _differentiate_backward, "Autograd")
torch.library.register_fake("explorer::softmax", _shape, lib=_library)
torch.library.register_fake("explorer::softmax_backward", _shape_backward, lib=_library)
softmax_operator = torch.ops.explorer.softmax.default
softmax_backward_operator = torch.ops.explorer.softmax_backward.default

# ------------------------------------------------------------------ function


_transforms = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing
is_compiled = torch.compiler.is_dynamo_compiling
"""Returns whether `torch.compile` traces this call; in traced code it is the constant True."""
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl


def is_bare(x: Tensor) -> bool:
    """Return whether a tensor is plain memory, and no mode, transform or tracer is active."""
    return (
        is_memory(x)
        and _transforms() is None
        and not _modes()
        and forward_ad._current_level < 0
        and not _is_traced()
    )


def is_memory(x: Tensor) -> bool:
    """Return whether a tensor is plain memory: not of a subclass, nested, or lazily negated."""
    kind = type(x)
    return (kind is Tensor or kind is torch.nn.Parameter) and not x.is_neg() and not x.is_nested


def _are_bare(x: Tensor, mask: Tensor | None, lengths: Tensor | None) -> bool:
    return (
        is_bare(x) and (mask is None or is_memory(mask)) and (lengths is None or is_memory(lengths))
    )


def needs_gradient(x: Tensor, other: Tensor | None = None) -> bool:
    """Return whether a call on a tensor, and another one, must be differentiable."""
    needed = x.requires_grad or (other is not None and other.requires_grad)
    return needed and torch.is_grad_enabled()


def needs_own_formulas(x: Tensor, *, has_vmap: bool = False) -> bool:
    """Return whether a call must use PyTorch's own operators alone, because ours have no formulas.

    That is so for transforms such as `torch.func.grad`, for forward-mode gradients, and for tensors
    that define each operator themselves, such as jagged and distributed ones. It is so for `vmap`
    unless the operator has a formula for that alone.
    """
    has_own = type(x).__torch_dispatch__ is not _NO_DISPATCH and not _modes()
    is_transformed = _transforms() is not None and not (has_vmap and _are_vmaps())
    return is_transformed or forward_ad._current_level >= 0 or has_own


def _are_vmaps() -> bool:
    """Return whether each active transform is `vmap`."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return all(one.key() == torch._C._functorch.TransformType.Vmap for one in transforms)


def no_tensor(name: str, given: Any) -> TypeError:
    """Return the error of an argument that is no tensor."""
    return TypeError(f"{name} is {kind_of(given)}; it must be a tensor")


_DTYPE = torch.dtype
"""A global name, which is faster, because each call with a type reads it."""


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


def _check_out(x: Tensor, mask: Tensor | None, dtype: torch.dtype | None, out: Any) -> None:
    if not isinstance(out, Tensor):
        raise no_tensor("out", out)
    check_out(x, dtype or x.dtype, out)
    if needs_gradient(x, mask):
        raise InvalidInput("out is given, and a gradient is asked for: give one of them up")


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


def _autocast_type() -> torch.dtype | None:
    """Return the type to which autocast converts 16-bit tensors on CUDA; None if it is off."""
    return torch.float32 if torch.is_autocast_enabled("cuda") else None


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
    added = None if causal else mask
    if added is not None and not isinstance(added, Tensor):
        raise no_tensor("mask", added)
    if lengths is not None and not isinstance(lengths, Tensor):
        raise no_tensor("lengths", lengths)
    if dtype is None and x.is_cuda and x.dtype in HALF and _autocast_type() is not None:
        dtype = torch.float32 if out is None else getattr(out, "dtype", None)
    if torch.compiler.is_compiling():
        if out is not None:
            _check_out(x, added, dtype, out)
        result = torch.ops.explorer.softmax(x, dim, scale, added, causal, lengths, dtype, log)
        return result if out is None else out.copy_(result)
    if (
        dim.__class__ is not int
        or (scale is not None and scale.__class__ is not float and scale.__class__ is not int)
        or (dtype is not None and dtype.__class__ is not _DTYPE)
    ):
        dim, scale, dtype = plain_arguments(dim, scale, dtype)
    differentiated = needs_gradient(x, added)
    are_bare = _are_bare(x, added, lengths)
    if are_bare and not differentiated and (out is None or is_memory(out)):
        return call(log, x, dim, scale, added, causal, lengths, dtype, out)
    if out is not None:
        _check_out(x, added, dtype, out)
    if x.is_nested and x.layout is torch.strided:  # it has no shape to check others against
        if causal or any(given is not None for given in (scale, added, lengths)):
            raise InvalidInput("x is a nested tensor: give neither scale nor mask nor lengths")
        check_kind(dtype or x.dtype, is_argument=dtype is not None)
        result = (torch.log_softmax if log else torch.softmax)(x, dim, dtype=dtype)
    elif needs_own_formulas(x):
        checked = checked_call(log, x.shape, dim, scale, added, causal, lengths, dtype)
        result = framework(checked, x)
    elif differentiated and are_bare:  # without the dispatcher, which would be called twice
        result = _Softmax.apply(x, dim, scale, added, causal, lengths, dtype, log)
    else:
        result = softmax_operator(x, dim, scale, added, causal, lengths, dtype, log)
    return result if out is None else out.copy_(result)
