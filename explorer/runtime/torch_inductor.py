"""Direct calls of our functions in the code that `torch.compile` generates with Inductor.

Inductor calls an operator that it does not know through PyTorch's dispatcher, which takes longer
than the launch. So lowerings are registered with Inductor by which its code calls the functions of
this module instead. They are registered when our operators are traced for the first time in a
process, since importing Inductor takes seconds, which a program that compiles nothing must not pay.
Inductor has no public interface for this. If it lacks what we use, or generates C++, our operators
are called through the dispatcher.
"""

import importlib
import sys
import threading
from typing import Any

from torch import Tensor

from explorer.runtime import functions, torch_calls, torch_operators
from explorer.runtime.service import log

# ------------------------------------------------------------------ functions for generated code

# Generated code looks these two up at each call. Code in Inductor's cache that finds no such
# module, because another version of this package generated it, calls the operators.


@torch_calls.skips_dynamo
def softmax_in_python(
    x: Tensor,
    dim: int,
    scale: float | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    dtype: Any,
    log: bool,
) -> Tensor:
    """Compute the operator `explorer::softmax` without its gradient; the result is dense."""
    function = functions.compiled
    if function is None or causal or mask is not None or lengths is not None:
        call = torch_operators.softmax_call(dim, scale, mask, causal, lengths, dtype, log)
        return torch_operators.without_gradient(call, x)[0]
    result: Tensor = function(log, x, dim, scale, None, None, dtype, None)
    return result.contiguous()


softmax: Any = softmax_in_python
"""The function of generated code: this, or the compiled function, set by `torch_fast_calls`."""

softmax_backward = torch_operators.backward_without_gradient

# ------------------------------------------------------------------ lowerings

_lock = threading.Lock()
_is_registered = False


def register() -> None:
    """Register lowerings of our operators to direct calls, once and if Inductor is imported.

    A program that traces our operators for Inductor has imported it by then.
    """
    global _is_registered
    if _is_registered or "torch._inductor.lowering" not in sys.modules:
        return
    with _lock:
        if _is_registered:
            return
        _is_registered = True
        try:
            _register()
        except Exception as error:  # private interfaces may change in any way
            log.debug("torch.compile calls our operators by PyTorch's dispatcher: %s", error)


def _register() -> None:
    """Register a lowering of each operator. May raise anything in another version of PyTorch."""
    lowering = importlib.import_module("torch._inductor.lowering")  # waits for another thread's
    for operator in (torch_operators.softmax_operator, torch_operators.softmax_backward_operator):
        lowered = _lowered(operator, lowering.fallback_handler(operator, False))
        lowering.register_lowering(operator, type_promotion_kind=None)(lowered)


def _lowered(operator: Any, fallback: Any) -> Any:
    """Return a lowering of an operator that does as `fallback`, but calls another function."""
    virtualized = importlib.import_module("torch._inductor.virtualized")
    ir = importlib.import_module("torch._inductor.ir")
    name = operator.name().partition("::")[2]
    package, _, module = __name__.rpartition(".")
    called = f"explorer_calls.{name}"
    imported = (
        f"try:\n    from {package} import {module} as explorer_calls\n"
        "except ImportError:\n    explorer_calls = torch.ops.explorer"
    )

    class Direct(ir.FallbackKernel):  # type: ignore[misc, name-defined]
        """A call of an operator by a function that the generated code imports."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.python_kernel_name = called

        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(imported)
            super().codegen(wrapper)

    def lower(x: Any, *arguments: Any) -> Any:
        graph = virtualized.V.graph
        if graph.cpp_wrapper or graph.aot_mode or getattr(graph, "fx_wrapper", False):
            return fallback(x, *arguments)
        if name == "softmax" and arguments[5] is None:  # with a type, a call skips autocast's check
            arguments = (*arguments[:5], x.get_dtype(), arguments[6])
        return ir.TensorBox.create(Direct.create(operator, x, *arguments))

    return lower
