"""Numbers of a row of PyTorch's tensors: log-sum-exp, and log-probabilities of given columns.

Each is a function and an operator of `torch.library`. An operator returns its output and, by their
names, results beside it. All keep the axis, so that gradients broadcast along the rows.
"""

from typing import Any

import torch
from torch import Tensor

from explorer.model.errors import InvalidInput
from explorer.ops import Extent, Op
from explorer.ops.logsumexp import PAIR
from explorer.runtime.layout import (
    Described,
    Spread,
    bad_id,
    by_name,
    check_index,
    goes_in_turn,
    in_turn,
    no_number,
    outside,
    positive,
    results_of,
    spread_of,
)
from explorer.runtime.row_numbers import LEAST_GAP, numbers
from explorer.runtime.torch_calls import (
    check_dense,
    check_out,
    dtype_name,
    matrix,
    recipe_for,
    scaled,
    skips_dynamo,
)
from explorer.runtime.torch_operators import (
    below_autograd,
    is_bare,
    is_memory,
    needs_gradient,
    needs_own_formulas,
    no_tensor,
    plain_arguments,
)

_PAIR = tuple(result.name for result in PAIR)
"""The results that a gradient is computed from: exponentials are relative to the first, and their
sum has the second as its logarithm. One number for both would round each probability, by 4e-6 where
it is 64."""

# ------------------------------------------------------------------ results


def _result_dtype(x: Tensor) -> torch.dtype:
    """Return the type of numbers: f32 for narrower types, else x's own."""
    return torch.float32 if x.is_floating_point() and x.itemsize < 4 else x.dtype


def kept(x: Tensor, dim: int) -> tuple[int, ...]:
    """Return the shape of one number a row, which has one element along the axis."""
    return (*x.shape[:dim], 1, *x.shape[dim + 1 :])


def _empty(op: Op, x: Tensor, dim: int, ids: Tensor | None, also: str) -> list[Tensor]:
    """Return memory for the results, which is dense."""
    shape, dtype = kept(x, dim), _result_dtype(x)
    return [
        torch.empty(
            ids.shape if ids is not None and result.extent is Extent.IDS else shape,
            dtype=ids.dtype if ids is not None and result.are_columns else dtype,
            device=x.device,
        )
        for result in results_of(op, also)
    ]


def _framework(
    op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None, also: str
) -> list[Tensor]:
    """Compute by PyTorch's own functions, for which we have no kernel."""
    x = scaled(x.to(_result_dtype(x)), scale)
    if ids is None and not also:  # also for an axis without elements, and complex numbers
        return [torch.logsumexp(x, dim, keepdim=True)]
    return numbers(torch, x, dim, ids, (result.name for result in results_of(op, also)))


# ------------------------------------------------------------------ kernels


@skips_dynamo
def served(
    op: Op,
    x: Tensor,
    dim: int,
    scale: float | None,
    ids: Tensor | None,
    also: str,
    out: Tensor | None = None,
) -> list[Tensor] | None:
    """Return what our kernel computes, the first in `out`; None if PyTorch must compute it.

    `dim` is counted from the first axis, and all have all axes of x. Rows along the last axis that
    do not lie one stride apart are not copied: others between them are read as well, or there is
    a launch for each index of the first axis.
    """
    spread = _spread(x, dim)
    if spread is not None:
        if goes_in_turn(spread, tuple(x.shape), x.itemsize):
            results = in_turn(
                lambda rows, own: served(op, rows, dim - 1, scale, own, also), torch.stack, x, ids
            )
        else:
            results = _served_between(spread, op, x, scale, ids, also)
        if results is not None and out is not None:
            results[0] = out.copy_(results[0])
        return results
    if ids is not None and not ids.is_contiguous() and matrix(ids, dim) is None:
        ids = ids.contiguous()
    made = _empty(op, x, dim, ids, also)
    made[0] = made[0] if out is None else out
    recipe = recipe_for(op, x, dim, scale, made[0], ids, also)
    if recipe is None:
        return None
    beside = None
    if also or ids is not None:
        beside = by_name(op, also, made)
        del beside["output"]
    if beside is not None and ids is not None:
        beside["ids"] = ids
    return None if recipe.serve(x, made[0], scale, beside=beside) is None else made


def _spread(x: Tensor, dim: int) -> Spread | None:
    """Return how rows along the last axis lie among others; None if they lie one stride apart.

    None also for a tensor that must be copied.
    """
    if not 1 < dim == x.dim() - 1 or x.is_contiguous() or matrix(x, dim) is not None:
        return None
    return spread_of(tuple(x.shape), x.stride())


def _served_between(
    spread: Spread, op: Op, x: Tensor, scale: float | None, ids: Tensor | None, also: str
) -> list[Tensor] | None:
    """Return what our kernel computes of rows that lie among others."""
    rows = x.as_strided((spread.rows, x.shape[-1]), (spread.stride, 1))
    if ids is not None:
        ids = _between(spread, ids)
    results = served(op, rows, 1, scale, ids, also)
    if results is None:
        return None
    leading = x.shape[:-1]
    return [
        result.as_strided((*leading, result.shape[1]), spread.strides(result.shape[1]))
        for result in results
    ]


def _between(spread: Spread, ids: Tensor) -> Tensor:
    """Return ids for all rows in memory; those of other rows may be any.

    They are not copied if they lie as x's rows do, as ids[:, 1:] beside logits[:, :-1].
    """
    shape, count = (spread.rows, ids.shape[-1]), ids.shape[-1]
    own = spread_of(tuple(ids.shape), ids.stride())
    if own is not None and (own.rows, own.steps) == (spread.rows, spread.steps):
        return ids.as_strided(shape, (own.stride, 1))
    copied = ids.new_zeros(shape)
    copied.as_strided(ids.shape, spread.strides(count)).copy_(ids)
    return copied


@skips_dynamo
def _compute(
    op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None, also: str
) -> list[Tensor]:
    """Compute an operator on plain tensors; the results are dense."""
    results = served(op, x, dim, scale, ids, also)
    if results is None:
        results = _framework(op, x, dim, scale, ids, also)
    return [result.contiguous() for result in results]


# ------------------------------------------------------------------ gradients


class _Numbers(torch.autograd.Function):  # type: ignore[misc]
    """The results of an operator with their gradient."""

    @staticmethod
    def forward(
        ctx: Any, op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None, also: str
    ) -> tuple[Tensor, ...]:
        every = ",".join(filter(None, (also, *_PAIR)))
        results = _without_gradient(op, x, dim, scale, ids, every)
        made = by_name(op, every, results)
        ctx.told = op, dim, scale, also
        ctx.save_for_backward(x, ids, *(made[name] for name in _PAIR), made.get("entropy"))
        ctx.set_materialize_grads(False)
        wanted = results_of(op, also)
        constant = (r.name for r in wanted if r.are_columns or r.name in _PAIR)
        ctx.mark_non_differentiable(*(made[name] for name in constant))
        return tuple(made[result.name] for result in wanted)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradient of x, by PyTorch's operators, which `torch.compile` fuses.

        Where gradients of it are asked for, PyTorch differentiates its own functions.
        """
        op, dim, scale, also = ctx.told
        x, ids, *saved = ctx.saved_tensors
        given = {n: grad for n, grad in by_name(op, also, grads).items() if grad is not None}
        compute = _gradient_of_framework if torch.is_grad_enabled() else _gradient
        result = compute(op, given, x, dim, scale, ids, *saved) if given else None
        return None, result, None, None, None, None


def _gradient_of_framework(
    op: Op,
    grads: dict[str, Tensor],
    x: Tensor,
    dim: int,
    scale: float | None,
    ids: Tensor | None,
    *_: Any,
) -> Tensor:
    """Return the gradient of x as a function of x and the gradients of the results."""
    also = ",".join(grads)
    results = _framework(op, x, dim, scale, ids, also)
    made = by_name(op, also, results)
    (result,) = torch.autograd.grad(
        [made[name] for name in grads], x, list(grads.values()), create_graph=True
    )
    return result


def _gradient(
    op: Op,
    grads: dict[str, Tensor],
    x: Tensor,
    dim: int,
    scale: float | None,
    ids: Tensor | None,
    maximum: Tensor,
    log_sum: Tensor,
    entropy: Tensor | None,
) -> Tensor:
    """Return the gradient of x: each row's probabilities times a number, and more at its ids.

    The number differs among elements by the gradient of the entropy alone. It has the sum by which
    exponentials are divided, and the scale.
    """
    gaps = scaled(x if scale is None else x.to(maximum.dtype), scale) - maximum
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


# ------------------------------------------------------------------ operators


_library = torch.library.Library("explorer", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_HAS_VMAP = hasattr(torch.library, "register_vmap")  # PyTorch 2.4 has not


def _are_bare(x: Tensor, ids: Tensor | None) -> bool:
    return is_bare(x) and (ids is None or is_memory(ids))


def _without_gradient(
    op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None, also: str
) -> list[Tensor]:
    """Compute an operator, without the dispatcher if possible."""
    if _are_bare(x, ids):
        return _compute(op, x, dim, scale, ids, also)
    results: list[Tensor] = below_autograd(_operators[op], x, dim, scale, ids, also)
    return results


@skips_dynamo
def _differentiate(
    op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None, also: str
) -> list[Tensor]:
    """Compute an operator with its gradient, if one is needed."""
    if needs_own_formulas(x):  # compiled code calls this without that check
        return _framework(op, x, dim, scale, ids, also)
    if not needs_gradient(x):
        return _without_gradient(op, x, dim, scale, ids, also)
    if x.is_complex() or not x.numel():  # which have no maximum
        return _framework(op, x, dim, scale, ids, also)
    return list(_Numbers.apply(op, x, dim, scale, ids, also))


def _batched(
    op: Op,
    size: int,
    axes: tuple[int | None, ...],
    x: Tensor,
    dim: int,
    scale: float | None,
    ids: Tensor | None,
    also: str,
) -> tuple[list[Tensor], list[int]]:
    """Compute under `vmap`: the batched axis becomes the first one of both."""

    def first(tensor: Tensor, axis: int | None) -> Tensor:
        if axis is not None:
            return tensor.movedim(axis, 0)
        return tensor.expand(size, *tensor.shape)

    ids = None if ids is None else first(ids, axes[3])
    results = _operators[op](first(x, axes[0]), dim + 1, scale, ids, also)
    return results, [0] * len(results)


def _registered(op: Op) -> Any:
    """Register an operator, and return it."""

    def compute(
        x: Tensor, dim: int, scale: float | None, ids: Tensor | None = None, also: str = ""
    ) -> list[Tensor]:
        return _compute(op, x, dim, scale, ids, also)

    def differentiate(
        x: Tensor, dim: int, scale: float | None, ids: Tensor | None = None, also: str = ""
    ) -> list[Tensor]:
        return _differentiate(op, x, dim, scale, ids, also)

    def shapes(
        x: Tensor, dim: int, scale: float | None, ids: Tensor | None = None, also: str = ""
    ) -> list[Tensor]:
        return _empty(op, x, dim, ids, also)

    def batched(info: Any, axes: Any, x: Tensor, *told: Any) -> tuple[list[Tensor], list[int]]:
        given = (*told, *(None, "")[len(told) - 2 :])
        return _batched(op, info.batch_size, (*axes, None), x, *given)

    name = f"explorer::{op}"
    _library.define(
        f"{op}(Tensor x, int dim, float? scale, Tensor? ids=None, str also='') -> Tensor[]",
        tags=_TAGS,
    )
    _library.impl(str(op), skips_dynamo(compute), "CompositeExplicitAutograd")
    _library.impl(str(op), skips_dynamo(differentiate), "Autograd")
    torch.library.register_fake(name, shapes, lib=_library)
    if _HAS_VMAP:
        torch.library.register_vmap(name, batched, lib=_library)
    return getattr(torch.ops.explorer, str(op)).default


_operators = {op: _registered(op) for op in (Op.LOGSUMEXP, Op.LOG_PROB)}

# ------------------------------------------------------------------ functions


def _of_rows(
    op: Op, x: Tensor, dim: int, scale: float | None, ids: Tensor | None = None, also: str = ""
) -> list[Tensor]:
    """Compute a call on a tensor of at least one axis; the results keep the axis."""
    if torch.compiler.is_compiling():
        return list(_operators[op](x, dim, scale, ids, also))
    if x.is_nested or needs_own_formulas(x, has_vmap=_HAS_VMAP):
        return _framework(op, x, dim, scale, ids, also)
    if _are_bare(x, ids):
        return _differentiate(op, x, dim, scale, ids, also)
    return list(_operators[op](x, dim, scale, ids, also))


def _check_x(x: Tensor) -> None:
    """Raise InvalidInput for a tensor of whole numbers, and for a sparse one."""
    if not (x.is_floating_point() or x.is_complex()):
        raise InvalidInput(
            f"x is of {x.dtype}; it must be of floating-point numbers: give x.float(), say"
        )
    check_dense(x=x)


def _plain(dim: int, scale: float) -> tuple[int, float | None]:
    """Return a call's axis and scale, None for 1. Raises TypeError and InvalidInput."""
    if scale is None:
        raise no_number(scale)
    factor: float | None = scale
    is_plain = torch.compiler.is_compiling() or scale.__class__ is float
    if dim.__class__ is not int or not is_plain:
        dim, factor, _ = plain_arguments(dim, scale, None)
    return dim, None if factor == 1 else factor


def _check_out(x: Tensor, shape: tuple[int, ...], out: Any) -> None:
    """Raise TypeError and InvalidInput for an output that does not fit a call."""
    if not isinstance(out, Tensor):
        raise no_tensor("out", out)
    check_dense(out=out)
    check_out(x, x.dtype if out.dtype is x.dtype else _result_dtype(x), out, shape)
    if needs_gradient(x):
        raise InvalidInput("out is given, and a gradient is asked for: give one of them up")


@skips_dynamo
def _written(x: Tensor, dim: int, scale: float | None, out: Tensor) -> bool:
    """Write our kernel's result to `out`; return whether one could."""
    if not is_bare(x) or not is_memory(out):
        return False
    return served(Op.LOGSUMEXP, x, dim, scale, None, "", out) is not None


def logsumexp_of(x: Tensor, dim: int, keepdim: bool, scale: float, out: Tensor | None) -> Tensor:
    """Compute the log-sum-exp of a tensor, as `explorer.logsumexp` documents it."""
    dim, factor = _plain(dim, scale)
    _check_x(x)
    axis = positive(dim, x.dim())
    rows = x if x.dim() else x.reshape(1)
    drops = not (keepdim and x.dim())
    if out is None:
        (result,) = _of_rows(Op.LOGSUMEXP, rows, axis, factor)
        return result.squeeze(axis) if drops else result
    shape = kept(rows, axis)
    _check_out(x, (*shape[:axis], *shape[axis + 1 :]) if drops else shape, out)
    target = out.unsqueeze(axis) if drops else out
    if torch.compiler.is_compiling() or not _written(rows, axis, factor, target):
        (result,) = _of_rows(Op.LOGSUMEXP, rows, axis, factor)
        target.copy_(result)
    return out


def log_prob_of(
    x: Tensor, index: Tensor, scale: float, also: tuple[str, ...], check: bool
) -> list[Tensor]:
    """Compute log-probabilities, and the results beside them, as `explorer.log_prob` says it."""
    _, factor = _plain(-1, scale)
    if not isinstance(index, Tensor):
        raise no_tensor("index", index)
    _check_x(x)
    check_dense(index=index)
    if x.is_complex():
        raise InvalidInput(f"x is of {x.dtype}; it must be of real numbers")
    for name, tensor in (("x", x), ("index", index)):
        if tensor.is_nested:
            raise InvalidInput(f"{name} is a nested tensor; it must be dense")
    if index.device != x.device:
        raise InvalidInput(f"index is on {index.device}; it must be on x's device, {x.device}")
    check_index(tuple(x.shape), Described(tuple(index.shape), dtype_name(index)))
    if check:
        if not torch.compiler.is_compiling() and _is_batched(index):
            raise InvalidInput(
                "check is True under torch.func.vmap; it needs the values of ids, which are not "
                "known there: leave it out"
            )
        _check_columns(index, x.shape[-1])
    drops = index.dim() < x.dim()
    ids = index.unsqueeze(-1) if drops else index
    first, *others = _of_rows(Op.LOG_PROB, x, x.dim() - 1, factor, ids, ",".join(also))
    return [first.squeeze(-1) if drops else first, *(other.squeeze(-1) for other in others)]


def _is_batched(tensor: Tensor) -> bool:
    """Return whether `torch.func.vmap` stands for one of several tensors by this one."""
    functions = torch._C._functorch
    while functions.is_functorch_wrapped_tensor(tensor):
        if functions.is_batchedtensor(tensor):
            return True
        tensor = functions.get_unwrapped(tensor)
    return False


def _check_columns(index: Tensor, cols: int) -> None:
    """Raise InvalidInput that names the first id that is no column; wait for the GPU for that."""
    places = outside(index, cols).nonzero()
    if len(places):
        place = tuple(places[0].tolist())
        raise bad_id(int(index[place].item()), place, cols)
