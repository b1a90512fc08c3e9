"""The log-sum-exp of PyTorch's tensors: a function, and an operator of `torch.library`.

The operator keeps the axis, as one element, so that its gradient broadcasts along the rows.
"""

from typing import Any

import torch
from torch import Tensor

from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.runtime.layout import positive
from explorer.runtime.torch_calls import check_dense, check_out, recipe_for, skips_dynamo
from explorer.runtime.torch_operators import (
    below_autograd,
    is_bare,
    is_memory,
    needs_gradient,
    needs_own_formulas,
    no_tensor,
    plain_arguments,
)

# ------------------------------------------------------------------ operator


_library = torch.library.Library("explorer", "FRAGMENT")
_library.define(
    "logsumexp(Tensor x, int dim, float? scale) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _result_dtype(x: Tensor) -> torch.dtype:
    """Return the type of the result: f32 for narrower types, else x's own."""
    return torch.float32 if x.is_floating_point() and x.itemsize < 4 else x.dtype


def kept(x: Tensor, dim: int) -> tuple[int, ...]:
    """Return the shape of the result, which has one element along the axis."""
    return (*x.shape[:dim], 1, *x.shape[dim + 1 :])


def _framework(x: Tensor, dim: int, scale: float | None) -> Tensor:
    """Compute by PyTorch's own functions, for which we have no kernel."""
    x = x.to(_result_dtype(x))
    return torch.logsumexp(x if scale is None else x * scale, dim, keepdim=True)


@skips_dynamo
def served(x: Tensor, dim: int, scale: float | None, out: Tensor) -> Tensor | None:
    """Write our kernel's result to `out`, and return it; None if PyTorch must compute it.

    `dim` is counted from the first axis, and `out` has all axes of x.
    """
    recipe = recipe_for(Op.LOGSUMEXP, x, dim, scale, out)
    return None if recipe is None else recipe.serve(x, out, scale)


@skips_dynamo
def _compute(x: Tensor, dim: int, scale: float | None) -> Tensor:
    """Compute the operator on plain tensors; the result is dense."""
    out = torch.empty(kept(x, dim), dtype=_result_dtype(x), device=x.device)
    result = served(x, dim, scale, out)
    return _framework(x, dim, scale).contiguous() if result is None else result


def _shape(x: Tensor, dim: int, scale: float | None) -> Tensor:
    return torch.empty(kept(x, dim), dtype=_result_dtype(x), device=x.device)


class _Logsumexp(torch.autograd.Function):  # type: ignore[misc]
    """Log-sum-exp with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, scale: float | None) -> Tensor:
        result = _without_gradient(x, dim, scale)
        ctx.scale = scale
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of x: the softmax, times that of the result.

        It consists of PyTorch's operators, which `torch.compile` fuses and which have gradients
        themselves. The sum below converts x to the type of the result as it reads it.
        """
        x, result = ctx.saved_tensors
        scale = 1.0 if ctx.scale is None else ctx.scale
        weights = torch.add(-result, x, alpha=scale).exp_().conj()
        return (weights * (grad * scale)).to(x.dtype), None, None


def _without_gradient(x: Tensor, dim: int, scale: float | None) -> Tensor:
    """Compute the operator, without the dispatcher if possible."""
    return _compute(x, dim, scale) if is_bare(x) else below_autograd(operator, x, dim, scale)


@skips_dynamo
def _differentiate(x: Tensor, dim: int, scale: float | None) -> Tensor:
    """Compute the operator with its gradient, if one is needed."""
    if needs_own_formulas(x):  # compiled code calls this without that check
        return _framework(x, dim, scale)
    compute = _Logsumexp.apply if needs_gradient(x) else _without_gradient
    result: Tensor = compute(x, dim, scale)
    return result


def _batched(
    _: Any, axes: tuple[int, None, None], x: Tensor, dim: int, scale: float | None
) -> tuple[Tensor, int]:
    """Compute under `vmap`: the batched axis becomes the first one."""
    return operator(x.movedim(axes[0], 0), dim + 1, scale), 0


_library.impl("logsumexp", _compute, "CompositeExplicitAutograd")
_library.impl("logsumexp", _differentiate, "Autograd")
torch.library.register_fake("explorer::logsumexp", _shape, lib=_library)
_HAS_VMAP = hasattr(torch.library, "register_vmap")  # PyTorch 2.4 has not
if _HAS_VMAP:
    torch.library.register_vmap("explorer::logsumexp", _batched, lib=_library)
operator = torch.ops.explorer.logsumexp.default

# ------------------------------------------------------------------ function


def _check_out(x: Tensor, shape: tuple[int, ...], out: Any) -> None:
    """Raise TypeError and InvalidInput for an output that does not fit a call."""
    if not isinstance(out, Tensor):
        raise no_tensor("out", out)
    check_dense(out=out)
    check_out(x, x.dtype if out.dtype is x.dtype else _result_dtype(x), out, shape)
    if needs_gradient(x):
        raise InvalidInput("out is given, and a gradient is asked for: give one of them up")


def _of_rows(x: Tensor, dim: int, scale: float | None) -> Tensor:
    """Compute a call on a tensor of at least one axis; the result keeps the axis."""
    compute = operator
    if not torch.compiler.is_compiling():
        if x.is_nested or needs_own_formulas(x, has_vmap=_HAS_VMAP):
            compute = _framework
        elif is_bare(x):
            compute = _differentiate
    result: Tensor = compute(x, dim, scale)
    return result


@skips_dynamo
def _written(x: Tensor, dim: int, scale: float | None, out: Tensor) -> bool:
    """Write our kernel's result to `out`; return whether one could."""
    return is_bare(x) and is_memory(out) and served(x, dim, scale, out) is not None


def logsumexp_of(x: Tensor, dim: int, keepdim: bool, scale: float, out: Tensor | None) -> Tensor:
    """Compute the log-sum-exp of a tensor, as `explorer.logsumexp` documents it."""
    factor: float | None = scale
    is_plain = torch.compiler.is_compiling() or scale.__class__ is float
    if dim.__class__ is not int or not is_plain:
        dim, factor, _ = plain_arguments(dim, scale, None)
    factor = None if factor == 1 else factor
    if not (x.is_floating_point() or x.is_complex()):
        raise InvalidInput(
            f"x is of {x.dtype}; it must be of floating-point numbers: give x.float(), say"
        )
    check_dense(x=x)
    axis = positive(dim, x.dim())
    rows = x if x.dim() else x.reshape(1)
    drops = not (keepdim and x.dim())
    if out is None:
        result = _of_rows(rows, axis, factor)
        return result.squeeze(axis) if drops else result
    shape = kept(rows, axis)
    _check_out(x, (*shape[:axis], *shape[axis + 1 :]) if drops else shape, out)
    target = out.unsqueeze(axis) if drops else out
    if torch.compiler.is_compiling() or not _written(rows, axis, factor, target):
        target.copy_(_of_rows(rows, axis, factor))
    return out
