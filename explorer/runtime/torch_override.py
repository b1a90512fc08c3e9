"""Our kernels behind PyTorch's own softmax, logsumexp, cross-entropy, gradients and attention."""

import warnings
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from explorer.model.errors import ExplorerError
from explorer.ops import BACKWARD, FORWARD, OPERATORS, Op
from explorer.runtime import torch_attention, torch_fast_calls
from explorer.runtime.layout import DTYPES, REDUCTIONS, Call, LossKeywords, positive
from explorer.runtime.library import loss_terms
from explorer.runtime.service import options
from explorer.runtime.torch_calls import TENSORS, backward_served
from explorer.runtime.torch_operators import (
    FUNCTIONS,
    autocast_type,
    has_kernel,
    has_kernels,
    is_bare,
    is_compiled,
    needs_gradient,
    needs_own_formulas,
)

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
        self.served = Counter[str]()
        """How many calls of `logsumexp`, `cross_entropy_loss` and `scaled_dot_product_attention`
        our kernels have served, or have been traced into compiled code."""
        try:
            own = {op: _own(OPERATORS[op].torch) for op in OPERATORS if OPERATORS[op].torch}
        except RuntimeError as error:
            raise ExplorerError(f"this PyTorch has no operators to register for: {error}") from None
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # the user wants to override these operators
            warnings.simplefilter("ignore", UserWarning)
            for op in FORWARD:
                self._put(op, _forward(op, own[op]))
            for op in BACKWARD:
                self._put(op, _backward(op, own[op]))
            self._put(Op.LOGSUMEXP, _logsumexp(own[Op.LOGSUMEXP], self.served))
            # PyTorch composes these of others. They are replaced above autograd, where our losses
            # have a gradient of their own and PyTorch's attention has its own, and below, which is
            # all that inference mode calls.
            losses = _cross_entropy(own[Op.CROSS_ENTROPY], self.served)
            attention = _attention(own[Op.DECODE_ATTENTION], self.served)
            for key in ("", "Autograd"):
                self._put(Op.CROSS_ENTROPY, losses, key + DISPATCH_KEY)
                self._put(Op.DECODE_ATTENTION, attention, key + DISPATCH_KEY)
        _forget_dispatch()

    def __repr__(self) -> str:
        """Return whether it is active, and what it has served."""
        state = "active" if _registration is self else "removed"
        served = ", ".join(f"{name} {number}" for name, number in self.served.items())
        return f"Registration({state}; served: {served or 'no call yet'})"

    def _put(self, op: Op, function: Any, key: str = "") -> None:
        name, key = OPERATORS[op].torch, key or DISPATCH_KEY
        self._library.impl(name, function, key, with_keyset=True, allow_override=True)

    def remove(self) -> None:
        """Restore PyTorch's own operators; a second call does nothing."""
        global _registration
        if _registration is self:
            self._library._destroy()
            _registration = None
            _forget_dispatch()

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def _forget_dispatch() -> None:
    """Have code that is traced from now on ask PyTorch anew who computes losses and attention.

    Its operators keep what the dispatcher once told of a key. Traced code would otherwise call what
    was registered then, without a gradient once that is removed.
    """
    for op in (Op.CROSS_ENTROPY, Op.DECODE_ATTENTION):
        getattr(torch.ops.aten, OPERATORS[op].torch).default._dispatch_cache.clear()


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


def _logsumexp(own: Any, served: Counter[str]) -> Any:
    """Return the operator `logsumexp`, for tensors of any size: PyTorch's launches nine kernels."""

    def run(keys: Any, x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
        if len(dims) == 1 and x.dim():
            axis = positive(dims[0], x.dim())
            results = TENSORS.serve(Call(Op.LOGSUMEXP, axis, dtype=x.dtype), x)
            if results is not None:
                served["logsumexp"] += 1
                return results[0] if keepdim else results[0].squeeze(axis)
        taken: Tensor = own.call_boxed(keys, x, dims, keepdim)
        return taken

    return run


def _cross_entropy(own: Any, served: Counter[str]) -> Any:
    """Return the operator `cross_entropy_loss`, for tensors of any size, as `logsumexp`."""

    def run(
        keys: Any,
        x: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = 1,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        # PyTorch composes the loss of operators that autocast computes in f32.
        dtype = torch.float32 if x.itemsize == 2 and autocast_type() is not None else x.dtype
        told = LossKeywords(ignore_index, REDUCTIONS[reduction], label_smoothing, loss_dtype=dtype)
        if _has_classes(x, target, weight, told):
            call, rows = FUNCTIONS.losses_call(x, target, told)
            if _is_ready(call, rows, told):
                served["cross_entropy_loss"] += 1
                loss: Tensor = FUNCTIONS.loss_of(call, rows, target, weight, told)
                return loss
        taken: Tensor = own.call_boxed(
            keys, x, target, weight, reduction, ignore_index, label_smoothing
        )
        return taken

    return run


def _attention(own: Any, served: Counter[str]) -> Any:
    """Return the operator `scaled_dot_product_attention`: ours for one query a head, and no mask.

    With one query, PyTorch's causal mask hides all keys but the first.
    """

    def run(
        keys: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if mask is None and not dropout and not causal:
            result = torch_attention.one_query(q, k, v, scale, enable_gqa)
            if result is not None:
                served["scaled_dot_product_attention"] += 1
                return result
        taken: Tensor = own.call_boxed(
            keys, q, k, v, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa
        )
        return taken

    return run


def _has_classes(x: Tensor, target: Tensor, weight: Tensor | None, told: LossKeywords) -> bool:
    """Return whether a loss is of class indices that we serve: PyTorch raises what is wrong.

    Transforms such as `torch.func.grad` differentiate what they see, which must be PyTorch's.
    """
    if needs_own_formulas(x) or not x.numel() or target.dtype is not torch.int64:
        return False
    shape, axis = x.shape, told.axis_of(x.dim())
    if target.shape != (*shape[:axis], *shape[axis + 1 :]):
        return False
    if not 0 <= told.label_smoothing <= 1:
        return False
    if weight is not None:
        is_plain = weight.dtype is x.dtype and not weight.requires_grad
        if told.label_smoothing or not is_plain or weight.shape != shape[axis : axis + 1]:
            return False
    return TENSORS.name_of(x.dtype) in DTYPES


def _is_ready(call: Call, x: Tensor, told: LossKeywords) -> bool:
    """Return whether there is a kernel for a loss; compiled code finds that out when it runs."""
    if is_compiled() or not is_bare(x):
        return True
    if needs_gradient(x):
        return has_kernels(call, x)
    return has_kernel(call.asking_for(*loss_terms(call)), x)
