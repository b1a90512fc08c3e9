"""Calls on arrays of libraries that say where their memory lies, as those of CuPy and JAX do."""

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from explorer.errors import InvalidInput
from explorer.problem import Mask, Op, Problem
from explorer.runtime import shapes
from explorer.runtime.launcher import LoadedKernel, Plan, gpu
from explorer.runtime.layout import (
    DTYPES,
    broadcasts,
    dense_matrix,
    is_converted,
    mask_rows_of,
    matrix_of,
    positive,
    problem_of,
)
from explorer.runtime.service import say_once, service


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
    causal: bool
    lengths: Any
    dtype: str | None

    def hidden(self, numpy: Any, shape: tuple[int, ...]) -> Any:
        """Return which elements a causal mask or lengths hide; None without these."""
        if self.causal:
            rows, cols = shape[-2:]
            return ~numpy.tril(numpy.ones((rows, cols), bool), cols - rows)
        if self.lengths is not None:
            return numpy.arange(shape[-1]) >= numpy.asarray(self.lengths)[..., None]
        return None


class _Threads(threading.local):
    def __init__(self) -> None:
        self.plans: dict[LoadedKernel, Plan] = {}


_threads = _Threads()


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
        """Softmax or log_softmax of an array, as `explorer.softmax` documents it."""
        if isinstance(mask, str) and mask != "causal":
            raise InvalidInput(f"mask is {mask!r}; it must be 'causal' or an array that is added")
        causal = isinstance(mask, str)
        name = None if dtype is None else self.dtype_name(dtype)
        call = Call(
            op, positive(dim, x.ndim), scale, None if causal else mask, causal, lengths, name
        )
        self._check(call, x, out)
        if 0 in x.shape:  # what has no elements has no greatest one, which libraries ask for
            return x.astype(name or x.dtype) if out is None else out
        result = self._served(call, x, out)
        if result is not None:
            return result
        result = self.framework(call, x if x.ndim else x.reshape(1)).reshape(x.shape)
        return result if out is None else self.copied(result, out)

    def _check(self, call: Call, x: Any, out: Any) -> None:
        """Raise InvalidInput for arguments that contradict each other, TypeError for no arrays."""
        for name, array in (("mask", call.mask), ("lengths", call.lengths)):
            if array is not None and not hasattr(array, "dtype"):
                raise TypeError(f"{name} is a {type(array).__qualname__}; it must be an array")
        masks = call.causal + (call.mask is not None) + (call.lengths is not None)
        if masks and (x.ndim == 0 or call.dim != x.ndim - 1):
            raise InvalidInput("dim is not the last axis; a mask is for rows along it: dim=-1")
        if call.causal and x.ndim < 2:
            raise InvalidInput("mask is 'causal'; x must have rows and columns, and has one axis")
        if masks > 1:
            raise InvalidInput("mask and lengths exclude each other: give one of them")
        if call.mask is not None and "float" not in self.dtype_name(call.mask.dtype):
            raise InvalidInput(
                f"mask is of {call.mask.dtype}; a mask is added: give 0 where an element counts "
                "and -inf where it does not"
            )
        for name, array, shape in (
            ("mask", call.mask, tuple(x.shape)),
            ("lengths", call.lengths, tuple(x.shape[:-1])),
        ):
            if array is not None and not broadcasts(tuple(array.shape), shape):
                raise InvalidInput(
                    f"{name} is of shape {tuple(array.shape)}; it must broadcast to {shape}"
                )
        if call.lengths is not None and "int" not in self.dtype_name(call.lengths.dtype):
            raise InvalidInput(f"lengths is of {call.lengths.dtype}; it must be of whole numbers")
        if out is not None and self.lying(out).device != self.lying(x).device:
            raise InvalidInput("out lies on another GPU than x; both must lie on one")
        wanted = call.dtype or self.dtype_name(x.dtype)
        if out is not None and (out.shape != x.shape or self.dtype_name(out.dtype) != wanted):
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
        mask = lying.dtype if call.mask is None else self.dtype_name(call.mask.dtype)
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
        kind, mask_rows = Mask.NONE, 0
        if call.causal:
            kind, mask_rows = Mask.CAUSAL, source.shape[-2]
        elif call.mask is not None:
            repeats = mask_rows_of(source.shape, tuple(call.mask.shape))
            kind, mask_rows = Mask.ADDITIVE, repeats or 0
        elif call.lengths is not None:
            kind = Mask.LENGTHS
        if matrices[0] is None or matrices[1] is None or (kind is Mask.ADDITIVE and not mask_rows):
            say_once("an output or a mask that does not lie as kernels want it")
            return None
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
        plan = _threads.plans.get(loaded) or _threads.plans.setdefault(loaded, Plan(loaded))
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
