"""Calls on arrays of libraries that say where their memory lies, as those of CuPy and JAX do."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from explorer.model.errors import InvalidInput
from explorer.model.problem import Op, Problem
from explorer.runtime import shapes
from explorer.runtime.launcher import gpu, plan_of
from explorer.runtime.layout import (
    DTYPES,
    Described,
    Masking,
    dense_matrix,
    is_causal,
    is_converted,
    matrix_of,
    plain_scale,
    positive,
    problem_of,
    whole_axis,
)
from explorer.runtime.service import say_once, service
from explorer.system.plain_data import shown


@dataclass(frozen=True, slots=True)
class Lying:
    """Where an array lies: its address, and in elements its shape and strides (None: dense)."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int
    """The GPU's number; -1 where it lies on none."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a call asks for beside its array."""

    op: Op
    dim: int
    scale: float | None
    mask: Any
    lengths: Any
    masking: Masking
    dtype: str | None

    def hidden(self, numpy: Any, shape: tuple[int, ...]) -> Any:
        """Return which elements a causal mask or lengths hide; None without these."""
        if self.masking.causal:
            rows, cols = shape[-2:]
            return ~numpy.tril(numpy.ones((rows, cols), bool), cols - rows)
        if self.lengths is not None:
            return numpy.arange(shape[-1]) >= numpy.asarray(self.lengths)[..., None]
        return None


class Arrays(ABC):
    """What a call needs of the library that its arrays are of."""

    @abstractmethod
    def lying(self, x: Any) -> Lying:
        """Return where an array lies."""

    @abstractmethod
    def dtype_name(self, dtype: Any) -> str:
        """Return the name of an element type, such as float32."""

    @abstractmethod
    def converted(self, x: Any, dtype: str, like: Any) -> Any:
        """Return a dense array of a type on the GPU of `like`."""

    @abstractmethod
    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a dense array of a shape."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Return a new dense array on the GPU of `like`."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """Return the stream that work on a GPU is to be put on."""

    @abstractmethod
    def framework(self, call: Call, x: Any) -> Any:
        """Compute by the library's own functions."""

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is being captured, into which nothing may be loaded."""
        return False

    def done(self, device: int) -> None:  # noqa: B027  (most libraries need nothing)
        """Do what must follow a launch."""

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        raise NotImplementedError

    def compute(
        self,
        op: Op,
        x: Any,
        dim: int,
        scale: float | None,
        mask: Any,
        lengths: Any,
        dtype: Any,
        out: Any,
    ) -> Any:
        """Return softmax or log_softmax of an array, as `explorer.softmax` documents it."""
        if dim.__class__ is not int or (scale is not None and scale.__class__ is not float):
            dim, scale = whole_axis(dim), None if scale is None else plain_scale(scale)
        causal = is_causal(mask)
        mask = None if causal else mask
        masking = Masking(
            causal, self._described("mask", mask), self._described("lengths", lengths)
        )
        name = None if dtype is None else self._told_dtype(dtype)
        call = Call(op, positive(dim, x.ndim), scale, mask, lengths, masking, name)
        masking.check(tuple(x.shape), call.dim)
        self._check(call, x, out)
        if 0 in x.shape:  # what has no elements has no greatest one, which libraries ask for
            return x.astype(name or x.dtype) if out is None else out
        result = self._served(call, x, out)
        if result is not None:
            return result
        result = self.framework(call, x if x.ndim else x.reshape(1)).reshape(x.shape)
        return result if out is None else self.copied(result, out)

    def _described(self, name: str, array: Any) -> Described | None:
        """Return an argument's shape and type; None without one. Raises TypeError for no array."""
        if array is None:
            return None
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name} is a {type(array).__qualname__}; it must be an array")
        return Described(tuple(array.shape), self.dtype_name(array.dtype))

    def _told_dtype(self, dtype: Any) -> str:
        """Return the name of the type that a call asks for. Raises TypeError for no type."""
        try:
            return self.dtype_name(dtype)
        except (TypeError, ValueError):
            raise TypeError(
                f"dtype is {shown(dtype)}; it must be a type of NumPy, such as 'float32'"
            ) from None

    def _check(self, call: Call, x: Any, out: Any) -> None:
        """Raise InvalidInput for whole numbers, and for an output that no result goes into.

        Raises TypeError for an output that is no array.
        """
        wanted = call.dtype or self.dtype_name(x.dtype)
        if not ("float" in wanted or "complex" in wanted):
            if call.dtype:
                raise InvalidInput(
                    f"dtype is {wanted}; it must be a type of floating-point numbers, such as "
                    "'float32'"
                )
            raise InvalidInput(f"x is of {wanted}; give dtype='float32', say, to convert it")
        if out is None:
            return
        try:
            device = self.lying(out).device
        except AttributeError:
            raise TypeError(
                f"out is a {type(out).__qualname__}; it must be an array of x's library"
            ) from None
        if device != self.lying(x).device:
            raise InvalidInput("out lies on another GPU than x; both must lie on one")
        if out.shape != x.shape or self.dtype_name(out.dtype) != wanted:
            raise InvalidInput(
                f"out is {out.dtype} of shape {tuple(out.shape)}; it must be {wanted} of shape "
                f"{tuple(x.shape)}"
            )

    def _served(self, call: Call, x: Any, out: Any) -> Any:
        """Return what our kernel makes of a call; None where it must be the library's."""
        lying = self.lying(x)
        target = call.dtype or lying.dtype
        if lying.device < 0 or not {lying.dtype, target} <= set(DTYPES):
            say_once(f"{lying.dtype} of shape {lying.shape} on GPU {lying.device}")
            return None
        mask = lying.dtype if call.masking.mask is None else call.masking.mask.dtype
        if is_converted(DTYPES[lying.dtype], DTYPES[target], DTYPES.get(mask)):
            x = self.converted(x, target, x)
        lying = self.lying(x)
        if lying.strides and matrix_of(lying.shape, lying.strides, call.dim) is None:
            x = self.converted(x, lying.dtype, x)
            lying = self.lying(x)
        result = self.empty(lying.shape, target, x) if out is None else out
        found = self._problem(call, lying, self.lying(result))
        if found is None:
            return None
        others = self._others(call, x, lying)
        if out is not None and self._is_covered(found, lying, result, others):
            say_once("an output that lies over a part of an input")
            return None
        return result if self._launch(found, call, lying, result, x, others) else None

    def _problem(self, call: Call, source: Lying, output: Lying) -> Problem | None:
        """Return a call's problem; None where no kernel does it."""
        dense = dense_matrix(source.shape, call.dim)
        matrices = [
            dense if array.strides is None else matrix_of(array.shape, array.strides, call.dim)
            for array in (source, output)
        ]
        mask = call.masking.of_problem(source.shape)
        if matrices[0] is None or matrices[1] is None or mask is None:
            say_once("an output or a mask that does not lie as kernels want it")
            return None
        kind, mask_rows = mask
        try:
            return problem_of(
                call.op,
                DTYPES[source.dtype],
                matrices[0],
                out_dtype=DTYPES[output.dtype],
                output=matrices[1],
                scaled=call.scale is not None,
                mask=kind,
                mask_rows=mask_rows,
                in_place=source.address == output.address,
            )
        except InvalidInput as error:
            say_once(str(error))
            return None

    def _others(self, call: Call, x: Any, lying: Lying) -> dict[str, Any]:
        """Return the arrays that a kernel takes beside input and output."""
        if call.mask is not None:
            return {"mask": self.converted(call.mask, lying.dtype, x)}
        if call.lengths is not None:
            lengths = call.lengths
            if self.dtype_name(lengths.dtype) == "int64":  # which 32 bits may not hold
                lengths = lengths.clip(0, lying.shape[-1])
            lengths = self.broadcast(self.converted(lengths, "int32", x), lying.shape[:-1])
            return {"lengths": lengths}
        return {}

    def _is_covered(
        self, problem: Problem, source: Lying, out: Any, others: dict[str, Any]
    ) -> bool:
        """Return whether an output lies over an input, other than in place."""
        begins = self.lying(out).address
        ends = begins + problem.output_elements * problem.output_dtype.itemsize
        read = (
            []
            if problem.in_place
            else [(source.address, problem.input_elements * problem.dtype.itemsize)]
        )
        for array in others.values():
            lying = self.lying(array)
            octets = 4 if lying.dtype == "int32" else DTYPES[lying.dtype].itemsize
            read.append((lying.address, octets * math.prod(lying.shape)))
        return any(at < ends and begins < at + octets for at, octets in read)

    def _launch(
        self,
        problem: Problem,
        call: Call,
        source: Lying,
        result: Any,
        x: Any,
        others: dict[str, Any],
    ) -> bool:
        """Launch a problem's kernel; False where it is not there, or an array is misplaced."""
        shapes.met(problem)
        device = source.device
        loaded = service.get(problem, device, may_load=not self.is_capturing(device))
        if loaded is None:
            return False
        plan = plan_of(loaded)
        if plan.kernel.scratch_bytes:
            others = {**others, "scratch": self.empty((plan.kernel.scratch_bytes,), "uint8", x)}
        addresses = {name: self.lying(array).address for name, array in others.items()}
        output = self.lying(result).address
        if any(at & plan.mask for at in (source.address, output, addresses.get("mask", 0))):
            say_once(f"an array does not begin at a multiple of {plan.mask + 1} bytes")
            return False
        if call.scale is not None:
            plan.scale(call.scale)
        with gpu(device).current():
            plan.launch(self.stream(device), source.address, output, **addresses)
        self.done(device)
        return True
