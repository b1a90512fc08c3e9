"""Our kernels behind PyTorch's own softmax, log_softmax, their gradients, and logsumexp."""

import warnings
from typing import Any

import torch
from torch import Tensor

from explorer.model.errors import ExplorerError
from explorer.ops import BACKWARD, FORWARD, OPERATORS, Op
from explorer.runtime import torch_fast_calls
from explorer.runtime.layout import Call, positive
from explorer.runtime.service import options
from explorer.runtime.torch_calls import TENSORS, backward_served

LEAST_BYTES = 2**20
"""Bytes of the smallest tensor that Python takes over. The GPU computes smaller ones in less time
than the host takes: 19.3 us for our gradient, 13.4 us for PyTorch's, and 3 us to decide which of
them (H100)."""

LONG_ROW = 2**17
"""Elements of the shortest row for which Python takes over smaller tensors, too. PyTorch computes a
row by one block of threads. On an H100, a call for 1 x 131072 f32 takes 33.5 us by PyTorch and
24.9 us by us, and its gradient 31.5 and 20.5 us. With half as many elements, PyTorch's gradient is
faster."""

DISPATCH_KEY = "CUDA"
"""PyTorch's dispatch key of the tensors whose operators are replaced."""


class Registration:
    """The handle of `explorer.register_torch`; `remove` undoes it. A context manager."""

    def __init__(self) -> None:
        try:
            own = {op: _own(OPERATORS[op].torch) for op in (*FORWARD, *BACKWARD, Op.LOGSUMEXP)}
        except RuntimeError as error:
            raise ExplorerError(f"this PyTorch has no operators to register for: {error}") from None
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # the user wants to override these operators
            warnings.simplefilter("ignore", UserWarning)
            for op in FORWARD:
                self._put(op, _forward(op, own[op]))
            for op in BACKWARD:
                self._put(op, _backward(op, own[op]))
            self._put(Op.LOGSUMEXP, _logsumexp(own[Op.LOGSUMEXP]))

    def _put(self, op: Op, function: Any) -> None:
        name = OPERATORS[op].torch
        self._library.impl(name, function, DISPATCH_KEY, with_keyset=True, allow_override=True)

    def remove(self) -> None:
        """Restore PyTorch's own operators; a second call does nothing."""
        global _registration
        if _registration is self:
            self._library._destroy()
            _registration = None

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_registration: Registration | None = None


def registration() -> Registration:
    """Return the registration, made if there is none (`explorer.register_torch`)."""
    global _registration
    if not hasattr(torch.library, "get_kernel"):
        raise ExplorerError(
            f"register_torch needs PyTorch 2.9 or later; this is {torch.__version__}"
        )
    if _registration is None:
        _registration = Registration()
    return _registration


def _is_ours(x: Tensor, dim: int) -> bool:
    """Return whether Python takes a tensor over: if it is large or its rows are long.

    With the option `batch_invariant` it takes all, because PyTorch's function gives other bits.
    """
    is_long = -x.dim() <= dim < x.dim() and x.shape[dim] >= LONG_ROW
    return x.nbytes >= LEAST_BYTES or is_long or options.batch_invariant


def _own(name: str) -> Any:
    """Return PyTorch's kernel of an operator."""
    return torch.library.get_kernel(f"aten::{name}", DISPATCH_KEY)


def _forward(op: Op, own: Any) -> Any:
    """Return the operator `_softmax` or `_log_softmax`."""
    log = OPERATORS[op].is_log

    def run(keys: Any, x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        dtype = torch.float32 if half_to_float else None
        result: Tensor | None = torch_fast_calls.if_known(
            x, dim, None, None, False, None, dtype, log
        )
        if result is None and (_is_ours(x, dim) or torch_fast_calls.can_learn(x)):
            result = _served(log, x, dim, dtype)
        return own.call_boxed(keys, x, dim, half_to_float) if result is None else result

    return run


def _served(log: bool, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor | None:
    """Return the result of our kernel; None if PyTorch must compute it.

    The compiled function serves later calls of the same kind, those of small tensors included: for
    32 x 512 elements it takes 8.7 us of an H100's host. PyTorch's own function takes 10.6 us there,
    because Python must first decide which of the two serves the call.
    """
    recipe = TENSORS.recipe(Call(FORWARD[log], dim, None, dtype), x)
    results = None if recipe is None else recipe.serve(x, None, None, {})
    if recipe is None or results is None:
        return None
    torch_fast_calls.learn(log, x, dim, dtype, recipe)
    return results[0]


def _backward(op: Op, own: Any) -> Any:
    """Return the operator of the gradient."""
    log = OPERATORS[op].is_log

    def run(keys: Any, grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        if _is_ours(output, dim):
            axis = positive(dim, output.dim())
            result = backward_served(grad, output, axis, None, dtype, log)
            if result is not None:
                return result
        taken: Tensor = own.call_boxed(keys, grad, output, dim, dtype)
        return taken

    return run


def _logsumexp(own: Any) -> Any:
    """Return the operator `logsumexp`, for tensors of any size: PyTorch's launches nine kernels."""

    def run(keys: Any, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
        if len(dims) == 1 and x.dim():
            axis = positive(dims[0], x.dim())
            results = TENSORS.serve(Call(Op.LOGSUMEXP, axis, dtype=x.dtype), x)
            if results is not None:
                return results[0] if keepdim else results[0].squeeze(axis)
        taken: Tensor = own.call_boxed(keys, x, dims, keepdim)
        return taken

    return run
