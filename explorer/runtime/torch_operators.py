"""Functions of PyTorch's tensors, and operators of `torch.library` with gradients.

The operators are for gradients, `torch.compile`, modes and transforms, which need PyTorch's
dispatcher. All other calls avoid it, because that takes twice as long as the launch.
"""

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from explorer.model.element import DType
from explorer.model.errors import InvalidInput
from explorer.ops import FORWARD, OPERATORS, Extent, Op
from explorer.runtime.layout import (
    IN_PLACE,
    NOTHING,
    Call,
    LossKeywords,
    Shape,
    by_name,
    given,
    is_causal,
    no_number,
    outside,
    plain_scale,
    whole_axis,
)
from explorer.runtime.library import (
    LEAST_GAP,
    TERMS,
    RowFunctions,
    are_bad,
    loss_terms,
    whole_loss,
    with_axis,
    with_terms,
)
from explorer.runtime.torch_calls import (
    TENSORS,
    Tensors,
    backward,
    check_dense,
    check_kind,
    check_out,
    compute,
    skips_dynamo,
    transforms,
)
from explorer.system.plain_data import kind_of, shown

# ------------------------------------------------------------------ kinds of tensors


_modes = torch._C._len_torch_dispatch_stack
_is_traced = torch._C._is_tracing
_is_one_of_several = torch._C._functorch.is_legacy_batchedtensor
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
HAS_VMAP = hasattr(torch.library, "register_vmap")  # PyTorch 2.4 has not


def is_bare(x: Tensor) -> bool:
    """Return whether a tensor is plain memory, and no mode, transform or tracer is active."""
    kind = type(x)
    return (
        (kind is Tensor or kind is torch.nn.Parameter)
        and not x.is_neg()
        and not x.is_nested
        and transforms() is None
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
    """Return whether all arrays beside x are plain memory.

    A gradient is none if it stands for several (`is_grads_batched` of `torch.autograd.grad`).
    """
    beside = arrays.values()
    return all(map(is_memory, beside)) and not any(map(_is_one_of_several, beside))


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
    is_transformed = transforms() is not None and not (has_vmap and _are_vmaps())
    return is_transformed or forward_ad._current_level >= 0 or has_own


def _are_vmaps() -> bool:
    """Return whether each active transform is `vmap`."""
    transforms = torch._C._functorch.get_interpreter_stack() or ()
    return all(one.key() == torch._C._functorch.TransformType.Vmap for one in transforms)


def by_framework(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a checked call by PyTorch's own functions, which can be differentiated."""
    if call.op is not Op.CROSS_ENTROPY:
        return _by_framework(call, x)
    if not call.also:  # a NaN in a row that is ignored has no gradient
        x = torch.where(call.arrays["ids"] == dict(call.options)["ignore_index"], 0.0, x)
    return with_terms(TENSORS, _by_framework, x, call)


def _by_framework(call: Call, x: Tensor) -> list[Tensor]:
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


class _Numbers(torch.autograd.Function):  # type: ignore[misc]
    """The results of an operator with their gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call) -> tuple[Tensor, ...]:
        every = call.asking_for(*TERMS)
        made = by_name(every.results, without_gradient(every, x))
        ctx.call = call.alone()
        saved = (call.arrays.get("ids"), *(made[name] for name in TERMS), made.get("entropy"))
        ctx.save_for_backward(x, *saved)
        ctx.set_materialize_grads(False)
        constant = (r.name for r in call.results if r.are_columns or r.name in TERMS)
        ctx.mark_non_differentiable(*(made[name] for name in constant))
        return tuple(made[result.name] for result in call.results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradient of x, by PyTorch's operators, which `torch.compile` fuses.

        Where gradients of it are asked for, or several gradients, PyTorch differentiates its own
        functions.
        """
        x, ids, *saved = ctx.saved_tensors
        told = by_name(ctx.call.results, grads)
        call, of_results = ctx.call._replace(arrays=given(ids=ids)), given(**told)
        if not of_results:
            return None, None
        if torch.is_grad_enabled() or any(map(_is_one_of_several, of_results.values())):
            with torch.enable_grad():
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


# ------------------------------------------------------------------ gradient of losses


class _Losses(torch.autograd.Function):  # type: ignore[misc]
    """The losses of rows with their gradient, from the logits and two numbers of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call) -> tuple[Tensor, ...]:
        every = call.asking_for(*TERMS)
        made = by_name(every.results, without_gradient(every, x))
        ctx.is_in_place = IN_PLACE in call.options
        ctx.call = call.alone()._replace(also="")
        ctx.save_for_backward(x, call.arrays["ids"], *(made[name] for name in TERMS))
        loss, *others = (made[result.name] for result in call.results)
        ctx.mark_non_differentiable(*others)
        return loss, *others

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradient of x; gradients of that are of PyTorch's functions."""
        x, ids, *kept = ctx.saved_tensors
        call = ctx.call._replace(arrays={"ids": ids})
        if ctx.is_in_place:  # PyTorch then knows that x has changed: a second backward raises
            if torch.is_grad_enabled():
                raise InvalidInput("gradient is 'in_place'; it has no gradient of its own")
            _check_single("in_place", grad)
            return loss_gradient(call, x, kept, grad, x.detach()), None
        if torch.is_grad_enabled():
            (loss,) = by_framework(call, x)
            (result,) = torch.autograd.grad(loss, x, grad, create_graph=True)
            return result, None
        return loss_gradient(call, x, kept, grad), None


def _check_single(gradient: str, grad: Tensor) -> None:
    """Raise InvalidInput for several gradients of a loss, of which one alone has memory."""
    if _is_one_of_several(grad):
        raise InvalidInput(
            f"gradient is '{gradient}', and is_grads_batched asks for several gradients; there is "
            "memory for one: give gradient='later'"
        )


class _LossWithGradient(torch.autograd.Function):  # type: ignore[misc]
    """A loss of x whose gradient is there already, for a gradient of the loss of 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, gradient: Tensor, dim: int) -> Tensor:
        ctx.gradient, ctx.dim = gradient, dim
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient times `grad`; a row whose factor is 1 is left as it is."""
        _check_single("with_loss", grad)
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None or torch.is_grad_enabled():
            why = "it has no gradient of its own" if gradient is not None else "it is used up"
            raise InvalidInput(f"gradient is 'with_loss'; {why}: give gradient='later'")
        return _multiplied(gradient, grad, ctx.dim), None, None, None


def _multiplied(gradient: Tensor, grad: Tensor, dim: int) -> Tensor:
    """Multiply a gradient, in its place, by that of the loss: one number, or one of each row."""
    grad = grad.to(TENSORS.result_type(Call(Op.CROSS_ENTROPY, dim), gradient))
    last = gradient.dim() - 1
    if grad.dim() and dim != last:
        return gradient.mul_(with_axis(grad, dim))
    factors = grad.expand(gradient.shape[:-1]).contiguous()[..., None]
    call = Call(Op.MULTIPLY_ROWS, last, arrays={"loss_grad": factors})
    served = TENSORS.serve(call, gradient, gradient)
    return gradient.mul_(factors) if served is None else gradient


def loss_gradient(
    call: Call, x: Tensor, kept: list[Tensor], grad: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return the gradient of x from what the losses' `call` has kept, and from their gradients."""
    call = _gradient_call(call, kept, grad.to(kept[0].dtype).contiguous())
    if out is not None:
        return compute(call, x, out)[0]
    return without_gradient(call, x)[0]


def _gradient_call(call: Call, kept: list[Tensor], grad: Tensor) -> Call:
    arrays = dict(zip(TERMS, kept, strict=True))
    arrays |= {"ids": call.arrays["ids"], "loss_grad": grad}
    return call._replace(op=Op.CROSS_ENTROPY_BACKWARD, also="", arrays=arrays)


def has_kernel(call: Call, x: Tensor) -> bool:
    """Return whether a kernel would serve a call."""
    recipe = TENSORS.recipe(call, x)
    return recipe is not None and recipe.takes(x)


def has_kernels(call: Call, x: Tensor) -> bool:
    """Return whether kernels would serve the call of losses and that of their gradient."""
    recipe = TENSORS.recipe(call.asking_for(*TERMS, *loss_terms(call)), x)
    if recipe is None or not recipe.takes(x):
        return False
    if recipe.gradient is None:
        shape = call.result_shape(tuple(x.shape), Extent.ROW)
        of_rows = torch.empty(shape, dtype=TENSORS.result_type(call, x), device=x.device)
        recipe.gradient = TENSORS.recipe(_gradient_call(call, [of_rows] * len(TERMS), of_rows), x)
    return recipe.gradient is not None and recipe.gradient.takes(x)


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


def register(schema: str, compute: Any, differentiate: Any, shapes: Any) -> Any:
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
    is_loss = call.op is Op.CROSS_ENTROPY
    results = with_terms(TENSORS, compute, x, call) if is_loss else compute(call, x)
    return [result.contiguous() for result in results]


@skips_dynamo
def without_gradient(call: Call, x: Tensor) -> list[Tensor]:
    """Compute a call, without the dispatcher if possible, which takes 6 us."""
    if are_bare(x, call.arrays):
        return dense(call, x)
    return _listed(below_autograd(operator_of(call.op), x, *arguments_of(call)))


def _listed(results: Any) -> list[Tensor]:
    """Return what an operator returns, one tensor or several, as a list."""
    return [results] if isinstance(results, Tensor) else list(results)


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
    if call.options:
        return list(_Losses.apply(x, call))
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
    return register(
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


softmax_backward_operator = register(
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

# ------------------------------------------------------------------ losses

_LOSSES = (
    "cross_entropy(Tensor x, int dim, float? scale, Tensor ids, int ignore_index, "
    "float label_smoothing=0., float z_loss=0., str also='', float softcap=0.) "
    "-> Tensor[]"
)
_LOSSES_BACKWARD = (
    "cross_entropy_backward(Tensor x, int dim, float? scale, Tensor ids, int ignore_index, "
    "float label_smoothing, float z_loss, Tensor maximum, Tensor log_sum, Tensor loss_grad, "
    "float softcap=0.) -> Tensor"
)


def _losses_call(
    dim: int,
    scale: float | None,
    ids: Tensor,
    ignore_index: int,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    also: str = "",
    softcap: float = 0.0,
) -> Call:
    options = LossKeywords(ignore_index, "", label_smoothing, z_loss, softcap).options
    return Call(Op.CROSS_ENTROPY, dim, scale, also=also, arrays={"ids": ids}, options=options)


_OF_ROWS = ("maximum", "log_sum", "loss_grad")
"""What a loss's gradient reads of each row, in the order of its operator's arguments."""


def _losses_backward_call(*told: Any) -> Call:
    own, of_rows = (*told[:6], "", *told[9:]), told[6:9]
    call = _losses_call(*own)
    arrays = {**call.arrays, **dict(zip(_OF_ROWS, of_rows, strict=True))}
    return call._replace(op=Op.CROSS_ENTROPY_BACKWARD, arrays=arrays)


_ROW_OPERATORS[Op.CROSS_ENTROPY] = _operator(_LOSSES, _losses_call, list)
_ROW_OPERATORS[Op.CROSS_ENTROPY_BACKWARD] = _operator(
    _LOSSES_BACKWARD, _losses_backward_call, itemgetter(0)
)


def operator_of(op: Op) -> Any:
    """Return the operator of `torch.library` that computes an op."""
    return _ROW_OPERATORS.get(op, softmax_operator)


def arguments_of(call: Call) -> tuple[Any, ...]:
    """Return a call's arguments beside x, as its operator of `torch.library` takes them."""
    dim, scale, arrays = call.dim, call.scale, call.arrays
    if call.options:
        options = dict(call.options)
        numbers = (options[name] for name in ("ignore_index", "label_smoothing", "z_loss"))
        is_loss = call.op is Op.CROSS_ENTROPY
        too = [call.also] if is_loss else [arrays[name] for name in _OF_ROWS]
        return (dim, scale, arrays["ids"], *numbers, *too, options["softcap"])
    if call.op in _ROW_OPERATORS:
        return dim, scale, arrays.get("ids"), call.also
    mask, lengths, log = arrays.get("mask"), arrays.get("lengths"), OPERATORS[call.op].is_log
    return dim, scale, mask, call.causal, lengths, call.dtype, log


# ------------------------------------------------------------------ arguments of functions


is_compiled = torch.compiler.is_dynamo_compiling
"""Returns whether `torch.compile` traces this call; in traced code it is the constant True."""

_is_compiling = torch.compiler.is_compiling
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


def autocast_type() -> torch.dtype | None:
    """Return the type to which autocast converts 16-bit tensors on CUDA; None if it is off."""
    return torch.float32 if torch.is_autocast_enabled("cuda") else None


# ------------------------------------------------------------------ softmax of tensors


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
        dtype = autocast_type()
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
        arrays = {"mask": _added(mask), **arrays}
    for name, array in arrays.items() if arrays else ():
        if not isinstance(array, Tensor):
            raise no_tensor(name, array)
    if dtype is None and x.is_cuda and x.dtype in _HALF and autocast_type() is not None:
        dtype = torch.float32 if out is None else getattr(out, "dtype", None)
    if _is_compiling():
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
    told = FORWARD[log], dim, scale, dtype, causal, "", arrays, ()  # 0.1 us less than a Call
    may_need_gradient = x.requires_grad or arrays
    is_differentiated = may_need_gradient and needs_gradient(x, arrays.get("mask"))
    are_plain = is_bare(x) and (not arrays or are_memory(arrays))
    if are_plain and not is_differentiated and (out is None or is_memory(out)):
        if out is not None:
            check_out(x, dtype or x.dtype, out)
        return compute(told, x, out)[0]
    call = Call(*told)
    if out is not None:
        _check_out(x, arrays.get("mask"), dtype or x.dtype, out)
    if are_plain and is_differentiated:
        (result,) = with_gradient(call, x)  # without the dispatcher, which would be called twice
    else:
        result = _by_dispatcher(call, x)
    return result if out is None else out.copy_(result)


def _added(mask: Any) -> Any:
    """Return a mask that is added: one of bool has -inf where it is False."""
    is_bool = getattr(mask, "dtype", None) is torch.bool
    return torch.where(mask, 0.0, -math.inf) if is_bool else mask


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


# ------------------------------------------------------------------ all functions


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

    def check_beside(self, name: str, array: Any, x: Tensor, than: str = "x") -> None:
        """Raise TypeError for what is no tensor, InvalidInput for one that x does not go with."""
        if not isinstance(array, Tensor):
            raise no_tensor(name, array)
        check_dense(**{name: array})
        _check_not_nested(name, array)
        if array.device != x.device:
            raise InvalidInput(
                f"{name} is on {array.device}; it must be on {than}'s device, {x.device}"
            )

    def check_columns(self, index: Tensor, cols: int) -> None:
        """Raise InvalidInput that names the first id that is no column; wait for the GPU for it."""
        check_values("check is True", "ids", index)
        super().check_columns(index, cols)

    def check_targets(self, target: Tensor, classes: int, ignore_index: int) -> None:
        """Raise InvalidInput that names the first bad target; wait for the GPU for it.

        Neither a graph that is captured nor compiled code can wait: there, an assertion on the GPU
        fails, which ends the process's use of it, as PyTorch's own does.
        """
        if torch.compiler.is_compiling() or (
            self.is_on_gpu(target) and self.is_capturing(target.get_device())
        ):
            torch._assert_async(
                ~are_bad(target, classes, ignore_index).any(),
                f"a target is neither from 0 to {classes - 1} nor {ignore_index}, which is ignored",
            )
            return
        check_values("bad_target is 'raise'", "ids", target)
        super().check_targets(target, classes, ignore_index)

    def check_out(self, x: Tensor, shape: Shape, dtype: torch.dtype, out: Any) -> None:
        """Raise TypeError and InvalidInput for an output that does not fit a call."""
        _check_out(x, None, dtype, out, shape)

    def check_gradient(
        self, x: Tensor, target: Tensor, weight: Tensor | None, told: LossKeywords
    ) -> None:
        """Raise InvalidInput for a tensor over which no gradient can be written."""
        if told.gradient != "in_place":
            return
        why = ""
        if torch.compiler.is_compiling() or not is_bare(x) or needs_own_formulas(x):
            why = "x is traced or transformed, or no plain tensor"
        elif x.is_leaf and x.requires_grad:
            why = "x is a leaf, whose own numbers would be lost"
        elif x._is_view():
            why = "x is a view, and others may read what it views"
        elif not x.is_contiguous():
            why = "x has gaps, or its axes lie in another order"
        elif weight is not None and told.label_smoothing:
            why = "PyTorch's functions compute label smoothing with weights"
        if why:
            raise InvalidInput(f"gradient is 'in_place'; {why}: leave it out")

    def with_loss(
        self, call: Call, x: Tensor, reduced: Callable[[Tensor], Tensor], shares: Tensor
    ) -> list[Tensor] | None:
        """Return the reduced loss, whose gradient is formed at once, and the results beside it.

        None where there is no gradient, or no kernel that does it: for tensors that are traced.
        """
        is_traced = torch.compiler.is_compiling() or needs_own_formulas(x)
        if is_traced or not are_bare(x, call.arrays) or not needs_gradient(x):
            return None
        if shares.requires_grad:  # by weights, of which the loss then has a gradient, too
            return None
        shares = with_axis(shares.to(self.result_type(call, x)).contiguous(), call.dim)
        every = call.asking_for("loss", *loss_terms(call))._replace(
            op=Op.CROSS_ENTROPY_WITH_GRADIENT, arrays={**call.arrays, "loss_grad": shares}
        )
        results = self.serve(every, x.detach())
        if results is None:
            return None
        made = by_name(every.results, results)
        loss = whole_loss(self, call, made | {"output": made["loss"]})
        total = reduced(loss.squeeze(call.dim))
        others = [made[result.name].squeeze(call.dim) for result in call.results[1:]]
        return [_LossWithGradient.apply(x, total, made["output"], call.dim), *others]

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
            results = _listed(operator_of(call.op)(x, *arguments_of(call)))
        elif x.is_nested or needs_own_formulas(x, has_vmap=HAS_VMAP and not call.options):
            results = by_framework(call, x)
        elif not are_bare(x, call.arrays):
            results = _listed(operator_of(call.op)(x, *arguments_of(call)))
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


def check_values(asked: str, name: str, values: Tensor) -> None:
    """Raise InvalidInput where a call asks for values that are not known: traced or batched.

    Code that is not compiled as one graph is not compiled around such a call.
    """
    if torch.compiler.is_compiling():
        where = "in code that torch.compile compiles as one graph"
    elif _is_batched(values):
        where = "under torch.func.vmap"
    else:
        return
    raise InvalidInput(
        f"{asked} {where}; it needs the values of {name}, which are not known there: leave it out"
    )


@skips_dynamo
def _is_batched(tensor: Tensor) -> bool:
    """Return whether `torch.func.vmap` stands for one of several tensors by this one."""
    functions = torch._C._functorch
    while functions.is_functorch_wrapped_tensor(tensor):
        if functions.is_batchedtensor(tensor):
            return True
        tensor = functions.get_unwrapped(tensor)
    return False


FUNCTIONS = TensorFunctions()
