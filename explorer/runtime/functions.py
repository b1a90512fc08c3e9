"""`explorer.softmax`, `log_softmax`, `logsumexp` and `log_prob`, for PyTorch, CuPy and JAX."""

import importlib.util
import math
import sys
from collections.abc import Callable
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from explorer.model.errors import ExplorerError, InvalidInput
from explorer.model.problem import LEAST_SOFTCAP, MOST_SOFTCAP, MOST_Z_LOSS
from explorer.runtime.layout import BAD_TARGETS, GRADIENTS, REDUCTIONS, LossKeywords, check_switch
from explorer.system.plain_data import kind_of, shown, whole_of

if TYPE_CHECKING:
    from explorer.runtime.torch_override import Registration


Array = TypeVar("Array")
"""The type of an array, which the result has as well; the functions that compute it are untyped."""


def softmax(
    x: Array,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: Any = None,
    lengths: Any = None,
    dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Return the softmax of an array over one axis, as an array of the same kind and shape.

    x        A tensor of PyTorch, or an array of CuPy or JAX, of any number of axes, with elements
             of 16, 32 or 64 bits, on a CUDA GPU. It may have strides, be empty, or have no axis.
    dim      The axis; a negative one counts from the last.
    scale    The factor that x is multiplied with first: 1 / temperature.
    mask     "causal": in the last two axes, (rows, cols), row r includes the columns up to
             r + cols - rows. Or an array that is added to x * scale, with -inf at elements that are
             excluded; its axes are the last ones of x, as in broadcasting. It is rounded to the
             type of the result before it is added. Or an array of bool, True at elements that are
             included, as PyTorch's attention takes one.
    lengths  For each row, the number of elements from its start that are included: integers, of a
             shape that broadcasts to x.shape[:-1].
    dtype    The type of the result, such as torch.float16; x is converted to it before anything is
             computed.
    out      An array for the result, which may be x itself; it is returned.

    The result is computed by the kernel that is chosen for the problem. If there is none (another
    device, another type, a kernel that is still being compiled), the framework's own functions
    compute it; the logger `explorer` reports the reason once at level DEBUG. Kernels are launched
    on x's GPU, on its current stream. For arrays of JAX they are launched on the default stream,
    and the call waits for them. A tensor of PyTorch has its gradient, and may be traced by
    `torch.compile` and `torch.export`.

    Raises TypeError for another kind of array or of argument and under `jax.jit`, IndexError for an
    axis that x does not have, and `explorer.InvalidInput` for arguments that contradict each other,
    for a type of whole numbers, and for a sparse tensor.
    """
    if _is_traced():
        return _traced(False, x, dim, scale, mask, lengths, dtype, out)  # type: ignore[no-any-return]
    function = compiled
    if function is None:
        function = function_for(x)
    return function(False, x, dim, scale, mask, lengths, dtype, out)  # type: ignore[no-any-return]


def log_softmax(
    x: Array,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: Any = None,
    lengths: Any = None,
    dtype: Any = None,
    out: Array | None = None,
) -> Array:
    """Return the logarithm of the softmax of an array; the arguments are those of `softmax`."""
    if _is_traced():
        return _traced(True, x, dim, scale, mask, lengths, dtype, out)  # type: ignore[no-any-return]
    function = compiled
    if function is None:
        function = function_for(x)
    return function(True, x, dim, scale, mask, lengths, dtype, out)  # type: ignore[no-any-return]


def logsumexp(
    x: Array, dim: int = -1, *, keepdim: bool = False, scale: float = 1, out: Array | None = None
) -> Array:
    """Return log(sum(exp(x * scale))) over one axis of an array, as an array of the same kind.

    x        A tensor of PyTorch, or an array of CuPy or JAX, as `softmax` takes it. Rows with gaps
             between them, such as those of logits[:, :-1], are read where they lie.
    dim      The axis; a negative one counts from the last.
    keepdim  Whether the result has the axis still, with one element. Otherwise the result has the
             shape of x without it.
    scale    The factor that x is multiplied with first, in f32 for 16-bit types.
    out      An array for the result, of its shape; it is returned.

    The result is of f32 for types of 16 bits too, and else of x's type; `out` may also be of x's
    own 16-bit type. A row of -inf alone has -inf, one with a NaN has NaN, and another one with +inf
    has +inf. An axis without elements gives -inf. Kernels and the framework's functions serve calls
    as for `softmax`, and `torch.compile`, `torch.export` and `torch.func.vmap` may trace them.

    The gradient of x is computed by PyTorch from x and two numbers a row, the maximum and the
    logarithm of the sum of the exponentials relative to it, so that the rounding of the result is
    no error of the gradient. It has gradients itself. In a row whose result is infinite, it has
    NaN, as PyTorch's.

    Raises TypeError for another kind of array or of argument and under `jax.jit`, IndexError for an
    axis that x does not have, and `explorer.InvalidInput` for an output of another shape, type or
    device, for one where a gradient is asked for, for whole numbers, and for a sparse tensor.
    """
    check_switch("keepdim", keepdim)
    return function_for(x, "logsumexp_of")(x, dim, keepdim, scale, out)  # type: ignore[no-any-return]


class LogProbs(NamedTuple):
    """What `log_prob` returns; None for what was not asked for."""

    log_prob: Any
    lse: Any = None
    entropy: Any = None
    rank: Any = None
    argmax: Any = None


def log_prob(
    x: Any,
    index: Any,
    *,
    scale: float = 1,
    lse: bool = False,
    entropy: bool = False,
    rank: bool = False,
    argmax: bool = False,
    check: bool = False,
) -> LogProbs:
    """Return the log-softmax of an array over its last axis, at given elements alone.

    x        A tensor of PyTorch, or an array of CuPy or JAX, such as logits: (..., V), of types of
             16, 32 or 64 bits. Its rows are read once. Slices such as logits[:, :-1] are read where
             they lie.
    index    Columns of each row, of int32 or int64 and on x's device: of shape (...) for one id a
             row, or (..., K) for several.
    scale    The factor that x is multiplied with first, in f32 for 16-bit types: 1 / temperature.
    lse      Whether to return log(sum(exp(x * scale))) of each row, too.
    entropy  Whether to return the entropy of each row's softmax, in nats.
    rank     Whether to return how many elements of the row are greater than that of the first id.
    argmax   Whether to return the first column of the greatest element of each row.
    check    Whether to raise InvalidInput for an id that is no column, from 0 to V - 1. The call
             then waits for the GPU, so it can neither be captured nor compiled as one graph.

    The log-probabilities have the shape of `index`, the others that of x without its last axis.
    Numbers are of f32 for types of 16 bits too, and else of x's type; `rank` and `argmax` are of
    the type of `index`. Everything is computed of x * scale, where -inf stays -inf.

    An id that is no column gives NaN, and the rank -1. A row with a NaN gives NaN for all numbers,
    but rank and argmax pass over NaN: the rank of a NaN is -1, and the argmax of a row of nothing
    else. A row of -inf alone has the log-sum-exp -inf, and NaN as log-probabilities and entropy. A
    row with +inf has the log-sum-exp +inf, the entropy NaN, and the log-probabilities -inf, or NaN
    at +inf.

    Kernels and the framework's functions serve calls as for `softmax`. The gradient of x has those
    of log-probabilities, `lse` and `entropy`; an id that is no column adds nothing to it. PyTorch
    computes it from x and two numbers a row, the maximum and the logarithm of the sum of the
    exponentials relative to it, and can differentiate it once more. `torch.compile`,
    `torch.export` and `torch.func.vmap` may trace a call.

    Raises TypeError for another kind of array or of argument and under `jax.jit`, and
    `explorer.InvalidInput` for an index of another shape, type or device, for an x that has no
    columns or whole numbers, and for a sparse tensor.
    """
    asked = {"lse": lse, "entropy": entropy, "rank": rank, "argmax": argmax}
    for name, value in (*asked.items(), ("check", check)):
        check_switch(name, value)
    also = tuple(name for name, value in asked.items() if value)
    first, *others = function_for(x, "log_prob_of")(x, index, scale, also, check)
    return LogProbs(first, **dict(zip(also, others, strict=True)))


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    scale: float = 1,
    dim: int | None = None,
    gradient: str = "later",
    loss_dtype: Any = None,
    all_ignored: str = "nan",
    bad_target: str = "nan",
    return_lse: bool = False,
    return_z_loss: bool = False,
    out: Any = None,
) -> Any:
    """Return the cross-entropy of class indices: log(sum(exp(x))) less the target's element.

    x                A tensor of PyTorch, or an array of CuPy or JAX, such as logits, of types of
                     16, 32 or 64 bits.
    target           The class of each row, of int32 or int64, of the shape of x without the axis of
                     classes, and on x's device. It may have strides.
    weight           A number for each class, by which the losses of its rows are multiplied. With
                     label smoothing the library's own functions compute the losses.
    ignore_index     The target of rows that do not count: their loss and their gradient are 0, also
                     where the row holds NaN.
    reduction        "mean" over the rows that count, or over their weights, "sum", or "none" for a
                     loss of each row.
    label_smoothing  The part of each target, from 0 to 1, that is spread evenly over all classes.
    z_loss           The factor of each row's squared log-sum-exp, from 0 to 0.5, which is added to
                     its loss.
    softcap          Logits count as softcap * tanh(scale * x / softcap), also an infinity, whose
                     gradient is 0. It is from 1e-6 to 1e6, or None; a kernel is compiled for each.
    scale            The factor that x is multiplied with first, in f32 for 16-bit types.
    dim              The axis of classes; None is 1 as in PyTorch, or 0 where x has one axis alone.
                     An x whose axes lie in another order in memory is copied unless it is the
                     last one, or the last one in memory.
    gradient         "later": the backward pass returns a new tensor. "with_loss": the gradient is
                     formed together with the loss, in one read and one write of x instead of two
                     reads and a write; the backward pass multiplies it by the gradient of the loss,
                     which takes one more read and write unless that is 1, and a second backward
                     raises. f16 holds no small gradients of a mean, which a scaler of losses comes
                     too late for. Where no kernel does so, as in traced code, it is "later".
                     "in_place": the backward pass writes the gradient over x, so that no second
                     matrix is needed. x must be a tensor that was computed, no leaf and no view,
                     whose axes lie in their order; what else needs its elements for a gradient
                     raises, and so does a second backward.
    loss_dtype       The type of the loss; None is f32 for types of 16 bits too, and else x's type.
    all_ignored      "nan" or "zero": the mean over no row.
    bad_target       What a target does that is neither a class nor ignored. "nan": its loss is NaN
                     and its gradient 0; nothing is read for it. "raise": the call raises
                     InvalidInput, which names it, and waits for the GPU for that. While a CUDA
                     graph is captured, and in code that `torch.compile` compiles, nothing waits: a
                     failed assertion on the GPU then ends the process's use of it, as PyTorch's.
    return_lse       Whether each row's log-sum-exp is returned besides. It has no gradient.
    return_z_loss    Whether the part of the loss that `z_loss` adds is returned besides, which has
                     no gradient of its own.
    out              An array for the loss, of its shape and type; it is returned. Then there is no
                     gradient.

    Each row is read once. The target's exponential is added apart from the others, so that a loss
    near 0 has all of its digits, and so has the target's gradient. Sums of losses are in f64.

    A tensor has its gradient, which a kernel computes from x and two numbers of each row that are
    kept, in one read and one write. PyTorch can differentiate it once more. Nothing waits for the
    GPU unless `bad_target` asks for it, so that a CUDA graph can capture all of it.
    `torch.compile` may trace a call.

    Raises TypeError for another kind of array or of argument, and `explorer.InvalidInput` for a
    target or an output of another shape, type or device, for an output where a gradient is asked
    for, for class probabilities, and for `weight` with `z_loss`, of which it is not agreed upon
    whether the squares have weights.
    """
    told = _told(
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
        scale=scale,
        dim=dim,
        gradient=gradient,
        loss_dtype=loss_dtype,
        all_ignored=all_ignored,
        bad_target=bad_target,
        return_lse=return_lse,
        return_z_loss=return_z_loss,
    )
    return function_for(x, "cross_entropy_of")(x, target, weight, told, out)


class RowLosses(NamedTuple):
    """The losses of rows, and what their gradient needs of each: `cross_entropy_forward`."""

    loss: Any
    maximum: Any
    log_sum: Any
    """The logarithm of the sum of exponentials that are relative to the maximum."""


def cross_entropy_forward(
    x: Any,
    target: Any,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    scale: float = 1,
    dim: int | None = None,
) -> RowLosses:
    """Return the loss of each row, and what `cross_entropy_backward` takes.

    They are for one's own autograd. Arguments are those of `cross_entropy`; tensors get no gradient
    by themselves. A row's log-sum-exp is the sum of its maximum and log_sum.
    """
    told = _told(ignore_index=ignore_index, softcap=softcap, scale=scale, dim=dim)
    return RowLosses(*function_for(x, "cross_entropy_forward_of")(x, target, told))


def cross_entropy_backward(
    x: Any,
    target: Any,
    maximum: Any,
    log_sum: Any,
    loss_grad: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
    scale: float = 1,
    dim: int | None = None,
    out: Any = None,
) -> Any:
    """Return the gradient of x, of its type, from what `cross_entropy_forward` has returned.

    loss_grad  The gradient of each row's loss, of target's shape: for a mean, 1 over the number of
               rows that count. With label smoothing or `z_loss` it is that of the whole loss.
    out        An array for the result, of x's shape and type. It may be x itself, whose elements
               are then lost. Both must be dense, or have their classes along the last axis.

    Other arguments are those of `cross_entropy`.
    """
    told = _told(
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        softcap=softcap,
        scale=scale,
        dim=dim,
    )
    kept = {"maximum": maximum, "log_sum": log_sum}
    function = function_for(x, "cross_entropy_backward_of")
    return function(x, target, kept, loss_grad, told, out)


def causal_lm_loss(
    logits: Any,
    labels: Any,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = -100,
    shift_labels: Any = None,
    *,
    gradient: str = "later",
    **_: Any,
) -> Any:
    """Return the loss of each next token, as models of `transformers` call their loss function.

    `model.loss_function = explorer.causal_lm_loss` puts it there. `logits`, of shape (..., length,
    vocab_size), are read as they are, and never converted to f32. `labels`, of shape (..., length),
    are the tokens themselves, and `shift_labels` those that each position predicts. The loss is the
    mean, or the sum over `num_items_in_batch`. `gradient` is that of `cross_entropy`.

    Raises `explorer.InvalidInput` for labels of another number or length, and for a `vocab_size`
    that is not the number of columns of `logits`.
    """
    _check_labels(tuple(logits.shape), vocab_size, labels, shift_labels)
    if shift_labels is None:
        shift_labels = labels.new_full(labels.shape, ignore_index)
        shift_labels[..., :-1] = labels[..., 1:]
    shape = logits.shape[:-1]
    loss = cross_entropy(
        logits,
        shift_labels.to(logits.device).reshape(shape),
        ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum",
        dim=-1,
        gradient=gradient,
    )
    if hasattr(num_items_in_batch, "to"):  # a tensor, perhaps of another GPU
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


def _check_labels(shape: tuple[int, ...], vocab_size: int, labels: Any, shift_labels: Any) -> None:
    """Raise InvalidInput for labels, or a size of the vocabulary, that do not fit the logits."""
    if len(shape) < 2:
        raise InvalidInput(f"logits is of shape {shape}; it must be (..., length, vocab_size)")
    if vocab_size != shape[-1]:
        raise InvalidInput(
            f"vocab_size is {vocab_size}, and logits has {shape[-1]} columns; they must be equal"
        )
    is_shifted = shift_labels is not None
    name, given = ("shift_labels", shift_labels) if is_shifted else ("labels", labels)
    own = tuple(given.shape)
    fits = math.prod(own) == math.prod(shape[:-1])
    if not fits or not (is_shifted or own[-1:] == shape[-2:-1]):
        raise InvalidInput(
            f"{name} is of shape {own}; for logits of shape {shape} it must be of {shape[:-1]}"
        )


def _told(**given: Any) -> LossKeywords:
    """Return keywords of a loss, checked. Raises TypeError and InvalidInput."""
    told = LossKeywords(**given)
    words = {
        "reduction": REDUCTIONS,
        "all_ignored": ("nan", "zero"),
        "bad_target": BAD_TARGETS,
        "gradient": GRADIENTS,
    }
    for name, among in words.items():
        value = getattr(told, name)
        if value not in among:
            raise InvalidInput(f"{name} is {shown(value)}; it must be one of {', '.join(among)}")
    index = whole_of(told.ignore_index)
    if index is None:
        raise TypeError(
            f"ignore_index is {shown(told.ignore_index)}; it must be a whole number, such as -100"
        )
    for name in ("return_lse", "return_z_loss"):
        check_switch(name, getattr(told, name))
    return told._replace(
        ignore_index=index,
        label_smoothing=_part("label_smoothing", told.label_smoothing, 1.0),
        z_loss=_part("z_loss", told.z_loss, MOST_Z_LOSS),
        softcap=_cap(told.softcap),
    )


def _part(name: str, value: Any, most: float) -> float:
    """Return a number from 0 to `most`. Raises TypeError and InvalidInput for anything else."""
    if not _is_real(value):
        raise TypeError(f"{name} is {shown(value)}; it must be a number from 0 to {most}")
    number = float(value)
    if not 0 <= number <= most:
        raise InvalidInput(f"{name} is {shown(value)}; it must be from 0 to {most}")
    return number


def _cap(value: Any) -> float | None:
    """Return a cap of logits, None for none. Raises TypeError and InvalidInput."""
    if value is None:
        return None
    if not _is_real(value):
        raise TypeError(f"softcap is {shown(value)}; it must be a number, or None for no cap")
    number = float(value)
    if not LEAST_SOFTCAP <= number <= MOST_SOFTCAP:
        limits = f"from {LEAST_SOFTCAP} to {MOST_SOFTCAP:g}"
        raise InvalidInput(f"softcap is {shown(value)}; it must be {limits}, or None for no cap")
    return number


def _is_real(value: Any) -> bool:
    """Return whether a value is a real number, and no bool, which Python counts among them."""
    return isinstance(value, Real) and not isinstance(value, bool)


def uncompiled(log: bool, x: Any, *arguments: Any) -> Any:
    """Serve a call by Python: `softmax` or `log_softmax` without its compiled function."""
    return function_for(x)(log, x, *arguments)


compiled: Any = None
"""The compiled function that serves calls or passes them to Python; None without it."""


def _never() -> bool:
    return False


_is_traced: Callable[[], bool] = _never
"""PyTorch's own function, once it is imported, that returns whether `torch.compile` traces this
call. It is called first, because traced code must not depend on `compiled`, and each compiled call
checks every name again that was read while tracing."""
_traced: Any = None
"""The function that `torch.compile` then traces."""


def _for_tensors() -> Any:
    """Return the functions for tensors of PyTorch; None if PyTorch is not imported yet."""
    global _is_traced, _traced
    if not hasattr(sys.modules.get("torch"), "Tensor"):
        return None
    from explorer.runtime import (
        torch_attention,
        torch_fast_calls,  # noqa: F401  it follows the option from its import on
        torch_operators,
    )

    _is_traced, _traced = torch_operators.is_compiled, torch_operators.traced
    return torch_attention.FUNCTIONS


_tensors: Any = _for_tensors()
"""The functions for tensors of PyTorch, once that is imported. They are set before `torch.compile`
traces a call, which would otherwise be traced twice."""


def register_torch() -> "Registration":
    """Replace PyTorch's softmax, logsumexp, cross-entropy and more on CUDA by our kernels.

    `torch.softmax`, `torch.log_softmax`, `torch.logsumexp` over one axis, their gradients, the
    methods of tensors, `torch.nn.functional` and modules then launch our kernels. PyTorch's own
    operators still compute a call for which no kernel exists or is compiled yet. They also compute
    gradients of less than 1 MiB, whose time is the host's, and tensors of less than 1 MiB if no
    function in C serves calls, because Python takes some 3 us to decide. Our kernels compute both
    if a row has 131072 elements or more. They compute a logsumexp of any size; its result has x's
    type, as PyTorch's has, and PyTorch computes its gradient. They compute the cross-entropy of
    class indices with its gradient, in code that `torch.compile` compiles too; a softmax or
    logsumexp in such code is not changed. PyTorch computes cross-entropies of class probabilities,
    those with label smoothing and weights, and those under transforms such as `torch.func.grad`. A
    target that is no class has the loss NaN, where PyTorch ends the process by a failed assertion.
    They compute `torch.nn.functional.scaled_dot_product_attention` of one query a head, without
    mask, causal mask, dropout and gradient, in compiled code too, of what `decode_attention` takes.
    Returns a handle whose `remove()` undoes it, which may be used in a `with` statement, and whose
    `served` counts the calls of logsumexp, cross-entropy and attention that were served; a second
    call returns the same handle. Raises ExplorerError without PyTorch 2.9 or later.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExplorerError(
            "register_torch needs PyTorch; install it: pip install '.[torch]' in the checkout"
        )
    from explorer.runtime.torch_override import registration

    return registration()


def function_for(x: Any, name: str = "softmax_of", argument: str = "x") -> Any:
    """Return the function of a name for arrays of x's library; TypeError for an unknown one.

    `argument` is what the caller calls x.
    A framework that is not imported yet has made no array. The imports are statements, because
    `torch.compile` can trace these.
    """
    global _tensors
    if _tensors is None:
        _tensors = _for_tensors()
    if _tensors is not None and isinstance(x, _tensors.kind):
        return getattr(_tensors, name)
    family = type(x).__module__.partition(".")[0]
    if family == "cupy":
        from explorer.runtime import cupy_arrays

        return getattr(cupy_arrays.ARRAYS, name)
    if family in ("jax", "jaxlib"):
        from explorer.runtime import jax_arrays

        return getattr(jax_arrays.ARRAYS, name)
    raise TypeError(
        f"{argument} is {kind_of(x)}; it must be a tensor of PyTorch, "
        f"or an array of CuPy or JAX, such as torch.as_tensor({argument}) makes"
    )
