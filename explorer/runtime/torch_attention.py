"""Attention of one query a head on PyTorch's tensors: an operator of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from explorer.model.errors import InvalidInput
from explorer.runtime import attention_calls
from explorer.runtime.attention_calls import Call
from explorer.runtime.torch_calls import skips_dynamo
from explorer.runtime.torch_operators import (
    TensorFunctions,
    below_autograd,
    check_values,
    is_bare,
    is_memory,
    needs_own_formulas,
    register,
)

_SCHEMA = (
    "decode_attention(Tensor q, Tensor k, Tensor v, Tensor? lengths=None, str layout='HND', "
    "float? scale=None, bool return_lse=False, int? splits=None, bool batch_invariant=False) "
    "-> Tensor[]"
)


def check_constant(*tensors: Tensor | None) -> None:
    """Raise InvalidInput for tensors of which a gradient is asked for."""
    if asks_gradient(*tensors):
        raise InvalidInput(
            "q, k or v requires a gradient, and decode_attention has none: call it under "
            "torch.no_grad(), or take torch.nn.functional.scaled_dot_product_attention"
        )


def asks_gradient(*tensors: Tensor | None) -> bool:
    """Return whether a gradient of one of these is asked for."""
    asks = any(one is not None and one.requires_grad for one in tensors)
    return asks and torch.is_grad_enabled()


class AttendingTensors(TensorFunctions):
    """All functions of tensors."""

    def check_lengths(self, lengths: Tensor, keys: int) -> None:
        """Raise InvalidInput that names the first length that is none, and where none is known."""
        check_values("check is True", "lengths", lengths)
        super().check_lengths(lengths, keys)

    def attention(
        self, call: Call, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, out: Any
    ) -> list[Tensor]:
        """Compute a checked call; transforms and other kinds of tensors see PyTorch's functions."""
        if torch.compiler.is_compiling():
            results = list(operator(q, k, v, lengths, *call))
        elif any(needs_own_formulas(one) for one in (q, k, v)):
            results = attention_calls.by_library(self, call, q, k, v, lengths)
        elif not are_bare(q, k, v, lengths, out):
            results = list(operator(q, k, v, lengths, *call))
        else:
            check_constant(q, k, v)
            return attention_calls.compute(self, call, q, k, v, lengths, out)
        return results if out is None else [out.copy_(results[0]), *results[1:]]


def are_bare(q: Tensor, *others: Tensor | None) -> bool:
    """Return whether tensors are plain memory, and no mode, transform or tracer is active."""
    return is_bare(q) and all(one is None or is_memory(one) for one in others)


FUNCTIONS = AttendingTensors()


def _compute(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None, *told: Any
) -> list[Tensor]:
    return attention_calls.compute(FUNCTIONS, Call(*told), q, k, v, lengths)


def _without_gradient(q: Tensor, k: Tensor, v: Tensor, *told: Any) -> list[Tensor]:
    """Refuse what asks for a gradient; compute the rest below autograd."""
    check_constant(q, k, v)
    return list(below_autograd(operator, q, k, v, *told))


def _empty(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None, *told: Any
) -> list[Tensor]:
    """Return memory for the results of a call, which is dense."""
    call = Call(*told)
    results = [torch.empty(q.shape, dtype=q.dtype, device=q.device)]
    if call.return_lse:
        heads = attention_calls.heads_of(tuple(q.shape), call.layout)
        results.append(
            torch.empty(
                q.shape[0], heads, dtype=attention_calls.wide_type(FUNCTIONS, q), device=q.device
            )
        )
    return results


operator = register(_SCHEMA, _compute, _without_gradient, _empty)


@skips_dynamo
def one_query(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None, enable_gqa: bool
) -> Tensor | None:
    """Return what PyTorch's `scaled_dot_product_attention` returns of plain arguments.

    None if it must compute that itself: for several queries a head, for gradients and transforms,
    and where no kernel is loaded. Compiled code finds that out when it runs.
    """
    if not _is_of_one_query(q, k, v, enable_gqa):
        return None
    if asks_gradient(q, k, v) or any(needs_own_formulas(one) for one in (q, k, v)):
        return None
    call = Call(scale=scale)
    if torch.compiler.is_compiling() or not are_bare(q, k, v):
        result: Tensor = operator(q, k, v, None, *call)[0]
        return result
    results = attention_calls.serve(FUNCTIONS, call, q, k, v)
    return None if results is None else results[0]


def _is_of_one_query(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> bool:
    """Return whether our kernels compute the attention of these tensors."""
    if not q.dim() == k.dim() == v.dim() == 4 or q.shape[2] != 1 or not k.numel():
        return False
    if not (q.dtype is k.dtype is v.dtype) or not attention_calls.is_served(
        FUNCTIONS.name_of(q.dtype)
    ):
        return False
    if not (q.device == k.device == v.device) or not (enable_gqa or q.shape[1] == k.shape[1]):
        return False
    try:
        attention_calls.cache_of(tuple(q.shape), tuple(k.shape), tuple(v.shape), "HND")
    except InvalidInput:
        return False
    return True
