"""How our kernels serve calls on arrays of any library: problems, conversions, launches, and rows.

A recipe holds all that calls of one kind have in common, so that a library can keep it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explorer.model.element import DType, IndexType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Problem
from explorer.model.problem import results as written_arrays
from explorer.ops import OPERATORS, Extent
from explorer.runtime import launcher, shapes
from explorer.runtime.launcher import Plan
from explorer.runtime.layout import (
    DTYPES,
    Call,
    Matrix,
    Shape,
    Spread,
    dense_matrix,
    goes_in_turn,
    is_converted,
    spread_of,
)
from explorer.runtime.service import USUAL, Asked, log_once, service
from explorer.system.plain_data import parse_name

if TYPE_CHECKING:
    from explorer.runtime.library import Library

# ------------------------------------------------------------------ arrays that are read beside x


Prepare = Callable[["Library", Any, Any], Any]
"""Makes of an array beside x, and x, what a kernel reads."""


def _as_x(library: "Library", array: Any, x: Any) -> Any:
    return library.converted(array, x.dtype, x)


def _each_row(library: "Library", lengths: Any, x: Any) -> Any:
    """Return a number of 32 bits for each row."""
    lengths = library.converted(lengths, library.type_of("int32"), x)
    return library.broadcast(lengths, x.shape[:-1])


def _each_row_of_64_bits(library: "Library", lengths: Any, x: Any) -> Any:
    """Return lengths that fit 32 bits: those beyond a row's end become its end."""
    return _each_row(library, lengths.clip(0, x.shape[-1]), x)


def _dense(library: "Library", array: Any, _: Any) -> Any:
    return library.converted(array, array.dtype, array)


def _prepares(library: "Library", call: Call, x: Any, read: str) -> dict[str, Prepare]:
    """Return how the arrays beside x are made what a kernel reads; others are read as they are.

    `read` is the type as which a kernel reads x.
    """
    made: dict[str, Prepare] = {}
    for name, array in call.arrays.items():
        dtype = library.name_of(array.dtype)
        if name == "lengths":
            made[name] = _each_row_of_64_bits if dtype == "int64" else _each_row
        elif name == "ids":  # whose rows may lie one stride apart
            if library.matrix(array, call.dim) is None:
                made[name] = _dense
        elif OPERATORS[call.op].operands.get(name) is Extent.ROW:
            if not library.is_dense(array):
                made[name] = _dense
        elif dtype != read or not (library.are_on_one(array, x) and library.is_dense(array)):
            made[name] = _as_x
    return made


# ------------------------------------------------------------------ recipes


def plan_of(library: "Library", problem: Problem, device: int, asked: Asked = USUAL) -> Plan | None:
    """Return this thread's plan for a problem; None if its kernel is not loaded."""
    shapes.count_call(problem)
    loaded = service.get(problem, device, asked, may_load=not library.is_capturing(device))
    return None if loaded is None else launcher.plan_of(loaded)


def make_recipe(library: "Library", call: Call, x: Any, out: Any) -> "Recipe | Apart | None":
    """Return how a call is served; None if the library must compute it, now or always.

    Raises InvalidInput and IndexError for a call that contradicts itself.
    """
    shape = tuple(x.shape)
    call = call.checked(shape, library.name_of)
    names = library.name_of(x.dtype), library.name_of(library.result_type(call, x))
    own, target = (DTYPES.get(name) for name in names)
    if 0 in shape or not library.is_on_gpu(x) or own is None or target is None:
        place = "an array that is empty" if library.is_on_gpu(x) else "an array that is on no GPU"
        unknown = [name for name in names if name not in DTYPES]
        log_once(f"elements of {unknown[0]}" if unknown else place)
        return None
    mask = call.arrays["mask"].dtype if "mask" in call.arrays else x.dtype
    is_gradient = OPERATORS[call.op].is_gradient
    casts = not is_gradient and is_converted(own, target, DTYPES.get(library.name_of(mask)))
    source = None if casts else library.matrix(x, call.dim)
    if is_gradient and source != dense_matrix(shape, call.dim):  # it reads two matrices
        source = None
    if source is None and not casts:
        spread = _spread(library, call, x)
        if spread is not None:
            return Apart(library, call.alone(), spread)
    try:
        read = target if casts else own
        problem = _problem(library, call, x, out, source, read, target)
    except InvalidInput as error:
        log_once(str(error))
        return None
    plan = plan_of(library, problem, library.device(x))
    if plan is None:
        return None
    types = {written.name: written.dtype.array_name for written in written_arrays(problem)}
    results = tuple(
        (
            result.name,
            call.result_shape(shape, result.extent),
            library.type_of(types[result.name]),
        )
        for result in call.results
    )
    converted = library.type_of(problem.dtype.array_name) if source is None else None
    prepares = _prepares(library, call, x, read.array_name)
    return library.recipes_are(library, problem, plan, results, converted, prepares)


def _problem(
    library: "Library",
    call: Call,
    x: Any,
    out: Any,
    source: Matrix | None,
    own: DType,
    target: DType,
) -> Problem:
    """Return the problem of a call; raises InvalidInput if no kernel computes it.

    `source` is None for an x that is made dense, and `own` the type that kernels read.
    """
    shape = tuple(x.shape)
    result = call.result_shape(shape, call.results[0].extent)
    output = dense_matrix(result, call.dim) if out is None else library.matrix(out, call.dim)
    if output is None:
        raise InvalidInput("an output whose rows are not one stride apart")
    mask, mask_rows = call.mask_on(shape)
    in_place = out is not None and source is not None and library.address(out) == library.address(x)
    source = source or dense_matrix(shape, call.dim)
    more: dict[str, Any] = {}
    if "ids" in call.arrays:
        ids = call.arrays["ids"]
        count, rows = ids.shape[call.dim], library.matrix(ids, call.dim)
        dtype = parse_name(IndexType, "ids", library.name_of(ids.dtype))
        more = {"ids_per_row": count, "ids_dtype": dtype}
        more["ids_stride"] = rows.stride if rows else count
    taken = OPERATORS[call.op].options
    more |= {name: value for name, value in call.options if name in taken}
    return Problem(
        rows=source.rows,
        cols=source.cols,
        dtype=own,
        op=call.op,
        out_dtype=target,
        scale=None if call.scale is None else 1.0,  # it is passed at run time
        mask=mask,
        mask_rows=mask_rows,
        inner=source.inner,
        input_stride=source.stride,
        output_stride=output.stride,
        in_place=in_place,
        also=call.also,
        **more,
    )


@dataclass(eq=False)
class Recipe:
    """How calls of one kind are served by a launch: the conversion of x, and the results."""

    library: "Library"
    problem: Problem
    plan: Plan
    results: tuple[tuple[str, Shape, Any], ...]
    """The name, shape and type of each result, the output first."""
    converted: Any
    """The type of a dense copy of x that is made; None if x is read as it is."""
    prepares: dict[str, Prepare]
    """What makes an array beside x ready, by its name; others are read as they are."""
    gradient: "Recipe | Apart | None" = None
    """How the gradient of such losses is served, once that was asked for."""

    def __post_init__(self) -> None:
        problem = self.problem
        self.in_place = problem.in_place
        self.input_bytes = problem.input_elements * problem.dtype.itemsize
        self.output_bytes = problem.output_elements * problem.output_dtype.itemsize

    def serve(
        self, x: Any, out: Any, scale: float | None, arrays: Mapping[str, Any]
    ) -> list[Any] | None:
        """Launch, and return the results, the first one in `out`; None if these arrays do not fit.

        `arrays` are those that are read beside x, by their names.
        """
        library, plan = self.library, self.plan
        address = library.address
        if self.converted is not None:
            x = library.converted(x, self.converted, x)
        read = dict(arrays)  # references that keep them allocated until the launch
        for name, make in self.prepares.items():
            read[name] = make(library, arrays[name], x)
        if out is None:
            _, shape, dtype = self.results[0]
            results = [library.empty(shape, dtype, x)]
        elif self._is_covered(out, x, read):
            log_once("an output that lies over a part of an input")
            return None
        else:
            results = [out]
        at = {name: address(array) for name, array in read.items()}
        for name, shape, dtype in self.results[1:]:
            results.append(library.empty(shape, dtype, x))
            at[name] = address(results[-1])
        source, output = address(x), address(results[0])
        every = {"input": source, "output": output, **at}
        if any(every.get(name, 0) & plan.mask for name in plan.aligned):
            log_once(f"an array does not begin at a multiple of {plan.mask + 1} bytes")
            return None
        if scale is not None:
            plan.scale(scale)
        if plan.kernel.scratch_bytes:
            scratch = library.empty((plan.kernel.scratch_bytes,), library.type_of("uint8"), x)
            at["scratch"] = address(scratch)
        library.launch(plan, library.device(x), source, output, at)
        if out is not None:
            library.written(out)
        return results

    def takes(self, x: Any) -> bool:
        """Return whether an input that is read as it is begins where the launch needs it to."""
        is_aligned = "input" in self.plan.aligned and self.converted is None
        return not (is_aligned and self.library.address(x) & self.plan.mask)

    def _is_covered(self, out: Any, x: Any, read: Mapping[str, Any]) -> bool:
        """Return whether an output overlaps an input, other than in place."""
        begins = self.library.address(out)
        arrays = [] if self.in_place else [(x, self.input_bytes)]
        arrays += [(array, array.nbytes) for array in read.values()]
        return any(self.covers(begins, self.library.address(one), size) for one, size in arrays)

    def covers(self, output: int, other: int, size: int) -> bool:
        """Return whether an output overlaps another array of `size` bytes."""
        return other < output + self.output_bytes and output < other + size


# ------------------------------------------------------------------ rows among others


def _spread(library: "Library", call: Call, x: Any) -> Spread | None:
    """Return how rows lie among others that can be read without a copy.

    None for rows that cannot, and for results that are as large as the array.
    """
    strides, rank = library.strides(x), len(x.shape)
    if strides is None or call.fills_rows or not 1 < call.dim == rank - 1:
        return None
    return spread_of(tuple(x.shape), strides)


@dataclass(eq=False)
class Apart:
    """How calls on rows that do not lie one stride apart are served without a copy of them.

    Others between them are read as well, or there is a launch for each index of the first axis.
    """

    library: "Library"
    call: Call
    """The call without its arrays."""
    spread: Spread
    problem: None = None
    gradient: "Recipe | Apart | None" = None

    def takes(self, x: Any) -> bool:
        """Return whether an input begins where launches need it to: each makes its own arrays."""
        return True

    def serve(
        self, x: Any, out: Any, scale: float | None, arrays: Mapping[str, Any]
    ) -> list[Any] | None:
        """Launch, and return the results, which are dense (`Recipe.serve`)."""
        call = self.call._replace(scale=scale)
        is_in_turn = goes_in_turn(self.spread, tuple(x.shape), x.itemsize)
        results = (self._in_turn if is_in_turn else self._between)(call, x, arrays)
        if results is not None and out is not None:
            results[0] = self.library.copied(results[0], out)
        return results

    def _in_turn(self, call: Call, x: Any, arrays: Mapping[str, Any]) -> list[Any] | None:
        """Serve each index of the first axis by itself."""
        parts = []
        for number, rows in enumerate(x):
            own = {name: array[number] for name, array in arrays.items()}
            part = self.library.serve(call._replace(dim=call.dim - 1, arrays=own), rows)
            if part is None:
                return None
            parts.append(part)
        return [self.library.numpy.stack(same) for same in zip(*parts, strict=True)]

    def _between(self, call: Call, x: Any, arrays: Mapping[str, Any]) -> list[Any] | None:
        """Serve all rows in memory, and drop the results of the others."""
        library, spread = self.library, self.spread
        rows = library.strided(x, (spread.rows, x.shape[-1]), (spread.stride, 1))
        every = {name: self._spread_out(array) for name, array in arrays.items()}
        results = library.serve(call._replace(dim=1, arrays=every), rows)
        if results is None:
            return None
        own = (self._own(result, tuple(x.shape[:-1])) for result in results)
        return [library.converted(one, one.dtype, one) for one in own]

    def _spread_out(self, array: Any) -> Any:
        """Return an array for all rows in memory; the elements of other rows may be any.

        It is not copied if its rows lie as x's do, as ids[:, 1:] beside logits[:, :-1].
        """
        library, spread = self.library, self.spread
        shape = (spread.rows, array.shape[-1])
        found = spread_of(tuple(array.shape), library.strides(array) or ())
        if found is not None and (found.rows, found.steps) == (spread.rows, spread.steps):
            return library.strided(array, shape, (found.stride, 1))
        copied = library.empty(shape, array.dtype, array)
        copied[...] = 0
        self._own(copied, tuple(array.shape[:-1]))[...] = array
        return copied

    def _own(self, array: Any, leading: Shape) -> Any:
        """Return a call's own rows of a dense array of all rows."""
        cols = array.shape[1]
        return self.library.strided(array, (*leading, cols), self.spread.strides(cols))
