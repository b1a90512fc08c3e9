"""softmax-explorer: emit, verify and time CUDA softmax kernels; keep the fastest per problem.

`explorer.softmax` and `explorer.log_softmax` compute with these kernels, on arrays of PyTorch, CuPy
and JAX. Names are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from explorer.lazy import lazy_names

if TYPE_CHECKING:
    from explorer.errors import ExplorerError, InvalidInput
    from explorer.problem import Problem
    from explorer.runtime.functions import log_softmax, register_torch, softmax
    from explorer.runtime.service import set_options, warm_up
    from explorer.runtime.shapes import log_shapes

__version__ = "0.1.0"

_HOMES = {
    "ExplorerError": "explorer.errors",
    "InvalidInput": "explorer.errors",
    "Problem": "explorer.problem",
    "log_shapes": "explorer.runtime.shapes",
    "log_softmax": "explorer.runtime.functions",
    "register_torch": "explorer.runtime.functions",
    "set_options": "explorer.runtime.service",
    "softmax": "explorer.runtime.functions",
    "warm_up": "explorer.runtime.service",
}

__all__ = [
    "ExplorerError",
    "InvalidInput",
    "Problem",
    "log_shapes",
    "log_softmax",
    "register_torch",
    "set_options",
    "softmax",
    "warm_up",
]

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
