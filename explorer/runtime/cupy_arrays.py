"""Softmax, log-sum-exp and log-probabilities of CuPy's arrays."""

from typing import Any

import cupy
import cupyx.scipy.special

from explorer.ops import FORWARD
from explorer.runtime.arrays import Arrays, Location


class CupyArrays(Arrays):
    """Arrays in device memory; results are allocated from CuPy's memory pool."""

    numpy = cupy

    def location(self, x: Any) -> Location:
        """Return the location of an array."""
        strides = tuple(stride // x.itemsize for stride in x.strides)
        return Location(x.data.ptr, tuple(x.shape), strides, str(x.dtype), x.device.id)

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of an element type."""
        return str(cupy.dtype(dtype))

    def converted(self, x: Any, dtype: str, like: Any) -> Any:
        """Return a dense array of the type; x itself if it is one."""
        return cupy.ascontiguousarray(cupy.asarray(x), dtype=dtype)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a dense array of the shape."""
        return cupy.ascontiguousarray(cupy.broadcast_to(x, shape))

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Return a new dense array on the GPU of `like`."""
        return cupy.empty(shape, dtype)

    def stream(self, device: int) -> int:
        """Return the current stream of a GPU."""
        return int(cupy.cuda.get_current_stream().ptr)

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is captured on the current stream."""
        return bool(cupy.cuda.get_current_stream().is_capturing())

    def softmax(self, log: bool, x: Any, dim: int) -> Any:
        """Compute by CuPy's function."""
        functions = cupyx.scipy.special
        return (functions.log_softmax if log else functions.softmax)(x, axis=dim)

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        out[...] = result
        return out


def softmax_of(log: bool, x: Any, *arguments: Any) -> Any:
    """Compute softmax or log_softmax of an array, as `explorer.softmax` documents it."""
    with cupy.cuda.Device(x.device.id):  # all arrays of the call are allocated there
        return CupyArrays().compute(FORWARD[log], x, *arguments)


def logsumexp_of(x: Any, *arguments: Any) -> Any:
    """Compute the log-sum-exp of an array, as `explorer.logsumexp` documents it."""
    with cupy.cuda.Device(x.device.id):
        return CupyArrays().logsumexp(x, *arguments)


def log_prob_of(x: Any, *arguments: Any) -> list[Any]:
    """Compute log-probabilities of an array, as `explorer.log_prob` documents it."""
    with cupy.cuda.Device(x.device.id):
        return CupyArrays().log_prob(x, *arguments)
