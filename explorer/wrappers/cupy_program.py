"""A program of CuPy: NVRTC compiles the emitted file, whose kernels CuPy launches."""

import re

from explorer.codegen import LaunchPlan, Variant
from explorer.model.dtype import DType
from explorer.model.errors import InvalidInput
from explorer.model.problem import Mask
from explorer.wrappers.example import Dialect, Example, program_text, refusal, source_lines

_CUPY = Dialect(module="cupy", cast="astype", softmax="cupyx.scipy.special.")

LARGEST_CLUSTER = 8
"""Blocks of a cluster that a kernel may have without an attribute that CuPy does not set."""


def cupy_program(variant: Variant, file: str) -> str:
    """Return a program that runs the kernel of a file on arrays of CuPy.

    Raises InvalidInput for a kernel that CuPy cannot launch.
    """
    _check(variant)
    example = Example(variant, _CUPY)
    head = [
        f'"""Run the kernel of {file} on arrays of CuPy.',
        "",
        "The result is checked beside CuPy's own. It needs a GPU; NVRTC compiles the kernel.",
        '"""',
        "",
        "import sys",
        "from pathlib import Path",
        "",
        "import cupy",
        "import cupyx.scipy.special",
        *(["import numpy"] if _numbers(example) else []),
        "",
        *source_lines(file),
        'OPTIONS = {"options": ("-std=c++17",), "backend": "nvrtc"}',
        "MODULE = cupy.RawModule(code=SOURCE.read_text(), **OPTIONS)",
        *example.constants,
    ]
    return program_text(head, _function(example), example.truth, _main(example))


def _check(variant: Variant) -> None:
    """Raise InvalidInput for what CuPy has no type or no launch for."""
    problem = variant.problem
    if DType.BF16 in (problem.dtype, problem.output_dtype):
        raise InvalidInput(
            "CuPy's own softmax knows no bf16, beside which a program could check the kernel: "
            "write it --for torch, jax or cpp"
        )
    if any(launch.overlaps for launch in variant.launches):
        raise InvalidInput(
            "CuPy cannot launch a kernel that overlaps the one before it: write the program --for "
            "torch, jax or cpp, or emit a kernel whose launches do not overlap, such as one with "
            '"launches":"two" instead of "two-overlapped", or one without --overlapped'
        )
    cluster = max(launch.cluster for launch in variant.launches)
    if cluster > LARGEST_CLUSTER:
        raise InvalidInput(
            f"CuPy cannot launch clusters of {cluster} blocks, only of {LARGEST_CLUSTER} at most: "
            "write the program --for torch, jax or cpp, or emit a config of smaller clusters"
        )


_NUMPY = {
    "rows": "int64",
    "cols": "int32",
    "inner": "int64",
    "mask_rows": "int64",
    "input_stride": "int64",
    "output_stride": "int64",
}


def _numbers(example: Example) -> list[str]:
    """The numbers that kernels take."""
    taken = example.variant.launches[0].arguments
    return [name for name in taken if name in _NUMPY or name == "scale"]


def _function(example: Example) -> list[str]:
    """The function that launches the kernels on arrays."""
    problem, x = example.problem, example.x
    lines = [
        f"def {problem.op}({example.signature}):",
        f'    """{example.what}, on the current stream."""',
        *example.refusals,
        *_layout_refusals(example),
    ]
    if problem.mask is Mask.ADDITIVE:
        lines.append("    mask = cupy.ascontiguousarray(mask, x.dtype)")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = cupy.ascontiguousarray(lengths, cupy.int32)")
    out = x
    if not problem.in_place:
        out, dtype = "out", example.dtype(problem.output_dtype)
        shape, part = f"{x}.shape", ""
        if not problem.is_dense:
            shape, part = f"({x}.shape[0], OUTPUT_STRIDE)", example.part
        lines.append(f"    out = cupy.empty({shape}, {dtype}){part}")
    # CuPy launches a block at least.
    lines += [f"    if {x}.size == 0:", f"        return {out}"]
    return [*lines, *_launches(example), f"    return {out}"]


def _launches(example: Example) -> list[str]:
    """Lines that launch the kernels of an example, one after the other."""
    plan = LaunchPlan.read(example.variant.source)
    assert plan is not None, "the templates write a plan into every header"
    x, first = example.x, example.variant.launches[0]
    rows = f"{x}.shape[0] * {x}.shape[2]" if example.problem.inner > 1 else f"{x}.shape[0]"
    lines = [f"    rows = {rows}"]
    lines += [f"    cols = {x}.shape[1]"] if "cols" in first.arguments else []
    if "scratch" in plan.numbers:
        lines.append(f"    size = {_python(plan, 'scratch')}")
        lines.append("    scratch = cupy.empty(size, cupy.uint8)")
    lines.append(f"    blocks = {_python(plan, 'blocks')}")
    if first.blocks_per_sm:
        lines.append('    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]')
        lines.append(f"    blocks = min(blocks, {first.blocks_per_sm} * sms)")
    passed = _passed(example)
    lines += ["    arguments = ("]
    lines += [f"        {passed[name]}," for name in first.arguments]
    lines += ["    )"]
    shared = ""
    if first.shared_bytes:
        lines.append(f"    shared = {_python(plan, 'shared')}")
        shared = ", shared_mem=shared"
    for launch in example.variant.launches:
        lines.append(f'    kernel = MODULE.get_function("{launch.entry}")')
        lines += ["    kernel.max_dynamic_shared_size_bytes = shared"] if shared else []
        lines.append(f"    kernel((blocks,), ({launch.block},), arguments{shared})")
    return lines


def _python(plan: LaunchPlan, name: str) -> str:
    """A number of a header as Python of `rows` and `cols`."""
    text = _of_rows_and_cols(plan, name).replace("/", "//")
    return re.sub(r"\((\w+)\)", r"\1", text)


def _of_rows_and_cols(plan: LaunchPlan, name: str) -> str:
    """The number's expression, with values or expressions in the place of all other names."""

    def value(found: re.Match[str]) -> str:
        word = found[0]
        if word in ("rows", "cols"):
            return word
        if word in plan.numbers:
            return f"({_of_rows_and_cols(plan, word)})"
        return str(plan.value(word))

    return re.sub(r"sizeof\(\w+\)|[A-Za-z_]\w*", value, plan.numbers[name])


def _passed(example: Example) -> dict[str, str]:
    """What each argument of the kernels is, in Python."""
    problem, x = example.problem, example.x
    out = x if problem.in_place else "out"
    additive = problem.mask is Mask.ADDITIVE
    numbers = {
        "rows": "rows",
        "cols": "cols",
        "inner": f"{x}.shape[2]",
        "mask_rows": "mask.shape[0]" if additive else "mask_rows",
        "input_stride": f"{x}.strides[0] // {x}.itemsize",
        "output_stride": f"{out}.strides[0] // {out}.itemsize",
    }
    return {
        "input": x,
        "output": out,
        **{name: name for name in ("grad", "mask", "lengths", "scratch")},
        **{name: f"numpy.{_NUMPY[name]}({text})" for name, text in numbers.items()},
        "scale": f"numpy.{'float64' if problem.dtype is DType.F64 else 'float32'}(scale)",
    }


def _layout_refusals(example: Example) -> list[str]:
    """Lines that refuse what launch() refuses in C++."""
    problem, x, split = example.problem, example.x, example.split
    lines = refusal(f"not {x}.flags.c_contiguous", f"{x} must be contiguous")
    if not problem.is_dense:
        lines = refusal(f"{x}.strides[1] != {x}.itemsize", f"a row of {x} must have no gaps")
    if problem.op.is_backward:
        unlike = f"grad.dtype != {x}.dtype or grad.strides != {x}.strides"
        lines += refusal(unlike, f"grad must be of {x}'s type and layout")
    if problem.mask in (Mask.CAUSAL, Mask.ADDITIVE):
        rows = "mask_rows" if problem.mask is Mask.CAUSAL else "mask.shape[0]"
        lines += refusal(f"{rows} < 1", f"{rows} must be 1 at least")
    if not split.only_whole_vectors:
        return lines
    number = example.config.vector_bytes
    vectors = [name for name in example.arrays if name != "lengths"]
    for name in vectors:
        sentence = f"{name} must begin at a multiple of {number} bytes"
        lines += refusal(f"{name}.data.ptr % {number}", sentence)
    if not problem.is_dense:
        sentence = f"rows of {x} must begin at multiples of {number} bytes"
        lines += refusal(f"{x}.strides[0] % {number}", sentence)
    if split.across_rows:
        sentence = f"the last axis must have a multiple of {split.width} elements"
        lines += refusal(f"{x}.shape[2] % {split.width}", sentence)
    elif not example.config.static_cols:
        sentence = f"the number of columns must be a multiple of {split.row_width}"
        lines += refusal(f"{x}.shape[1] % {split.row_width}", sentence)
    return lines


def _main(example: Example) -> list[str]:
    problem, x = example.problem, example.x
    dtype = example.dtype(problem.dtype)
    part = "" if problem.is_dense else "[:, :COLS]"
    normal = "cupy.random.standard_normal(SHAPE)"
    lines = ["def main():", '    """Run it on an example."""', "    cupy.random.seed(0)"]
    if problem.op.is_backward:
        lines.append(f"    x = {normal}")
        forward = f"cupyx.scipy.special.{problem.op.forward}"
        lines.append(f"    y = {forward}(x, 1).astype({dtype}){part}")
        lines.append(f"    grad = {normal}.astype({dtype}){part}")
    else:
        lines.append(f"    x = {normal}.astype({dtype}){part}")
    if problem.mask is Mask.ADDITIVE:
        lines.append(f"    mask = cupy.random.standard_normal((MASK_ROWS, COLS)).astype({dtype})")
    elif problem.mask is Mask.LENGTHS:
        lines.append("    lengths = cupy.random.randint(1, COLS + 1, ROWS, dtype=cupy.int32)")
    call = f"{problem.op}({', '.join(example.arrays)})"
    if problem.in_place:
        lines.append(f"    result, {x} = {x}, {x}.copy()")
        return [*lines, f"    {call.replace(f'({x}', '(result', 1)}", *example.report]
    return [*lines, f"    result = {call}", *example.report]
