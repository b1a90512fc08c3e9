"""`explorer.softmax`, `log_softmax`, `logsumexp` and `log_prob`, for PyTorch, CuPy and JAX."""

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from explorer.model.errors import ExplorerError
from explorer.runtime.layout import check_switch
from explorer.system.plain_data import kind_of

if TYPE_CHECKING:
    from explorer.runtime.torch_override import Registration


def softmax(
    x: Any,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: Any = None,
    lengths: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Return the softmax of an array over one axis, as an array of the same kind and shape.

    x        A tensor of PyTorch, or an array of CuPy or JAX, of any number of axes, with elements
             of 16, 32 or 64 bits, on a CUDA GPU. It may have strides, be empty, or have no axis.
    dim      The axis; a negative one counts from the last.
    scale    The factor that x is multiplied with first: 1 / temperature.
    mask     "causal": in the last two axes, (rows, cols), row r includes the columns up to
             r + cols - rows. Or an array that is added to x * scale, with -inf at elements that are
             excluded; its axes are the last ones of x, as in broadcasting. It is rounded to the
             type of the result before it is added.
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
        return _traced(False, x, dim, scale, mask, lengths, dtype, out)
    function = compiled
    if function is None:
        function = function_for(x)
    return function(False, x, dim, scale, mask, lengths, dtype, out)


def log_softmax(
    x: Any,
    dim: int = -1,
    *,
    scale: float | None = None,
    mask: Any = None,
    lengths: Any = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    """Return the logarithm of the softmax of an array; the arguments are those of `softmax`."""
    if _is_traced():
        return _traced(True, x, dim, scale, mask, lengths, dtype, out)
    function = compiled
    if function is None:
        function = function_for(x)
    return function(True, x, dim, scale, mask, lengths, dtype, out)


def logsumexp(
    x: Any, dim: int = -1, *, keepdim: bool = False, scale: float = 1, out: Any = None
) -> Any:
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
    return function_for(x, "logsumexp_of")(x, dim, keepdim, scale, out)


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
        torch_fast_calls,  # noqa: F401  it follows the option from its import on
        torch_operators,
    )

    _is_traced, _traced = torch_operators.is_compiled, torch_operators.traced
    return torch_operators.FUNCTIONS


_tensors: Any = _for_tensors()
"""The functions for tensors of PyTorch, once that is imported. They are set before `torch.compile`
traces a call, which would otherwise be traced twice."""


def register_torch() -> "Registration":
    """Replace PyTorch's softmax, log_softmax, their gradients and logsumexp on CUDA by our kernels.

    `torch.softmax`, `torch.log_softmax`, `torch.logsumexp` over one axis, the methods of tensors,
    `torch.nn.functional` and modules then launch our kernels. PyTorch's own operators still compute
    a call for which no kernel exists or is compiled yet. They also compute gradients of less than
    1 MiB, whose time is the host's, and tensors of less than 1 MiB if no function in C serves
    calls, because Python takes some 3 us to decide. Our kernels compute both if a row has 131072
    elements or more. They compute a logsumexp of any size; its result has x's type, as PyTorch's
    has, and PyTorch computes its gradient. A softmax or logsumexp in code that `torch.compile`
    compiles is not changed. Returns a handle whose `remove()` undoes it, and which may be used in a
    `with` statement; a second call returns the same handle. Raises ExplorerError without PyTorch
    2.9 or later.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExplorerError(
            "register_torch needs PyTorch; install it: pip install 'softmax-explorer[torch]'"
        )
    from explorer.runtime.torch_override import registration

    return registration()


def function_for(x: Any, name: str = "softmax_of") -> Any:
    """Return the function of a name for arrays of x's library; TypeError for an unknown one.

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
        f"x is {kind_of(x)}; it must be a tensor of PyTorch, "
        "or an array of CuPy or JAX, such as torch.as_tensor(x) makes"
    )
