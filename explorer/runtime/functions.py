"""`explorer.softmax` and `explorer.log_softmax`, for arrays of PyTorch, CuPy and JAX."""

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from explorer.model.errors import ExplorerError

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
    scale    What x is multiplied with first: 1 / temperature.
    mask     "causal": of the last two axes, (rows, cols), row r counts columns up to
             r + cols - rows. Or an array that is added to x * scale, with -inf where an element
             does not count; its axes are the last ones of x, as in broadcasting. It is rounded to
             the type of the result before it is added.
    lengths  Of each row, the number of elements from its start that count: integers, of a shape
             that broadcasts to x.shape[:-1].
    dtype    The type of the result, such as torch.float16; x is converted to it before anything is
             computed.
    out      An array that the result is written to, which may be x itself, and is returned.

    The result comes from the kernel that the heuristic chooses for the problem. Where there is none
    (another device, another type, a kernel that is still being compiled), the framework's own
    functions compute it; the logger `explorer` says why, once for each reason, at level DEBUG.
    Launches are on x's GPU, on its current stream; of JAX's arrays on the default stream, and
    waited for. A tensor of PyTorch has its gradient, and may be traced by `torch.compile` and
    `torch.export`.

    Raises TypeError for another kind of array or of argument and under `jax.jit`, IndexError for an
    axis that x has not, and `explorer.InvalidInput` for arguments that contradict each other, for a
    type of whole numbers, and for a sparse tensor.
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
    """Return the logarithm of the softmax of an array; all else is as with `explorer.softmax`."""
    if _is_traced():
        return _traced(True, x, dim, scale, mask, lengths, dtype, out)
    function = compiled
    if function is None:
        function = function_for(x)
    return function(True, x, dim, scale, mask, lengths, dtype, out)


def uncompiled(log: bool, x: Any, *told: Any) -> Any:
    """Serve a call by Python: `softmax` or `log_softmax` without its compiled function."""
    return function_for(x)(log, x, *told)


compiled: Any = None
"""The compiled function that serves calls, or hands them to Python, where the option says so."""


def _never() -> bool:
    return False


_is_traced: Callable[[], bool] = _never
"""PyTorch's own function, once that is imported: whether `torch.compile` traces this call. It is
asked first: what is traced must not depend on `compiled`, and every name that is read on its way is
checked again by each call of what is compiled."""
_traced: Any = None
"""The function that is then traced."""


def _for_tensors() -> Any:
    """Return the module for tensors of PyTorch; None where that is not imported yet."""
    global _is_traced, _traced
    if not hasattr(sys.modules.get("torch"), "Tensor"):
        return None
    from explorer.runtime import (
        torch_fast_calls,  # noqa: F401  it follows the option from its import on
        torch_operators,
    )

    _is_traced, _traced = torch_operators.is_compiled, torch_operators.traced
    return torch_operators


_tensors: Any = _for_tensors()
"""The module for tensors of PyTorch, once that is imported. It is set before `torch.compile` traces
a call, which otherwise would trace each one twice."""


def register_torch() -> "Registration":
    """Put our kernels behind PyTorch's softmax and log_softmax on CUDA, and behind their gradients.

    `torch.softmax`, `torch.log_softmax`, the methods of tensors, `torch.nn.functional` and modules
    then launch them. PyTorch's own operators still compute what no kernel of ours does or is
    compiled for yet. They also compute gradients of less than 1 MiB, whose time is the host's, and
    tensors of less than 1 MiB if no function in C serves calls: Python takes some 3 us to decide
    so. Our kernels compute both if a row has 131072 elements or more. What `torch.compile` makes of
    a softmax is not changed. Returns a handle whose `remove()` undoes it, and which may be used in
    a `with` statement; a second call returns the same. Raises ExplorerError without PyTorch 2.9 or
    later.
    """
    if importlib.util.find_spec("torch") is None:
        raise ExplorerError(
            "register_torch needs PyTorch; install it: pip install 'softmax-explorer[torch]'"
        )
    from explorer.runtime.torch_override import registration

    return registration()


def function_for(x: Any) -> Any:
    """Return the function that computes for arrays of a kind; raises TypeError for another.

    A framework that is not imported yet has made no array. The imports are statements, which
    `torch.compile` can trace.
    """
    global _tensors
    if _tensors is None:
        _tensors = _for_tensors()
    if _tensors is not None and isinstance(x, _tensors.Tensor):
        return _tensors.softmax_of
    family = type(x).__module__.partition(".")[0]
    if family == "cupy":
        from explorer.runtime import cupy_arrays

        return cupy_arrays.softmax_of
    if family in ("jax", "jaxlib"):
        from explorer.runtime import jax_arrays

        return jax_arrays.softmax_of
    raise TypeError(
        f"x is a {type(x).__module__}.{type(x).__qualname__}; it must be a tensor of PyTorch, "
        "or an array of CuPy or JAX, such as torch.as_tensor(x) makes"
    )
