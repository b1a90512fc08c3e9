"""Programs that run an emitted kernel from a framework: the few lines around it, as they stand.

Their texts are `templates/programs`. Here is what these name: the example, its arrays, and what
each argument is given, beside the names of the kernel's own templates (`codegen/traits.py`).
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from explorer.codegen import self_check
from explorer.codegen.launch_plan import LaunchPlan
from explorer.codegen.units import context_of, rendered
from explorer.codegen.variant import POINTER, HostCall, Variant, namespace
from explorer.export import caches
from explorer.export.caches import Refusals
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask, Problem, inputs, results, scalars
from explorer.model.query import command_of
from explorer.model.work_split import WorkSplit
from explorer.ops import Extent
from explorer.system.plain_data import shown

LARGEST_CLUSTER = 8
"""Blocks of a cluster that a kernel may have without an attribute that CuPy does not set."""

# ------------------------------------------------------------------ every framework


def program_names(variant: Variant, file: str) -> dict[str, Any]:
    """Return what the templates of all frameworks name."""
    problem, config = variant.problem, variant.config
    call = HostCall.of(problem, config)
    changed = problem.scale is not None or problem.mask is Mask.ADDITIVE
    errors = problem.output_dtype.errors
    scratch = call.scratch_arguments or ()
    return context_of(problem, config) | {
        "file": file,
        "stem": file.removesuffix(".cu"),
        "host_call": call,
        "scratch_taken": [argument.name for argument in scratch],
        "tolerance": repr(self_check.allowed(problem, errors.of_any_accuracy)),
        "smallest": repr(self_check.smallest(problem)),
        "rounds": changed and not problem.dtype.in_double,
        "input_type": problem.dtype.array_name,
        "result_type": problem.output_dtype.array_name,
    }


# ------------------------------------------------------------------ Python


def _matrix(problem: Problem) -> str:
    """Return the name of the matrix that an op takes: y is what a forward pass has left.

    Of attention it is that of the queries.
    """
    if problem.attends:
        return "query"
    return "y" if problem.operator.is_gradient else "x"


def _arrays(problem: Problem) -> list[str]:
    """Return the names of the arrays that the function takes."""
    names = (operand.name for operand in inputs(problem))
    return [_matrix(problem) if name == "input" else name for name in names]


def _of_rows(problem: Problem) -> list[str]:
    """Return the names of the arrays that have one number for each row."""
    operands = problem.operator.operands.items()
    return [name for name, extent in operands if extent is Extent.ROW]


def _results(problem: Problem) -> dict[str, str]:
    """Return what the function calls each result, by its name."""
    first = _matrix(problem) if problem.in_place else "out"
    return {"output": first, **{result.name: result.name for result in problem.results[1:]}}


def _python(variant: Variant) -> dict[str, Any]:
    """Return what the templates of all Python programs name."""
    problem, x = variant.problem, _matrix(variant.problem)
    arrays = _arrays(problem)
    causal = ["mask_rows=MASK_ROWS"] if problem.mask is Mask.CAUSAL else []
    scale = [] if problem.scale is None else ["scale=SCALE"]
    cols = "COLS" if variant.config.static_cols else f" {x}.shape[1]"
    of_row = f"({x}.shape[0], {x}.shape[2])" if problem.inner > 1 else f"({x}.shape[0],)"
    of_ids = "ids.shape" if problem.ids_dtype else of_row
    return {
        "x": x,
        "arrays": arrays,
        "rows_of": f"{x}.shape[0] * {x}.shape[2]" if problem.inner > 1 else f"{x}.shape[0]",
        "cols_of": f"{x}.shape[1]",
        "lengths_shape": "(ROWS,)",
        "lengths_range": "1, COLS + 1",
        "signature": ", ".join([*arrays, *causal, *scale]),
        "constants": _constants(problem),
        "what": _what(problem),
        # The shape of results between which there are no gaps, and of one number a row.
        "result_shape": f"{x}.shape" if problem.fills_rows else of_ids,
        "row_shape": f"{x}.shape[::2]" if problem.inner > 1 else of_row,
        "returned": ", ".join(_results(problem).values()),
        "arithmetic": problem.dtype.arithmetic.array_name,
        # Whether it is the gradient of a loss.
        "of_loss": problem.has_target and problem.fills_rows,
        # Arrays whose gradients would be lost without a word.
        "floating": [x, *(["mask"] if problem.mask is Mask.ADDITIVE else []), *_of_rows(problem)],
        "too": {one.name: one.dtype.array_name for one in results(problem)[1:]},
        # What makes columns of rows that gaps follow: in the function, and in the example.
        "part": _part(problem, cols),
        "example_part": "" if problem.is_dense else "[:, :COLS]",
        "ids_shape": "(ROWS // INNER, INNER)"
        if problem.inner > 1
        else _ids_shape(problem, "ROWS", gaps=True),
        "ids_part": _few(problem) if problem.ids_stride > problem.ids_per_row else "",
        "numbers_shape": "(ROWS // INNER, INNER)" if problem.inner > 1 else "(ROWS,)",
        **(caches.names(problem) if problem.attends else {}),
    }


def _what(problem: Problem) -> str:
    """Return what the function computes, as its docstring begins."""
    x = _matrix(problem)
    if problem.is_product:
        return f"Product of each row of {x} and its number in {_of_rows(problem)[0]}"
    axis = "over the middle axis" if problem.inner > 1 else "of each row"
    axis = "of the ids of each row" if problem.ids_dtype else axis
    return f"{problem.operator.title.capitalize()} {axis} of {x}"


def _part(problem: Problem, cols: str) -> str:
    """Return what makes a matrix of results of rows that gaps follow."""
    if problem.is_dense:
        return ""
    return f"[:, :{cols}]" if problem.fills_rows else _few(problem)


def _few(problem: Problem) -> str:
    """Return what makes the ids, or the few results, of rows that gaps follow."""
    return "[:, :IDS]" if problem.ids_per_row > 1 else "[:, 0]"


def _ids_shape(problem: Problem, rows: str, *, gaps: bool) -> str:
    """Return the shape of the ids; with `gaps` their rows come with those that follow them."""
    if gaps and problem.ids_stride > problem.ids_per_row:
        return f"({rows}, IDS_STRIDE)"
    return f"({rows}, IDS)" if problem.ids_per_row > 1 else f"({rows},)"


def _constants(problem: Problem) -> str:
    """Return the lines that say what the example is of."""
    told: dict[str, object] = {"ROWS": problem.rows, "COLS": problem.cols}
    told |= {"INNER": problem.inner} if problem.inner > 1 else {}
    if not problem.is_dense:
        told |= {"INPUT_STRIDE": problem.input_stride}
        told |= {} if problem.in_place else {"OUTPUT_STRIDE": problem.output_stride}
    told |= {"IDS": problem.ids_per_row} if problem.ids_per_row > 1 else {}
    if problem.ids_stride > problem.ids_per_row:
        told |= {"IDS_STRIDE": problem.ids_stride}
    told |= {"MASK_ROWS": problem.mask_rows} if problem.mask_rows else {}
    told |= {} if problem.scale is None else {"SCALE": float(problem.scale)}
    shape = "(ROWS, COLS)" if problem.is_dense else "(ROWS, INPUT_STRIDE)"
    shape = "(ROWS // INNER, COLS, INNER)" if problem.inner > 1 else shape
    return "\n".join([*(f"{name} = {value!r}" for name, value in told.items()), f"SHAPE = {shape}"])


def _unlike(variant: Variant, module: str, *, gaps: bool = False) -> Refusals:
    """Return what refuses arrays of another type or shape, of those of a module such as torch.

    With `gaps` the matrix's rows come with their gaps.
    """
    problem, x = variant.problem, _matrix(variant.problem)
    if problem.attends:
        return caches.unlike(variant, module)
    name = problem.dtype.array_name
    shape, cols, of_x = f"{x}.ndim != {3 if problem.inner > 1 else 2}", "cols", f"{x}.shape[1]"
    if variant.config.static_cols:
        shape, cols = f"{shape} or {of_x} != COLS", str(problem.cols)
    wanted = f"(outer, {cols}, inner)" if problem.inner > 1 else f"(rows, {cols})"
    if gaps:
        shape, of_x = f"{x}.ndim != 2 or {of_x} != INPUT_STRIDE", "COLS"
        wanted = f"(rows, {problem.input_stride}), gaps included"
    refusals = [
        (f"{x}.dtype != {module}.{name}", f"{x} must be of {name}"),
        (shape, f"{x} must have the shape {wanted}"),
    ]
    if problem.operator.is_gradient:
        refusals.append((f"grad.shape != {x}.shape", f"grad must have the shape of {x}"))
    if problem.mask is Mask.ADDITIVE:
        unlike = f"mask.ndim != 2 or mask.shape[1] != {of_x}"
        refusals.append((unlike, f"mask must have the shape (mask_rows, {problem.cols})"))
    if problem.mask is Mask.LENGTHS:
        unlike = f"lengths.shape != ({x}.shape[0],)"
        refusals.append((unlike, "lengths must have the shape (rows,)"))
    if problem.ids_dtype:
        shape = _ids_shape(problem, f"{x}.shape[0]", gaps=gaps)
        wanted = _ids_shape(problem, "rows", gaps=gaps)
        if problem.inner > 1:
            shape, wanted = f"{x}.shape[::2]", "(outer, inner)"
        wanted = wanted.replace("IDS_STRIDE)", f"{problem.ids_stride}), gaps included")
        wanted = wanted.replace("IDS", str(problem.ids_per_row))
        refusals += [
            (f"ids.dtype != {module}.{problem.ids_dtype}", f"ids must be of {problem.ids_dtype}"),
            (f"ids.shape != {shape}", f"ids must have the shape {wanted}"),
        ]
    return refusals + _unlike_numbers(problem, module)


def _unlike_numbers(problem: Problem, module: str) -> Refusals:
    """Return what refuses arrays of a number for each row that are of another type or shape."""
    x, kind = _matrix(problem), problem.dtype.arithmetic.array_name
    shape, wanted = f"({x}.shape[0],)", "(rows,)"
    if problem.inner > 1:
        shape, wanted = f"{x}.shape[::2]", "(outer, inner)"
    refusals = []
    for name in _of_rows(problem):
        refusals += [
            (f"{name}.dtype != {module}.{kind}", f"{name} must be of {kind}"),
            (f"{name}.shape != {shape}", f"{name} must have the shape {wanted}"),
        ]
    return refusals


def _laid_out(problem: Problem, contiguous: str, gap: str, strides: str) -> Refusals:
    """Return what refuses arrays that lie otherwise, by how a framework says how they lie."""
    x = _matrix(problem)
    placed = [x, "ids"] if problem.ids_dtype else [x]
    refusals = [(f"not {name}.{contiguous}", f"{name} must be contiguous") for name in placed]
    if not problem.is_dense:
        rows = [name for name in placed if name == x or problem.ids_per_row > 1]
        refusals = [
            (f"{name}.{gap.format(name)}", f"a row of {name} must have no gaps") for name in rows
        ]
    if problem.operator.is_gradient:
        unlike = f"grad.dtype != {x}.dtype or grad.{strides} != {x}.{strides}"
        refusals.append((unlike, f"grad must be of {x}'s type and layout"))
    return refusals


# ------------------------------------------------------------------ PyTorch


def torch(variant: Variant) -> dict[str, Any]:
    """Return what the program of PyTorch names besides; `given` is in Python."""
    problem, x = variant.problem, _matrix(variant.problem)
    refusals = _unlike(variant, "torch")
    if problem.attends:
        refusals += caches.laid_out_in_torch(problem)
    else:
        refusals += _laid_out(problem, "is_contiguous()", "stride(1) != 1", "stride()")
    for name in _arrays(problem):
        if name != x:
            refusals.append((f"{name}.device != {x}.device", f"{name} must be on {x}'s GPU"))
    arrays = dict.fromkeys(("input", "matrix", "array", "output"), x)
    arrays |= {name: name for name in ("grad", "mask", "lengths", "ids", "scratch")}
    arrays |= {name: name for name in ("query", *caches.CACHES)}
    arrays |= {name: name for name in _of_rows(problem)} | _results(problem)
    given = {
        **{name: f"{array}.data_ptr()" for name, array in arrays.items()},
        "rows": f"{x}.shape[0]",
        "outer": f"{x}.shape[0]",
        "cols": f"{x}.shape[1]",
        "inner": f"{x}.shape[2]",
        "mask_rows": "mask.shape[0]" if problem.mask is Mask.ADDITIVE else "mask_rows",
        "input_stride": f"{x}.stride(0)",
        "stride": f"{x}.stride(0)",
        "output_stride": "out.stride(0)",
        "ids_stride": "ids.stride(0)",
        "scale": "scale",
        **(caches.numbers(problem, "key.stride({})".format) if problem.attends else {}),
    }
    numbers = (number.dtype for number in scalars(problem).values())
    c_types = {POINTER: "c_void_p"} | {kind.array_name: kind.c_type for kind in numbers}
    return (
        _python(variant)
        | _operator(variant)
        | {"refusals": refusals, "given": given, "c_types": c_types}
    )


def _operator(variant: Variant) -> dict[str, Any]:
    """Return the name of the operator in torch.library, and its arguments and results by type."""
    problem = variant.problem
    # PyTorch replaces an operator by another one of its name: each kernel and problem has its own.
    unique = hashlib.sha256(f"{variant.digest} {problem.as_dict()}".encode()).hexdigest()[:8]
    typed = {name: f"{name}: Tensor" for name in _arrays(problem)}
    typed |= {"mask_rows": "mask_rows: int = MASK_ROWS"} if problem.mask is Mask.CAUSAL else {}
    typed |= {} if problem.scale is None else {"scale": "scale: float = SCALE"}
    # In place the operator returns what is asked for beside the output.
    made = list(_results(problem).values())[1 if problem.in_place else 0 :]
    returns = f"tuple[{', '.join(['Tensor'] * len(made))}]" if len(made) > 1 else "Tensor"
    return {
        "operator": f"emitted::{namespace(problem, variant.config)}_{unique}",
        "names": list(typed),
        "parameters": list(typed.values()),
        "made": ", ".join(made),
        "returns": returns if made else "None",
        "without_gradient": _without_gradient(problem),
    }


def _without_gradient(problem: Problem) -> list[str]:
    """Return what a backward pass says in lines; none where there is a gradient."""
    op, of_losses = problem.op, "torch.nn.functional.cross_entropy"
    if problem.attends:
        remedy = "call torch.nn.functional.scaled_dot_product_attention where one is needed"
        return [f"{op} has no gradient: ", remedy]
    told = f"{op} has no gradient of its own: "
    if problem.operator.is_gradient:
        return [told, f"call torch.{problem.operator.forward} where a second one is needed"]
    if not (problem.has_target and problem.fills_rows):
        return []
    if not problem.operator.reduces:
        return [told, f"call {of_losses} where a second one is needed"]
    own = "give x.detach() and take x's gradient from the result, "
    return [told, own, f"or call {of_losses}"]


# ------------------------------------------------------------------ CuPy


def cupy(variant: Variant) -> dict[str, Any]:
    """Return what the program of CuPy names besides; `given` is of the kernels, in Python.

    Raises InvalidInput for what CuPy has no type or no launch for.
    """
    _check_for_cupy(variant)
    problem, x = variant.problem, _matrix(variant.problem)
    out = _results(problem)["output"]
    key_stride = "key.strides[{}] // key.itemsize".format
    numbers = {
        **(caches.numbers(problem, key_stride) if problem.attends else {}),
        "rows": "rows",
        "cols": "cols",
        "inner": f"{x}.shape[2]",
        "mask_rows": "mask.shape[0]" if problem.mask is Mask.ADDITIVE else "mask_rows",
        "input_stride": f"{x}.strides[0] // {x}.itemsize",
        "output_stride": f"{out}.strides[0] // {out}.itemsize",
        "ids_stride": "ids.strides[0] // ids.itemsize",
        "scale": "scale",
    }
    types = {name: number.dtype.array_name for name, number in scalars(problem).items()}
    given = {
        "input": x,
        **{name: name for name in ("grad", "mask", "lengths", "ids", "scratch")},
        **{name: name for name in _of_rows(problem)},
        **{name: name for name in ("query", *caches.CACHES)},
        **_results(problem),
        **{n: f"numpy.{types[n]}({text})" for n, text in numbers.items() if n in types},
    }
    plan = LaunchPlan.read(variant.source)
    assert plan is not None, "the templates write a plan into every header"
    return _python(variant) | {
        "refusals": _unlike(variant, "cupy") + _not_for_cupy(variant),
        "given": given,
        "planned": partial(_planned, plan),
    }


def _check_for_cupy(variant: Variant) -> None:
    problem = variant.problem
    unknown = [dtype for dtype in (problem.dtype, problem.output_dtype) if not dtype.in_numpy]
    if unknown:
        raise InvalidInput(
            f"CuPy's own functions know no {unknown[0]}, and a program checks the kernel beside "
            "them: write it --for torch, jax or cpp"
        )
    if any(launch.overlaps for launch in variant.launches):
        other = "emit the kernel without --overlapped"
        if variant.config.launches == "two-overlapped":
            config = replace(variant.config, launches="two").to_json(brief=True)
            other = f"emit one that waits: {command_of('emit', config, problem)} --for cupy"
        raise InvalidInput(
            "CuPy cannot launch a kernel that overlaps the one before it: write the program --for "
            f"torch, jax or cpp, or {other}"
        )
    cluster = max(launch.cluster for launch in variant.launches)
    if cluster > LARGEST_CLUSTER:
        raise InvalidInput(
            f"CuPy cannot launch clusters of {cluster} blocks, only of {LARGEST_CLUSTER} at most: "
            "write the program --for torch, jax or cpp, or emit a config of smaller clusters"
        )


def _not_for_cupy(variant: Variant) -> Refusals:
    """Return what refuses that which launch() refuses in C++."""
    problem, config, x = variant.problem, variant.config, _matrix(variant.problem)
    if problem.attends:
        return caches.laid_out_in_cupy()
    split = WorkSplit(problem, config)
    contiguous, gap = "flags.c_contiguous", "strides[1] != {}.itemsize"
    refusals = _laid_out(problem, contiguous, gap, "strides")
    if problem.mask in (Mask.CAUSAL, Mask.ADDITIVE):
        rows = "mask_rows" if problem.mask is Mask.CAUSAL else "mask.shape[0]"
        refusals.append((f"{rows} < 1", f"{rows} must be 1 at least"))
    if not split.only_whole_vectors:
        return refusals
    number = config.vector_bytes
    for name in _arrays(problem):
        if name not in ("lengths", "ids", *_of_rows(problem)):
            sentence = f"{name} must begin at a multiple of {number} bytes"
            refusals.append((f"{name}.data.ptr % {number}", sentence))
    if not problem.is_dense:
        sentence = f"rows of {x} must begin at multiples of {number} bytes"
        refusals.append((f"{x}.strides[0] % {number}", sentence))
    if split.across_rows:
        sentence = f"the last axis must have a multiple of {split.width} elements"
        refusals.append((f"{x}.shape[2] % {split.width}", sentence))
    elif not config.static_cols:
        sentence = f"the number of columns must be a multiple of {split.row_width}"
        refusals.append((f"{x}.shape[1] % {split.row_width}", sentence))
    return refusals


def _planned(plan: LaunchPlan, name: str) -> str:
    """Return a number of a header as Python of `rows` and `cols`."""
    text = _of_rows_and_cols(plan, name).replace("/", "//")
    return re.sub(r"\((\w+)\)", r"\1", text)


def _of_rows_and_cols(plan: LaunchPlan, name: str) -> str:
    """Return the number's expression, with values or expressions in the place of other names."""

    def value(found: re.Match[str]) -> str:
        word = found[0]
        if word in ("rows", "cols"):
            return word
        if word in plan.numbers:
            return f"({_of_rows_and_cols(plan, word)})"
        return str(plan.value(word))

    return re.sub(r"sizeof\(\w+\)|[A-Za-z_]\w*", value, plan.numbers[name])


# ------------------------------------------------------------------ JAX


def jax(variant: Variant) -> dict[str, Any]:
    """Return what the program of JAX names besides; `given` is in C++, by what XLA passes."""
    problem = variant.problem
    # Numbers that no array tells: C++'s type, NumPy's, and the name of both.
    number = problem.dtype.arithmetic
    kinds = (number.cuda.name, number.array_name)
    numbers = [("int64_t", "int64", "mask_rows")] if problem.mask is Mask.CAUSAL else []
    numbers += [] if problem.scale is None else [(*kinds, "scale")]
    return _python(variant) | {
        "refusals": _unlike(variant, "jnp", gaps=not problem.is_dense),
        "attributes": [f"{name}=numpy.{kind}({name})" for _, kind, name in numbers],
        "bound": _bound(variant, [(kind, name) for kind, _, name in numbers]),
        "given": _given_to_launch(variant),
        "part": _part(problem, "COLS"),
        "example_part": "",
    }


def _bound(variant: Variant, numbers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what XLA passes to the handler: C++'s declaration, and how it is asked for."""
    problem = variant.problem
    bound = [("cudaStream_t stream", ".Ctx<ffi::PlatformStream<cudaStream_t>>()")]
    if variant.config.launches != "one":
        kind = "ffi::ScratchAllocator"
        bound.append((f"{kind} allocator", f".Ctx<{kind}>()"))
    for operand in inputs(problem):
        kind = f"ffi::Buffer<ffi::{operand.dtype.xla_name}>"
        bound.append((f"{kind} {operand.name}", f".Arg<{kind}>()"))
    for result in results(problem):
        kind = f"ffi::Buffer<ffi::{result.dtype.xla_name}>"
        bound.append((f"ffi::Result<{kind}> {result.name}", f".Ret<{kind}>()"))
    return [*bound, *((f"{kind} {name}", f'.Attr<{kind}>("{name}")') for kind, name in numbers)]


def _given_to_launch(variant: Variant) -> dict[str, str]:
    """Return what each argument of `launch` is. In place the output has the input's memory."""
    problem, config = variant.problem, variant.config
    same = problem.output_dtype is problem.dtype
    element = "Element" if same else "OutputElement"
    out = f"static_cast<kernel::{element}*>(output->untyped_data())"
    too = {one.name: one.dtype.cuda.name for one in results(problem)[1:]}
    source = "static_cast<const kernel::Element*>({}.untyped_data())"
    number = problem.dtype.arithmetic.cuda.name
    has_state = config.splits_launches and not problem.attends
    state = "kernel::State" if has_state else number
    additive = problem.mask is Mask.ADDITIVE
    # Arrays of JAX have no gaps: of rows that lie further apart the columns are the example's.
    cols = "static_cast<int>(input.dimensions()[1])" if problem.is_dense else str(problem.cols)
    return {
        **{n: source.format(n) for n in ("input", "grad", "mask", "query", *caches.CACHES)},
        **{n: f"static_cast<const {number}*>({n}.untyped_data())" for n in _of_rows(problem)},
        **dict.fromkeys(("output", "matrix", "array"), out),
        **{n: f"static_cast<{kind}*>({n}->untyped_data())" for n, kind in too.items()},
        "lengths": "static_cast<const int*>(lengths.untyped_data())",
        "ids": "static_cast<const kernel::Id*>(ids.untyped_data())",
        "scratch": f"static_cast<{state}*>(*scratch)",
        "rows": "input.dimensions()[0]",
        "outer": "input.dimensions()[0]",
        "cols": cols,
        "inner": "input.dimensions()[2]",
        "mask_rows": "mask.dimensions()[0]" if additive else "mask_rows",
        "scale": "scale",
        "input_stride": str(problem.input_stride),
        "output_stride": str(problem.output_stride),
        "stride": str(problem.input_stride),
        "ids_stride": str(problem.ids_stride),
        **(caches.numbers_in_xla(problem) if problem.attends else {}),
    }


# ------------------------------------------------------------------ the programs


_FRAMEWORKS: dict[str, tuple[str, str, Callable[[Variant], dict[str, Any]]]] = {
    "torch": ("_torch.py", "torch.py.j2", torch),
    "cupy": ("_cupy.py", "cupy.py.j2", cupy),
    "jax": ("_jax.py", "jax.py.j2", jax),
    "cpp": ("_main.cu", "cpp.cu.j2", lambda _: {}),
}
"""By framework: how the names of its programs end, their template, and what that names besides."""

FRAMEWORKS = tuple(_FRAMEWORKS)


class Program(NamedTuple):
    """A program that runs an emitted kernel, and checks it, as it stands beside the kernel."""

    path: Path
    text: str


def program_for(framework: str, variant: Variant, source: Path) -> Program:
    """Return the program for a framework that runs a variant from its source file.

    Raises InvalidInput for what the framework cannot launch.
    """
    name = source.name
    if source.suffix != ".cu" or not name.isprintable() or '"' in name or "\\" in name:
        raise InvalidInput(
            f"a program cannot build a file of the name {shown(name)}: name an --output that ends "
            "in .cu, without quotation marks and backslashes"
        )
    ending, template, names = _FRAMEWORKS[framework]
    context = program_names(variant, name) | names(variant)
    text = rendered(f"programs/{template}", context) + "\n"
    return Program(source.with_name(f"{source.stem}{ending}"), text)
