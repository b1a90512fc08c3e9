"""Direct calls of our functions in the code that `torch.compile` generates with Inductor.

Inductor calls an operator that it does not know through PyTorch's dispatcher, which takes longer
than the launch. So Inductor is told to call the functions of this module instead. It is told when
it lowers our operators for the first time in a process, since its import takes seconds, which a
program that compiles nothing must not pay. Inductor has no public interface for this. Where what
we use of it is missing, or where it generates C++, our operators are called as before.
"""

import importlib
import sys
import threading
from typing import Any

from torch import Tensor

from explorer.runtime import functions, torch_calls, torch_operators
from explorer.runtime.service import log

# ------------------------------------------------------------------ what generated code calls

# Generated code looks these two up at each call. Where it is kept on disk and finds no such module
# it calls the operators: another version of this package may have generated it.


@torch_calls.runs_as_it_is
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
        return torch_operators.without_gradient(x, dim, scale, mask, causal, lengths, dtype, log)
    result: Tensor = function(log, x, dim, scale, None, None, dtype, None)
    return result.contiguous()


softmax: Any = softmax_in_python
"""What generated code calls: this, or the compiled function that `torch_fast_calls` puts here."""

softmax_backward = torch_operators.backward_without_gradient

# ------------------------------------------------------------------ what Inductor is told

_lock = threading.Lock()
_is_told = False


def tell() -> None:
    """Have Inductor lower our operators to direct calls, if it is imported; later calls do nothing.

    Whoever traces our operators for Inductor has it imported: it must be told by then.
    """
    global _is_told
    if _is_told or "torch._inductor.lowering" not in sys.modules:
        return
    with _lock:
        if _is_told:
            return
        _is_told = True
        try:
            _register()
        except Exception as error:  # what is private may be missing in any way
            log.debug("torch.compile calls our operators by PyTorch's dispatcher: %s", error)


def _register() -> None:
    """Register a lowering of each operator. Raises what a PyTorch without these interfaces does."""
    lowering = importlib.import_module("torch._inductor.lowering")  # waits for another thread's
    for operator in (torch_operators.softmax_operator, torch_operators.softmax_backward_operator):
        lowered = _lowered(operator, lowering.fallback_handler(operator, False))
        lowering.register_lowering(operator, type_promotion_kind=None)(lowered)


def _lowered(operator: Any, fallback: Any) -> Any:
    """Return how Inductor lowers an operator: as `fallback` does, but with another function."""
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
        """A call of an operator, by a function that the generated code imports."""

        def __init__(self, *told: Any, **named: Any) -> None:
            super().__init__(*told, **named)
            self.python_kernel_name = called

        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(imported)
            super().codegen(wrapper)

    def lower(x: Any, *told: Any) -> Any:
        graph = virtualized.V.graph
        if graph.cpp_wrapper or graph.aot_mode or getattr(graph, "fx_wrapper", False):
            return fallback(x, *told)
        if name == "softmax" and told[5] is None:  # a type spares the call the question of autocast
            told = (*told[:5], x.get_dtype(), told[6])
        return ir.TensorBox.create(Direct.create(operator, x, *told))

    return lower
