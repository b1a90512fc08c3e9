"""Calls on arrays of libraries that expose the addresses of their memory, such as CuPy and JAX."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from explorer.model.element import IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.ops import OPERATORS, Extent, Op
from explorer.runtime import shapes
from explorer.runtime.launcher import gpu, plan_of
from explorer.runtime.layout import (
    DTYPES,
    Call,
    Described,
    Ids,
    Masking,
    Matrix,
    Spread,
    bad_id,
    by_name,
    check_floating,
    check_index,
    dense_matrix,
    goes_in_turn,
    in_turn,
    is_causal,
    is_converted,
    matrix_of,
    outside,
    plain_scale,
    positive,
    results_of,
    spread_of,
    whole_axis,
)
from explorer.runtime.row_numbers import numbers
from explorer.runtime.service import log_once, service
from explorer.system.plain_data import kind_of, parse_name, shown


@dataclass(frozen=True, slots=True)
class Location:
    """An array in memory: its address, and in elements its shape and strides (None: dense)."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int
    """The GPU's number; -1 if it is not on a GPU."""

    def matrix(self, dim: int) -> Matrix | None:
        """Return the rows along an axis; None if no kernel can read the array as it is."""
        if self.strides is None:
            return dense_matrix(self.shape, dim)
        return matrix_of(self.shape, self.strides, dim)


class Arrays(ABC):
    """The operations that a call needs of the library of its arrays."""

    numpy: Any
    """The library's counterpart of NumPy."""

    @abstractmethod
    def location(self, x: Any) -> Location:
        """Return the location of an array."""

    @abstractmethod
    def dtype_name(self, dtype: Any) -> str:
        """Return the name of an element type, such as float32."""

    @abstractmethod
    def converted(self, x: Any, dtype: str, like: Any) -> Any:
        """Return a dense array of a type on the GPU of `like`; x itself if it is one."""

    @abstractmethod
    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return a dense array of a shape."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str, like: Any) -> Any:
        """Return a new dense array on the GPU of `like`."""

    @abstractmethod
    def stream(self, device: int) -> int:
        """Return the stream for work on a GPU."""

    @abstractmethod
    def softmax(self, log: bool, x: Any, dim: int) -> Any:
        """Compute softmax or its logarithm over an axis by the library's own function."""

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is being captured, into which no kernel can be loaded."""
        return False

    def done(self, device: int) -> None:  # noqa: B027  (most libraries need nothing)
        """Do what must follow a launch."""

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        raise NotImplementedError

    def strided(self, x: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """Return a view of an array's memory; strides are in elements."""
        octets = tuple(stride * x.itemsize for stride in strides)
        return self.numpy.lib.stride_tricks.as_strided(x, shape, octets)

    def framework(self, call: Call, x: Any) -> list[Any]:
        """Compute by the library's functions, in fp32 for 16-bit types, as kernels do."""
        numpy = self.numpy
        x = numpy.asarray(x, dtype=call.dtype)
        target = x.dtype
        kind = DTYPES.get(self.dtype_name(target))
        if kind is not None and kind.is_narrow:
            x = numpy.asarray(x, dtype=kind.arithmetic.array_name)
        if call.scale is not None:
            lowest = x == -math.inf  # which stays so whatever the scale
            x = x * x.dtype.type(call.scale)
            x = x if call.scale > 0 else numpy.where(lowest, x.dtype.type(-math.inf), x)
        if call.mask is not None:
            x = x + numpy.asarray(numpy.asarray(call.mask, dtype=target), dtype=x.dtype)
        hidden = self._hidden(call, x.shape)
        if hidden is not None:
            x = numpy.where(hidden, x.dtype.type(-math.inf), x)
        operator = OPERATORS[call.op]
        if operator.extent is Extent.MATRIX:
            return [numpy.asarray(self.softmax(operator.is_log, x, call.dim), dtype=target)]
        if not x.shape[call.dim]:  # it has no maximum
            return [numpy.asarray(x.sum(call.dim, keepdims=True) - math.inf, dtype=target)]
        names = (result.name for result in results_of(call.op, call.also))
        first, *others = numbers(numpy, x, call.dim, call.index, names)
        return [numpy.asarray(first, dtype=target), *others]

    def _hidden(self, call: Call, shape: tuple[int, ...]) -> Any:
        """Return which elements a causal mask or lengths hide; None without these."""
        numpy = self.numpy
        if call.masking.causal:
            rows, cols = shape[-2:]
            return ~numpy.tril(numpy.ones((rows, cols), bool), cols - rows)
        if call.lengths is not None:
            return numpy.arange(shape[-1]) >= numpy.asarray(call.lengths)[..., None]
        return None

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
        """Compute an op of an array, as `explorer.softmax` documents it.

        Where a row has one result, the array of these keeps the axis.
        """
        if dim.__class__ is not int or (scale is not None and scale.__class__ is not float):
            dim, scale = whole_axis(dim), None if scale is None else plain_scale(scale)
        causal = is_causal(mask)
        mask = None if causal else mask
        masking = Masking(
            causal, self._described("mask", mask), self._described("lengths", lengths)
        )
        name = None if dtype is None else self._checked_dtype(dtype)
        call = Call(op, positive(dim, x.ndim), scale, mask, lengths, masking, name)
        masking.check(tuple(x.shape), call.dim)
        self._check(call, x, out)
        shape = call.result_shape(tuple(x.shape))
        if 0 in shape and shape == x.shape:  # libraries raise, since rows have no maximum
            return x.astype(name or x.dtype) if out is None else out
        results = self._served(call, x, out)
        if results is not None:
            return results[0]
        (result,) = self.framework(call, x if x.ndim else x.reshape(1))
        result = result.reshape(shape)
        return result if out is None else self.copied(result, out)

    def logsumexp(self, x: Any, dim: int, keepdim: bool, scale: Any, out: Any) -> Any:
        """Compute the log-sum-exp of an array, as `explorer.logsumexp` documents it."""
        axis, factor, dtype = self._row_call(x, dim, scale)
        own = self.dtype_name(x.dtype)
        drops = x.ndim > 0 and not keepdim
        target = out
        if out is not None:
            dtype = own if getattr(out, "dtype", None) == x.dtype else dtype
            kept = () if drops else (1,) * min(1, x.ndim)
            self._check_out(x, (*x.shape[:axis], *kept, *x.shape[axis + 1 :]), dtype, out)
            target = self.numpy.expand_dims(out, axis) if drops else out
        result = self.compute(Op.LOGSUMEXP, x, axis, factor, None, None, dtype, target)
        if out is not None:
            return out
        return result.squeeze(axis) if drops else result

    def log_prob(
        self, x: Any, index: Any, scale: Any, also: tuple[str, ...], check: bool
    ) -> list[Any]:
        """Compute log-probabilities, and results beside them, as `explorer.log_prob` says it."""
        _, factor, dtype = self._row_call(x, -1, scale)
        self._check_place(x, "index", index)
        described = Described(tuple(index.shape), self.dtype_name(index.dtype))
        check_index(tuple(x.shape), described)
        if check and outside(index, x.shape[-1]).any():
            place = tuple(int(at) for at in self.numpy.argwhere(outside(index, x.shape[-1]))[0])
            raise bad_id(int(index[place]), place, x.shape[-1])
        drops = index.ndim < x.ndim
        ids = self.converted(index[..., None] if drops else index, described.dtype, x)
        told = Ids(ids.shape[-1], ids.shape[-1], parse_name(IndexType, "index", described.dtype))
        none, beside = Masking(False, None, None), ",".join(also)
        call = Call(
            Op.LOG_PROB, x.ndim - 1, factor, None, None, none, dtype, told, beside, index=ids
        )
        results = self._served(call, x, None) if x.size else None
        first, *others = self.framework(call, x) if results is None else results
        return [first.squeeze(-1) if drops else first, *(other.squeeze(-1) for other in others)]

    def _row_call(self, x: Any, dim: Any, scale: Any) -> tuple[int, float | None, str]:
        """Return the axis of a call with numbers of a row, its scale, and the numbers' type.

        Raises what `explorer.logsumexp` raises for these.
        """
        own = self.dtype_name(x.dtype)
        if "float" not in own:
            raise InvalidInput(
                f"x is of {own}; it must be of floating-point numbers: give x.astype('float32')"
            )
        factor = plain_scale(scale)
        dtype = DTYPES[own].arithmetic.array_name if own in DTYPES else own
        return positive(whole_axis(dim), x.ndim), None if factor == 1 else factor, dtype

    def _described(self, name: str, array: Any) -> Described | None:
        """Return an argument's shape and type; None without one. Raises TypeError for no array."""
        if array is None:
            return None
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name} is {kind_of(array)}; it must be an array")
        return Described(tuple(array.shape), self.dtype_name(array.dtype))

    def _checked_dtype(self, dtype: Any) -> str:
        """Return the name of the type that a call gives. Raises TypeError for no type."""
        try:
            return self.dtype_name(dtype)
        except (TypeError, ValueError):
            raise TypeError(
                f"dtype is {shown(dtype)}; it must be a type of NumPy, such as 'float32'"
            ) from None

    def _check(self, call: Call, x: Any, out: Any) -> None:
        """Raise InvalidInput for whole numbers, and what `_check_out` raises."""
        wanted = call.dtype or self.dtype_name(x.dtype)
        check_floating(wanted, "'float32'", is_argument=call.dtype is not None)
        if out is not None:
            self._check_out(x, call.result_shape(tuple(x.shape)), wanted, out)

    def _check_place(self, x: Any, name: str, other: Any) -> None:
        """Raise InvalidInput for an array on another GPU than x.

        Raises TypeError for what is no array of x's library.
        """
        try:
            device = self.location(other).device
        except AttributeError:
            raise TypeError(
                f"{name} is {kind_of(other)}; it must be an array of x's library"
            ) from None
        if device != self.location(x).device:
            raise InvalidInput(f"{name} lies on another GPU than x; both must lie on one")

    def _check_out(self, x: Any, shape: tuple[int, ...], dtype: str, out: Any) -> None:
        """Raise InvalidInput for an output on another GPU, or of another shape or type.

        Raises TypeError for an output that is no array.
        """
        self._check_place(x, "out", out)
        if out.shape != shape or self.dtype_name(out.dtype) != dtype:
            raise InvalidInput(
                f"out is {out.dtype} of shape {tuple(out.shape)}; it must be {dtype} of shape "
                f"{shape}"
            )

    def _served(self, call: Call, x: Any, out: Any) -> list[Any] | None:
        """Return the results of our kernel; None if the library must compute them."""
        source = self.location(x)
        target = call.dtype or source.dtype
        if source.device < 0 or not {source.dtype, target} <= set(DTYPES):
            log_once(f"{source.dtype} of shape {source.shape} on GPU {source.device}")
            return None
        mask = source.dtype if call.masking.mask is None else call.masking.mask.dtype
        if is_converted(DTYPES[source.dtype], DTYPES[target], DTYPES.get(mask)):
            x = self.converted(x, target, x)
        source = self.location(x)
        if source.matrix(call.dim) is None:
            spread = self._spread(call, source)
            if spread is not None:
                results = self._served_apart(spread, call, x)
                if results is not None and out is not None:
                    results[0] = self.copied(results[0], out)
                return results
            x = self.converted(x, source.dtype, x)
            source = self.location(x)
        made = self._empty(call, x, source, target)
        made[0] = made[0] if out is None else out
        problem = self._problem(call, source, self.location(made[0]))
        if problem is None:
            return None
        others = self._others(call, x, source)
        if out is not None and self._is_covered(problem, source, out, others):
            log_once("an output that lies over a part of an input")
            return None
        others |= by_name(call.op, call.also, made)
        output = others.pop("output")
        return made if self._launch(problem, call, source, output, x, others) else None

    def _spread(self, call: Call, source: Location) -> Spread | None:
        """Return how rows lie among others that can be read without a copy.

        None for rows that cannot, and for results that are as large as the array.
        """
        shape, strides = source.shape, source.strides
        fills_rows = OPERATORS[call.op].extent is Extent.MATRIX
        if strides is None or fills_rows or not 1 < call.dim == len(shape) - 1:
            return None
        return spread_of(shape, strides)

    def _served_apart(self, spread: Spread, call: Call, x: Any) -> list[Any] | None:
        """Return the results of our kernel for rows that do not lie one stride apart."""
        if not goes_in_turn(spread, x.shape, x.itemsize):
            return self._served_between(spread, call, x)
        return in_turn(
            lambda rows, own: self._served(replace(call, dim=call.dim - 1, index=own), rows, None),
            self.numpy.stack,
            x,
            call.index,
        )

    def _served_between(self, spread: Spread, call: Call, x: Any) -> list[Any] | None:
        """Return the results of our kernel for rows among others, whose results are dropped."""
        rows = self.strided(x, (spread.rows, x.shape[-1]), (spread.stride, 1))
        index = call.index
        if index is not None:
            index = self.numpy.zeros((spread.rows, index.shape[-1]), index.dtype)
            self._own(spread, index, x.shape[:-1])[...] = call.index
        results = self._served(replace(call, dim=1, index=index), rows, None)
        if results is None:
            return None
        dense = self.numpy.ascontiguousarray
        return [dense(self._own(spread, result, x.shape[:-1])) for result in results]

    def _own(self, spread: Spread, array: Any, leading: tuple[int, ...]) -> Any:
        """Return a call's own rows of a dense array of all rows."""
        cols = array.shape[1]
        return self.strided(array, (*leading, cols), spread.strides(cols))

    def _empty(self, call: Call, x: Any, source: Location, target: str) -> list[Any]:
        """Return new arrays for the results."""
        made = []
        for result in results_of(call.op, call.also):
            shape = call.result_shape(source.shape, result.extent)
            dtype = call.ids.dtype.array_name if call.ids and result.are_columns else target
            made.append(self.empty(shape, dtype, x))
        return made

    def _problem(self, call: Call, source: Location, output: Location) -> Problem | None:
        """Return a call's problem; None if no kernel computes it."""
        try:
            return call.problem(
                source.shape,
                DTYPES[source.dtype],
                DTYPES[output.dtype],
                source.matrix(call.dim),
                output.matrix(call.dim),
                in_place=source.address == output.address,
            )
        except InvalidInput as error:
            log_once(str(error))
            return None

    def _others(self, call: Call, x: Any, source: Location) -> dict[str, Any]:
        """Return the arrays that a kernel reads beside the input."""
        if call.index is not None:
            return {"ids": call.index}
        if call.mask is not None:
            return {"mask": self.converted(call.mask, source.dtype, x)}
        if call.lengths is not None:
            lengths = call.lengths
            if self.dtype_name(lengths.dtype) == "int64":  # which 32 bits may not hold
                lengths = lengths.clip(0, source.shape[-1])
            lengths = self.broadcast(self.converted(lengths, "int32", x), source.shape[:-1])
            return {"lengths": lengths}
        return {}

    def _is_covered(
        self, problem: Problem, source: Location, out: Any, others: dict[str, Any]
    ) -> bool:
        """Return whether an output overlaps an input, other than in place."""
        begins = self.location(out).address
        ends = begins + problem.output_elements * problem.output_dtype.itemsize
        read = (
            []
            if problem.in_place
            else [(source.address, problem.input_elements * problem.dtype.itemsize)]
        )
        for other in map(self.location, others.values()):
            octets = 4 if other.dtype == "int32" else DTYPES[other.dtype].itemsize
            read.append((other.address, octets * math.prod(other.shape)))
        return any(at < ends and begins < at + octets for at, octets in read)

    def _launch(
        self,
        problem: Problem,
        call: Call,
        source: Location,
        result: Any,
        x: Any,
        others: dict[str, Any],
    ) -> bool:
        """Launch a problem's kernel; False if it is not loaded, or an array is misaligned."""
        shapes.count_call(problem)
        device = source.device
        loaded = service.get(problem, device, may_load=not self.is_capturing(device))
        if loaded is None:
            return False
        plan = plan_of(loaded)
        if plan.kernel.scratch_bytes:
            others = {**others, "scratch": self.empty((plan.kernel.scratch_bytes,), "uint8", x)}
        addresses = {name: self.location(array).address for name, array in others.items()}
        output = self.location(result).address
        at = {"input": source.address, "output": output, **addresses}
        if any(at.get(name, 0) & plan.mask for name in plan.aligned):
            log_once(f"an array does not begin at a multiple of {plan.mask + 1} bytes")
            return False
        if call.scale is not None:
            plan.scale(call.scale)
        with gpu(device).current():
            plan.launch(self.stream(device), source.address, output, **addresses)
        self.done(device)
        return True
