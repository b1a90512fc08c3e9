"""Calls on arrays of any library, PyTorch, CuPy or JAX: served by our kernel, or by the library.

A `Library` says what a call needs to know of arrays. Everything that is not special to one library
is here: which problem a call is, what is converted or copied for it, the launch, rows among others,
and the results by the library's own functions.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from explorer.model.element import TYPE_OF_SUMS
from explorer.model.errors import InvalidInput
from explorer.ops import Op
from explorer.ops.logsumexp import PAIR
from explorer.runtime import attention_calls
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import (
    DTYPES,
    Call,
    LossKeywords,
    Matrix,
    Shape,
    are_dense,
    bad_id,
    by_name,
    check_floating,
    check_index,
    check_kept,
    check_target,
    check_weight,
    dense_matrix,
    given,
    matrix_of,
    no_number,
    outside,
    plain_scale,
    positive,
    whole_axis,
)
from explorer.runtime.recipes import Apart, Recipe, make_recipe
from explorer.system.plain_data import shown

Compute = Callable[[Call, Any], list[Any]]
"""Computes the results of a call on an array."""

# ------------------------------------------------------------------ libraries


class Library(ABC):
    """What calls need of the library of their arrays. Types are the library's own objects."""

    numpy: Any
    """The library's functions under NumPy's names."""

    functions: Mapping[Op, Callable[[Any, int], Any]]
    """The library's own function of an array and an axis, for operators that it has one of."""

    rounds_once = False
    """Whether its functions compute 16-bit types in f32, and round the result alone."""

    type_named: str
    """A type as a call of this library gives it, in sentences."""

    recipes_are: type[Recipe] = Recipe

    @abstractmethod
    def name_of(self, dtype: Any) -> str:
        """Return the name of an element type, such as float32. Raises TypeError for no type."""

    def type_of(self, name: str) -> Any:
        """Return the element type of a name."""
        return name

    def is_on_gpu(self, x: Any) -> bool:
        """Return whether kernels can read an array."""
        return self.device(x) >= 0

    @abstractmethod
    def device(self, x: Any) -> int:
        """Return the number of the GPU that an array is on; -1 if it is on none."""

    @abstractmethod
    def address(self, x: Any) -> int:
        """Return the address of an array's first element."""

    @abstractmethod
    def strides(self, x: Any) -> Shape | None:
        """Return the strides of an array in elements; None if it is dense."""

    def matrix(self, x: Any, dim: int) -> Matrix | None:
        """Return the rows along an axis; None if no kernel can read the array as it is."""
        strides = self.strides(x)
        shape = tuple(x.shape)
        return dense_matrix(shape, dim) if strides is None else matrix_of(shape, strides, dim)

    def is_dense(self, x: Any) -> bool:
        """Return whether an array has no gaps, its last axis first in memory."""
        strides = self.strides(x)
        return strides is None or are_dense(tuple(x.shape), strides)

    def are_on_one(self, x: Any, other: Any) -> bool:
        """Return whether two arrays are on one device; another library's array is on none."""
        return isinstance(x, type(other)) and self.device(x) == self.device(other)

    def cast(self, x: Any, dtype: Any, like: Any) -> Any:
        """Return an array of a type, on the device of `like`."""
        return self.numpy.asarray(x, dtype=dtype)

    def product(self, subscripts: str, *arrays: Any) -> Any:
        """Return a sum of products of f32, with no factor rounded to fewer bits."""
        return self.numpy.einsum(subscripts, *arrays)

    @abstractmethod
    def converted(self, x: Any, dtype: Any, like: Any) -> Any:
        """Return a dense array of a type on the GPU of `like`; x itself if it is one."""

    @abstractmethod
    def broadcast(self, x: Any, shape: Shape) -> Any:
        """Return a dense array of a shape."""

    @abstractmethod
    def empty(self, shape: Shape, dtype: Any, like: Any) -> Any:
        """Return a new dense array on the GPU of `like`."""

    def strided(self, x: Any, shape: Shape, strides: Shape) -> Any:
        """Return a view of an array's memory; strides are in elements."""
        octets = tuple(stride * x.itemsize for stride in strides)
        return self.numpy.lib.stride_tricks.as_strided(x, shape, octets)

    def counted(self, count: int, like: Any) -> Any:
        """Return the numbers from 0 to `count`, exclusive, on the device of `like`."""
        return self.numpy.arange(count)

    def without(self, x: Any, hidden: Any) -> Any:
        """Return an array with -inf at the elements that are hidden."""
        return self.numpy.where(hidden, x.dtype.type(-math.inf), x)

    def tanh(self, x: Any) -> Any:
        """Return the hyperbolic tangent of an array, whose derivative keeps its digits near 0."""
        return self.numpy.tanh(x)

    def copied(self, result: Any, out: Any) -> Any:
        """Write a result to `out`, and return that."""
        raise NotImplementedError

    def is_capturing(self, device: int) -> bool:
        """Return whether a graph is being captured, into which no kernel can be loaded."""
        return False

    @abstractmethod
    def launch(
        self, plan: Plan, device: int, source: int, output: int, others: dict[str, int]
    ) -> None:
        """Launch a plan on arrays at these addresses, on the current stream of a GPU."""

    def written(self, out: Any) -> None:  # noqa: B027  (most libraries need nothing)
        """Do what must follow a launch that wrote to a given output."""

    def recipe(self, call: Call, x: Any, out: Any) -> Recipe | Apart | None:
        """Return how a call is served, checked; None if the library must compute it."""
        return make_recipe(self, call, x, out)

    def serve(self, call: Call, x: Any, out: Any = None) -> list[Any] | None:
        """Return the results of our kernel, the first one in `out`; None if there is none."""
        recipe = self.recipe(call, x, out)
        return None if recipe is None else recipe.serve(x, out, call.scale, call.arrays)

    def compute(self, call: Call, x: Any, out: Any = None) -> list[Any]:
        """Return the results by our kernel, or else by the library; the first one in `out`."""
        results = self.serve(call, x, out)
        if results is None:
            results = self.framework(call, x)
            results[0] = results[0] if out is None else self.copied(results[0], out)
        return results

    # -------------------------------------------------------------- results by the library

    def result_type(self, call: Call, x: Any) -> Any:
        """Return the type of a call's numbers: a few of a row are of f32 for narrower types."""
        if call.dtype is not None:
            return call.dtype
        kind = DTYPES.get(self.name_of(x.dtype))
        if kind is None or not kind.is_narrow or call.fills_rows:
            return x.dtype
        return self.type_of(kind.arithmetic.array_name)

    def framework(self, call: Call, x: Any) -> list[Any]:
        """Compute a call by the library's functions, in f32 for 16-bit types, as kernels do."""
        target = self.result_type(call, x)
        name = self.name_of(target)
        check_floating(str(target), self.type_named, is_argument=call.dtype is not None)
        x = self.cast(x, target, x)
        if call.fills_rows and 0 in x.shape:  # some libraries raise, since rows have no maximum
            return [x]
        own = None if call.also else self.functions.get(call.op)
        mask = call.arrays.get("mask")
        rounds_once = self.rounds_once and own and call.scale is None and mask is None
        kind = DTYPES.get(name)
        if kind is not None and kind.is_narrow and not rounds_once:
            x = self.cast(x, self.type_of(kind.arithmetic.array_name), x)
        x = self.scaled(x, call.scale)
        if mask is not None:
            x = x + self.cast(self.cast(mask, target, x), x.dtype, x)
        hidden = self.hidden(x, call.causal, call.arrays.get("lengths"))
        x = x if hidden is None else self.without(x, hidden)
        if own:
            results = [own(x, call.dim)]
        elif call.options:
            results = losses(self, x, call)
        elif not x.shape[call.dim]:  # it has no maximum
            results = [x.sum(call.dim, keepdims=True) - math.inf]
        else:
            names = (result.name for result in call.results)
            results = numbers(self.numpy, x, call.dim, call.arrays.get("ids"), names)
        return [self.cast(results[0], target, x), *results[1:]]

    def scaled(self, x: Any, scale: float | None) -> Any:
        """Return an array times a scale, as kernels count it: -inf stays -inf whatever it is."""
        if scale is None:
            return x
        if scale > 0 or "complex" in self.name_of(x.dtype):
            return x * scale
        return self.without(x * scale, x == -math.inf)

    def hidden(self, x: Any, causal: bool, lengths: Any) -> Any:
        """Return which elements a causal mask or lengths hide; None without these.

        The shape is one that broadcasts to x's.
        """
        if not causal and lengths is None:
            return None
        columns = self.counted(x.shape[-1], x)
        if lengths is not None:
            return columns >= self.cast(lengths, lengths.dtype, x)[..., None]
        rows, cols = x.shape[-2:]
        return columns > self.counted(rows, x)[:, None] + (cols - rows)


class RowFunctions(Library):
    """`explorer.logsumexp` and `explorer.log_prob` of a library's arrays."""

    @abstractmethod
    def check_x(self, x: Any, *, may_be_complex: bool) -> None:
        """Raise InvalidInput for an x without floating-point numbers."""

    @abstractmethod
    def check_beside(self, name: str, array: Any, x: Any, than: str = "x") -> None:
        """Raise TypeError for what is no array of x's library, InvalidInput for another device.

        `than` is what the caller calls x.
        """

    @abstractmethod
    def check_out(self, x: Any, shape: Shape, dtype: Any, out: Any) -> None:
        """Raise InvalidInput for an output of another shape, type or device, or TypeError."""

    def first_place(self, elements: Any) -> Shape | None:
        """Return the place of the first element that is True, or None; wait for the GPU."""
        places = self.numpy.argwhere(elements)
        return tuple(int(at) for at in places[0]) if len(places) else None

    def plain(self, dim: Any, scale: Any) -> tuple[int, float | None]:
        """Return a call's axis and scale, None for 1. Raises TypeError and InvalidInput."""
        if scale is None:
            raise no_number(scale)
        factor = plain_scale(scale)
        return whole_axis(dim), None if factor == 1 else factor

    def of_rows(self, call: Call, x: Any, out: Any = None) -> list[Any]:
        """Compute numbers of rows, with their gradients if needed, the first one in `out`."""
        if call.op is Op.CROSS_ENTROPY:
            return with_terms(self, self.compute, x, call)
        return self.compute(call, x, out)

    def logsumexp_of(self, x: Any, dim: Any, keepdim: bool, scale: Any, out: Any) -> Any:
        """Compute the log-sum-exp of an array, as `explorer.logsumexp` documents it."""
        dim, factor = self.plain(dim, scale)
        self.check_x(x, may_be_complex=True)
        axis = positive(dim, x.ndim)
        drops = not (keepdim and x.ndim)
        rows = x if x.ndim else x.reshape(1)
        if out is None:
            (result,) = self.of_rows(Call(Op.LOGSUMEXP, axis, factor), rows)
            return result.squeeze(axis) if drops else result
        is_own = getattr(out, "dtype", None) == x.dtype
        call = Call(Op.LOGSUMEXP, axis, factor, x.dtype if is_own else None)
        kept = () if drops else (1,)
        shape = (*rows.shape[:axis], *kept, *rows.shape[axis + 1 :])
        self.check_out(x, shape, self.result_type(call, x), out)
        self.of_rows(call, rows, out[(*[slice(None)] * axis, None)] if drops else out)
        return out

    def log_prob_of(
        self, x: Any, index: Any, scale: Any, also: tuple[str, ...], check: bool
    ) -> list[Any]:
        """Compute log-probabilities, and results beside them, as `explorer.log_prob` says it."""
        _, factor = self.plain(-1, scale)
        self.check_x(x, may_be_complex=False)
        self.check_beside("index", index, x)
        check_index(tuple(x.shape), tuple(index.shape), self.name_of(index.dtype))
        if check:
            self.check_columns(index, x.shape[-1])
        drops = index.ndim < x.ndim
        ids = index[..., None] if drops else index
        call = Call(Op.LOG_PROB, x.ndim - 1, factor, also=",".join(also), arrays=given(ids=ids))
        first, *others = self.of_rows(call, x)
        return [first.squeeze(-1) if drops else first, *(other.squeeze(-1) for other in others)]

    def cross_entropy_of(
        self, x: Any, target: Any, weight: Any, told: LossKeywords, out: Any = None
    ) -> Any:
        """Compute the losses of rows, or their sum or mean, as `explorer.cross_entropy` says it."""
        if told.gradient != "later":
            self.check_gradient(x, target, weight, told)
        call, rows = self.losses_call(x, target, told)
        if told.bad_target == "raise":
            self.check_targets(target, rows.shape[call.dim], told.ignore_index)
        return self.loss_of(call, rows, target, weight, told, out)

    def loss_of(
        self, call: Call, rows: Any, target: Any, weight: Any, told: LossKeywords, out: Any = None
    ) -> Any:
        """Compute what `cross_entropy_of` returns from the call that `losses_call` has checked."""
        if told.return_lse or told.return_z_loss:
            call = call._replace(also="lse")
        classes = rows.shape[call.dim]
        factors = None if weight is None else self._weights(weight, target, classes, told)
        if out is not None:
            dtype = told.loss_dtype or self.result_type(call, rows)
            shape = tuple(target.shape) if told.reduction == "none" else ()
            for differentiated in (rows,) if weight is None else (rows, weight):
                self.check_out(differentiated, shape, dtype, out)
        counts = target != told.ignore_index
        shares = counts if factors is None else factors
        divisor = self._divisor(told, counts, shares)
        reduced = partial(self._reduced, told, divisor)

        def weighted(loss: Any) -> Any:
            return reduced(loss if factors is None else loss * factors)

        made = None
        if factors is not None and told.label_smoothing:
            loss = smoothed_by_weights(self, rows, call, weight)
            others = self.of_rows(call, rows)[1:]
            made = [reduced(loss), *(one.squeeze(call.dim) for one in others)]
        elif told.gradient == "with_loss":
            shares = shares if divisor is None else shares / divisor
            made = self.with_loss(call, rows, weighted, shares)
        if made is None:
            loss, *others = (one.squeeze(call.dim) for one in self.of_rows(call, rows))
            made = [weighted(loss), *others]
        total, *others = made
        others = list(map(constant, others))
        results = [total if out is None else self.copied(total, out)]
        if told.return_lse:
            results.append(others[0])
        if told.return_z_loss:
            squared = told.z_loss * others[0] * others[0]
            results.append(reduced(self.numpy.where(counts, squared, 0)))
        return results[0] if len(results) == 1 else tuple(results)

    def check_gradient(self, x: Any, target: Any, weight: Any, told: LossKeywords) -> None:
        """Raise InvalidInput for an x whose gradient cannot be formed in the way that is asked."""
        raise InvalidInput(f"gradient is '{told.gradient}'; only tensors of PyTorch have gradients")

    def with_loss(
        self, call: Call, x: Any, reduced: Callable[[Any], Any], shares: Any
    ) -> list[Any] | None:
        """Return the reduced loss, whose gradient is formed at once, and the results beside it.

        `shares` are the gradients of the reduced loss by those of the rows. None if no kernel does
        it.
        """
        return None

    def _weights(self, weight: Any, target: Any, classes: int, told: LossKeywords) -> Any:
        """Return the weight of each row's target: 0 for one that is ignored or no class."""
        self.check_beside("weight", weight, target)
        check_weight(tuple(weight.shape), self.name_of(weight.dtype), classes)
        if told.z_loss:
            raise InvalidInput(
                "weight and z_loss are given; whether the squared log-sum-exp has a weight is not "
                "agreed upon: add it to losses of reduction='none' yourself"
            )
        is_class = ~outside(target, classes) & (target != told.ignore_index)
        columns = self.numpy.where(is_class, target, 0)
        return self.numpy.where(is_class, weight[columns], 0)

    def _reduced(self, told: LossKeywords, divisor: Any, loss: Any) -> Any:
        """Return what a loss of each row is reduced to, in the type that is asked for."""
        dtype = loss.dtype if told.loss_dtype is None else told.loss_dtype
        if told.reduction == "none":
            return self.cast(loss, dtype, loss)
        total = loss.sum(dtype=self.type_of(TYPE_OF_SUMS.array_name))
        return self.cast(total if divisor is None else total / divisor, dtype, loss)

    def _divisor(self, told: LossKeywords, counts: Any, shares: Any) -> Any:
        """Return what the sum of losses is divided by for their mean; it stays on the GPU.

        None for other reductions. `shares` are the rows' weights, or which of them count.
        """
        if told.reduction != "mean":
            return None
        divisor = shares.sum(dtype=self.type_of(TYPE_OF_SUMS.array_name))
        if told.all_ignored == "zero":
            divisor = self.numpy.where(counts.any(), divisor, 1)
        return divisor

    def cross_entropy_forward_of(self, x: Any, target: Any, told: LossKeywords) -> list[Any]:
        """Compute losses, and what their gradient needs of each row, without gradients."""
        call, rows = self.losses_call(x, target, told)
        made = self.of_rows(call.asking_for(*TERMS), constant(rows))
        return [one.squeeze(call.dim) for one in made]

    def cross_entropy_backward_of(
        self, x: Any, target: Any, kept: Any, loss_grad: Any, told: LossKeywords, out: Any
    ) -> Any:
        """Compute the gradient of x, as `explorer.cross_entropy_backward` documents it."""
        call, rows = self.losses_call(x, target, told)
        arrays = dict(call.arrays)
        for name, array in (*kept.items(), ("loss_grad", loss_grad)):
            self.check_beside(name, array, x)
            check_kept(name, tuple(array.shape), tuple(target.shape))
            if getattr(array, "requires_grad", False):  # a batch of gradients cannot be detached
                array = constant(array)
            array = self.converted(array, self.result_type(call, x), x)
            arrays[name] = with_axis(array, call.dim)
        call = call._replace(op=Op.CROSS_ENTROPY_BACKWARD, arrays=arrays)
        if out is not None:
            self.check_out(x, tuple(x.shape), x.dtype, out)
            if rows is not x:
                raise InvalidInput("out is given; x must then be dense")
        (result,) = self.of_rows(call, constant(rows), out)
        axis = positive(told.axis_of(x.ndim), x.ndim)
        return result if rows is x else self.numpy.moveaxis(result, -1, axis)

    def losses_call(self, x: Any, target: Any, told: LossKeywords) -> tuple[Call, Any]:
        """Return the call of the losses of rows, and x, whose classes are moved to the last axis.

        An x that is dense is read as it is.
        """
        axis, factor = self.plain(told.axis_of(x.ndim), told.scale)
        self.check_x(x, may_be_complex=False)
        self.check_beside("target", target, x)
        axis = positive(axis, x.ndim)
        if not x.ndim:
            raise InvalidInput("x has no axis; losses are of rows along one")
        ids_dtype = self.name_of(target.dtype)
        check_target(tuple(x.shape), axis, tuple(target.shape), ids_dtype, told.ignore_index)
        if told.loss_dtype is not None and self.name_of(told.loss_dtype) not in DTYPES:
            raise InvalidInput(
                f"loss_dtype is {shown(told.loss_dtype)}; it must be a type of floating-point "
                f"numbers of 16, 32 or 64 bits, such as {self.type_named}"
            )
        rows, last = x, x.ndim - 1
        if axis != last and not self.is_dense(x):
            rows, axis = self.numpy.moveaxis(x, axis, -1), last
        arrays = {"ids": with_axis(target, axis)}
        return Call(Op.CROSS_ENTROPY, axis, factor, arrays=arrays, options=told.options), rows

    def decode_attention_of(
        self,
        q: Any,
        k: Any,
        v: Any,
        lengths: Any,
        call: attention_calls.Call,
        check: bool,
        out: Any,
    ) -> list[Any]:
        """Compute attention to a cache, as `explorer.decode_attention` documents it."""
        cache = attention_calls.check_arrays(self, q, k, v, lengths, call, out)
        if check and lengths is not None:
            self.check_lengths(lengths, cache.keys)
        return self.attention(call, q, k, v, lengths, out)

    def attention(
        self, call: attention_calls.Call, q: Any, k: Any, v: Any, lengths: Any, out: Any
    ) -> list[Any]:
        """Compute a checked call of attention."""
        return attention_calls.compute(self, call, q, k, v, lengths, out)

    def merge_states_of(self, o: Any, lse: Any) -> tuple[Any, Any]:
        """Merge results of parts of the keys, as `explorer.merge_states` documents it."""
        self.check_beside("lse", lse, o, "o")
        return attention_calls.merged(self, o, lse)

    def check_columns(self, index: Any, cols: int) -> None:
        """Raise InvalidInput that names the first id that is no column; wait for the GPU for it."""
        place = self.first_place(outside(index, cols))
        if place is not None:
            raise bad_id("index", int(index[place]), place, cols)

    def check_lengths(self, lengths: Any, keys: int) -> None:
        """Raise InvalidInput that names the first length that is none; wait for the GPU for it."""
        attention_calls.check_lengths(self, lengths, keys)

    def check_targets(self, target: Any, classes: int, ignore_index: int) -> None:
        """Raise InvalidInput that names the first bad target; wait for the GPU for it."""
        place = self.first_place(are_bad(target, classes, ignore_index))
        if place is not None:
            ignored = f", or {ignore_index}, which is ignored"
            raise bad_id("target", int(target[place]), place, classes, ignored)


# ------------------------------------------------------------------ numbers of a row


def constant(x: Any) -> Any:
    """Return an array as one from which no gradient flows."""
    return x.detach() if hasattr(x, "detach") else x


def with_axis(array: Any, axis: int) -> Any:
    """Return an array of a number for each row with an axis of one element."""
    return array[(slice(None),) * axis + (None,)]


LEAST_GAP = 1000.0
"""A number that is beyond the exponentials of each type: that of its negative is 0."""


def numbers(library: Any, x: Any, axis: int, ids: Any, names: Iterable[str]) -> list[Any]:
    """Return the results of the given names of an array, which keep the axis as one element.

    They are computed by the functions that PyTorch, CuPy and JAX have in common, under NumPy's
    names, and mean what the truths of `explorer.ops` mean.

    The output is that of log-probabilities if there are ids, else the log-sum-exp. It can be
    differentiated, with the maximum as a constant, since a result does not depend on that.
    """

    def along(function: Any, values: Any, **told: Any) -> Any:
        return function(values, axis=axis, keepdims=True, **told)

    maximum = _finite_maximum(library, x, axis)
    gaps = x - maximum
    weights = library.exp(gaps)
    total = along(library.sum, weights)
    log_sum = library.log(total)
    made = {"maximum": maximum, "log_sum": log_sum, "lse": maximum + log_sum}
    names = list(names)
    made["output"] = made["lse"] if ids is None else _chosen(library, gaps, ids, log_sum, axis)
    if "entropy" in names:  # without the products of 0 and -inf
        terms = weights * library.clip(gaps, -LEAST_GAP, None)
        made["entropy"] = log_sum - along(library.sum, terms) / total
    if "rank" in names:
        first = _chosen(library, x, ids[..., :1])
        ranks = along(library.sum, x > first, dtype=ids.dtype)
        made["rank"] = _columns(library, library.isnan(first), ranks, ids)
    if "argmax" in names:
        ranked = library.where(library.isnan(x), -math.inf, x)
        are_greatest = library.where(x == along(library.amax, ranked), 1, 0)
        column = along(library.argmax, are_greatest)
        made["argmax"] = _columns(library, along(library.amax, are_greatest) == 0, column, ids)
    return [made[name] for name in names]


def _finite_maximum(library: Any, x: Any, axis: int) -> Any:
    """Return the maximum of each row as a constant: of an infinite one the greatest number."""
    greatest = float(library.finfo(x.dtype).max)
    maximum = library.amax(constant(x), axis=axis, keepdims=True)
    return library.clip(maximum, -greatest, greatest)


def _chosen(library: Any, x: Any, ids: Any, less: Any = 0.0, axis: int = -1) -> Any:
    """Return the elements of each row's ids along an axis, less a number of the row.

    That is NaN for an id that is no column: a constant, from which no gradient flows.
    """
    bad = outside(ids, x.shape[axis])
    inside = library.where(bad, 0, ids)
    if hasattr(library, "take_along_dim"):  # PyTorch's name, which takes 64 bits alone
        taken = library.take_along_dim(x, inside.long(), axis)
    else:
        taken = library.take_along_axis(x, inside, axis)
    return library.where(bad, math.nan, taken - less)


def _columns(library: Any, are_none: Any, columns: Any, ids: Any) -> Any:
    """Return columns, or numbers of them, in the type of the ids: -1 where there is none."""
    return library.asarray(library.where(are_none, -1, columns), dtype=ids.dtype)


# ------------------------------------------------------------------ losses


def are_bad(target: Any, classes: int, ignore_index: int) -> Any:
    """Return which targets are neither classes nor ignored."""
    return outside(target, classes) & (target != ignore_index)


def losses(library: Library, x: Any, call: Call) -> list[Any]:
    """Return the results of a call whose rows have targets, by a library's functions."""
    ids, functions, told = call.arrays["ids"], library.numpy, dict(call.options)
    x, uncapped = capped(library, x, told["softcap"]), x
    cols = x.shape[call.dim]
    columns = library.counted(cols, x).reshape(cols, *[1] * (x.ndim - 1 - call.dim))
    is_target = columns == ids
    if call.op is Op.CROSS_ENTROPY:
        names = [result.name for result in call.results]
        loss, *others = _loss_numbers(functions, x, call.dim, ids, is_target, names)
        return [functions.where(ids == told["ignore_index"], 0.0, loss), *others]
    arrays, scale = call.arrays, 1.0 if call.scale is None else call.scale
    counts = ~outside(ids, cols) & (ids != told["ignore_index"])
    exponents = x - arrays["maximum"] - arrays["log_sum"]
    smoothing = told["label_smoothing"]
    shares = functions.exp(exponents)
    less = functions.where(is_target, functions.expm1(exponents) + smoothing, shares)
    if told["z_loss"]:
        less = less + 2 * told["z_loss"] * (arrays["maximum"] + arrays["log_sum"]) * shares
    less = less - smoothing / cols
    if told["softcap"]:
        small = functions.exp(-2 * abs(uncapped / told["softcap"]))
        less = less * (4 * small / (1 + small) ** 2)
    return [functions.where(counts, less * (arrays["loss_grad"] * scale), 0.0)]


def _loss_numbers(
    library: Any, x: Any, axis: int, ids: Any, is_target: Any, names: Iterable[str]
) -> list[Any]:
    """Return what `numbers` does, of rows that have a target each; the output is the loss.

    A target that is its row's maximum, p near 1, is left out of the sum of exponentials: the loss
    is log1p of the others' sum, which the exponential's 1 would round. These are then relative to
    the target's own element, no constant: so its gradient is formed of the others' alone, too.
    """
    maximum = _finite_maximum(library, x, axis)
    own = _chosen(library, x, ids, axis=axis)
    is_greatest = own == maximum
    maximum = library.where(is_greatest, own, maximum)
    is_apart = is_target & is_greatest
    weights = library.exp(library.where(is_apart, -math.inf, x - maximum))
    rest = library.sum(weights, axis=axis, keepdims=True)
    log_sum = library.log1p(library.where(is_greatest, rest, rest - 1))
    gap = library.where(is_greatest, 0.0, maximum - own)
    loss = library.where(outside(ids, x.shape[axis]), math.nan, gap + log_sum)
    made = {"output": loss, "maximum": maximum, "log_sum": log_sum, "lse": maximum + log_sum}
    names = list(names)
    if MEAN_GAP in names:
        gaps = (maximum - x) / x.shape[axis]
        made[MEAN_GAP] = library.sum(gaps, axis=axis, keepdims=True)
    return [made[name] for name in names]


def capped(library: Library, x: Any, softcap: float) -> Any:
    """Return logits as they count under a cap, of which 0 is none."""
    return softcap * library.tanh(x / softcap) if softcap else x


def with_terms(library: Library, compute: Compute, x: Any, call: Call) -> list[Any]:
    """Return the results of a loss's call, of which `compute` has the plain cross-entropy.

    `compute` may be differentiable; then so is the result.
    """
    every = call.asking_for(*loss_terms(call))
    made = by_name(every.results, compute(every, x))
    made["output"] = whole_loss(library, call, made)
    return [made[result.name] for result in call.results]


TERMS = tuple(result.name for result in PAIR)
"""The terms of a log-sum-exp, of which gradients are made, and what a loss has beside the
cross-entropy. Exponentials are relative to the first, and their sum has the second as its
logarithm. One number for both would round each probability, by 4e-6 where it is 64."""


MEAN_GAP = "mean_gap"
"""The mean of what a row's elements are below its maximum, of which a smoothed loss is made."""


def loss_terms(call: Call) -> tuple[str, ...]:
    """Return the names of the results of a cross-entropy of which its call's loss is made."""
    told = dict(call.options)
    if told["label_smoothing"]:
        return (*TERMS, MEAN_GAP)
    return TERMS if told["z_loss"] else ()


def whole_loss(library: Library, call: Call, made: Mapping[str, Any]) -> Any:
    """Return the loss of each row from the results of its cross-entropy."""
    told, loss = dict(call.options), made["output"]
    smoothing, factor = told["label_smoothing"], told["z_loss"]
    if not (smoothing or factor):
        return loss
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (made[MEAN_GAP] + made["log_sum"])
    if factor:
        loss = loss + factor * (made["maximum"] + made["log_sum"]) ** 2
    return library.numpy.where(call.arrays["ids"] == told["ignore_index"], 0.0, loss)


def smoothed_by_weights(library: Library, x: Any, call: Call, weight: Any) -> Any:
    """Return the loss of each row with label smoothing whose columns have weights.

    It is computed by the library's functions, in several passes.
    """
    told, ids, functions = dict(call.options), call.arrays["ids"], library.numpy
    dtype, scale = library.result_type(call, x), call.scale
    x = functions.where(ids == told["ignore_index"], 0.0, x)  # whose NaN would have a gradient
    if told["softcap"]:
        x = capped(library, library.scaled(library.cast(x, dtype, x), scale), told["softcap"])
        scale = None
    log = Call(Op.LOG_SOFTMAX, call.dim, scale, dtype)
    (logs,) = library.framework(log, x)
    weight = library.cast(weight, logs.dtype, logs)
    weighted, smoothing = functions.moveaxis(logs, call.dim, -1) * weight, told["label_smoothing"]
    spread = weighted.sum(-1, keepdims=True) / weighted.shape[-1]
    ids = functions.moveaxis(ids, call.dim, -1)
    loss = -(1 - smoothing) * _chosen(functions, weighted, ids) - smoothing * spread
    return functions.where(ids == told["ignore_index"], 0.0, loss).squeeze(-1)
