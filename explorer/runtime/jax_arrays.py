"""Softmax of JAX's arrays, outside of `jax.jit`."""

from typing import Any

import jax
import jax.numpy as jnp
from cuda.bindings import driver

from explorer.devices.cuda.program import checked
from explorer.model.errors import InvalidInput
from explorer.model.problem import Op
from explorer.runtime.arrays import Arrays, Call, Lying
from explorer.runtime.launcher import gpu

LEGACY_STREAM = 0
"""The default stream: JAX has streams of its own, which it tells nobody."""


class JaxArrays(Arrays):
    """Arrays that JAX never changes: a result is a new one, written before it is seen."""

    def lying(self, x: Any) -> Lying:
        """Return where an array lies; waits until it is there."""
        on_gpu = len(x.devices()) == 1 and next(iter(x.devices())).platform == "gpu"
        device = next(iter(x.devices())).local_hardware_id if on_gpu else -1
        address = x.block_until_ready().unsafe_buffer_pointer() if on_gpu and x.size else 0
        return Lying(address, tuple(x.shape), None, str(x.dtype), device)

    def dtype_name(self, dtype: Any) -> str:
        """Return the name of an element type."""
        return str(jnp.dtype(dtype))

    def converted(self, x: Any, dtype: str, like: Any) -> Any:
        """Return an array of the type, on the GPU of `like`."""
        return jax.device_put(jnp.asarray(x, dtype=dtype), next(iter(like.devices())))

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of the shape."""
        return jnp.broadcast_to(x, shape)

    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Return a new array on the GPU of `like`, which nothing else has seen."""
        with jax.default_device(next(iter(like.devices()))):
            return jnp.zeros(shape, dtype).block_until_ready()

    def stream(self, device: int) -> int:
        """Return the default stream."""
        return LEGACY_STREAM

    def done(self, device: int) -> None:
        """Wait for the result: JAX's own streams do not know of it."""
        with gpu(device).current():
            checked(driver.cuStreamSynchronize(LEGACY_STREAM))

    def framework(self, call: Call, x: Any) -> Any:
        """Compute by JAX's functions."""
        if call.dtype is not None:
            x = x.astype(call.dtype)
        target = x.dtype
        if target.itemsize == 2:  # as kernels do, which round the result alone
            x = x.astype(jnp.float32)
        if call.scale is not None:
            x = x * jnp.asarray(call.scale, x.dtype)
        if call.mask is not None:
            x = x + call.mask.astype(target).astype(x.dtype)
        hidden = call.hidden(jnp, x.shape)
        if hidden is not None:
            x = jnp.where(hidden, -jnp.inf, x)
        log = call.op is Op.LOG_SOFTMAX
        return (jax.nn.log_softmax if log else jax.nn.softmax)(x, call.dim).astype(target)


def softmax_of(log: bool, x: Any, *told: Any) -> Any:
    """Return softmax or log_softmax, as `explorer.softmax` documents it, of an array."""
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            "explorer.softmax cannot be traced by jax.jit, grad or vmap; call it on arrays outside "
            "of them, or jax.nn.softmax within"
        )
    if told[-1] is not None:
        raise InvalidInput("out is given; arrays of JAX cannot be written: leave it out")
    return JaxArrays().compute(Op.LOG_SOFTMAX if log else Op.SOFTMAX, x, *told)
