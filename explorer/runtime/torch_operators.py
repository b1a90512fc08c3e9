"""Operators of `torch.library` with gradients: softmax, and numbers of a row of PyTorch's tensors.

They are for gradients, `torch.compile`, modes and transforms, which need PyTorch's dispatcher. All
other calls avoid it, because that takes twice as long as the launch.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from explorer.ops import FORWARD, OPERATORS, Op
from explorer.ops.logsumexp import PAIR
from explorer.runtime.layout import NOTHING, Call, by_name, given, outside
from explorer.runtime.row_numbers import LEAST_GAP
from explorer.runtime.torch_calls import TENSORS, backward, compute, skips_dynamo

# ------------------------------------------------------------------ kinds of tensors


_transforms = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
HAS_VMAP = hasattr(torch.library, "register_vmap")  # PyTorch 2.4 has not


def is_bare(x: Tensor) -> bool:
    """Return whether a tensor is plain memory, and no mode, transform or tracer is active."""
    kind = type(x)
    return (
        (kind is Tensor or kind is torch.nn.Parameter)
        and not x.is_neg()
        and not x.is_nested
        and _transforms() is None
        and not _modes()
        and forward_ad._current_level < 0
        and not _is_traced()
    )


def is_memory(x: Tensor) -> bool:
    """Return whether a tensor is plain memory: not of a subclass, nested, or lazily negated."""
    kind = type(x)
    return (kind is Tensor or kind is torch.nn.Parameter) and not x.is_neg() and not x.is_nested


def are_bare(x: Tensor, arrays: dict[str, Tensor]) -> bool:
    """Return whether x is bare, and what is read beside it is plain memory."""
    return is_bare(x) and are_memory(arrays)


def are_memory(arrays: dict[str, Tensor]) -> bool:
    """Return whether all arrays beside x are plain memory."""
    return all(map(is_memory, arrays.values()))


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


def by_framework(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a checked call by PyTorch's own functions, which can be differentiated."""
    return TENSORS.framework(call.checked(tuple(x.shape), TENSORS.name_of), x)


# ------------------------------------------------------------------ gradient of softmax


class _Softmax(torch.autograd.Function):  # type: ignore[misc]
    """Softmax or log_softmax with its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, call: Call) -> Tensor:
        (output,) = without_gradient(call, x)
        ctx.call, ctx.dtype = call.alone(), x.dtype
        ctx.mask_like = None if mask is None else (mask.shape, mask.dtype)
        ctx.save_for_backward(output, call.arrays.get("lengths"))
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x and of an additive mask; masked elements have none."""
        output, lengths = ctx.saved_tensors
        call, log = ctx.call, OPERATORS[ctx.call.op].is_log
        of_mask = ctx.mask_like is not None and ctx.needs_input_grad[1]
        # The mask's gradient is summed before it is rounded to its type, which may be wider than
        # x's.
        scale, dtype = (None, output.dtype) if of_mask else (call.scale, ctx.dtype)
        result = softmax_backward_operator(grad, output, call.dim, scale, dtype, log)
        result = _where_visible(result, call.causal, lengths, log)
        if not of_mask:
            return result, None, None
        shape, mask_dtype = ctx.mask_like
        of_x = (result if call.scale is None else result * call.scale).to(ctx.dtype)
        return of_x, result.sum_to_size(shape).to(mask_dtype), None


def _where_visible(gradient: Tensor, causal: bool, lengths: Tensor | None, log: bool) -> Tensor:
    """Return a gradient that is 0 at masked elements, also in rows that are masked throughout.

    The output of such a row is NaN. In other rows, softmax's gradient is 0 there by itself.
    """
    rows_of_nothing = lengths is not None or (causal and gradient.shape[-2] > gradient.shape[-1])
    if not (log or rows_of_nothing):
        return gradient
    hidden = TENSORS.hidden(gradient, causal, lengths)
    return gradient if hidden is None else gradient.masked_fill(hidden, 0.0)


class _SoftmaxBackward(torch.autograd.Function):  # type: ignore[misc]
    """The gradient, with its own gradients by PyTorch's functions."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
        ctx.dim, ctx.scale, _, ctx.log = arguments
        ctx.save_for_backward(grad, output)
        return backward_without_gradient(grad, output, *arguments)

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


# ------------------------------------------------------------------ gradient of a row's numbers


_PAIR = tuple(result.name for result in PAIR)
"""The results that a gradient is computed from: exponentials are relative to the first, and their
sum has the second as its logarithm. One number for both would round each probability, by 4e-6 where
it is 64."""


class _Numbers(torch.autograd.Function):  # type: ignore[misc]
    """The results of an operator with their gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call) -> tuple[Tensor, ...]:
        every = call._replace(also=",".join(filter(None, (call.also, *_PAIR))))
        made = by_name(every.results, without_gradient(every, x))
        ctx.call = call.alone()
        saved = (call.arrays.get("ids"), *(made[name] for name in _PAIR), made.get("entropy"))
        ctx.save_for_backward(x, *saved)
        ctx.set_materialize_grads(False)
        constant = (r.name for r in call.results if r.are_columns or r.name in _PAIR)
        ctx.mark_non_differentiable(*(made[name] for name in constant))
        return tuple(made[result.name] for result in call.results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradient of x, by PyTorch's operators, which `torch.compile` fuses.

        Where gradients of it are asked for, PyTorch differentiates its own functions.
        """
        x, ids, *saved = ctx.saved_tensors
        told = by_name(ctx.call.results, grads)
        call, of_results = ctx.call._replace(arrays=given(ids=ids)), given(**told)
        if not of_results:
            return None, None
        if torch.is_grad_enabled():
            return _gradient_of_framework(call, of_results, x), None
        return _gradient(call, of_results, x, ids, *saved), None


def _gradient_of_framework(call: Call, grads: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the gradient of x as a function of x and the gradients of the results."""
    call = call._replace(also=",".join(grads))
    made = by_name(call.results, TENSORS.framework(call, x))
    (result,) = torch.autograd.grad(
        [made[name] for name in grads], x, list(grads.values()), create_graph=True
    )
    return result


def _gradient(
    call: Call,
    grads: dict[str, Tensor],
    x: Tensor,
    ids: Tensor | None,
    maximum: Tensor,
    log_sum: Tensor,
    entropy: Tensor | None,
) -> Tensor:
    """Return the gradient of x: each row's probabilities times a number, and more at its ids.

    The number differs among elements by the gradient of the entropy alone. It has the sum by which
    exponentials are divided, and the scale.
    """
    dim, scale = call.dim, call.scale
    gaps = TENSORS.scaled(x if scale is None else x.to(maximum.dtype), scale) - maximum
    per_sum = (-log_sum).exp() * (1.0 if scale is None else scale)
    output, of_ids = grads.get("output"), None
    number: Any = grads.get("lse", 0.0)
    if ids is None:
        number = output
    elif output is not None:
        of_ids = output.masked_fill(outside(ids, x.shape[-1]), 0)
        number = number - of_ids.sum(dim, keepdim=True)
    of_entropy = grads.get("entropy")
    if of_entropy is None:
        result = gaps.exp_().mul_(number * per_sum)
    else:
        number = number + of_entropy * (log_sum - entropy)
        weights = gaps.exp()
        gaps.clamp_(min=-LEAST_GAP)  # else 0 times -inf
        result = weights.mul_(number * per_sum - gaps.mul_(of_entropy * per_sum))
    if ids is not None and of_ids is not None:
        columns = ids.masked_fill(outside(ids, x.shape[-1]), 0).long()
        result.scatter_add_(dim, columns, of_ids if scale is None else of_ids * scale)
    return result.to(x.dtype)


# ------------------------------------------------------------------ registration


_library = torch.library.Library("explorer", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_SOFTMAX = (
    "softmax(Tensor x, int dim, float? scale, Tensor? mask, bool causal, Tensor? lengths, "
    "ScalarType? dtype, bool log) -> Tensor"
)
_SOFTMAX_BACKWARD = (
    "softmax_backward(Tensor grad, Tensor output, int dim, float? scale, ScalarType dtype, "
    "bool log) -> Tensor"
)
_ROWS = "(Tensor x, int dim, float? scale, Tensor? ids=None, str also='') -> Tensor[]"


def _register(schema: str, compute: Any, differentiate: Any, shapes: Any) -> Any:
    """Register an operator by its functions below and at autograd, and that of fake tensors."""
    name = schema.partition("(")[0]

    def fake(*arguments: Any) -> Any:
        from explorer.runtime import torch_inductor  # which imports this module

        torch_inductor.register()  # when operators are traced for the first time
        return shapes(*arguments)

    _library.define(schema, tags=_TAGS)
    _library.impl(name, skips_dynamo(compute), "CompositeExplicitAutograd")
    _library.impl(name, skips_dynamo(differentiate), "Autograd")
    torch.library.register_fake(f"explorer::{name}", fake, lib=_library)
    return getattr(torch.ops.explorer, name).default


def below_autograd(operator: Any, *arguments: Any) -> Any:
    """Call the dispatcher once more, for keys below autograd: modes and fake tensors."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def dense(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a call on plain tensors; the results are dense."""
    return [result.contiguous() for result in compute(call, x)]


@skips_dynamo
def without_gradient(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a call, without the dispatcher if possible, which takes 6 us."""
    if are_bare(x, call.arrays):
        return dense(call, x)
    results = below_autograd(operator_of(call.op), x, *arguments_of(call))
    return list(results) if isinstance(results, (list, tuple)) else [results]


@skips_dynamo
def differentiated(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a call with its gradients, if these are needed."""
    if needs_own_formulas(x):  # compiled code calls this without that check
        return by_framework(call, x)
    if not needs_gradient(x, call.arrays.get("mask")):
        return without_gradient(call, x)
    return with_gradient(call, x)


def with_gradient(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a call so that autograd gets its gradients."""
    if call.fills_rows:
        return [_Softmax.apply(x, call.arrays.get("mask"), call)]
    if x.is_complex() or not x.numel():  # which have no maximum
        return by_framework(call, x)
    return list(_Numbers.apply(x, call))


def _empty(call: Call, x: Tensor) -> list[Tensor]:
    """Return memory for the results of a call, which is dense."""
    ids, dtype = call.arrays.get("ids"), TENSORS.result_type(call, x)
    shape = tuple(x.shape)
    return [
        torch.empty(
            call.result_shape(shape, result.extent),
            dtype=ids.dtype if ids is not None and result.are_columns else dtype,
            device=x.device,
        )
        for result in call.results
    ]


def _operator(schema: str, call_of: Callable[..., Call], returned: Callable[..., Any]) -> Any:
    """Register an operator by the call of its arguments beside x, and what it makes of results."""
    return _register(
        schema,
        lambda x, *told: returned(dense(call_of(*told), x)),
        lambda x, *told: returned(differentiated(call_of(*told), x)),
        lambda x, *told: returned(_empty(call_of(*told), x)),
    )


# ------------------------------------------------------------------ softmax


def softmax_call(
    dim: int,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    dtype: torch.dtype | None,
    log: bool,
) -> Call:
    """Return the call of the arguments of `explorer::softmax` beside x."""
    is_plain = mask is None and lengths is None
    arrays = NOTHING if is_plain else given(mask=mask, lengths=lengths)
    return Call(FORWARD[log], dim, scale, dtype, causal, arrays=arrays)


softmax_operator = _operator(_SOFTMAX, softmax_call, itemgetter(0))


@skips_dynamo
def backward_without_gradient(grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
    """Compute `softmax_backward`, as `without_gradient` does."""
    if is_bare(grad) and is_bare(output):
        return backward(grad, output, *arguments)
    result: Tensor = below_autograd(softmax_backward_operator, grad, output, *arguments)
    return result


def _differentiate_backward(grad: Tensor, output: Tensor, *arguments: Any) -> Tensor:
    needed = needs_gradient(grad, output)
    compute = _SoftmaxBackward.apply if needed else backward_without_gradient
    result: Tensor = compute(grad, output, *arguments)
    return result


softmax_backward_operator = _register(
    _SOFTMAX_BACKWARD,
    backward,
    _differentiate_backward,
    lambda grad, output, *told: torch.empty(output.shape, dtype=told[2], device=output.device),
)

# ------------------------------------------------------------------ numbers of rows


def _rows_operator(op: Op) -> Any:
    """Register an operator of numbers of a row, and return it."""

    def call_of(dim: int, scale: float | None, ids: Tensor | None = None, also: str = "") -> Call:
        return Call(op, dim, scale, also=also, arrays=given(ids=ids))

    operator = _operator(f"{op}{_ROWS}", call_of, list)

    def batched(info: Any, axes: Any, x: Tensor, *told: Any) -> tuple[list[Tensor], list[int]]:
        """Compute under `vmap`: the batched axis becomes the first one of x and ids."""

        def first(tensor: Tensor, axis: int | None) -> Tensor:
            if axis is not None:
                return tensor.movedim(axis, 0)
            return tensor.expand(info.batch_size, *tensor.shape)

        call = call_of(*told)
        own = {name: first(ids, axes[3]) for name, ids in call.arrays.items()}
        batch = call._replace(dim=call.dim + 1, arrays=own)
        results = operator(first(x, axes[0]), *arguments_of(batch))
        return results, [0] * len(results)

    if HAS_VMAP:
        torch.library.register_vmap(f"explorer::{op}", batched, lib=_library)
    return operator


_ROW_OPERATORS = {op: _rows_operator(op) for op in (Op.LOGSUMEXP, Op.LOG_PROB)}


def operator_of(op: Op) -> Any:
    """Return the operator of `torch.library` that computes an op."""
    return _ROW_OPERATORS.get(op, softmax_operator)


def arguments_of(call: Call) -> tuple[Any, ...]:
    """Return a call's arguments beside x, as its operator of `torch.library` takes them."""
    dim, scale, arrays = call.dim, call.scale, call.arrays
    if call.op in _ROW_OPERATORS:
        return dim, scale, arrays.get("ids"), call.also
    mask, lengths, log = arrays.get("mask"), arrays.get("lengths"), OPERATORS[call.op].is_log
    return dim, scale, mask, call.causal, lengths, call.dtype, log
