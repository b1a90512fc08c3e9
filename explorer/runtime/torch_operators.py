"""Softmax of PyTorch's tensors: a function, and operators of `torch.library` with gradients.

A call goes around PyTorch's dispatcher where it can, which takes twice as long as the launch. What
wants the dispatcher (gradients, `torch.compile`, modes and transforms) has the operators.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from explorer.errors import InvalidInput
from explorer.problem import Op
from explorer.runtime.torch_calls import (
    Asked,
    backward,
    call,
    check_out,
    framework,
    hidden_elements,
    is_causal,
)

HALF = (torch.float16, torch.bfloat16)

# ------------------------------------------------------------------ operators


_SCHEMAS = (
    "softmax(Tensor x, int dim, float? scale, Tensor? mask, bool causal, Tensor? lengths, "
    "ScalarType? dtype, bool log) -> Tensor",
    "softmax_backward(Tensor grad, Tensor output, int dim, float? scale, ScalarType dtype, "
    "bool log) -> Tensor",
)

_library = torch.library.Library("explorer", "DEF")
for _schema in _SCHEMAS:
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def _softmax(
    x: Tensor,
    dim: int,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    dtype: torch.dtype | None,
    log: bool,
) -> Tensor:
    op = Op.LOG_SOFTMAX if log else Op.SOFTMAX
    return call(op, x, dim, scale, mask, causal, lengths, dtype, None).contiguous()


def _softmax_backward(
    grad: Tensor, output: Tensor, dim: int, scale: float | None, dtype: torch.dtype, log: bool
) -> Tensor:
    return backward(log, grad, output, dim, scale, dtype)


_library.impl("softmax", _softmax, "CompositeExplicitAutograd")
_library.impl("softmax_backward", _softmax_backward, "CompositeExplicitAutograd")


def _softmax_shape(x: Tensor, *told: Any) -> Tensor:
    dtype: torch.dtype | None = told[5]
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def _softmax_backward_shape(
    grad: Tensor, output: Tensor, dim: int, scale: float | None, dtype: torch.dtype, log: bool
) -> Tensor:
    return torch.empty(output.shape, dtype=dtype, device=output.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.dim, ctx.scale, mask, ctx.causal, lengths, _, ctx.log = inputs
    ctx.dtype, ctx.mask_like = x.dtype, None if mask is None else (mask.shape, mask.dtype)
    ctx.save_for_backward(output, lengths)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of x and of an additive mask; what a mask hid has none."""
    output, lengths = ctx.saved_tensors
    of_mask = ctx.mask_like is not None and ctx.needs_input_grad[3]
    scale = None if of_mask else ctx.scale
    result = torch.ops.explorer.softmax_backward(grad, output, ctx.dim, scale, ctx.dtype, ctx.log)
    hidden = hidden_elements(output, ctx.causal, lengths) if ctx.log else None
    if hidden is not None:
        result = result.masked_fill(hidden, 0.0)
    if not of_mask:
        return result, None, None, None, None, None, None, None
    shape, dtype = ctx.mask_like
    scaled = result if ctx.scale is None else result * ctx.scale
    return scaled, None, None, result.sum_to_size(shape).to(dtype), None, None, None, None


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, forward, ctx.dim, ctx.scale, _, ctx.log = inputs
    ctx.save_for_backward(grad, forward)


def _second_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of a gradient, by PyTorch's functions: of `grad` and of the output."""
    first, output = ctx.saved_tensors
    dim, scale = ctx.dim, 1.0 if ctx.scale is None else ctx.scale
    grad = grad.to(output.dtype) * scale
    if ctx.log:
        weights = output.exp()
        of_first = grad - (grad * weights).sum(dim, keepdim=True)
        of_output = -grad * weights * first.sum(dim, keepdim=True)
    else:
        mean = (grad * output).sum(dim, keepdim=True)
        of_first = output * (grad - mean)
        of_output = grad * (first - (first * output).sum(dim, keepdim=True)) - first * mean
    return of_first.to(first.dtype), of_output, None, None, None, None


torch.library.register_fake("explorer::softmax", _softmax_shape, lib=_library)
torch.library.register_fake("explorer::softmax_backward", _softmax_backward_shape, lib=_library)
torch.library.register_autograd("explorer::softmax", _gradients, setup_context=_save, lib=_library)
torch.library.register_autograd(
    "explorer::softmax_backward", _second_gradients, setup_context=_save_backward, lib=_library
)

# ------------------------------------------------------------------ functions


_transforms = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl


def _goes_direct(x: Tensor, mask: Tensor | None) -> bool:
    """Return whether nothing but the result is wanted of a call: no gradient, mode or transform."""
    wants_gradient = x.requires_grad or (mask is not None and mask.requires_grad)
    return (
        (type(x) is Tensor or type(x) is torch.nn.Parameter)
        and not (wants_gradient and torch.is_grad_enabled())
        and _transforms() is None
        and not _modes()
        and forward_ad._current_level < 0
        and not _is_traced()
    )


def _wants_own_formulas(x: Tensor) -> bool:
    """Return whether a call must be of PyTorch's operators alone: ours say nothing of these.

    They are transforms such as `vmap`, gradients that go forward, and kinds of tensors that say
    what becomes of each operator, such as jagged and distributed ones.
    """
    has_own = type(x).__torch_dispatch__ is not _NO_DISPATCH and not _modes()
    return _transforms() is not None or forward_ad._current_level >= 0 or has_own


def softmax_of(
    op: Op,
    x: Tensor,
    dim: int = -1,
    scale: float | None = None,
    mask: Tensor | str | None = None,
    lengths: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Softmax or log_softmax, as `explorer.softmax` documents it, of a tensor."""
    causal = mask is not None and is_causal(mask)
    added = None if causal else mask
    if dtype is None and x.dtype in HALF and x.is_cuda and torch.is_autocast_enabled("cuda"):
        dtype = torch.float32 if out is None else out.dtype
    if not torch.compiler.is_compiling():
        if isinstance(scale, Tensor):
            raise TypeError("scale is a tensor; it must be a number: or give x * scale for x")
        if _goes_direct(x, added):
            return call(op, x, dim, scale, added, causal, lengths, dtype, out)
        asked = Asked(op, x.shape, dim, scale, added, causal, lengths, dtype)
        if out is not None:
            check_out(x, dtype or x.dtype, out)
        if _wants_own_formulas(x):
            result = framework(asked, x)
            return result if out is None else out.copy_(result)
    result = torch.ops.explorer.softmax(
        x, dim, scale, added, causal, lengths, dtype, op is Op.LOG_SOFTMAX
    )
    if out is None:
        return result
    if torch.is_grad_enabled() and result.requires_grad:
        raise InvalidInput("out is given, and a gradient is asked for: give one of them up")
    return out.copy_(result)
