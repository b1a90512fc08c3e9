"""Functions of CuPy's and JAX's arrays: the checks of their arguments."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.ops import FORWARD
from explorer.runtime.layout import (
    Call,
    Shape,
    check_floating,
    given,
    is_causal,
    plain_scale,
    whole_axis,
)
from explorer.runtime.library import RowFunctions
from explorer.system.plain_data import kind_of, shown


class Arrays(RowFunctions):
    """The functions of a library whose arrays have NumPy's methods, and no gradients."""

    type_named = "'float32'"

    def on(self, x: Any) -> AbstractContextManager[Any]:
        """Return a context in which arrays are allocated where x is."""
        return nullcontext()

    def check_call(self, name: str, *arrays: Any) -> None:
        """Raise TypeError and InvalidInput for arrays that a function of a name cannot take."""

    def softmax_of(
        self, log: bool, x: Any, dim: Any, scale: Any, mask: Any, lengths: Any, dtype: Any, out: Any
    ) -> Any:
        """Compute softmax or log_softmax of an array, as `explorer.softmax` documents it."""
        self.check_call("softmax", x)
        if scale is not None:
            scale = plain_scale(scale)
        causal = is_causal(mask)
        arrays = given(mask=None if causal else mask, lengths=lengths)
        for name, array in arrays.items():
            if not hasattr(array, "dtype"):
                raise TypeError(f"{name} is {kind_of(array)}; it must be an array")
        if "mask" in arrays and self.name_of(arrays["mask"].dtype) == "bool":
            arrays["mask"] = self.numpy.where(arrays["mask"], 0.0, -math.inf)
        if dtype is not None:
            dtype = self._checked_type(dtype)
        call = Call(FORWARD[log], whole_axis(dim), scale, dtype, causal, arrays=arrays)
        call = call.checked(tuple(x.shape), self.name_of)
        target = self.result_type(call, x)
        check_floating(str(target), self.type_named, is_argument=dtype is not None)
        if out is not None:
            self.check_out(x, tuple(x.shape), target, out)
        rows, target = (one if one is None or one.ndim else one.reshape(1) for one in (x, out))
        with self.on(x):
            (result,) = self.compute(call, rows, target)
        return result.reshape(x.shape) if out is None else out

    def logsumexp_of(self, x: Any, *arguments: Any) -> Any:
        """Compute the log-sum-exp of an array, as `explorer.logsumexp` documents it."""
        self.check_call("logsumexp", x)
        with self.on(x):
            return super().logsumexp_of(x, *arguments)

    def log_prob_of(self, x: Any, *arguments: Any) -> list[Any]:
        """Compute log-probabilities of an array, as `explorer.log_prob` documents it."""
        self.check_call("log_prob", x, arguments[0])
        with self.on(x):
            return super().log_prob_of(x, *arguments)

    def decode_attention_of(self, q: Any, *arguments: Any) -> list[Any]:
        """Compute attention to a cache, as `explorer.decode_attention` documents it."""
        k, v, lengths, *_ = arguments
        self.check_call("decode_attention", q, k, v, lengths)
        with self.on(q):
            return super().decode_attention_of(q, *arguments)

    def merge_states_of(self, o: Any, lse: Any) -> tuple[Any, Any]:
        """Merge results of parts of the keys, as `explorer.merge_states` documents it."""
        with self.on(o):
            return super().merge_states_of(o, lse)

    def _checked_type(self, dtype: Any) -> str:
        """Return the name of the type that a call gives. Raises TypeError for no type."""
        try:
            return self.name_of(dtype)
        except (TypeError, ValueError):
            raise TypeError(
                f"dtype is {shown(dtype)}; it must be a type of NumPy, such as 'float32'"
            ) from None

    def check_x(self, x: Any, *, may_be_complex: bool) -> None:
        """Raise InvalidInput for an x without floating-point numbers."""
        own = self.name_of(x.dtype)
        if "float" not in own:
            raise InvalidInput(
                f"x is of {own}; it must be of floating-point numbers: give x.astype('float32')"
            )

    def check_beside(self, name: str, array: Any, x: Any, than: str = "x") -> None:
        """Raise TypeError for what is no array of x's library, InvalidInput for another GPU."""
        try:
            device = self.device(array)
        except AttributeError:
            raise TypeError(
                f"{name} is {kind_of(array)}; it must be an array of {than}'s library"
            ) from None
        if device != self.device(x):
            raise InvalidInput(f"{name} lies on another GPU than {than}; both must lie on one")

    def check_targets(self, target: Any, classes: int, ignore_index: int) -> None:
        """Raise InvalidInput that names the first bad target; wait for the GPU for it."""
        if self.is_capturing(self.device(target)):
            raise InvalidInput(
                "bad_target is 'raise' while a graph is captured, which cannot wait for the GPU: "
                "leave it out"
            )
        super().check_targets(target, classes, ignore_index)

    def check_out(self, x: Any, shape: Shape, dtype: Any, out: Any) -> None:
        """Raise InvalidInput for an output on another GPU, or of another shape or type.

        Raises TypeError for an output that is no array.
        """
        self.check_beside("out", out, x)
        wanted = self.name_of(dtype)
        if out.shape != shape or self.name_of(out.dtype) != wanted:
            raise InvalidInput(
                f"out is {out.dtype} of shape {tuple(out.shape)}; it must be {wanted} of shape "
                f"{shape}"
            )
