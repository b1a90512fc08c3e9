"""Softmax of CuPy's arrays."""

from typing import Any

import cupy
import cupyx.scipy.special

from explorer.model.problem import Op
from explorer.runtime.arrays import Arrays, Call, Lying


class CupyArrays(Arrays):
    """Arrays in device memory; results are of CuPy's memory pool."""

    def lying(self, x: Any) -> Lying:
        """Return where an array lies."""
        strides = tuple(stride // x.itemsize for stride in x.strides)
        return Lying(x.data.ptr, tuple(x.shape), strides, str(x.dtype), x.device.id)

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of an element type."""
        return str(cupy.dtype(dtype))

    def converted(self, x: Any, dtype: str, like: Any) -> Any:
        """Return a dense array of the type; x itself where it is one."""
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

    def framework(self, call: Call, x: Any) -> Any:
        """Compute by CuPy's functions."""
        if call.dtype is not None:
            x = x.astype(call.dtype, copy=False)
        target = x.dtype
        if target.itemsize == 2:  # as kernels do, which round the result alone
            x = x.astype(cupy.float32)
        if call.scale is not None:
            x = x * x.dtype.type(call.scale)
        if call.mask is not None:
            x = x + call.mask.astype(target).astype(x.dtype, copy=False)
        hidden = call.hidden(cupy, x.shape)
        if hidden is not None:
            x = cupy.where(hidden, x.dtype.type(-cupy.inf), x)
        functions = cupyx.scipy.special
        log = call.op is Op.LOG_SOFTMAX
        result = (functions.log_softmax if log else functions.softmax)(x, axis=call.dim)
        return result.astype(target, copy=False)

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        out[...] = result
        return out


def softmax_of(log: bool, x: Any, *told: Any) -> Any:
    """Return softmax or log_softmax, as `explorer.softmax` documents it, of an array."""
    with cupy.cuda.Device(x.device.id):  # where all that is made for the call is to lie
        return CupyArrays().compute(Op.LOG_SOFTMAX if log else Op.SOFTMAX, x, *told)
