"""Softmax, log-sum-exp and log-probabilities of JAX's arrays, outside of `jax.jit`."""

from typing import Any

import jax
import jax.numpy as jnp
from cuda.bindings import driver

from explorer.devices.cuda.program import checked
from explorer.model.errors import InvalidInput
from explorer.ops import FORWARD
from explorer.runtime.arrays import Arrays, Location
from explorer.runtime.launcher import gpu

LEGACY_STREAM = 0
"""The default stream, because JAX does not expose its own streams."""


class JaxArrays(Arrays):
    """Arrays that JAX never changes: a result is a new one, written before a program sees it."""

    numpy = jnp

    def location(self, x: Any) -> Location:
        """Wait for an array, and return its location."""
        on_gpu = len(x.devices()) == 1 and next(iter(x.devices())).platform == "gpu"
        device = next(iter(x.devices())).local_hardware_id if on_gpu else -1
        address = x.block_until_ready().unsafe_buffer_pointer() if on_gpu and x.size else 0
        return Location(address, tuple(x.shape), None, str(x.dtype), device)

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
        """Return a new array on the GPU of `like`, which nothing else uses."""
        with jax.default_device(next(iter(like.devices()))):
            return jnp.zeros(shape, dtype).block_until_ready()

    def stream(self, device: int) -> int:
        """Return the default stream."""
        return LEGACY_STREAM

    def done(self, device: int) -> None:
        """Wait for the result, because JAX's own streams do not wait for the default one."""
        with gpu(device).current():
            checked(driver.cuStreamSynchronize(LEGACY_STREAM))

    def softmax(self, log: bool, x: Any, dim: int) -> Any:
        """Compute by JAX's function."""
        return (jax.nn.log_softmax if log else jax.nn.softmax)(x, dim)


def softmax_of(log: bool, x: Any, *arguments: Any) -> Any:
    """Compute softmax or log_softmax of an array, as `explorer.softmax` documents it."""
    _check(x, arguments[-1], "softmax")
    return JaxArrays().compute(FORWARD[log], x, *arguments)


def logsumexp_of(x: Any, *arguments: Any) -> Any:
    """Compute the log-sum-exp of an array, as `explorer.logsumexp` documents it."""
    _check(x, arguments[-1], "logsumexp")
    return JaxArrays().logsumexp(x, *arguments)


def log_prob_of(x: Any, *arguments: Any) -> list[Any]:
    """Compute log-probabilities of an array, as `explorer.log_prob` documents it."""
    for array in (x, arguments[0]):
        _check(array, None, "log_prob", "log_softmax")
    return JaxArrays().log_prob(x, *arguments)


def _check(x: Any, out: Any, name: str, own: str = "") -> None:
    """Raise TypeError for an array that is traced, and InvalidInput for an output.

    `own` is the name of JAX's function, if that has another one.
    """
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"explorer.{name} cannot be traced by jax.jit, grad or vmap; call it on arrays outside "
            f"of them, or jax.nn.{own or name} within"
        )
    if out is not None:
        raise InvalidInput("out is given; arrays of JAX cannot be written: leave it out")
