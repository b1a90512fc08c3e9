"""Softmax, log-sum-exp and log-probabilities of JAX's arrays, outside of `jax.jit`."""

from typing import Any

import jax
import jax.numpy as jnp
from cuda.bindings import driver

from explorer.devices.cuda.program import checked
from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.runtime.arrays import Arrays
from explorer.runtime.launcher import Plan, gpu
from explorer.runtime.layout import Shape

LEGACY_STREAM = 0
"""The default stream, because JAX does not expose its own streams."""

_NAMED = {"log_prob": "log_softmax", "decode_attention": "dot_product_attention"}
"""JAX's functions that stand for ours, if they have other names."""


class JaxArrays(Arrays):
    """Arrays that JAX never changes: a result is a new one, written before a program sees it."""

    numpy = jnp
    functions = {Op.SOFTMAX: jax.nn.softmax, Op.LOG_SOFTMAX: jax.nn.log_softmax}  # noqa: RUF012

    def name_of(self, dtype: Any) -> str:
        """Return the name of an element type. Raises TypeError for no type."""
        return str(jnp.dtype(dtype))

    def device(self, x: Any) -> int:
        """Return the number of an array's GPU; -1 if it is not on a single one."""
        first, *others = x.devices()
        return -1 if others or first.platform != "gpu" else int(first.local_hardware_id)

    def address(self, x: Any) -> int:
        """Wait for an array, and return the address of its first element."""
        return int(x.block_until_ready().unsafe_buffer_pointer()) if x.size else 0

    def strides(self, x: Any) -> Shape | None:
        """Return None: JAX's arrays are dense."""
        return None

    def product(self, subscripts: str, *arrays: Any) -> Any:
        """Return a sum of products of f32, which are of tf32 unless JAX is told not to."""
        return jnp.einsum(subscripts, *arrays, precision=jax.lax.Precision.HIGHEST)

    def converted(self, x: Any, dtype: Any, like: Any) -> Any:
        """Return an array of the type, on the GPU of `like`."""
        return jax.device_put(jnp.asarray(x, dtype=dtype), next(iter(like.devices())))

    def broadcast(self, x: Any, shape: Shape) -> Any:
        """Return an array of the shape."""
        return jnp.broadcast_to(x, shape)

    def empty(self, shape: Shape, dtype: Any, like: Any) -> Any:
        """Return a new array on the GPU of `like`, which nothing else uses."""
        with jax.default_device(next(iter(like.devices()))):
            return jnp.zeros(shape, dtype).block_until_ready()

    def launch(
        self, plan: Plan, device: int, source: int, output: int, others: dict[str, int]
    ) -> None:
        """Launch a plan, and wait: JAX's own streams do not wait for the default one."""
        with gpu(device).current():
            plan.launch(LEGACY_STREAM, source, output, **others)
            checked(driver.cuStreamSynchronize(LEGACY_STREAM))

    def check_call(self, name: str, *arrays: Any) -> None:
        """Raise TypeError for arrays that are traced."""
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            raise TypeError(
                f"explorer.{name} cannot be traced by jax.jit, grad or vmap; call it on arrays "
                f"outside of them, or jax.nn.{_NAMED.get(name, name)} within"
            )

    def check_out(self, x: Any, shape: Shape, dtype: Any, out: Any) -> None:
        """Raise InvalidInput for any output."""
        raise InvalidInput("out is given; arrays of JAX cannot be written: leave it out")


ARRAYS = JaxArrays()
