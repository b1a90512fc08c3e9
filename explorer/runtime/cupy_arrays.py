"""Softmax, log-sum-exp and log-probabilities of CuPy's arrays."""

from contextlib import AbstractContextManager
from typing import Any

import cupy
import cupyx.scipy.special

from explorer.ops import Op
from explorer.runtime.arrays import Arrays
from explorer.runtime.launcher import Plan, gpu
from explorer.runtime.layout import Shape


class CupyArrays(Arrays):
    """Arrays in device memory; results are allocated from CuPy's memory pool."""

    numpy = cupy
    functions = {  # noqa: RUF012
        Op.SOFTMAX: cupyx.scipy.special.softmax,
        Op.LOG_SOFTMAX: cupyx.scipy.special.log_softmax,
    }

    def name_of(self, dtype: Any) -> str:
        """Return the name of an element type. Raises TypeError for no type."""
        return str(cupy.dtype(dtype))

    def device(self, x: Any) -> int:
        """Return the number of an array's GPU."""
        return int(x.device.id)

    def address(self, x: Any) -> int:
        """Return the address of an array's first element."""
        return int(x.data.ptr)

    def strides(self, x: Any) -> Shape | None:
        """Return the strides of an array in elements."""
        return tuple(stride // x.itemsize for stride in x.strides)

    def converted(self, x: Any, dtype: Any, like: Any) -> Any:
        """Return a dense array of the type; x itself if it is one."""
        return cupy.ascontiguousarray(cupy.asarray(x), dtype=dtype)

    def broadcast(self, x: Any, shape: Shape) -> Any:
        """Return a dense array of the shape."""
        return cupy.ascontiguousarray(cupy.broadcast_to(x, shape))

    def empty(self, shape: Shape, dtype: Any, like: Any) -> Any:
        """Return a new dense array on the current GPU, which is that of the call."""
        return cupy.empty(shape, dtype)

    def launch(
        self, plan: Plan, device: int, source: int, output: int, others: dict[str, int]
    ) -> None:
        """Launch a plan on the current stream of a GPU."""
        with gpu(device).current():
            plan.launch(int(cupy.cuda.get_current_stream().ptr), source, output, **others)

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is captured on the current stream."""
        return bool(cupy.cuda.get_current_stream().is_capturing())

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        out[...] = result
        return out

    def on(self, x: Any) -> AbstractContextManager[Any]:
        """Return a context in which all arrays of a call are allocated on x's GPU."""
        device: AbstractContextManager[Any] = cupy.cuda.Device(x.device.id)
        return device


ARRAYS = CupyArrays()
